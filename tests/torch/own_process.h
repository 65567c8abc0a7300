// SPDX-License-Identifier: Apache-2.0
// Parts of tests that run in a process of their own.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

namespace weir::pytorch {

// Runs `body` in a child of fork(); returns its exit status, or -1 if it hangs or dies.
inline int in_a_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(5);
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Runs `body` in a process that has done nothing else, whose environment has WEIR_DEVICE=sim.
inline void in_a_fresh_process(const std::function<void()>& body) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [&] {
    ::setenv("WEIR_DEVICE", "sim", 1);
    body();
    std::exit(testing::Test::HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
}

}  // namespace weir::pytorch
