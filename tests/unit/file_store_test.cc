// SPDX-License-Identifier: Apache-2.0
// Copies in files, with bytes that are there: the simulated device's streams, and memory and files
// of the system's.
#include "core/sleep/file_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "files/nameless_file.h"
#include "tests/temporary_folder.h"
#include "weir/interposed_device.h"
#include "weir/sim_device.h"

namespace weir::test {
namespace {

// What a GPU does, with memory of the host's in its place: copies are made at once.
class BytesDevice final : public ForwardingDevice {
 public:
  BytesDevice(Device& inner, unsigned threads) : ForwardingDevice(inner), threads_(threads) {}
  unsigned host_threads() const override { return threads_; }
  Result<void*> allocate_host(Bytes size) override {
    ++slabs;
    return std::aligned_alloc((2_MiB).count, size.count);
  }
  Status free_host(void* memory, Bytes) override {
    std::free(memory);
    --slabs;
    return {};
  }
  Status copy_to_host(void* to, Address from, Bytes size, Stream) override {
    std::memcpy(to, from.pointer(), size.count);
    return {};
  }
  Status copy_to_device(Address to, const void* from, Bytes size, Stream) override {
    std::memcpy(to.pointer(), from, size.count);
    return {};
  }
  SleepFiles* files() override { return &files_; }

  std::atomic<int> slabs{0};

 private:
  const unsigned threads_;
  files::SystemFiles files_;
};

class FileStores : public testing::TestWithParam<unsigned> {
 protected:
  FileStores() {
    std::mt19937_64 random(7);
    for (std::uint64_t& word : words_) word = random();
    before_ = words_;
    // Stretches as sleep has them: of whole grains, apart, some larger than a block.
    Bytes at;
    while (true) {
      const Bytes gap = kGrain * (random() % 64);
      const Bytes size = kGrain * (1 + random() % (random() % 8 == 0 ? 50'000 : 2'000));
      if (at + gap + size > kBytes) break;
      ranges_.push_back({home() + at + gap, size});
      total_ += size;
      at += gap + size;
    }
  }
  void TearDown() override {
    store_.close_unused();
    EXPECT_EQ(store_.held(), 0_B);
    EXPECT_TRUE(host_.shrink(0_B).ok());
    EXPECT_EQ(device_.slabs, 0);
  }
  Address home() { return Address::of(words_.data()); }
  std::vector<FileStore::Part> written() {
    Result<std::vector<FileStore::Part>> parts = store_.place(folder_.path(), ranges_);
    EXPECT_TRUE(parts.ok()) << (parts.ok() ? "" : parts.error().message());
    if (!parts) return {};
    const Status status = store_.write(*parts);
    EXPECT_TRUE(status.ok()) << status.error().message();
    return *std::move(parts);
  }
  // What is in a range is as before, and the rest as now.
  bool same(const std::vector<Range>& ranges) {
    return std::all_of(ranges.begin(), ranges.end(), [&](const Range& range) {
      return std::memcmp(range.begin.pointer(), before(range.begin), range.size.count) == 0;
    });
  }
  const char* before(Address at) {
    return reinterpret_cast<const char*>(before_.data()) + (at - home()).count;
  }

  static constexpr Bytes kBytes = 40_MiB;
  std::vector<std::uint64_t> words_ = std::vector<std::uint64_t>(kBytes.count / 8);
  std::vector<std::uint64_t> before_;
  std::vector<Range> ranges_;
  Bytes total_;
  const TemporaryFolder folder_;
  SimDevice sim_;
  BytesDevice device_{sim_, GetParam()};
  HostStore host_{device_};
  FileStore store_{device_, host_};
};

TEST_P(FileStores, EveryByteComesBackAndNoOtherChanges) {
  const std::vector<FileStore::Part> parts = written();
  EXPECT_EQ(store_.held(), round_up(total_, 4_KiB));
  EXPECT_LE(device_.slabs, 2);
  std::fill(words_.begin(), words_.end(), 0);
  std::vector<bool> there;
  ASSERT_TRUE(store_.read(parts, there).ok());
  EXPECT_EQ(std::count(there.begin(), there.end(), true), std::ssize(parts));
  EXPECT_TRUE(same(ranges_));
  Bytes left;
  for (std::size_t i = 0; i + 1 < ranges_.size(); ++i) {
    for (Address at = ranges_[i].end(); at < ranges_[i + 1].begin; at = at + 8_B) {
      left += *static_cast<std::uint64_t*>(at.pointer()) == 0 ? 0_B : 8_B;
    }
  }
  EXPECT_EQ(left, 0_B);
  for (const FileStore::Part& part : parts) store_.give(part.piece);
}

TEST_P(FileStores, PartOfAFileComesBackAlone) {
  const std::vector<FileStore::Part> parts = written();
  std::fill(words_.begin(), words_.end(), 0);
  std::vector<FileStore::Part> some;
  std::vector<Range> wanted;
  for (std::size_t i = parts.size(); i > 0; i -= std::min<std::size_t>(i, 3)) {
    some.push_back(parts[i - 1]);  // from the last to the first
    wanted.push_back(parts[i - 1].home);
  }
  std::vector<bool> there;
  ASSERT_TRUE(store_.read(some, there).ok());
  EXPECT_TRUE(same(wanted));
  // Bytes of a piece, from any and to any.
  std::vector<char> bytes(10'000);
  for (const FileStore::Part& part : parts) {
    const Bytes skip{part.home.size.count / 3};
    const Bytes size = std::min(part.home.size - skip, Bytes{bytes.size()});
    ASSERT_TRUE(store_.read_bytes(part.piece, skip, size, bytes.data()).ok());
    ASSERT_EQ(std::memcmp(bytes.data(), before(part.home.begin + skip), size.count), 0);
  }
  for (const FileStore::Part& part : parts) store_.give(part.piece);
}

TEST_P(FileStores, TwoFilesAreApartAndEachIsClosedByItself) {
  const std::vector<FileStore::Part> first = written();
  for (std::uint64_t& word : words_) word = ~word;
  before_ = words_;
  const std::vector<FileStore::Part> second = written();
  const Bytes both = store_.held();
  for (const FileStore::Part& part : first) store_.give(part.piece);
  store_.close_unused();
  EXPECT_EQ(store_.held() * 2, both);
  std::fill(words_.begin(), words_.end(), 0);
  std::vector<bool> there;
  ASSERT_TRUE(store_.read(second, there).ok());
  EXPECT_TRUE(same(ranges_));
  for (const FileStore::Part& part : second) store_.give(part.piece);
}

INSTANTIATE_TEST_SUITE_P(Threads, FileStores, testing::Values(0U, 3U, 30U),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace weir::test
