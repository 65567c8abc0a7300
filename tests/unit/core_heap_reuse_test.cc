// SPDX-License-Identifier: Apache-2.0
// DeviceHeap: who gets whose memory, and what waits for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/core_heap_fixture.h"
#include "weir/graph_pool.h"

namespace weir {
namespace {

using test::CoreHeap;
using testing::IsEmpty;

class HeapReuse : public CoreHeap {};

// A step of training in little: large and small blocks, two streams, fences.
void one_round(SimDevice& device, DeviceHeap& heap, Stream a, Stream b) {
  std::mt19937_64 random(11);
  std::vector<std::pair<void*, Bytes>> live;
  for (int i = 0; i < 200; ++i) {
    if (!live.empty() && random() % 5 < 2) {
      std::swap(live[random() % live.size()], live.back());
      ASSERT_TRUE(heap.deallocate(live.back().first).ok());
      live.pop_back();
      continue;
    }
    const Bytes size = kGrain * (1 + random() % (random() % 2 == 0 ? 100 : 20'000));
    const Stream stream = random() % 4 == 0 ? b : a;
    const Result<void*> block = heap.allocate(size, stream);
    ASSERT_TRUE(block.ok());
    ASSERT_TRUE(device.launch(stream, Writes(*block, size), 20_us).ok());
    live.emplace_back(*block, size);
  }
  for (const auto& [block, size] : live) ASSERT_TRUE(heap.deallocate(block).ok());
}

TEST_F(HeapReuse, ARepeatingProgramMovesNoMemoryInItsSecondRound) {
  DeviceHeap heap(device_);
  one_round(device_, heap, a_, b_);
  device_.advance(100_ms);
  const std::vector<std::uint64_t> before = memory_calls();
  for (int round = 0; round < 3; ++round) {
    one_round(device_, heap, a_, b_);
    EXPECT_EQ(memory_calls(), before);
  }
  EXPECT_EQ(device_.host_waits(), 0u);
  EXPECT_THAT(device_.races(), IsEmpty());
  EXPECT_THAT(heap.validate(), IsEmpty());
}

TEST_F(HeapReuse, ANewStreamAdoptsTheHeapOfARetiredOneAndWaitsForItsWork) {
  DeviceHeap heap(device_);
  void* const first = allocate(heap, 64_MiB, a_);
  write(a_, first, 64_MiB, 5_ms);
  const HeapId id = heap.find(first)->heap;
  ASSERT_TRUE(heap.retire(a_).ok());
  free(heap, first);
  ASSERT_TRUE(device_.destroy_stream(a_).ok());

  const std::vector<std::uint64_t> before = memory_calls();
  void* const next = allocate(heap, 64_MiB, b_);
  write(b_, next, 64_MiB);
  EXPECT_EQ(heap.find(next)->heap, id);
  EXPECT_EQ(heap.find(next)->stream, b_.id);
  EXPECT_EQ(memory_calls(), before);
  EXPECT_EQ(device_.calls(DeviceCall::wait), 1u);
  EXPECT_EQ(device_.host_waits(), 0u);
  EXPECT_THAT(device_.races(), IsEmpty());
  EXPECT_THAT(heap.validate(), IsEmpty());
}

TEST_F(HeapReuse, NothingIsAllocatedForARetiredStream) {
  DeviceHeap heap(device_);
  void* const block = allocate(heap, 1_MiB, a_);
  ASSERT_TRUE(heap.retire(a_).ok());
  ASSERT_TRUE(heap.retire(a_).ok());
  const Result<void*> refused = heap.allocate(1_MiB, a_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
  EXPECT_THAT(refused.error().message(), testing::HasSubstr(std::to_string(a_.id)));
  free(heap, block);
}

TEST_F(HeapReuse, TheStreamOfAllStreamsIsNamedByNoProgram) {
  DeviceHeap heap(device_);
  const Stream all = Stream::all();
  void* const x = allocate(heap, 32_MiB, a_);
  void* const y = allocate(heap, 32_MiB, a_);
  void* const both[] = {x, y};
  const void* const inside[] = {x};
  const auto expect_refused = [](const auto& outcome, const std::string& call) {
    ASSERT_FALSE(outcome.ok()) << call;
    EXPECT_EQ(outcome.error().code(), ErrorCode::invalid_argument) << call;
  };
  for (const Bytes bytes : {100_B, 32_MiB}) expect_refused(heap.allocate(bytes, all), "allocate");
  expect_refused(heap.fence(std::span(both, 1), all), "fence");
  expect_refused(heap.fence(both, all), "fence of several");
  expect_refused(heap.fence_use(inside, all, true), "fence_use");
  expect_refused(heap.record_stream(x, all), "record_stream");
  expect_refused(heap.order(a_, all), "order before");
  expect_refused(heap.order(all, a_), "order after");
  expect_refused(heap.wait(all, heap.fence_use({}, a_, true).value().value()), "wait");
  expect_refused(heap.retire(all), "retire");
  GraphPool pool(heap);
  Result<PoolBinding> binding = pool.warm_up([](Stream) { return true; });
  ASSERT_TRUE(binding.ok());
  expect_refused(heap.allocate(32_MiB, all), "allocate in a pool");
  binding->close();
  EXPECT_THAT(heap.validate(), IsEmpty());
  for (void* const block : both) free(heap, block);
}

// More streams than the heap remembers the order of at a time.
TEST_F(HeapReuse, EachOfManyStreamsWaitsForTheOneThatFreedItsMemory) {
  constexpr std::size_t kStreams = 70;
  DeviceHeap heap(device_);
  std::vector<void*> blocks(2 * kStreams);
  for (void*& block : blocks) {
    block = allocate(heap, 4_MiB, a_);
    write(a_, block, 4_MiB, 10_ms);
  }
  for (void* const block : blocks) free(heap, block);
  for (std::size_t i = 0; i < kStreams; ++i) {
    const Stream stream = device_.new_stream();
    for (const std::size_t at : {2 * i, 2 * i + 1}) {
      blocks[at] = allocate(heap, 4_MiB, stream);
      write(stream, blocks[at], 4_MiB);
    }
  }
  EXPECT_EQ(heap.statistics().stream_waits, kStreams);
  EXPECT_EQ(device_.race_count(), 0u);
  for (void* const block : blocks) free(heap, block);
  device_.finish();
}

class HeapPointers : public CoreHeap {};

TEST_F(HeapPointers, AnyPointerIntoALiveBlockFindsIt) {
  DeviceHeap heap(device_);
  char* const small = static_cast<char*>(allocate(heap, 700_B, a_));
  char* const large = static_cast<char*>(allocate(heap, 5_MiB, b_));
  const std::optional<BlockInfo> found = heap.find(small + 1023);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->address, Address::of(small));
  EXPECT_EQ(found->bytes, 1024_B);
  EXPECT_EQ(found->requested, 700_B);
  EXPECT_EQ(found->stream, a_.id);
  EXPECT_FALSE(heap.find(small + 1024).has_value());
  ASSERT_TRUE(heap.find(large + (5_MiB).count - 1).has_value());
  EXPECT_EQ(heap.find(large + (5_MiB).count - 1)->address, Address::of(large));
  EXPECT_FALSE(heap.find(large + (5_MiB).count).has_value());
  EXPECT_FALSE(heap.find(large - 1).has_value());
  EXPECT_FALSE(heap.find(nullptr).has_value());
  EXPECT_FALSE(heap.find(&heap).has_value());
  free(heap, small);
  EXPECT_FALSE(heap.find(small).has_value());
}

TEST_F(HeapPointers, APointerThatIsNoLiveBlockIsRefusedAndNothingChanges) {
  DeviceHeap heap(device_);
  char* const block = static_cast<char*>(allocate(heap, 5_MiB, a_));
  void* const freed = allocate(heap, 1_KiB, a_);
  void* const beside = allocate(heap, 1_KiB, a_);
  free(heap, freed);
  DeviceHeap other(device_);
  void* const foreign = allocate(other, 5_MiB, a_);

  const Statistics before = heap.statistics();
  const std::vector<std::uint64_t> calls = all_calls();
  int on_the_stack = 0;
  for (void* const wrong :
       {freed, static_cast<void*>(block + 512), foreign, static_cast<void*>(&on_the_stack)}) {
    const std::array both{static_cast<void*>(block), wrong};
    for (const Status& status : {heap.deallocate(wrong), heap.fence(wrong, b_),
                                 heap.fence(both, b_), heap.record_stream(wrong, b_)}) {
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().code(), ErrorCode::unknown_pointer);
    }
  }
  EXPECT_EQ(heap.statistics(), before);
  EXPECT_EQ(all_calls(), calls);
  EXPECT_THAT(heap.validate(), IsEmpty());
  free(heap, beside);
  free(heap, block);
  EXPECT_TRUE(heap.deallocate(nullptr).ok());
  EXPECT_FALSE(heap.deallocate(block).ok());
}

}  // namespace
}  // namespace weir
