// SPDX-License-Identifier: Apache-2.0
// Bytes become a program (tests/property/program.h), which runs under the oracle. What fails is
// shortened, printed and aborted on.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "tests/property/program.h"
#include "tests/property/runner.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const weir::test::Program program = weir::test::decode_program({data, size});
  const weir::test::RunResult result = weir::test::run(program);
  if (result.failure) {
    std::fputs(weir::test::report(program, {}, *result.failure).c_str(), stderr);
    std::abort();
  }
  return 0;
}
