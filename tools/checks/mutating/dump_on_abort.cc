// SPDX-License-Identifier: Apache-2.0
// A program that aborts, as those of death tests do, writes what it counted all the same.
#include <csignal>

extern "C" void __gcov_dump();

namespace {

void dump(int number) {
  std::signal(number, SIG_DFL);
  __gcov_dump();
  std::raise(number);
}

[[maybe_unused]] const auto before = std::signal(SIGABRT, dump);

}  // namespace
