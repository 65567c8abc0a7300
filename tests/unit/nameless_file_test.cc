// SPDX-License-Identifier: Apache-2.0
// Files for bytes that sleep, on the system's own, and with each of its calls failing in turn.
#include "files/nameless_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/temporary_folder.h"

namespace weir::test {
namespace {

using files::FileCalls;
using files::NamelessFile;
using testing::HasSubstr;
using testing::IsEmpty;

// The system's calls, some of them changed.
class Calls final : public FileCalls {
 public:
  int open_nameless(const std::string& folder) override {
    if (int error = next(open_errors)) return errno = error, -1;
    ++open_files;
    return FileCalls::open_nameless(folder);
  }
  int reserve(int file, Bytes size) override {
    if (int error = next(reserve_errors)) return error;
    return FileCalls::reserve(file, size);
  }
  int set_direct(int file, bool direct) override {
    if (direct && !takes_direct) return errno = EINVAL, -1;
    is_direct = direct;
    return FileCalls::set_direct(file, false);  // whatever the test's folder is on
  }
  ssize_t write_at(int file, const void* from, std::size_t size, off_t offset) override {
    if (int error = next(write_errors)) return errno = error, -1;
    if (is_direct && refuses_direct) return errno = EINVAL, -1;
    ++writes;
    return FileCalls::write_at(file, from, std::min(size, most), offset);
  }
  ssize_t read_at(int file, void* to, std::size_t size, off_t offset) override {
    if (int error = next(read_errors)) return errno = error, -1;
    if (ends) return 0;
    return FileCalls::read_at(file, to, std::min(size, most), offset);
  }
  int sync(int file) override {
    if (int error = next(sync_errors)) return errno = error, -1;
    return FileCalls::sync(file);
  }
  void close(int file) override {
    --open_files;
    FileCalls::close(file);
  }

  // Errors of the next calls, the last first; 0: as the system says.
  std::vector<int> open_errors, reserve_errors, write_errors, read_errors, sync_errors;
  bool takes_direct = true, refuses_direct = false, is_direct = false, ends = false;
  std::size_t most = ~std::size_t{0};
  int open_files = 0, writes = 0;

 private:
  static int next(std::vector<int>& errors) {
    if (errors.empty()) return 0;
    const int error = errors.back();
    errors.pop_back();
    return error;
  }
};

class NamelessFiles : public testing::Test {
 protected:
  static constexpr Bytes kSize = 64_KiB;

  NamelessFiles() {
    for (std::size_t i = 0; i < bytes().size(); ++i) bytes()[i] = static_cast<char>(i / 512 + i);
  }
  ~NamelessFiles() override { EXPECT_EQ(calls_.open_files, 0); }

