// SPDX-License-Identifier: Apache-2.0
// Which paths lead to the same file, and what a command line may name twice.
#include "replay/named_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/temporary_folder.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

class NamedFiles : public ::testing::Test {
 protected:
  NamedFiles() { folder_.write("file", "text"); }
  std::string path(const std::string& name) const { return folder_ / name; }

 private:
  const test::TemporaryFolder folder_;
};

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

}  // namespace
}  // namespace weir
