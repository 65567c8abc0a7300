// SPDX-License-Identifier: Apache-2.0
#include "weir/recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "observe/event_ring.h"
#include "observe/own_thread.h"
#include "observe/recording_encoder.h"
#include "observe/recording_output.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;

// How often the writer looks: the ring must not fill up meanwhile.
constexpr std::chrono::milliseconds kPoll{1};
// What has waited so long is written, full block or not.
constexpr std::chrono::milliseconds kLongest{150};

struct Mark {
  Nanoseconds time;
  std::string text;
};

std::string name_of_program(const RecorderOptions& options) {
  return options.program.empty() ? program_invocation_short_name : options.program;
}

}  // namespace

class Recorder::Impl {
 public:
  Impl(std::unique_ptr<FileOutput> file, std::unique_ptr<KeptOutput> kept, std::size_t full,
       const RecorderOptions& options)
      : file_(std::move(file)),
        kept_(std::move(kept)),
        stacks_(options.stacks),
        generation_(fork_generation()),
        encoder_(file_ ? static_cast<RecordingOutput&>(*file_) : *kept_, options.stacks, full),
        ring_(options.ring_events) {
    encoder_.header(name_of_program(options), options.device, options.device_bytes);
    writer_ = start_quiet_thread([this] { run(); });
  }

  ~Impl() { (void)close(); }

  void on_event(const Event& event) {
    if (!open_.load(std::memory_order_relaxed) || forked()) return;
    if (!ring_.push(event)) dropped_.fetch_add(1, std::memory_order_relaxed);
  }

  void on_start(std::span<const Event> initial) {
    if (forked()) return;
    std::vector<Event> events(initial.begin(), initial.end());
    const std::lock_guard lock(mutex_);
    initial_ = std::move(events);
  }

  StackSource* stacks() const { return stacks_; }

  void mark(Nanoseconds time, std::string_view text) {
    if (forked()) return;
    const std::lock_guard lock(mutex_);
    marks_.push_back({time, std::string(text)});
  }

  Status flush() {
    if (forked()) return {};
    std::unique_lock lock(mutex_);
    const std::uint64_t wanted = ++flush_wanted_;
    wake_.notify_one();
    flushed_.wait(lock, [&] { return flush_done_ >= wanted || stop_; });
    return error_ ? Status(*error_) : Status();
  }

  Status write_to(const std::string& path) {
    if (kept_ == nullptr) {
      return Error(ErrorCode::invalid_input,
                   fmt::format("{}: only a flight recorder (Recorder::keep) keeps what it could "
                               "write there",
                               path));
    }
    if (forked()) return {};
    (void)flush();
    return kept_->write_to(path, dropped());
  }

  Status close() {
    if (forked() || !open_.exchange(false)) return {};
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    flushed_.notify_all();
    writer_.join();
    encoder_.end(dropped());
    return file_ == nullptr ? Status() : file_->close();
  }

  std::uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

  // Is this a child of the process that records?
  bool forked() const { return generation_ != fork_generation(); }

 private:
  // The writer thread.
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      const bool last = stop_;
      const std::uint64_t flush = flush_wanted_;
      lock.unlock();
      drain();
      take_marks();
      finish_if_due(last || flush > flush_done_);
      lock.lock();
      flush_done_ = flush;
      if (file_ != nullptr && !error_) note_error(file_->status());
      flushed_.notify_all();
      if (last) return;
      wake_.wait_for(lock, kPoll, [this] { return stop_ || flush_wanted_ > flush_done_; });
    }
  }

  void note_error(const Status& status) {
    if (!status) error_ = status.error();
  }

  void drain() {
    take_initial();
    // No more than the ring holds: threads that are at work could go on for ever.
    std::size_t left = ring_.capacity();
    while (left-- > 0) {
      const std::optional<Event> event = ring_.pop();
      if (!event) break;
      if (!begun_) {
        // They were there before the first event was.
        take_initial();
        begun_ = true;
      }
      if (!encoder_.has_unfinished()) oldest_ = Clock::now();
      encoder_.event(*event, dropped());
    }
  }

  void take_initial() {
    std::vector<Event> events;
    {
      const std::lock_guard lock(mutex_);
      events.swap(initial_);
    }
    if (!events.empty()) encoder_.initial(events);
  }

  void take_marks() {
    std::vector<Mark> marks;
    {
      const std::lock_guard lock(mutex_);
      marks.swap(marks_);
    }
    for (const Mark& mark : marks) encoder_.mark(mark.time, mark.text);
  }

  void finish_if_due(bool now) {
    if (now || (encoder_.has_unfinished() && Clock::now() - oldest_ >= kLongest)) {
      encoder_.finish_block();
    }
  }

  const std::unique_ptr<FileOutput> file_;  // one of the two
  const std::unique_ptr<KeptOutput> kept_;
  StackSource* const stacks_;
  const std::uint64_t generation_;

  // The writer thread's, and close()'s after it ended.
  RecordingEncoder encoder_;
  Clock::time_point oldest_;  // when the unfinished block was begun
  bool begun_ = false;

  // Self-synchronised.
  EventRing ring_;
  std::atomic<std::uint64_t> dropped_{0};
  std::atomic<bool> open_{true};

  std::mutex mutex_;
  std::condition_variable wake_, flushed_;
  // Guarded by mutex_.
  std::vector<Event> initial_;
  std::vector<Mark> marks_;
  std::uint64_t flush_wanted_ = 0, flush_done_ = 0;
  std::optional<Error> error_;
  bool stop_ = false;

  std::thread writer_;
};

Result<std::unique_ptr<Recorder>> Recorder::open(const std::string& path,
                                                 const RecorderOptions& options) {
  Result<std::unique_ptr<FileOutput>> file = FileOutput::open(path);
  if (!file) return std::move(file).error();
  return std::unique_ptr<Recorder>(new Recorder(
      std::make_unique<Impl>(*std::move(file), nullptr, recording_format::kFullBlock, options)));
}

// Blocks are much smaller than what is kept: one goes as a whole.
std::unique_ptr<Recorder> Recorder::keep(Bytes most, const RecorderOptions& options) {
  const std::size_t full =
      std::clamp<std::size_t>(most.count / 4, 1 << 10, recording_format::kFullBlock);
  return std::unique_ptr<Recorder>(new Recorder(
      std::make_unique<Impl>(nullptr, std::make_unique<KeptOutput>(most.count), full, options)));
}

Recorder::Recorder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
// In a child the writer is not there: what it shares with others would be waited for, for ever.
Recorder::~Recorder() {
  if (impl_->forked()) (void)impl_.release();
}
void Recorder::on_event(const Event& event) { impl_->on_event(event); }
void Recorder::on_start(std::span<const Event> initial) { impl_->on_start(initial); }
StackSource* Recorder::stacks() { return impl_->stacks(); }
void Recorder::mark(Nanoseconds time, std::string_view text) { impl_->mark(time, text); }
Status Recorder::flush() { return impl_->flush(); }
Status Recorder::write_to(const std::string& path) { return impl_->write_to(path); }
Status Recorder::close() { return impl_->close(); }
std::uint64_t Recorder::dropped() const { return impl_->dropped(); }

}  // namespace weir
