// SPDX-License-Identifier: Apache-2.0
#include "suite/trace_program.h"

#include <algorithm>
#include <filesystem>
#include <unordered_map>
#include <utility>

#include "look/any_trace.h"
#include "replay/failed_mark.h"

namespace weir::suite {
namespace {

class Builder {
 public:
  Builder(const Trace& trace, bool with_failed, Program& program)
      : trace_(trace), with_failed_(with_failed), program_(program) {}

  void run() {
    // `program_of` of late uses needs a second stream.
    program_.streams = static_cast<std::uint32_t>(std::max<std::size_t>(trace_.streams.size(), 2));
    program_.blocks = static_cast<std::uint32_t>(trace_.blocks.size());
    is_live_.resize(trace_.blocks.size());
    for (const TraceOp& op : trace_.ops) add(op);
    program_.end_us = trace_.end_us - trace_.start_us;
    for (std::uint32_t block = 0; block < is_live_.size(); ++block) {
      if (is_live_[block]) free(block, trace_.end_us);
    }
  }

 private:
  void add(const TraceOp& op) {
    switch (op.kind) {
      case TraceOp::Kind::allocate:
        if (trace_.blocks[op.target].bytes == 0_B) return;
        is_live_[op.target] = true;
        return push(ProgramCall::Kind::allocate, op.target, op.time_us);
      case TraceOp::Kind::free:
        if (is_live_[op.target]) free(op.target, op.time_us);
        return;
      case TraceOp::Kind::fence:
        if (!is_live_[op.target] || op.stream == trace_.blocks[op.target].stream) return;
        return use(op.target, op.stream, op.time_us, op.time_us);
      case TraceOp::Kind::marker:
        if (const auto failed = failed_mark(trace_.markers[op.target]); failed && with_failed_) {
          ask_again(*failed, op.time_us - trace_.start_us);
        }
        return;
      case TraceOp::Kind::wait:  // the recorded allocator's own
        return;
    }
  }

  // As a block that is freed at once: nobody knows what the program would have done with it.
  void ask_again(const FailedMark& failed, std::int64_t time_us) {
    if (failed.bytes == 0) return;
    const auto stream = std::ranges::find(trace_.streams, failed.stream) - trace_.streams.begin();
    ProgramCall call{.kind = ProgramCall::Kind::allocate,
                     .stream = static_cast<std::uint32_t>(stream) % program_.streams,
                     .block = program_.blocks++,
                     .bytes = failed.bytes,
                     .time_us = time_us};
    program_.calls.push_back(call);
    call.kind = ProgramCall::Kind::free;
    program_.calls.push_back(call);
  }

  void free(std::uint32_t block, std::int64_t time_us) {
    is_live_[block] = false;
    const TraceBlock& freed = trace_.blocks[block];
    if (const auto until = freed.used_until_us()) {
      use(block, (freed.stream + 1) % program_.streams, time_us, *until);
    }
    push(ProgramCall::Kind::free, block, time_us);
  }

  void use(std::uint32_t block, std::uint32_t user, std::int64_t time_us, std::int64_t until_us) {
    push(ProgramCall::Kind::use, block, time_us);
    program_.calls.back().user = user;
    program_.calls.back().until_us = until_us - trace_.start_us;
  }

  void push(ProgramCall::Kind kind, std::uint32_t block, std::int64_t time_us) {
    program_.calls.push_back({.kind = kind,
                              .stream = trace_.blocks[block].stream,
                              .block = block,
                              .bytes = trace_.blocks[block].bytes.count,
                              .time_us = time_us - trace_.start_us});
  }

  const Trace& trace_;
  const bool with_failed_;
  Program& program_;
  std::vector<bool> is_live_;  // by block
};

}  // namespace

Program program_of(const Trace& trace, std::string name, bool with_failed) {
  Program program;
  program.name = std::move(name);
  program.title = "recorded";
  Builder(trace, with_failed, program).run();
  add_needs(program);
  return program;
}

Result<Program> read_program(const std::string& path) {
  const Result<RecordedTrace> trace = read_any_trace(path);
  return trace ? program_of(*trace, program_name(path)) : Result<Program>(trace.error());
}

std::string program_name(const std::string& path) {
  const std::string file = std::filesystem::path(path).filename();
  return file.substr(0, file.find('.', 1));
}

}  // namespace weir::suite
