// SPDX-License-Identifier: Apache-2.0
// Whatever a file holds, reading it as a log of RMM's gives a trace that makes sense, or an error
// with file and line. The columns' names, which a fuzzer would not find, come before the input.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "replay/rmm_log.h"
#include "tests/fuzz/check_trace.h"

using weir::fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string log = std::string(weir::kRmmLogColumns) + "\n";
  log.append(reinterpret_cast<const char*>(data), size);
  const int memory = memfd_create("log", MFD_CLOEXEC);
  require(memory >= 0 && write(memory, log.data(), log.size()) == static_cast<ssize_t>(log.size()));
  const std::string path = "/proc/self/fd/" + std::to_string(memory);
  const weir::Result<weir::Trace> trace = weir::read_rmm_log(path);
  if (trace.ok()) {
    weir::fuzz::check(*trace);
  } else {
    require(trace.error().code() == weir::ErrorCode::invalid_input);
    require(trace.error().message().starts_with(path));
  }
  close(memory);
  return 0;
}
