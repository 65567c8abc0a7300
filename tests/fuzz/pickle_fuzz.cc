// SPDX-License-Identifier: Apache-2.0
// Whatever a file holds, reading it as a PyTorch snapshot gives a trace that the trace reader
// takes, or an error that names the file.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "look/pickle_reader.h"
#include "look/pytorch_trace.h"
#include "replay/trace_reader.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

bool names_the_file(const weir::Error& error) {
  return error.code() == weir::ErrorCode::invalid_input && error.message().starts_with("fuzz:");
}

void check(const weir::PytorchTrace& converted) {
  require(converted.text.starts_with("# {"));
  const weir::Result<weir::Trace> trace = weir::parse_trace(converted.text, "fuzz");
  if (!trace.ok()) {  // sizes that no device has are all that may be wrong with it
    require(names_the_file(trace.error()));
    return;
  }
  require(trace->blocks.size() == converted.stacks.of_block.size());
  for (const std::uint32_t stack : converted.stacks.of_block) {
    require(stack < converted.stacks.stacks.size());
  }
  for (const std::vector<std::uint32_t>& stack : converted.stacks.stacks) {
    for (const std::uint32_t frame : stack) require(frame < converted.stacks.frames.size());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const weir::Result<weir::Pickle> pickle =
      weir::Pickle::parse(std::string(data, data + size), "fuzz");
  if (!pickle.ok()) {
    require(names_the_file(pickle.error()));
    return 0;
  }
  for (const std::optional<int> device : {std::optional<int>(), std::optional<int>(0)}) {
    const weir::Result<weir::PytorchTrace> trace = weir::pytorch_trace(*pickle, "fuzz", device);
    trace.ok() ? check(*trace) : require(names_the_file(trace.error()));
  }
  return 0;
}