  std::unique_ptr<NamelessFile> open() {
    Result<std::unique_ptr<NamelessFile>> file = NamelessFile::open(folder_.path(), kSize, calls_);
    EXPECT_TRUE(file.ok()) << (file.ok() ? "" : file.error().message());
    return file.ok() ? *std::move(file) : nullptr;
  }
  std::span<char> bytes() { return {written_.get(), kSize.count}; }
  void expect_same(NamelessFile& file) {
    std::fill_n(read_.get(), kSize.count, '\0');
    const Status read = file.read(0_B, read_.get(), kSize);
    ASSERT_TRUE(read.ok()) << read.error().message();
    EXPECT_TRUE(std::equal(bytes().begin(), bytes().end(), read_.get()));
  }
  template <class Outcome>
  void expect_error(const Outcome& outcome, const char* system, const char* remedy) {
    ASSERT_FALSE(outcome.ok());
    EXPECT_EQ(outcome.error().code(), ErrorCode::invalid_input);
    EXPECT_THAT(outcome.error().message(), HasSubstr("backup folder '" + folder_.path() + "'"));
    EXPECT_THAT(outcome.error().message(), HasSubstr(system));
    EXPECT_THAT(outcome.error().message(), HasSubstr(remedy));
  }

  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  using Memory = std::unique_ptr<char, Free>;
  static Memory aligned() {
    return Memory(static_cast<char*>(std::aligned_alloc(4096, kSize.count)));
  }
  const TemporaryFolder folder_;
  Calls calls_;
  const Memory written_ = aligned(), read_ = aligned();
};

TEST_F(NamelessFiles, BytesComeBackOnTheSystemsOwn) {
  Result<std::unique_ptr<NamelessFile>> file = NamelessFile::open(folder_.path(), kSize);
  ASSERT_TRUE(file.ok()) << file.error().message();
  EXPECT_THAT(folder_.names(), IsEmpty());
  ASSERT_TRUE((*file)->write(32_KiB, bytes().data() + 32 * 1024, 32_KiB).ok());
  ASSERT_TRUE((*file)->write(0_B, bytes().data(), 32_KiB).ok());
  ASSERT_TRUE((*file)->sync().ok());
  expect_same(**file);
}

TEST_F(NamelessFiles, InterruptedAndShortCallsGoOn) {
  calls_.open_errors = {EINTR, EINTR};
  calls_.reserve_errors = {EINTR};
  calls_.write_errors = {0, EINTR, 0, EINTR};
  calls_.read_errors = {EINTR, 0, EINTR};
  calls_.sync_errors = {EINTR};
  calls_.most = 12 * 1024;
  const std::unique_ptr<NamelessFile> file = open();
  ASSERT_NE(file, nullptr);
  ASSERT_TRUE(file->write(0_B, bytes().data(), kSize).ok());
  EXPECT_EQ(calls_.writes, 6);
  ASSERT_TRUE(file->sync().ok());
  expect_same(*file);
}

TEST_F(NamelessFiles, WithoutDirectTheyAreCached) {
  calls_.takes_direct = false;
  std::unique_ptr<NamelessFile> file = open();
  EXPECT_FALSE(file->direct());
  ASSERT_TRUE(file->write(0_B, bytes().data(), kSize).ok());
  expect_same(*file);
  // One that takes the flag, and then no write.
  file.reset();
  calls_.takes_direct = calls_.refuses_direct = true;
  file = open();
  EXPECT_TRUE(file->direct());
  ASSERT_TRUE(file->write(0_B, bytes().data(), kSize).ok());
  EXPECT_FALSE(file->direct());
  EXPECT_FALSE(calls_.is_direct);
  expect_same(*file);
  // What is invalid with the cache, too, is an error.
  calls_.write_errors = {EINVAL};
  expect_error(file->write(0_B, bytes().data(), kSize), "Invalid argument", "look at the disk");
}

TEST_F(NamelessFiles, EachRefusalNamesTheFolderAndTheRemedy) {
  const auto refused = [&](const char* system, const char* remedy) {
    expect_error(NamelessFile::open(folder_.path(), kSize, calls_), system, remedy);
    EXPECT_EQ(calls_.open_files, 0);
  };
  calls_.open_errors = {ENOENT};
  refused("no file can be made there: No such file", "make the folder, or name another");
  calls_.open_errors = {EACCES};
  refused("Permission denied", "let this process write there");
  calls_.open_errors = {EROFS};
  refused("Read-only", "let this process write there");
  calls_.open_errors = {EMFILE};
  refused("Too many open files", "ulimit -n");
  calls_.reserve_errors = {ENOSPC};
  refused("no room for 64.00 KiB: No space left", "free space there");
  calls_.reserve_errors = {EDQUOT};
  refused("quota", "free space there");
}

TEST_F(NamelessFiles, WhatFailsLaterCanBeTriedAgain) {
  const std::unique_ptr<NamelessFile> file = open();
  calls_.write_errors = {EIO};
  expect_error(file->write(0_B, bytes().data(), kSize), "writing to its file", "look at the disk");
  ASSERT_TRUE(file->write(0_B, bytes().data(), kSize).ok());
  calls_.sync_errors = {ENOSPC};
  expect_error(file->sync(), "No space left", "free space");
  ASSERT_TRUE(file->sync().ok());
  calls_.read_errors = {EIO};
  expect_error(file->read(0_B, read_.get(), kSize), "reading its file", "look at the disk");
  calls_.ends = true;
  expect_error(file->read(0_B, read_.get(), kSize), "reading its file", "look at the disk");
  calls_.ends = false;
  expect_same(*file);
}

TEST_F(NamelessFiles, AFolderThatIsMissingOrNoneIsAnError) {
  FileCalls& calls = FileCalls::system();
  const Result<std::unique_ptr<NamelessFile>> missing =
      NamelessFile::open(folder_ / "missing", kSize, calls);
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.error().message(), HasSubstr("make the folder, or name another"));
  const std::string file = folder_ / "file";
  ASSERT_GE(::close(::open(file.c_str(), O_CREAT | O_WRONLY, 0600)), 0);
  EXPECT_FALSE(NamelessFile::open(file, kSize, calls).ok());
}

TEST_F(NamelessFiles, AnUnwritableFolderIsAnError) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0500), 0);
  expect_error(NamelessFile::open(folder_.path(), kSize), "Permission denied", "write there");
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0700), 0);
}

// More than the process may write would be a signal that ends it, were it tried.
TEST_F(NamelessFiles, ALimitOfTheSizeOfFilesIsAnErrorAndNoSignal) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit low{.rlim_cur = 4096, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &low), 0);
  const Result<std::unique_ptr<NamelessFile>> file = NamelessFile::open(folder_.path(), kSize);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  expect_error(file, "File too large", "ulimit -f");
}

// Far more than any disk has.
TEST_F(NamelessFiles, AFullDiskIsAnErrorBeforeAnythingIsWritten) {
  const Result<std::unique_ptr<NamelessFile>> file = NamelessFile::open(folder_.path(), 8192_TiB);
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(file.error().message(), HasSubstr("no room for"));
  EXPECT_THAT(folder_.names(), IsEmpty());
}

}  // namespace
}  // namespace weir::test
