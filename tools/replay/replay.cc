// SPDX-License-Identifier: Apache-2.0
#include "replay/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "replay/captures.h"
#include "replay/holders.h"

namespace weir {
namespace {

constexpr std::uint64_t kProgressEvery = 4096;

ReplayFigures operator-(ReplayFigures now, const ReplayFigures& before) {
  now.trace_time = now.trace_time - before.trace_time;
  now.driver_time = now.driver_time - before.driver_time;
  for (int call = 0; call < kDeviceCalls; ++call) {
    now.driver_calls[call] -= before.driver_calls[call];
  }
  now.fences -= before.fences;
  now.stream_waits -= before.stream_waits;
  now.host_waits -= before.host_waits;
  if (now.races) *now.races -= before.races.value_or(0);
  return now;
}

// One replay under way.
class Replay {
 public:
  Replay(const Trace& trace, ReplayDevice& device, const ReplayOptions& options)
      : trace_(trace),
        device_(device),
        options_(options),
        heap_(device.device(),
              {.limit = options.limit,
               .reuse = options.policy,
               .trust = options.trust,
               .memory = options.memory,
               .addresses = options.addresses},
              options.watcher),
        captures_(device, heap_, options.graph_orders),
        pointers_(trace.blocks.size()) {}

  Status open_streams();
  ReplayReport run();

 private:
  using Failure = std::optional<ReplayFailure>;

  Failure run_pass();
  Failure run_op(const TraceOp& op);
  Failure allocate(const TraceOp& op);
  Failure free(const TraceOp& op);
  Failure fence(const TraceOp& op);
  // `user` works on the block until `until`, and takes a fence on it.
  Failure use_elsewhere(const TraceOp& op, std::uint32_t user, Nanoseconds until);
  // Gives back what the program never freed.
  Failure free_rest();
  Failure check(std::uint32_t line) const;
  Failure failed(std::uint32_t line, const Error& error) const;

  BlockUse use(std::uint32_t block) const {
    return {pointers_[block], trace_.blocks[block].bytes, options_.seed + block};
  }
  Stream stream_of(std::uint32_t block) const { return streams_[trace_.blocks[block].stream]; }
  Nanoseconds at(std::int64_t time_us) const {
    return pass_start_ + Nanoseconds{(time_us - trace_.start_us) * 1000};
  }
  ReplayFigures figures_so_far() const;
  Failure begin_phase(const TraceOp& op);
  Failure end_capture(std::uint32_t line);
  void note_phase(const TraceOp& op);
  void note_progress();

  // Constant after open_streams().
  const Trace& trace_;
  ReplayDevice& device_;
  const ReplayOptions& options_;
  std::vector<Stream> streams_;  // the trace's; and one more, if it has only one

