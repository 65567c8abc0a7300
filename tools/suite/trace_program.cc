// SPDX-License-Identifier: Apache-2.0
#include "suite/trace_program.h"

#include <filesystem>
#include <unordered_map>
#include <utility>

#include "look/any_trace.h"

namespace weir::suite {
namespace {

class Builder {
 public:
  Builder(const Trace& trace, Program& program) : trace_(trace), program_(program) {}

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
      case TraceOp::Kind::wait:  // the recorded allocator's own
      case TraceOp::Kind::marker:
        return;
    }
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
  Program& program_;
  std::vector<bool> is_live_;  // by block
};

}  // namespace

Program program_of(const Trace& trace, std::string name) {
  Program program;
  program.name = std::move(name);
  program.title = "recorded";
  Builder(trace, program).run();
  add_needs(program);
  return program;
}

Result<Program> read_program(const std::string& path) {
  const Result<Trace> trace = read_any_trace(path);
  if (!trace) return trace.error();
  const std::string file = std::filesystem::path(path).filename();
  return program_of(*trace, file.substr(0, file.find('.', 1)));
}

}  // namespace weir::suite
