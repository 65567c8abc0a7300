// SPDX-License-Identifier: Apache-2.0
// The `weir` command, run as a user runs it, in a folder of the test's own.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "tests/temporary_folder.h"

namespace weir::test {

struct Finished {
  int code = -1;  // -1: it did not end by itself
  std::string out, err;
};

class WeirCommand : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ / name; }
  std::string write(const std::string& name, std::string_view text) const {
    return folder_.write(name, text);
  }
  std::string read(const std::string& name) const { return folder_.read(name); }
  Finished weir(const std::string& arguments) const {
    return shell(WEIR_TOOL " " + arguments, ">" + path("out"));
  }
  // Runs `command` with standard output redirected by `into`.
  Finished shell(const std::string& command, const std::string& into) const {
    const int status =
        std::system((command + " " + into + " 2>" + path("err") + " </dev/null").c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read("out"), read("err")};
  }

 private:
  const TemporaryFolder folder_;
};

inline constexpr std::string_view kSmallTrace =
    "a 0 3145728 0 0\n"
    "a 1 1000 1 10\n"
    "r 0 3145728 0 500\n"
    "f 0 3145728 0 500\n";

}  // namespace weir::test
