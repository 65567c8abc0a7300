// SPDX-License-Identifier: Apache-2.0
// Sleep and wake of a device heap: what goes, what comes back, and what is refused.
#ifdef __linux__
#include <malloc.h>
#endif

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>

#include "tests/unit/sleep_fixture.h"
#include "weir/interposed_device.h"

namespace weir::test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class Sleep : public SleepFixture {};

TEST_F(Sleep, AsleepNothingIsOnTheDeviceAndAwakeEveryByteIsBack) {
  written(300_MiB, a_);
  written(7_MiB, b_);
  for (int i = 0; i < 100; ++i) written(3000_B, a_);
  free(written(40_MiB, a_));
  const Nanoseconds begun = device_.now();
  const SleepReport slept = ok(heap_->tags().sleep());
  const Nanoseconds asleep = device_.now();
  EXPECT_EQ(slept.time, asleep - begun);
  EXPECT_GT(slept.time, 0_ns);
  EXPECT_EQ(device_.physical_bytes(), 0_B);
  EXPECT_EQ(device_.live().mappings, 0u);
  EXPECT_EQ(heap_->statistics().reserved_bytes.current, 0u);
  EXPECT_EQ(heap_->statistics().live_blocks.current, 102u);
  EXPECT_GE(slept.given_back, 307_MiB);
  EXPECT_LE(slept.copied, 312_MiB);
  EXPECT_EQ(tag(kDefaultTag).state, TagState::asleep);
  expect_sound();
  const SleepReport woke = ok(heap_->tags().wake());
  EXPECT_EQ(woke.copied, slept.copied);
  EXPECT_EQ(woke.time, device_.now() - asleep);
  EXPECT_GT(woke.time, 0_ns);
  EXPECT_EQ(tag(kDefaultTag).state, TagState::awake);
  EXPECT_EQ(device_.live().host_bytes, 0_B) << "none is kept that was not asked for";
  expect_intact();
  free_all();
}