  DeviceHeap heap_;
  Captures captures_;
  std::vector<void*> pointers_;          // of the blocks that are allocated now
  std::vector<Nanoseconds> busy_until_;  // of streams_, with late uses
  Nanoseconds pass_start_;
  unsigned pass_ = 0;
  std::uint64_t done_ = 0;  // operations
};

Status Replay::open_streams() {
  const std::size_t wanted = std::max<std::size_t>(trace_.streams.size(), 2);
  std::vector<std::uint64_t> numbers = trace_.streams;
  std::sort(numbers.begin(), numbers.end());
  std::uint64_t unused = 0;
  for (const std::uint64_t number : numbers) unused += number == unused;
  for (std::size_t i = 0; i < wanted; ++i) {
    Result<Stream> stream = device_.new_stream();
    if (!stream.ok()) return stream.error();
    streams_.push_back(*stream);
    if (options_.watcher != nullptr) {
      options_.watcher->on_stream(stream->id,
                                  i < trace_.streams.size() ? trace_.streams[i] : unused++);
    }
  }
  busy_until_.resize(wanted);
  return {};
}

ReplayReport Replay::run() {
  ReplayReport report;
  ReplayFigures before;
  Bytes peak_reserved;
  const Result<MemoryInfo> memory_before = device_.memory();
  while (pass_ < options_.passes && !report.failure) {
    ++pass_;
    report.failure = run_pass();
    if (pass_ == options_.passes || report.failure) {
      // Between passes the program does not stop; the heap's end needs all work to be done.
      const Status finished = device_.finish();
      if (!report.failure && !finished.ok()) {
        report.failure = failed(trace_.lines, finished.error());
      }
    }
    const ReplayFigures now = figures_so_far();
    report.passes.push_back(now - before);
    before = now;
    peak_reserved = std::max(peak_reserved, now.peak_reserved);
  }
  if (report.failure && !trace_.is_of_file) report.failure->line = 0;
  report.all = before;
  report.all.peak_reserved = peak_reserved;
  const Result<MemoryInfo> memory = device_.memory();
  if (memory_before.ok() && memory.ok() && memory->free <= memory_before->free) {
    report.driver_reserved = memory_before->free - memory->free;
  }
  report.layouts = heap_.layouts();
  report.first_race = device_.first_race();
  report.graphs = captures_.made();
  return report;
}

Replay::Failure Replay::run_pass() {
  pass_start_ = device_.device().now();
  if (ReplayWatcher* watcher = options_.watcher) watcher->on_pass_begin(pass_start_);
  heap_.reset_peaks();
  Failure failure;
  for (const TraceOp& op : trace_.ops) {
    device_.advance_to(at(op.time_us));
    if (failure = run_op(op); failure) break;
    if (options_.validate && (failure = check(op.line))) break;
    if (++done_ % kProgressEvery == 0) note_progress();
  }
  if (!failure) failure = end_capture(trace_.lines);
  if (ReplayWatcher* watcher = options_.watcher) watcher->on_pass_end(device_.device().now());
  if (!failure) failure = free_rest();
  captures_.drop_graphs();
  device_.advance_to(at(trace_.end_us));
  note_progress();
  return failure;
}

Replay::Failure Replay::run_op(const TraceOp& op) {
  switch (op.kind) {
    case TraceOp::Kind::allocate:
      return allocate(op);
    case TraceOp::Kind::free:
      return free(op);
    case TraceOp::Kind::fence:
      return fence(op);
    case TraceOp::Kind::marker:
      return begin_phase(op);
    case TraceOp::Kind::wait:
      return std::nullopt;  // the recorded heap's own: this one decides anew
  }
  return std::nullopt;
}

Replay::Failure Replay::allocate(const TraceOp& op) {
  const TraceBlock& block = trace_.blocks[op.target];
  const Stream stream = streams_[block.stream];
  if (const Status used = captures_.use(stream); !used.ok()) return failed(op.line, used.error());
  Result<void*> pointer = heap_.allocate(block.bytes, stream);
  if (!pointer.ok()) return failed(op.line, pointer.error());
  pointers_[op.target] = *pointer;
  if (*pointer == nullptr) return std::nullopt;  // of zero bytes
  const Status written = device_.write(stream, use(op.target));
  return written.ok() ? std::nullopt : failed(op.line, written.error());
}

Replay::Failure Replay::free(const TraceOp& op) {
  void*& pointer = pointers_[op.target];
  if (pointer == nullptr) return std::nullopt;
  const TraceBlock& block = trace_.blocks[op.target];
  const Status used = captures_.use(stream_of(op.target));
  if (!used.ok()) return failed(op.line, used.error());
  const Status read = device_.read(stream_of(op.target), use(op.target), kShortWork);
  if (!read.ok()) return failed(op.line, read.error());
  if (block.used_until_us()) {
    const auto user = static_cast<std::uint32_t>((block.stream + 1) % streams_.size());
    Failure failure = use_elsewhere(op, user, at(*block.used_until_us()));
    if (failure) return failure;
  }
  const Status freed = heap_.deallocate(std::exchange(pointer, nullptr));
  return freed.ok() ? std::nullopt : failed(op.line, freed.error());
}

Replay::Failure Replay::fence(const TraceOp& op) {
  if (pointers_[op.target] == nullptr) return std::nullopt;
  return use_elsewhere(op, op.stream, at(op.time_us));
}

Replay::Failure Replay::use_elsewhere(const TraceOp& op, std::uint32_t user, Nanoseconds until) {
  if (const Status used = captures_.use(streams_[user]); !used.ok()) {
    return failed(op.line, used.error());
  }
  const Status ordered = device_.order(streams_[user], stream_of(op.target));
  if (!ordered.ok()) return failed(op.line, ordered.error());
  // What the stream has to do first ends at busy_until_ at least.
  const Nanoseconds start = std::max(at(op.time_us), busy_until_[user]);
  const Nanoseconds duration = std::max(kShortWork, until - start);
  busy_until_[user] = start + duration;
  const Status read = device_.read(streams_[user], use(op.target), duration);
  if (!read.ok()) return failed(op.line, read.error());
  if (options_.leave_out_fences) return std::nullopt;
  const Status fenced = heap_.fence(pointers_[op.target], streams_[user]);
  return fenced.ok() ? std::nullopt : failed(op.line, fenced.error());
}

Replay::Failure Replay::free_rest() {
  for (std::uint32_t block = 0; block < pointers_.size(); ++block) {
    if (pointers_[block] == nullptr) continue;
    TraceOp op{TraceOp::Kind::free, trace_.blocks[block].stream, block, trace_.lines,
               trace_.end_us};
    if (Failure failure = free(op)) return failure;
    if (!options_.validate) continue;
    if (Failure failure = check(op.line)) return failure;
  }
  return std::nullopt;
}

Replay::Failure Replay::check(std::uint32_t line) const {
  const std::vector<std::string> broken = heap_.validate();
  if (broken.empty()) return std::nullopt;
  return ReplayFailure{
      ReplayFailure::Kind::unsound, line, pass_, "the heap is not sound: " + broken.front(), {}};
}

Replay::Failure Replay::failed(std::uint32_t line, const Error& error) const {
  ReplayFailure failure{ReplayFailure::Kind::device, line, pass_, error.message(), {}};
  if (error.code() == ErrorCode::out_of_memory) {
    failure.kind = ReplayFailure::Kind::out_of_memory;
    failure.held = describe_holders(heap_.snapshot(), trace_, streams_);
  } else if (error.code() != ErrorCode::device && error.code() != ErrorCode::unavailable) {
    // The trace was checked when it was read: what was refused here is no mistake of the program.
    failure.kind = ReplayFailure::Kind::unsound;
  }
  return failure;
}

ReplayFigures Replay::figures_so_far() const {
  const MeteredDevice& device = device_.device();
  const Statistics statistics = heap_.statistics();
  ReplayFigures figures;
  figures.peak_reserved = Bytes{statistics.reserved_bytes.peak};
  figures.trace_time = {trace_.duration().count * pass_};
  for (int call = 0; call < kDeviceCalls; ++call) {
    figures.driver_calls[call] = device.calls(static_cast<DeviceCall>(call));
  }
  figures.driver_time = device.total_time();
  figures.fences = statistics.fences;
  figures.stream_waits = statistics.stream_waits;
  figures.host_waits = device.host_waits();
  figures.races = device_.races();
  figures.reserved = Bytes{statistics.reserved_bytes.current};
  figures.pages = statistics.pages.current;
  figures.mappings = statistics.mappings.current;
  return figures;
}

Replay::Failure Replay::begin_phase(const TraceOp& op) {
  if (Failure failure = end_capture(op.line)) return failure;
  if (trace_.markers[op.target].starts_with("capture")) captures_.begin();
  note_phase(op);
  return std::nullopt;
}

Replay::Failure Replay::end_capture(std::uint32_t line) {
  const Status ended = captures_.end();
  return ended.ok() ? std::nullopt : failed(line, ended.error());
}

void Replay::note_phase(const TraceOp& op) {
  const std::string& name = trace_.markers[op.target];
  if (options_.watcher != nullptr) options_.watcher->on_phase(name, device_.device().now());
}

void Replay::note_progress() {
  if (options_.progress) options_.progress(done_, trace_.ops.size() * options_.passes);
}

}  // namespace

double ReplayReport::ratio(const ReplayFigures& figures) const {
  if (peak_live == 0_B) return 1;
  return static_cast<double>(figures.peak_reserved.count) / static_cast<double>(peak_live.count);
}

Result<ReplayReport> replay(const Trace& trace, ReplayDevice& device,
                            const ReplayOptions& options) {
  Replay run(trace, device, options);
  if (Status status = run.open_streams(); !status.ok()) return status.error();
  ReplayReport report = run.run();
  report.trace = trace.name;
  report.device = device.name();
  report.options = options;
  report.peak_live = trace.peak_live;
  report.trace_time = trace.duration();
  report.blocks = trace.blocks.size();
  report.streams = trace.streams.size();
  report.late_uses = static_cast<std::uint64_t>(
      std::count_if(trace.blocks.begin(), trace.blocks.end(),
                    [](const TraceBlock& block) { return block.used_until_us().has_value(); }));
  return report;
}

}  // namespace weir
