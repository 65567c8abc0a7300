// Aliases in the long run: a program whose sizes never repeat keeps no more of them than in
// proportion to its pages, and none goes whose addresses somebody may still use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "core_heap_fixture.h"

namespace weir::test {
namespace {

using testing::IsEmpty;

class HeapAliases : public CoreHeap {
 protected:
  // Of a step's mappings a page, as many as are kept in any case, and some more that wait.
  static constexpr std::uint64_t kMostAPage = 20;

  // Steps of a model whose input's length is drawn at random: what a layer makes is kept until the
  // way back, and what it needs meanwhile goes at once. Every fourth step another stream's.
  void run(DeviceHeap& heap, int steps, Nanoseconds kernel) {
    for (int step = 0; step < steps; ++step) {
      const Stream stream = random_() % 4 == 0 ? b_ : a_;
      const Bytes unit = 16_KiB * (1 + random_() % 512);
      std::vector<void*> kept;
      for (const std::uint64_t share : {1, 3, 1, 2, 1, 4, 4, 1, 2}) {
        void* const output = allocate_and_write(heap, unit * share, stream, kernel);
        void* const workspace = allocate_and_write(heap, unit * 2, stream, kernel);
        free(heap, workspace);
        kept.push_back(output);
      }
      for (; !kept.empty(); kept.pop_back()) {
        void* const gradient = allocate_and_write(heap, unit * 3, stream, kernel);
        free(heap, kept.back());
        free(heap, gradient);
      }
      device_.advance(1_ms);
    }
  }
  void* allocate_and_write(DeviceHeap& heap, Bytes size, Stream stream, Nanoseconds kernel) {
    void* const block = allocate(heap, size, stream);
    write(stream, block, size, kernel);
    return block;
  }
  // Blocks of 64 KiB to 16 MiB, of which always about as many bytes are in use.
  void replace_at_random(DeviceHeap& heap) {
    std::vector<std::pair<void*, Bytes>> live;
    Bytes in_use;
    for (int i = 0; i < 6000; ++i) {
      const Bytes size = 64_KiB * (1 + random_() % 256);
      for (; in_use + size > 192_MiB; live.pop_back()) {
        std::swap(live[random_() % live.size()], live.back());
        in_use -= live.back().second;
        free(heap, live.back().first);
      }
      live.emplace_back(allocate_and_write(heap, size, a_, 1_us), size);
      in_use += size;
      device_.advance(100_us);
    }
    for (const auto& [block, size] : live) free(heap, block);
  }
  std::uint64_t most(const DeviceHeap& heap) const {
    return kMostAPage * heap.statistics().pages.current;
  }

  std::mt19937_64 random_{7};
};

TEST_F(HeapAliases, AProgramOfEverNewSizesKeepsThemInProportionToItsPages) {
  DeviceHeap heap(device_, {});
  for (int part = 0; part < 8; ++part) {
    run(heap, 1000, 1_us);
    EXPECT_LE(heap.statistics().mappings.current, most(heap));
    EXPECT_THAT(heap.validate(), IsEmpty());
  }
  EXPECT_GT(heap.statistics().mappings.total, 2 * most(heap)) << "the program makes too few";
  EXPECT_THAT(device_.races(), IsEmpty());
  EXPECT_EQ(heap.statistics().host_waits, 0u);
  EXPECT_EQ(device_.live_mappings(), heap.statistics().mappings.current);
}

TEST_F(HeapAliases, NoneGoesWhoseUsersAreNotDone) {
  DeviceHeap heap(device_, {});
  run(heap, 3000, 1_ms);  // the device is far behind
  EXPECT_GT(heap.statistics().mappings.current, most(heap));
  EXPECT_EQ(device_.calls(DeviceCall::unmap), 0u);
  EXPECT_THAT(heap.validate(), IsEmpty());
  device_.finish();
  run(heap, 3000, 1_us);
  EXPECT_GT(device_.calls(DeviceCall::unmap), 0u);
  EXPECT_LE(heap.statistics().mappings.current, most(heap));
  EXPECT_THAT(heap.validate(), IsEmpty());
  EXPECT_THAT(device_.races(), IsEmpty());
}

// Retired ones are unmapped with their page, and nothing is left behind.
TEST_F(HeapAliases, TheyGoWithTheirPages) {
  DeviceHeap heap(device_, {});
  run(heap, 3000, 1_ms);
  device_.finish();
  ASSERT_TRUE(heap.trim(0_B).ok());
  EXPECT_EQ(heap.statistics().mappings.current, 0u);
  EXPECT_EQ(device_.live_mappings(), 0u);
  EXPECT_THAT(heap.validate(), IsEmpty());
  run(heap, 500, 1_us);
  EXPECT_THAT(heap.validate(), IsEmpty());
  EXPECT_THAT(device_.races(), IsEmpty());
}

TEST_F(HeapAliases, AStreamThatIsNoMoreHoldsNone) {
  DeviceHeap heap(device_, {});
  run(heap, 1000, 1_us);
  void* const block = allocate_and_write(heap, 16_MiB, c_, 1_us);
  free(heap, block);
  ASSERT_TRUE(heap.retire(c_).ok());
  device_.finish();
  ASSERT_TRUE(device_.destroy_stream(c_).ok());
  run(heap, 7000, 1_us);
  EXPECT_LE(heap.statistics().mappings.current, most(heap));
  EXPECT_THAT(heap.validate(), IsEmpty());
  EXPECT_THAT(device_.races(), IsEmpty());
}

// A program that repeats itself pays in its first rounds, however many aliases that takes.
TEST_F(HeapAliases, AProgramThatRepeatsItselfLosesNone) {
  DeviceHeap heap(device_, {});
  std::vector<std::uint64_t> calls;
  for (int round = 0; round < 12; ++round) {
    random_.seed(7);
    replace_at_random(heap);
    if (round == 5) calls = memory_calls();
  }
  EXPECT_EQ(memory_calls(), calls);
  EXPECT_GT(heap.statistics().mappings.current, most(heap)) << "the program makes too few";
  EXPECT_EQ(device_.calls(DeviceCall::unmap), 0u);
}

}  // namespace
}  // namespace weir::test
