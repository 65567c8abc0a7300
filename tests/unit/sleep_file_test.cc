// SPDX-License-Identifier: Apache-2.0
// Sleep whose copies go to a file: host memory stays free, and whatever the disk refuses loses
// nothing.
#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <thread>

#include "tests/unit/sleep_fixture.h"
#include "weir/interposed_device.h"

namespace weir::test {
namespace {

using testing::HasSubstr;

constexpr const char* kFolder = "/scratch";

class SleepInFiles : public SleepFixture {
 protected:
  SleepReport sleep(std::vector<std::string> tags = {}) {
    return ok(heap_->sleep({.tags = std::move(tags), .backup_folder = kFolder}));
  }
  void expect_awake() {
    for (const TagInfo& info : heap_->tags()) EXPECT_EQ(info.state, TagState::awake) << info.tag;
    EXPECT_EQ(device_.live().file_bytes, 0_B);
    expect_sound();
    expect_intact();
  }
};

TEST_F(SleepInFiles, EveryByteGoesToTheFileAndComesBack) {
  written(300_MiB, a_);
  written(7_MiB, b_);
  for (int i = 0; i < 100; ++i) written(3000_B, a_);
  const SleepReport slept = sleep();
  EXPECT_EQ(device_.physical_bytes(), 0_B);
  EXPECT_GE(slept.copied, 307_MiB);
  EXPECT_EQ(slept.file, round_up(slept.copied, 4_KiB));
  EXPECT_EQ(device_.live().file_bytes, slept.file);
  EXPECT_FALSE(slept.through_cache);
  EXPECT_EQ(slept.host, 0_B);
  EXPECT_EQ(device_.live().host_bytes, 0_B);
  EXPECT_EQ(tag(kDefaultTag).state, TagState::asleep);
  EXPECT_EQ(tag(kDefaultTag).file, slept.copied);
  EXPECT_EQ(tag(kDefaultTag).host, 0_B);
  // In writes of 16 MiB.
  EXPECT_EQ(device_.calls(DeviceCall::write_file), (slept.copied + 16_MiB - 1_B) / 16_MiB);
  const SleepReport woke = ok(heap_->wake());
  EXPECT_EQ(woke.copied, slept.copied);
  EXPECT_EQ(woke.file, 0_B);
  EXPECT_EQ(device_.live().host_bytes, 0_B);
  expect_awake();
  free_all();
}

TEST_F(SleepInFiles, HostMemoryIsThatOfTheBuffersOnly) {
  SimDevice poor{{.memory = 8_GiB, .track_contents = true, .host_memory = 128_MiB}};
  const Stream stream = poor.new_stream();
  DeviceHeap heap(poor, {});
  void* const block = ok(heap.allocate(4_GiB, stream));
  expect_error(heap.sleep(), ErrorCode::out_of_memory, "host");
  ok(heap.sleep({.backup_folder = kFolder}));
  EXPECT_EQ(poor.physical_bytes(), 0_B);
  ok(heap.wake());
  ok(heap.deallocate(block));
}

TEST_F(SleepInFiles, NoHostMemoryAtAllLeavesAllAwakeAndNoFile) {
  written(100_MiB, a_);
  device_.fail(DeviceCall::allocate_host, 1, ErrorCode::out_of_memory);
  expect_error(heap_->sleep({.backup_folder = kFolder}), ErrorCode::out_of_memory, "allocate_host");
  expect_awake();
  free_all();
}

TEST_F(SleepInFiles, WhateverTheDiskRefusesAllIsAwakeAsBefore) {
  for (int i = 0; i < 6; ++i) written(50_MiB, i % 2 == 0 ? a_ : b_);
  written_in("cache", 30_MiB, a_);
  for (const DeviceCall call :
       {DeviceCall::open_file, DeviceCall::write_file, DeviceCall::sync_file}) {
    const std::uint64_t most = call == DeviceCall::write_file ? 21 : 1;
    for (std::uint64_t nth = 1; nth <= most; ++nth) {
      const Bytes before = device_.physical_bytes();
      device_.fail(call, nth, ErrorCode::invalid_input);
      expect_error(heap_->sleep({.backup_folder = kFolder}), ErrorCode::invalid_input,
                   std::string(name_of(call)).c_str());
      EXPECT_EQ(device_.forget_faults(), 0u) << name_of(call) << " number " << nth;
      EXPECT_EQ(device_.physical_bytes(), before);
      EXPECT_EQ(device_.live().host_bytes, 0_B);
      expect_awake();
      free(written(1_MiB, a_));
      device_.finish();
      ok(heap_->trim());
    }
  }
  sleep();
  ok(heap_->wake());
  expect_awake();
  free_all();
}

TEST_F(SleepInFiles, AFullDiskNamesTheFolderAndHostMemoryServesInstead) {
  SimDevice full{{.memory = 8_GiB, .disk = 256_MiB}};
  const Stream stream = full.new_stream();
  DeviceHeap heap(full, {});
  void* const block = ok(heap.allocate(600_MiB, stream));
  expect_error(heap.sleep({.backup_folder = kFolder}), ErrorCode::invalid_input,
               "'/scratch' has no room");
  EXPECT_EQ(full.calls(DeviceCall::write_file), 0u);
  EXPECT_EQ(heap.tags()[0].state, TagState::awake);
  ok(heap.sleep());
  ok(heap.wake());
  ok(heap.deallocate(block));
}

TEST_F(SleepInFiles, WhatCannotBeReadStaysInTheFileUntilItCan) {
  for (int i = 0; i < 6; ++i) written(50_MiB, i % 2 == 0 ? a_ : b_);
  for (const bool back : {false, true}) {
    const Bytes copied = sleep().copied;
    device_.fail(DeviceCall::read_file, 7, ErrorCode::invalid_input);
    expect_error(heap_->wake(), ErrorCode::invalid_input, "read_file");
    EXPECT_EQ(tag(kDefaultTag).state, TagState::partly_asleep);
    EXPECT_GE(device_.live().file_bytes, copied);
    EXPECT_EQ(device_.live().host_bytes, 64_MiB) << "the buffers, until a wake has gone through";
    expect_error(heap_->allocate(1_MiB, a_), ErrorCode::asleep, "");
    expect_sound();
    if (back) {
      // What had come back is copied anew; the rest is in the file.
      const Bytes again = ok(heap_->sleep({.backup_folder = kFolder})).copied;
      EXPECT_GT(again, 0_B);
      EXPECT_LE(again, 96_MiB);
      EXPECT_EQ(device_.physical_bytes(), 0_B);
    }
    ok(heap_->wake());
    expect_awake();
    EXPECT_EQ(device_.live().host_bytes, 0_B);
  }
  free_all();
}

TEST_F(SleepInFiles, AWakeWithoutRoomReadsNothing) {
  written_in("cache", 3_GiB, a_);
  sleep();
  DeviceHeap other(device_, {});
  void* const theirs = ok(other.allocate(6_GiB, a_));
  expect_error(heap_->wake(), ErrorCode::out_of_memory, "tag 'cache'");
  EXPECT_EQ(device_.calls(DeviceCall::read_file), 0u);
  EXPECT_EQ(sleep().copied, 0_B) << "the file has it all";
  EXPECT_EQ(device_.physical_bytes(), 6_GiB);
  ok(other.deallocate(theirs));
  ok(other.trim());
  ok(heap_->wake());
  expect_awake();
  free_all();
}

TEST_F(SleepInFiles, AnImmutableTagIsWrittenOnceAndAgainWhenItChanged) {
  void* const weights = written_in("weights", 200_MiB, a_);
  ok(heap_->set_contents("weights", SleepContents::immutable));
  EXPECT_EQ(sleep().copied, 200_MiB);
  ok(heap_->wake());
  EXPECT_EQ(device_.live().file_bytes, 200_MiB);
  EXPECT_EQ(sleep().copied, 0_B);
  EXPECT_EQ(ok(heap_->wake()).copied, 200_MiB);
  // Also for a sleep that names no folder: the copy that is good stays where it is.
  EXPECT_EQ(ok(heap_->sleep()).copied, 0_B);
  EXPECT_EQ(device_.live().host_bytes, 0_B);
  EXPECT_EQ(ok(heap_->wake()).copied, 200_MiB);
  expect_intact();
  write(weights, 200_MiB, b_);
  ok(heap_->declare_changed("weights"));
  EXPECT_EQ(sleep().copied, 200_MiB);
  EXPECT_EQ(device_.live().file_bytes, 200_MiB) << "the file of before is closed";
  ok(heap_->wake());
  expect_intact();
  ok(heap_->set_contents("weights", SleepContents::backup));
  sleep();
  ok(heap_->wake());
  expect_awake();
  free_all();
}

TEST_F(SleepInFiles, ATagInAFileAndOneInHostMemoryWakeEachFromItsOwn) {
  written_in("weights", 100_MiB, a_);
  written_in("cache", 60_MiB, a_);
  ok(heap_->set_contents("zeros", SleepContents::zero));
  void* const zeros = ok(ok(heap_->tag_pool("zeros"))->allocate(8_MiB, a_));
  sleep({"weights", "zeros"});
  ok(heap_->sleep({.tags = {"cache"}}));
  EXPECT_EQ(tag("weights").file, 100_MiB);
  EXPECT_EQ(tag("weights").host, 0_B);
  EXPECT_EQ(tag("cache").file, 0_B);
  EXPECT_EQ(tag("cache").host, 60_MiB);
  EXPECT_EQ(tag("zeros").file, 0_B);
  ok(heap_->wake({.tags = {"weights"}}));
  EXPECT_EQ(device_.live().file_bytes, 0_B);
  ok(heap_->wake());
  expect_awake();
  EXPECT_EQ(device_.contents(Address::of(zeros), 8_MiB).at(0).write, SimContent::kZeros);
  ok(heap_->deallocate(zeros));
  free_all();
}

TEST_F(SleepInFiles, WhatIsDiscardedNeedsNoFile) {
  written(64_MiB, a_);
  ok(heap_->sleep({.contents = SleepContents::discard, .backup_folder = kFolder}));
  EXPECT_EQ(device_.calls(DeviceCall::open_file), 0u);
  ok(heap_->wake());
  blocks_.begin()->second.contents.clear();
  expect_awake();
  free_all();
}

TEST_F(SleepInFiles, StitchedRowsComeBackAndWhatWasFreedIsNotRead) {
  heap_->set_limit(600_MiB);
  std::vector<void*> blocks;
  for (int i = 0; i < 18; ++i) blocks.push_back(written(28_MiB, a_));
  for (std::size_t i = 0; i < blocks.size(); i += 3) free(blocks[i]);
  device_.finish();
  for (int i = 0; i < 2; ++i) written(70_MiB, a_);  // in pieces
  std::size_t most = 0;
  for (const SimPage& page : device_.pages()) most = std::max(most, page.mappings);
  ASSERT_GT(most, 1u) << "no stitched row was made";
  const Bytes copied = sleep().copied;
  for (std::size_t i = 1; i < blocks.size(); i += 3) free(blocks[i]);
  const SleepReport woke = ok(heap_->wake());
  EXPECT_LT(woke.copied, copied - 100_MiB);
  expect_awake();
  free_all();
}

TEST_F(SleepInFiles, PinnedMemoryThatIsKeptServesAsBuffers) {
  written(200_MiB, a_);
  ok(heap_->sleep());
  ok(heap_->wake({.keep_host = 1_GiB}));
  const std::uint64_t made = device_.calls(DeviceCall::allocate_host);
  EXPECT_EQ(sleep().host, 256_MiB);
  ok(heap_->wake({.keep_host = 1_GiB}));
  EXPECT_EQ(device_.calls(DeviceCall::allocate_host), made);
  ok(heap_->sleep());
  ok(heap_->wake());
  expect_awake();
  free_all();
}

// A device where several threads write and read.
class ManyWriters : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  unsigned host_threads() const override { return 20; }
};

// A file that takes no direct writes.
class CachedFile final : public SleepFile {
 public:
  explicit CachedFile(std::unique_ptr<SleepFile> file) : file_(std::move(file)) {}
  Status write(Bytes offset, const void* from, Bytes size) override {
    return file_->write(offset, from, size);
  }
  Status read(Bytes offset, void* to, Bytes size) override { return file_->read(offset, to, size); }
  Status sync() override { return file_->sync(); }
  bool direct() const override { return false; }