TEST_F(Sleep, SmallBlocksAreCopiedInFewPieces) {
  std::vector<void*> small;
  for (int i = 0; i < 40'000; ++i) small.push_back(ok(heap_->allocate(2_KiB, a_)));
  EXPECT_GT(heap_->snapshot().pages.size(), 35u);
  EXPECT_LE(ok(heap_->tags().sleep()).copies, 8u) << "pages that lie side by side go in one";
  EXPECT_LE(ok(heap_->tags().wake()).copies, 8u);
  for (void* const block : small) ok(heap_->deallocate(block));
}

TEST_F(Sleep, TagsSleepAndWakeEachByItself) {
  void* const weights = written_in("weights", 100_MiB, a_);
  written_in("cache", 200_MiB, a_);
  written(50_MiB, a_);
  ok(heap_->tags().sleep());
  EXPECT_EQ(device_.physical_bytes(), 0_B);
  ok(heap_->tags().wake({.tags = {"weights"}}));
  EXPECT_EQ(tag("weights").state, TagState::awake);
  EXPECT_EQ(tag("cache").state, TagState::asleep);
  EXPECT_LT(device_.physical_bytes(), 120_MiB);
  EXPECT_TRUE(device_.launch(b_, Reads(weights, 100_MiB), 10_us).ok());
  expect_sound();
  ok(heap_->tags().wake({.tags = {"cache"}}));
  expect_error(heap_->allocate(1_MiB, a_), ErrorCode::asleep, "default");
  ok(heap_->tags().wake());
  expect_intact();
  free_all();
  expect_error(heap_->tags().sleep({.tags = {"wieghts"}}), ErrorCode::invalid_argument,
               "'weights'");
}

TEST_F(Sleep, ContentsAreWhatTheTagSays) {
  void* const dropped = written_in("cache", 64_MiB, a_);
  void* const zeroed = written_in("zeros", 64_MiB, a_);
  ok(heap_->tags().set_contents("cache", SleepContents::discard));
  ok(heap_->tags().set_contents("zeros", SleepContents::zero));
  EXPECT_EQ(ok(heap_->tags().sleep()).copied, 0_B);
  EXPECT_EQ(device_.live().host_bytes, 0_B);
  ok(heap_->tags().wake());
  EXPECT_THAT(device_.contents(Address::of(dropped), 64_MiB), IsEmpty());
  const std::vector<SimContent> zeros = device_.contents(Address::of(zeroed), 64_MiB);
  ASSERT_EQ(zeros.size(), 1u);
  EXPECT_EQ(zeros[0].write, SimContent::kZeros);
  EXPECT_EQ(zeros[0].bytes, 64_MiB);
  free_all();
}

TEST_F(Sleep, AnImmutableTagIsCopiedOnceAndAgainWhenItChanged) {
  void* const weights = written_in("weights", 200_MiB, a_);
  const SleepOptions immutable{.tags = {"weights"}, .contents = SleepContents::immutable};
  EXPECT_EQ(ok(heap_->tags().sleep(immutable)).copied, 200_MiB);
  ok(heap_->tags().wake());
  EXPECT_GE(device_.live().host_bytes, 200_MiB);
  EXPECT_EQ(ok(heap_->tags().sleep({.tags = {"weights"}})).copied, 0_B);
  EXPECT_EQ(ok(heap_->tags().wake()).copied, 200_MiB);
  expect_intact();
  // The same bytes written again, and said so.
  write(weights, 200_MiB, b_);
  ok(heap_->tags().declare_changed("weights"));
  EXPECT_EQ(ok(heap_->tags().sleep({.tags = {"weights"}})).copied, 200_MiB);
  ok(heap_->tags().wake());
  EXPECT_EQ(ok(heap_->tags().sleep()).copied, 0_B) << "whatever else sleeps with it";
  ok(heap_->tags().wake());
  expect_intact();
  // Another block at the place of one that was freed.
  free(weights);
  EXPECT_EQ(written_in("weights", 200_MiB, a_), weights);
  EXPECT_EQ(ok(heap_->tags().sleep()).copied, 200_MiB);
  ok(heap_->tags().wake());
  expect_intact();
  // Part of it freed: the copy is still good.
  ok(heap_->tags().set_contents("weights", SleepContents::backup));
  ok(heap_->tags().sleep());
  ok(heap_->tags().wake());
  EXPECT_EQ(device_.live().host_bytes, 0_B);
  expect_intact();
  free_all();
}

// The copy of a page that the sleep before left a graph's scratch out of.
TEST_F(Sleep, AnImmutableTagIsCopiedAgainWhereMoreOfItIsKept) {
  constexpr Bytes kPart = 512_KiB;
  GraphPool pool(*heap_, {.tag = "graphs"});
  CaptureScope capture = ok(CaptureScope::begin(pool, a_));
  void* const output = ok(heap_->allocate(kPart, a_));
  void* const scratch = ok(heap_->allocate(kPart, a_));
  EXPECT_TRUE(device_.launch(a_, Writes(scratch, kPart), 10_us).ok());
  ok(heap_->deallocate(scratch));
  Graph graph = ok(capture.end());
  ASSERT_EQ(heap_->snapshot().pages.size(), 1u);
  SleepOptions immutable{.tags = {"graphs"}, .contents = SleepContents::immutable};
  immutable.graph_scratch = false;
  EXPECT_EQ(ok(heap_->tags().sleep(immutable)).copied, kPart);
  ok(heap_->tags().wake());
  ok(graph.launch(a_));
  device_.finish();
  const std::vector<SimContent> before = device_.contents(Address::of(scratch), kPart);
  immutable.graph_scratch = true;
  EXPECT_GE(ok(heap_->tags().sleep(immutable)).copied, kPart * 2);
  ok(heap_->tags().wake());
  EXPECT_EQ(device_.contents(Address::of(scratch), kPart), before);
  ok(heap_->deallocate(output));
  graph = Graph();
}

TEST_F(Sleep, MemoryThatSomebodyHoldsIsNamedAndNothingHasChanged) {
  void* const shared = written(30_MiB, a_);
  written(300_MiB, a_);
  const std::uint64_t hold = ok(heap_->tags().hold(shared, "process 4711, by IPC"));
  const Bytes before = device_.physical_bytes();
  expect_error(heap_->tags().sleep(), ErrorCode::invalid_argument, "process 4711, by IPC");
  EXPECT_EQ(device_.physical_bytes(), before);
  EXPECT_EQ(heap_->tags().residue().held.size(), 1u);
  free(written(1_MiB, a_));
  const SleepReport kept = ok(heap_->tags().sleep({.keep = true}));
  ASSERT_EQ(kept.kept.size(), 1u);
  EXPECT_EQ(kept.kept[0].holder, "process 4711, by IPC");
  EXPECT_EQ(device_.physical_bytes(), kept.kept[0].bytes);
  EXPECT_TRUE(device_.launch(b_, Reads(shared, 30_MiB), 10_us).ok());
  ok(heap_->tags().wake());
  expect_intact();
  heap_->tags().release_hold(hold);
  ok(heap_->tags().sleep());
  EXPECT_EQ(device_.physical_bytes(), 0_B);
  ok(heap_->tags().wake());
  expect_intact();
  free_all();
}

TEST_F(Sleep, AHoldEndsWithItsBlockWhateverLiesThereThen) {
  void* const first = written(4_MiB, a_);
  void* const held = written(4_MiB, a_);
  ASSERT_EQ(Address::of(held), Address::of(first) + 4_MiB);
  (void)ok(heap_->tags().hold(held, "a process"));
  EXPECT_EQ(heap_->tags().residue().held.size(), 1u);
  free(held);
  EXPECT_THAT(heap_->tags().residue().held, IsEmpty());
  free(first);
  ASSERT_EQ(written(8_MiB, a_), first) << "it covers where the other began";
  EXPECT_THAT(heap_->tags().residue().held, IsEmpty());
  ok(heap_->tags().sleep());
  ok(heap_->tags().wake());
  expect_intact();
  free_all();
}

TEST_F(Sleep, MemoryBesideTheHeapIsNamedWithItsTag) {
  written(10_MiB, a_);
  written_in("cache", 10_MiB, a_);
  Bytes beside;
  heap_->tags().on_sleep([&]() -> std::vector<HeldMemory> {
    return {{kDefaultTag, beside, "uncached"}};
  });
  ok(heap_->tags().sleep());
  ok(heap_->tags().wake());
  beside = 3_MiB;
  expect_error(heap_->tags().sleep(), ErrorCode::invalid_argument,
               "3.00 MiB of tag 'default': uncached");
  ok(heap_->tags().sleep({.tags = {"cache"}}));
  EXPECT_EQ(heap_->tags().residue().held.size(), 1u);
  EXPECT_EQ(ok(heap_->tags().sleep({.keep = true})).kept.size(), 1u);
  ok(heap_->tags().wake());
  expect_intact();
  free_all();
}

TEST_F(Sleep, PlainMemoryIsNamedOrLeftAwake) {
  GraphPool plain(*heap_, {.memory = MemoryKind::plain});
  void* const block = write(ok(plain.allocate(10_MiB, a_)), 10_MiB, a_);
  written(10_MiB, a_);
  expect_error(heap_->tags().sleep(), ErrorCode::invalid_argument, "plain memory");
  ok(heap_->tags().sleep({.keep = true}));
  EXPECT_TRUE(device_.launch(b_, Reads(block, 10_MiB), 10_us).ok());
  ok(heap_->deallocate(ok(plain.allocate(20_MiB, a_))));
  ok(heap_->tags().wake());
  expect_intact();
  free_all();
}

TEST_F(Sleep, AStreamThatIsCapturedRefusesIt) {
  written(10_MiB, b_);
  GraphPool pool(*heap_);
  {
    const CaptureScope capture = ok(CaptureScope::begin(pool, a_));
    expect_error(heap_->tags().sleep(), ErrorCode::capture, "capture");
    free(written(10_MiB, b_));
  }
  ok(heap_->tags().sleep());
  expect_error(CaptureScope::begin(pool, a_), ErrorCode::asleep, "'default'");
  ok(heap_->tags().wake());
  free_all();
}

TEST_F(Sleep, APoolThatIsOpenedForATagThatSleepsIsAsleep) {
  written_in("cache", 1_MiB, a_);
  ok(heap_->tags().sleep({.tags = {"cache"}}));
  GraphPool pool(*heap_, {.tag = "cache"});
  expect_error(pool.allocate(1_MiB, a_), ErrorCode::asleep, "'cache'");
  ok(heap_->tags().wake());
  ok(heap_->deallocate(ok(pool.allocate(1_MiB, a_))));
  free_all();
}

// Found by the soak: the pool fell asleep with the tag that it had before, and nothing woke it.
TEST_F(Sleep, APoolThatIsOpenedForAnotherTagMeanwhileStaysAwake) {
  written_in("models", 4_MiB, a_);
  { const GraphPool gone(*heap_, {.tag = "models"}); }
  std::optional<GraphPool> next;  // where the one that is gone was
  heap_->tags().on_sleep([&] {
    std::thread([&] {
      if (!next) next.emplace(*heap_);
    }).join();
    return std::vector<HeldMemory>{};
  });
  SleepOptions models;
  models.tags = {"models"};
  ok(heap_->tags().sleep(models));
  void* const block = ok(next->allocate(1_MiB, b_));
  ok(heap_->tags().wake());
  ok(heap_->deallocate(block));
  next.reset();
  free_all();
}

TEST_F(Sleep, TooLittleMemoryIsAnErrorThatSaysWhoHasItAndARetryWorks) {
  written_in("weights", 2_GiB, a_);
  written_in("cache", 2_GiB, b_);
  ok(heap_->tags().sleep());
  DeviceHeap other(device_, {});
  void* const theirs = ok(other.allocate(5_GiB, a_));
  expect_error(heap_->tags().wake({.tags = {"weights", "cache"}}), ErrorCode::out_of_memory,
               "tag 'cache'");
  const Result<SleepReport> again = heap_->tags().wake();
  ASSERT_FALSE(again.ok());
  EXPECT_THAT(again.error().message(), HasSubstr("of tag 'weights'"));
  EXPECT_THAT(again.error().message(), HasSubstr("other processes) hold 5"));
  EXPECT_EQ(tag("weights").state, TagState::awake);
  EXPECT_EQ(tag("cache").state, TagState::partly_asleep);
  expect_sound();
  ok(other.deallocate(theirs));
  ok(other.trim());
  ok(heap_->tags().wake());
  expect_intact();
  free_all();
}

TEST_F(Sleep, TooLittleHostMemoryLeavesAllAwake) {
  SimDevice poor{{.memory = 8_GiB, .host_memory = 256_MiB}};
  const Stream stream = poor.new_stream();
  DeviceHeap heap(poor, {});
  void* const block = ok(heap.allocate(600_MiB, stream));
  expect_error(heap.tags().sleep(), ErrorCode::out_of_memory, "host");
  EXPECT_EQ(heap.tags().list()[0].state, TagState::awake);
  EXPECT_THAT(heap.validate(), IsEmpty());
  ok(heap.deallocate(ok(heap.allocate(1_MiB, stream))));
  ok(heap.tags().sleep({.contents = SleepContents::discard}));
  ok(heap.tags().wake());
  ok(heap.deallocate(block));
}

TEST_F(Sleep, WhatWasCopiedForASleepThatFailedIsDropped) {
  SimDevice device{{.memory = 8_GiB}};
  const Stream stream = device.new_stream();
  DeviceHeap heap(device, {});
  void* const block = ok(heap.allocate(300_MiB, stream));
  device.fail(DeviceCall::copy_to_host, 3);
  ASSERT_FALSE(heap.tags().sleep().ok());
  EXPECT_EQ(heap.tags().list()[0].state, TagState::awake);
  EXPECT_EQ(heap.tags().list()[0].host, 0_B);
  EXPECT_THAT(heap.validate(), IsEmpty());
  ok(heap.deallocate(block));
}

// A device where several threads make host memory.
class ManyHandedDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  unsigned host_threads() const override { return 4; }
};

