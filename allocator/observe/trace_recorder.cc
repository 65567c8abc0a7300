#include "weir/trace_recorder.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <iterator>
#include <mutex>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include "observe/event_ring.h"

namespace weir {
namespace {

constexpr std::chrono::milliseconds kPoll{2};
constexpr std::size_t kWriteBytes = 1 << 16;

bool is_recorded(EventKind kind) {
  return kind == EventKind::allocate || kind == EventKind::deallocate || kind == EventKind::fence ||
         kind == EventKind::stream_wait || kind == EventKind::out_of_memory;
}

std::string json_string(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return quoted += '"';
}

// Turns events, in order, into lines. Not thread-safe.
class TraceFormatter {
 public:
  void header(std::string_view workload) {
    fmt::format_to(
        out(),
        "# {{\"workload\": {}, \"recorder\": \"weir\", \"columns\": \"op id bytes stream "
        "time_us; m = phase marker; u = fence: id stream time_us; w = wait: stream "
        "stream time_us\"}}\n",
        json_string(workload));
  }

  void event(const Event& event) {
    ++events_;
    // Threads read the clock before they reach the ring: keep the file's time from going back.
    time_us_ = std::max(time_us_, event.time.count / 1000);
    switch (event.kind) {
      case EventKind::allocate:
        allocate(event);
        break;
      case EventKind::deallocate:
        deallocate(event.address);
        break;
      case EventKind::fence:
        fence(event);
        break;
      case EventKind::stream_wait: {
        const std::uint64_t waiter = stream_number(event.stream);
        fmt::format_to(out(), "w {} {} {}\n", waiter, stream_number(event.other), time_us_);
        break;
      }
      case EventKind::out_of_memory:
        fmt::format_to(out(), "m out of memory: {} bytes on stream {}\n", event.requested.count,
                       stream_number(event.stream));
        break;
      default:
        break;
    }
  }

  void end(std::uint64_t dropped) {
    fmt::format_to(out(), "# end: {} events recorded, {} dropped\n", events_, dropped);
  }

  std::string& text() { return text_; }

 private:
  struct Block {
    std::uint64_t id, bytes, stream;
  };

  std::back_insert_iterator<std::string> out() { return std::back_inserter(text_); }

  std::uint64_t stream_number(std::uint64_t id) {
    return streams_.try_emplace(id, streams_.size()).first->second;
  }

  void allocate(const Event& event) {
    deallocate(event.address);  // does nothing, unless the event that freed it was dropped
    const Block block{next_id_++, event.requested.count, stream_number(event.stream)};
    live_.emplace(event.address.value, block);
    fmt::format_to(out(), "a {} {} {} {}\n", block.id, block.bytes, block.stream, time_us_);
  }

  void deallocate(Address address) {
    const auto found = live_.find(address.value);
    if (found == live_.end()) return;
    const Block block = found->second;
    live_.erase(found);
    for (const char kind : {'r', 'f'}) {
      fmt::format_to(out(), "{} {} {} {} {}\n", kind, block.id, block.bytes, block.stream,
                     time_us_);
    }
  }

  void fence(const Event& event) {
    const auto found = live_.find(event.address.value);
    if (found == live_.end()) return;  // the event that allocated it was dropped
    fmt::format_to(out(), "u {} {} {}\n", found->second.id, stream_number(event.other), time_us_);
  }

  std::string text_;
  std::unordered_map<std::uint64_t, Block> live_;             // by address
  std::unordered_map<std::uint64_t, std::uint64_t> streams_;  // Stream::id -> number in the file
  std::uint64_t next_id_ = 0, events_ = 0;
  std::int64_t time_us_ = 0;
};

}  // namespace

class TraceRecorder::Impl {
 public:
  Impl(gzFile file, std::string path, const TraceRecorderOptions& options)
      : path_(std::move(path)), file_(file), ring_(options.ring_events) {
    formatter_.header(options.workload);
    writer_ = std::thread([this] { run(); });
  }
  ~Impl() { (void)close(); }

  void on_event(const Event& event) {
    if (!is_recorded(event.kind) || !open_.load(std::memory_order_relaxed)) return;
    if (!ring_.push(event)) dropped_.fetch_add(1, std::memory_order_relaxed);
  }

  Status close() {
    if (!open_.exchange(false)) return {};
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    writer_.join();
    formatter_.end(dropped());
    write();
    if (const int code = gzclose(file_); code != Z_OK && error_.empty()) {
      error_ = code == Z_ERRNO ? std::strerror(errno) : zError(code);
    }
    if (error_.empty()) return {};
    return Error(ErrorCode::invalid_input,
                 fmt::format("{}: the recording could not be written: {}", path_, error_));
  }

  std::uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  // The writer thread.
  void run() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      lock.unlock();
      drain();
      lock.lock();
      wake_.wait_for(lock, kPoll, [this] { return stop_; });
    }
    lock.unlock();
    drain();
  }

  void drain() {
    while (const std::optional<Event> event = ring_.pop()) {
      formatter_.event(*event);
      if (formatter_.text().size() >= kWriteBytes) write();
    }
  }

  void write() {
    std::string& text = formatter_.text();
    if (error_.empty() && !text.empty() &&
        gzwrite(file_, text.data(), static_cast<unsigned>(text.size())) == 0) {
      int code = Z_OK;
      const char* why = gzerror(file_, &code);
      error_ = code == Z_ERRNO ? std::strerror(errno) : why;
    }
    text.clear();
  }

  const std::string path_;

  // The writer thread's, and close()'s after it ended.
  gzFile file_;
  TraceFormatter formatter_;
  std::string error_;

  // Self-synchronised.
  EventRing ring_;
  std::atomic<std::uint64_t> dropped_{0};
  std::atomic<bool> open_{true};

  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;  // guarded by mutex_
  std::thread writer_;
};

Result<std::unique_ptr<TraceRecorder>> TraceRecorder::open(const std::string& path,
                                                           const TraceRecorderOptions& options) {
  const bool compress = std::string_view(path).ends_with(".gz");
  const gzFile file = gzopen(path.c_str(), compress ? "wb1" : "wbT");
  if (file == nullptr) {
    return Error(ErrorCode::invalid_input,
                 fmt::format("{}: cannot be opened for writing: {}", path, std::strerror(errno)));
  }
  return std::unique_ptr<TraceRecorder>(
      new TraceRecorder(std::make_unique<Impl>(file, path, options)));
}

TraceRecorder::TraceRecorder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TraceRecorder::~TraceRecorder() = default;
void TraceRecorder::on_event(const Event& event) { impl_->on_event(event); }
Status TraceRecorder::close() { return impl_->close(); }
std::uint64_t TraceRecorder::dropped() const { return impl_->dropped(); }

}  // namespace weir
