// SPDX-License-Identifier: Apache-2.0
// Which paths lead to the same file, and what a command line may name twice.
#include "replay/named_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/temporary_folder.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class NamedFiles : public ::testing::Test {
 protected:
  NamedFiles() { folder_.write("file", "text"); }
  std::string path(const std::string& name) const { return folder_ / name; }

 private:
  const test::TemporaryFolder folder_;
};

TEST_F(NamedFiles, NamesOfAFileThatDoesNotExistAreCompared) {
  fs::create_symlink("new", path("dangling"));
  fs::create_symlink(path("dangling"), path("second"));
  fs::create_directory_symlink(".", path("through"));
  for (const char* const name : {"new", "./new", "through/new", "dangling", "second"}) {
    EXPECT_TRUE(is_same_file(path("new"), path(name))) << name;
  }
  for (const char* const name : {"newer", "file", "none/new"}) {
    EXPECT_FALSE(is_same_file(path("new"), path(name))) << name;
  }
  EXPECT_TRUE(is_same_file(path("none/new"), path("none/./new")));
  EXPECT_TRUE(is_same_file("new", "./new"));
}

TEST_F(NamedFiles, ALinkToItselfIsNoEndlessSearch) {
  fs::create_symlink("loop", path("loop"));
  EXPECT_TRUE(is_same_file(path("loop"), path("loop")));
  EXPECT_FALSE(is_same_file(path("loop"), path("file")));
}

TEST_F(NamedFiles, DescriptorsAreKnownByTheirNames) {
  EXPECT_EQ(descriptor_named("/dev/stdout"), 1);
  EXPECT_EQ(descriptor_named("/dev/stderr"), 2);
  EXPECT_EQ(descriptor_named("/dev/fd/7"), 7);
  EXPECT_EQ(descriptor_named("/proc/self/fd/7"), 7);
  for (const char* const name : {"/dev/null", "/dev/fd/", "/dev/fd/x", "/dev/fd/-1", "stdout"}) {
    EXPECT_EQ(descriptor_named(name), std::nullopt) << name;
  }
}

TEST_F(NamedFiles, AnInputMayBeNamedTwiceAndAnOutputOnce) {
  const NamedFile before{"BEFORE", path("file")}, after{"AFTER", path("file")};
  EXPECT_TRUE(check_files({before, after}, {{"--json", path("new")}}).ok());
  const Status twice = check_files({before}, {{"--json", path("a")}, {"-o", path("a")}});
  ASSERT_FALSE(twice.ok());
  EXPECT_EQ(twice.error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(twice.error().message(),
            "--json '" + path("a") + "' and -o '" + path("a") +
                "' are the same file: one output would overwrite the other; give -o another file "
                "name");
  const Status input = check_files({before}, {{"-o", path("file")}});
  ASSERT_FALSE(input.ok());
  EXPECT_EQ(input.error().message(),
            "-o '" + path("file") + "' and BEFORE '" + path("file") +
                "' are the same file: the command would overwrite its input; give -o another file "
                "name");
  EXPECT_THAT(check_files({}, {{"--json", ""}}).error().message(),
              AllOf(HasSubstr("--json"), HasSubstr("empty")));
}

}  // namespace
}  // namespace weir