TEST_F(Sleep, SeveralThreadsMakeAndFreeHostMemoryAndAFailureLosesNothing) {
  ManyHandedDevice device(device_);
  heap_ = std::make_unique<DeviceHeap>(device, HeapOptions{});
  written(900_MiB, a_);
  written(100_MiB, b_);
  std::uint64_t refused = 0;
  for (std::uint64_t nth = 1; nth <= 16; ++nth) {
    device_.fail(DeviceCall::allocate_host, nth, ErrorCode::out_of_memory);
    const Result<SleepReport> slept = heap_->tags().sleep();
    refused += slept.ok() ? 0 : 1;
    (void)device_.forget_faults();
    expect_sound();
    if (nth % 2 == 0) ok(heap_->tags().sleep());
    ok(heap_->tags().wake());
    EXPECT_EQ(device_.live().host_bytes, 0_B);
    expect_intact();
  }
  EXPECT_GT(refused, 10u);
  device_.fail(DeviceCall::free_host, 3);
  ok(heap_->tags().sleep());
  EXPECT_FALSE(heap_->tags().wake().ok());
  EXPECT_EQ(tag(kDefaultTag).state, TagState::awake) << "the memory is there all the same";
  ok(heap_->tags().wake());
  EXPECT_EQ(device_.live().host_bytes, 0_B);
  expect_intact();
  free_all();
  expect_sound();
  heap_.reset();
  heap_ = std::make_unique<DeviceHeap>(device_, HeapOptions{});
}

