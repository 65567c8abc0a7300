// The `weir` command, run as a user runs it, in a folder of the test's own.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace weir::test {

struct Finished {
  int code = -1;  // -1: it did not end by itself
  std::string out, err;
};

class WeirCommand : public ::testing::Test {
 protected:
  WeirCommand() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~WeirCommand() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string write(const std::string& name, std::string_view text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }
  std::string read(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(path(name), std::ios::binary).rdbuf();
    return text.str();
  }
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
  static std::string name_of_test() {
    const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
    return std::string(test.test_suite_name()) + "_" + test.name();
  }
  const std::string folder_ =
      ::testing::TempDir() + "weir_command_" + name_of_test() + "." + std::to_string(getpid());
};

inline constexpr std::string_view kSmallTrace =
    "a 0 3145728 0 0\n"
    "a 1 1000 1 10\n"
    "r 0 3145728 0 500\n"
    "f 0 3145728 0 500\n";

}  // namespace weir::test
