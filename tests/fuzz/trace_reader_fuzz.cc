// SPDX-License-Identifier: Apache-2.0
// Whatever a file holds, reading it gives a trace that makes sense, or an error with file and line.
#include <cstdint>
#include <string_view>

#include "replay/trace_reader.h"
#include "tests/fuzz/check_trace.h"

using weir::fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const weir::Result<weir::Trace> trace = weir::parse_trace(text, "fuzz.trace");
  if (trace.ok()) {
    weir::fuzz::check(*trace);
  } else {
    require(trace.error().code() == weir::ErrorCode::invalid_input);
    require(trace.error().message().starts_with("fuzz.trace:"));
  }
  return 0;
}