// Each has more than half of the device.
TEST_F(Sleep, OneTagFallsAsleepWhileAnotherWakesInItsPlace) {
  written_in("a", 5_GiB, a_);
  ok(heap_->tags().sleep({.tags = {"a"}}));
  written_in("b", 5_GiB, b_);
  for (int turn = 0; turn < 10; ++turn) {
    const std::string falls = turn % 2 == 0 ? "b" : "a", wakes = turn % 2 == 0 ? "a" : "b";
    std::atomic<bool> goes_on{false};
    std::thread sleeper([&] {
      goes_on = true;
      ok(heap_->tags().sleep({.tags = {falls}}));
    });
    while (!goes_on) std::this_thread::yield();
    Result<SleepReport> woke = heap_->tags().wake({.tags = {wakes}, .keep_host = 1_TiB});
    sleeper.join();
    // It may have been too early: then there was no room, and the retry has it.
    if (!woke) ok(heap_->tags().wake({.tags = {wakes}, .keep_host = 1_TiB}));
    EXPECT_EQ(tag(wakes).state, TagState::awake);
    EXPECT_EQ(tag(falls).state, TagState::asleep);
    expect_sound();
  }
  ok(heap_->tags().sleep());
  ok(heap_->tags().wake({.tags = {"a"}}));
  const TagInfo b = tag("b");
  EXPECT_EQ(b.state, TagState::asleep);
  ok(heap_->tags().sleep({.tags = {"a"}}));
  ok(heap_->tags().wake({.tags = {"b"}}));
  free_all();
  ok(heap_->tags().wake());
}