 private:
  const std::unique_ptr<SleepFile> file_;
};

// Whose files take none.
class CachedFiles final : public ManyWriters, private SleepFiles {
 public:
  using ManyWriters::ManyWriters;
  SleepFiles* files() override { return this; }

 private:
  Result<std::unique_ptr<SleepFile>> open(const std::string& folder, Bytes size) override {
    Result<std::unique_ptr<SleepFile>> file = ManyWriters::files()->open(folder, size);
    if (!file) return file;
    return std::unique_ptr<SleepFile>(std::make_unique<CachedFile>(*std::move(file)));
  }
};

TEST_F(SleepInFiles, SeveralThreadsWriteAndReadAndAFailureOfOneLosesNothing) {
  CachedFiles device(device_);
  heap_ = std::make_unique<DeviceHeap>(device, HeapOptions{});
  written(900_MiB, a_);
  written(100_MiB, b_);
  const SleepReport slept = sleep();
  EXPECT_TRUE(slept.through_cache);
  EXPECT_EQ(device_.calls(DeviceCall::allocate_host), 2u) << "8 buffers of 16 MiB";
  EXPECT_FALSE(ok(heap_->wake()).through_cache);
  for (std::uint64_t nth = 1; nth <= 60; nth += 7) {
    device_.fail(DeviceCall::write_file, nth);
    EXPECT_FALSE(heap_->sleep({.backup_folder = kFolder}).ok());
    (void)device_.forget_faults();
    expect_awake();
    sleep();
    device_.fail(DeviceCall::read_file, nth);
    EXPECT_FALSE(heap_->wake().ok());
    (void)device_.forget_faults();
    expect_sound();
    if (nth % 2 == 0) sleep();
    ok(heap_->wake());
    expect_awake();
  }
  free_all();
  expect_sound();
  heap_.reset();
  heap_ = std::make_unique<DeviceHeap>(device_, HeapOptions{});
}

// The copies were queued, and nothing says when they are done: no buffer is given back before.
TEST_F(SleepInFiles, BuffersOfCopiesThatNobodyKnowsTheEndOfAreWaitedFor) {
  written(100_MiB, a_);
  for (const DeviceCall call : {DeviceCall::record, DeviceCall::synchronize}) {
    device_.fail(call, 1);
    device_.fail(DeviceCall::synchronize_context, 2);
    EXPECT_FALSE(heap_->sleep({.backup_folder = kFolder}).ok());
    (void)device_.forget_faults();
    expect_awake();
  }
  sleep();
  device_.fail(DeviceCall::record, 2);
  device_.fail(DeviceCall::synchronize_context, 1);
  EXPECT_FALSE(heap_->wake().ok());
  EXPECT_EQ(device_.forget_faults(), 0u);
  ok(heap_->wake());
  expect_awake();
  EXPECT_EQ(device_.live().host_bytes, 0_B);
  free_all();
}

// Each has more than half of the device.
TEST_F(SleepInFiles, OneTagGoesToAFileWhileAnotherComesFromOne) {
  written_in("a", 5_GiB, a_);
  sleep({"a"});
  written_in("b", 5_GiB, b_);
  for (int turn = 0; turn < 10; ++turn) {
    const std::string falls = turn % 2 == 0 ? "b" : "a", wakes = turn % 2 == 0 ? "a" : "b";
    std::atomic<bool> goes_on{false};
    std::thread sleeper([&] {
      goes_on = true;
      sleep({falls});
    });
    while (!goes_on) std::this_thread::yield();
    const Result<SleepReport> woke = heap_->wake({.tags = {wakes}});
    sleeper.join();
    // It may have been too early: then there was no room, and the retry has it.
    if (!woke) ok(heap_->wake({.tags = {wakes}}));
    EXPECT_EQ(tag(wakes).state, TagState::awake);
    EXPECT_EQ(tag(falls).state, TagState::asleep);
    expect_sound();
  }
  for (auto at = blocks_.begin(); at != blocks_.end();) {
    const bool in_a = heap_->find(at->first)->pool == ok(heap_->tag_pool("a"))->id();
    if (in_a) {
      free((at++)->first);
    } else {
      ++at;
    }
  }
  ok(heap_->wake());
  expect_awake();
  free_all();
}

TEST_F(SleepInFiles, TheCopyOfABlockSaysThatItIsInAFile) {
  void* const block = written(150_MiB, a_);
  sleep();
  Bytes sum;
  for (const HostPart& part : ok(heap_->host_copy(block, 150_MiB))) {
    EXPECT_EQ(part.memory, nullptr);
    EXPECT_EQ(part.offset, sum);
    sum += part.bytes;
  }
  EXPECT_EQ(sum, 150_MiB);
  ok(heap_->wake());
  std::array<char, 8> bytes{};
  expect_error(heap_->read_asleep(block, 8_B, bytes.data()), ErrorCode::invalid_argument,
               "read_asleep");
  expect_error(heap_->read_asleep(&block, 8_B, bytes.data()), ErrorCode::unknown_pointer,
               "read_asleep");
  free_all();
}

TEST_F(SleepInFiles, TheHeapMayBeDestroyedAsleep) {
  void* const block = written(100_MiB, a_);
  sleep();
  free(block);
}

// As a device of others may be.
class WithoutFiles final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  SleepFiles* files() override { return nullptr; }
};

TEST_F(SleepInFiles, ADeviceWithoutFilesSaysSo) {
  WithoutFiles device(device_);
  heap_ = std::make_unique<DeviceHeap>(device, HeapOptions{});
  written(30_MiB, a_);
  expect_error(heap_->sleep({.backup_folder = kFolder}), ErrorCode::unavailable, "no files");
  expect_awake();
  free_all();
  heap_.reset();
  heap_ = std::make_unique<DeviceHeap>(device_, HeapOptions{});
}

}  // namespace
}  // namespace weir::test
