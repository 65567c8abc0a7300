// SPDX-License-Identifier: Apache-2.0
#include "look/replayed.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>

#include "look/streams.h"
#include "replay/failed_mark.h"
#include "replay/replay.h"

namespace weir {
namespace {

class Collector final : public ReplayWatcher {
 public:
  Collector(const Trace& trace, Recording& into, const TraceStacks& stacks)
      : trace_(trace), recording_(into), stacks_(stacks) {}

  void on_stream(std::uint64_t id, std::uint64_t number) override { numbers_[id] = number; }
  void on_pass_begin(Nanoseconds time) override { start_ = time, on_ = true; }
  void on_pass_end(Nanoseconds) override { on_ = false; }

  void on_phase(std::string_view name, Nanoseconds time) override {
    if (const auto failed = failed_mark(name); failed && failures_ < stacks_.failures.size()) {
      const TraceStacks::Failure& failure = stacks_.failures[failures_++];
      const Nanoseconds now = stacks_.has_times ? failure.time : Nanoseconds{counted_};
      recording_.events.push_back({.kind = EventKind::out_of_memory,
                                   .time = std::max(now, recording_.end()),
                                   .stream = failed->stream,
                                   .requested = Bytes{failed->bytes},
                                   .stack = failure.stack});
      return;
    }
    recording_.marks.push_back({stacks_.has_times && block_ >= stacks_.early_blocks
                                    ? time - start_
                                    : Nanoseconds{counted_},
                                std::string(name)});
  }

  void on_event(const Event& event) override {
    if (!on_ && event.kind != EventKind::pool_open && event.kind != EventKind::heap_open) return;
    Event kept = event;
    kept.time = time_of(event);
    kept.stream = number(event.stream);
    kept.other = number(event.other);
    if (event.kind == EventKind::allocate) kept.stack = next_stack();
    recording_.events.push_back(kept);
    if (event.kind == EventKind::allocate && block_ == stacks_.early_blocks) {
      recording_.initial = recording_.events.size();
    }
  }

 private:
  Nanoseconds time_of(const Event& event) {
    if (!on_ || block_ < stacks_.early_blocks) return {};
    if (stacks_.has_times) return event.time - start_;
    const bool counts = event.kind == EventKind::allocate || event.kind == EventKind::deallocate;
    return Nanoseconds{counts ? ++counted_ : counted_};
  }

  std::uint64_t number(std::uint64_t id) const {
    const auto found = numbers_.find(eager_stream(id));
    if (found == numbers_.end()) return id;
    return is_captured_stream(id) ? captured_stream(found->second) : found->second;
  }

  // Blocks are allocated in their order; those of no bytes without an event.
  std::uint32_t next_stack() {
    while (block_ < trace_.blocks.size() && trace_.blocks[block_].bytes == 0_B) ++block_;
    const std::size_t block = block_++;
    return block < stacks_.of_block.size() ? stacks_.of_block[block] : 0;
  }

  const Trace& trace_;
  Recording& recording_;
  const TraceStacks& stacks_;
  std::unordered_map<std::uint64_t, std::uint64_t> numbers_;  // Stream::id -> the trace's number
  Nanoseconds start_;
  bool on_ = false;
  std::size_t block_ = 0;  // the next one to be allocated
  std::int64_t counted_ = 0;
  std::size_t failures_ = 0;  // of stacks_.failures that came
};

// The peak that the trace's first line has, in the traces that were recorded under PyTorch.
Bytes peak_reserved(const nlohmann::json& header) {
  const auto found = header.is_object() ? header.find("peak_reserved") : header.end();
  if (found == header.end() || !found->is_number_unsigned() || !header.contains("torch")) return {};
  return Bytes{found->get<std::uint64_t>()};
}

// The name of the program, or else of the file, without its folders.
std::string workload(const Trace& trace, const nlohmann::json& header) {
  const auto found = header.is_object() ? header.find("workload") : header.end();
  if (found == header.end() || !found->is_string()) {
    return trace.name.substr(trace.name.find_last_of('/') + 1);
  }
  return found->get<std::string>();
}

}  // namespace

Result<Recording> replayed(const Trace& trace, const TraceStacks& stacks,
                           std::function<void(std::uint64_t, std::uint64_t)> progress) {
  Recording recording;
  recording.source = trace.name;
  const nlohmann::json header = nlohmann::json::parse(trace.header_json, nullptr, false);
  recording.program = workload(trace, header);
  recording.other_peak_reserved = peak_reserved(header);

  // Whatever device the program had: this one has room for it.
  const Bytes memory = std::max(SimOptions{}.memory, round_up(trace.peak_live * 2, 1_GiB));
  // The file's clock is the only one, and the device in the file is not the simulated one.
  const std::unique_ptr<ReplayDevice> device = make_sim_replay_device(memory, false, false);
  Collector collector(trace, recording, stacks);
  ReplayOptions options;
  options.watcher = &collector;
  options.progress = std::move(progress);
  const Result<ReplayReport> report = replay(trace, *device, options);
  if (!report.ok()) return report.error();
  if (report->failure) {
    return Error(
        ErrorCode::invalid_input,
        fmt::format("{}{}: can't be replayed: {}", trace.name,
                    report->failure->line > 0 ? fmt::format(":{}", report->failure->line) : "",
                    report->failure->message));
  }
  return recording;
}

}  // namespace weir