// By the sizes and the offsets: host memory of the simulated device has no bytes.
TEST_F(Sleep, TheCopyOfABlockThatSleepsCanBeRead) {
  void* const block = written(150_MiB, a_);
  written(1000_B, a_);
  const void* const inside = static_cast<const char*>(block) + 4096;
  expect_error(heap_->tags().host_copy(block, 1_MiB), ErrorCode::invalid_argument, "no copy");
  ok(heap_->tags().sleep());
  for (const Bytes size : {1_B, 1_MiB, 150_MiB - 4_KiB}) {
    Bytes sum;
    for (const HostPart& part : ok(heap_->tags().host_copy(inside, size))) {
      EXPECT_EQ(part.offset, sum);
      sum += part.bytes;
    }
    EXPECT_EQ(sum, size);
  }
  expect_error(heap_->tags().host_copy(inside, 150_MiB), ErrorCode::unknown_pointer, "host_copy");
  expect_error(heap_->tags().host_copy(&block, 1_B), ErrorCode::unknown_pointer, "host_copy");
  ok(heap_->tags().wake());
  expect_error(heap_->tags().host_copy(block, 1_MiB), ErrorCode::invalid_argument, "no copy");
  ok(heap_->tags().sleep({.contents = SleepContents::discard}));
  expect_error(heap_->tags().host_copy(block, 1_MiB), ErrorCode::invalid_argument, "no copy");
  ok(heap_->tags().wake());
  free_all();
}

TEST_F(Sleep, ABlockThatWasAllocatedSinceTheSleepHasNoCopy) {
  void* const x = written(32_MiB, a_);
  ok(heap_->tags().sleep({.contents = SleepContents::immutable}));
  ok(heap_->tags().wake());
  void* const y = ok(heap_->allocate(32_MiB, a_));
  ASSERT_GT(y, x) << "behind what has a copy";
  (void)ok(heap_->tags().host_copy(x, 32_MiB));
  expect_error(heap_->tags().host_copy(y, 32_MiB), ErrorCode::invalid_argument, "");
  ok(heap_->deallocate(y));
  free_all();
  ok(heap_->tags().sleep());
  ok(heap_->tags().wake());
}

// By a device whose host memory has bytes: a block in pieces is read piece by piece, each where it
// is at home.
class HostBytesDevice final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  Result<void*> allocate_host(Bytes size) override {
    return std::aligned_alloc((2_MiB).count, size.count);
  }
  Status free_host(void* memory, Bytes) override { return std::free(memory), Status{}; }
  // Each word of a copy is the address on the device that it is from.
  Status copy_to_host(void* to, Address from, Bytes size, Stream) override {
    auto* const words = static_cast<std::uint64_t*>(to);
    for (std::uint64_t at = 0; at < size.count; at += 8) words[at / 8] = from.value + at;
    return {};
  }
  Status copy_to_device(Address, const void*, Bytes, Stream) override { return {}; }
};

TEST_F(Sleep, TheCopyOfABlockInPiecesIsReadFromWhereEachIsAtHome) {
  HostBytesDevice device(device_);
  heap_ = std::make_unique<DeviceHeap>(device, HeapOptions{});
  heap_->set_limit(600_MiB);
  std::vector<void*> blocks;
  for (int i = 0; i < 18; ++i) blocks.push_back(ok(heap_->allocate(28_MiB, a_)));
  for (std::size_t i = 0; i < blocks.size(); i += 3) ok(heap_->deallocate(blocks[i]));
  device_.finish();
  constexpr Bytes kSize = 70_MiB;
  void* const block = ok(heap_->allocate(kSize, a_));
  // In the order of its addresses, and where else they are mapped: at home.
  const std::vector<Segment> pieces = device_.translate(Address::of(block), kSize);
  ASSERT_GT(pieces.size(), 1u) << "no stitched row was made";
  ok(heap_->tags().sleep());
  const Bytes skip = 8_KiB, size = kSize - 16_KiB;
  std::vector<std::uint64_t> words(size.count / 8);
  const void* const from = (Address::of(block) + skip).pointer();
  ok(heap_->tags().read_asleep(from, size, words.data()));
  Bytes sum;
  for (const HostPart& part : ok(heap_->tags().host_copy(from, size))) {
    EXPECT_EQ(part.offset, sum);
    EXPECT_EQ(std::memcmp(part.memory, words.data() + sum.count / 8, part.bytes.count), 0);
    sum += part.bytes;
  }
  EXPECT_EQ(sum, size);
  ok(heap_->tags().wake());
  // Each word is from where its piece is mapped at home.
  std::size_t wrong = 0;
  for (Bytes at; at < size; at += 4_KiB) {
    const std::vector<Segment> here = device_.translate(Address::of(from) + at, 8_B);
    const std::vector<Segment> home = device_.translate(Address{words[at.count / 8]}, 8_B);
    const bool same = here.size() == 1 && home.size() == 1 && here[0].handle == home[0].handle &&
                      here[0].offset == home[0].offset;
    wrong += same ? 0 : 1;
  }
  EXPECT_EQ(wrong, 0u);
  ok(heap_->deallocate(block));
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i % 3 != 0) ok(heap_->deallocate(blocks[i]));
  }
  heap_.reset();
  heap_ = std::make_unique<DeviceHeap>(device_, HeapOptions{});
}

TEST_F(Sleep, TheResidueSaysWhoHasTheDevicesMemory) {
  written(100_MiB, a_);
  const PhysicalHandle other = ok(device_.create(64_MiB));
  const auto expect_residue = [&](Bytes weir, Bytes others, Bytes host) {
    const Residue residue = heap_->tags().residue();
    EXPECT_EQ(residue.device, 8_GiB);
    EXPECT_EQ(residue.free, 8_GiB - device_.physical_bytes());
    EXPECT_EQ(residue.weir, weir);
    EXPECT_EQ(residue.others, others);
    EXPECT_EQ(residue.host, host);
    EXPECT_THAT(residue.held, IsEmpty());
  };
  const Bytes held = device_.physical_bytes() - 64_MiB;
  expect_residue(held, 64_MiB, 0_B);
  ok(heap_->tags().sleep());
  expect_residue(0_B, 64_MiB, device_.live().host_bytes);
  ok(heap_->tags().wake());
  heap_->tags().on_sleep([] {
    return std::vector<HeldMemory>{{kDefaultTag, 24_MiB, "a library"}, {kDefaultTag, 0_B, "none"}};
  });
  Residue residue = heap_->tags().residue();
  EXPECT_EQ(residue.weir, held + 24_MiB);
  EXPECT_EQ(residue.others, 40_MiB);
  ASSERT_EQ(residue.held.size(), 1u);
  EXPECT_EQ(residue.held[0].holder, "a library");
  device_.fail(DeviceCall::memory_info, 1);
  residue = heap_->tags().residue();
  EXPECT_EQ(residue.device, 0_B);
  EXPECT_EQ(residue.others, 0_B);
  EXPECT_EQ(residue.weir, held + 24_MiB);
  ok(device_.release(other));
  free_all();
}

TEST_F(Sleep, ThreadsThatAllocateMeanwhileAreServedOrToldSo) {
  written(500_MiB, a_);
  const Stream c = device_.new_stream();
  std::atomic<bool> stop{false};
  std::atomic<int> served{0}, told{0}, others{0};
  std::vector<std::thread> threads;
  threads.reserve(3);
  for (const Stream stream : {a_, b_, c}) {
    threads.emplace_back([&, stream] {
      std::vector<void*> mine;
      for (int i = 0; !stop.load(); ++i) {
        const Bytes bytes = i % 3 == 0 ? 3_MiB : i % 3 == 1 ? 700_B : 100_KiB;
        Result<void*> block = heap_->allocate(bytes, stream);
        if (block) {
          ++served;
          mine.push_back(*block);
        } else {
          ++(block.error().code() == ErrorCode::asleep ? told : others);
        }
        if (mine.size() > 20 || (!block && !mine.empty())) {
          EXPECT_TRUE(heap_->deallocate(mine.back()).ok());
          mine.pop_back();
        }
      }
      for (void* const block : mine) EXPECT_TRUE(heap_->deallocate(block).ok());
    });
  }
  for (int cycle = 0; cycle < 30; ++cycle) {
    ok(heap_->tags().sleep());
    expect_sound();
    ok(heap_->tags().wake());
    const int before = served;
    while (served == before) std::this_thread::yield();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(served, 0);
  EXPECT_GT(told, 0);
  EXPECT_EQ(others, 0);
  expect_intact();
  free_all();
}

}  // namespace
}  // namespace weir::test
