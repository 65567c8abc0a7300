// Aliases in the long run: a program whose sizes never repeat keeps no more of them than in
// proportion to its pages, and none goes whose addresses somebody may still use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "core_heap_fixture.h"
#include "tests/unit/core_test_access.h"

namespace weir::test {
namespace {

using testing::IsEmpty;

class HeapAliases : public CoreHeap {
 protected:
  // Of mappings a page: 16 that are kept in any case, and those that were used not long ago.
  static constexpr std::uint64_t kMostAPage = 40;

  // Steps of a model whose input's length is drawn at random: what a layer makes is kept until the
  // way back, and what it needs meanwhile goes at once. Every fourth step is another stream's, and
  // a third stream has one now and then. Now and then, too, a block comes that stays for long.
  void run(DeviceHeap& heap, int steps, Nanoseconds kernel) {
    for (int step = 0; step < steps; ++step) {
      const Stream stream = step % 200 == 0 ? c_ : random_() % 4 == 0 ? b_ : a_;
      const Bytes unit = 16_KiB * (1 + random_() % 512);
      std::vector<void*> kept;
      for (const std::uint64_t share : {1, 3, 1, 2, 1, 4, 4, 1, 2}) {
        void* const output = allocate_and_write(heap, unit * share, stream, kernel);
        void* const workspace = allocate_and_write(heap, unit * 2, stream, kernel);
        free(heap, workspace);
        kept.push_back(output);
      }
      if (step % 200 == 100) replace_oldest(heap, 64_KiB * (5 + random_() % 64), stream, kernel);
      for (; !kept.empty(); kept.pop_back()) {
        void* const gradient = allocate_and_write(heap, unit * 3, stream, kernel);
        free(heap, kept.back());
        free(heap, gradient);
      }
      device_.advance(1_ms);
    }
    EXPECT_THAT(heap.validate(), IsEmpty());
  }
  void replace_oldest(DeviceHeap& heap, Bytes size, Stream stream, Nanoseconds kernel) {
    old_.push_back({allocate_and_write(heap, size, stream, kernel), size, stream});
    if (old_.size() <= kOld) return;
    write(old_.front().stream, old_.front().block, old_.front().size, kernel);
    free(heap, old_.front().block);
    old_.pop_front();
  }
  void free_old(DeviceHeap& heap) {
    for (; !old_.empty(); old_.pop_front()) free(heap, old_.front().block);
  }
  void* allocate_and_write(DeviceHeap& heap, Bytes size, Stream stream, Nanoseconds kernel) {
    void* const block = allocate(heap, size, stream);
    write(stream, block, size, kernel);
    return block;
  }
  // Blocks of 64 KiB to 16 MiB, of which always about as many bytes are in use. They are a's;
  // `user` may be another stream, and reads them then.
  void replace_at_random(DeviceHeap& heap) { replace_at_random(heap, a_, 1_us); }
  void replace_at_random(DeviceHeap& heap, Stream user, Nanoseconds kernel) {
    std::vector<std::pair<void*, Bytes>> live;
    Bytes in_use;
    for (int i = 0; i < 6000; ++i) {
      const Bytes size = 64_KiB * (1 + random_() % 256);
      for (; in_use + size > 192_MiB; live.pop_back()) {
        std::swap(live[random_() % live.size()], live.back());
        in_use -= live.back().second;
        free(heap, live.back().first);
      }
      void* const block = allocate(heap, size, a_);
      live.emplace_back(block, size);
      const Access access = user == a_ ? Writes(block, size) : Reads(block, size);
      ASSERT_TRUE(device_.launch(user, access, kernel).ok());
      in_use += size;
      device_.advance(100_us);
    }
    for (const auto& [block, size] : live) free(heap, block);
  }
  // Blocks in all pages.
  std::vector<void*> lease_all(DeviceHeap& heap) {
    std::vector<void*> live;
    const auto has_idle_pages = [&] {
      const Statistics now = heap.statistics();
      return now.leased_bytes.current < now.reserved_bytes.current;
    };
    while (has_idle_pages() && live.size() < 1000) live.push_back(allocate(heap, 1_MiB, a_));
    EXPECT_LT(live.size(), 1000u);
    return live;
  }
  // More requests than blocks are kept at hand, so that each asks for pages.
  void ask(DeviceHeap& heap, int requests) {
    for (int i = 0; i < requests; i += 12) {
      std::vector<void*> blocks;
      for (int k = 0; k < 12; ++k) blocks.push_back(allocate(heap, 3_MiB, a_));
      for (void* const block : blocks) free(heap, block);
    }
  }
  // What a program's mappings come to when its runs are numbered from there on.
  std::vector<std::uint64_t> figures(std::uint32_t first_use) {
    DeviceHeap heap(device_, {});
    TestAccess::last_use(TestAccess::table(heap)) = first_use;
    random_.seed(7);
    const std::uint64_t unmapped = device_.calls(DeviceCall::unmap);
    for (int part = 0; part < 3; ++part) run(heap, 1000, 1_us);
    EXPECT_LE(heap.statistics().mappings.current, most(heap));
    EXPECT_GT(device_.calls(DeviceCall::unmap), unmapped);
    last_use_ = TestAccess::last_use(TestAccess::table(heap));
    const Statistics& now = heap.statistics();
    std::vector<std::uint64_t> figures{now.mappings.current, now.mappings.total, now.pages.total,
                                       device_.calls(DeviceCall::unmap) - unmapped};
    free_old(heap);
    return figures;
  }
  std::uint64_t most(const DeviceHeap& heap) const {
    return kMostAPage * heap.statistics().pages.current;
  }

  struct Old {
    void* block;
    Bytes size;
    Stream stream;
  };
  static constexpr std::size_t kOld = 8;
  static constexpr std::uint32_t kLong = 10'000;  // runs: what was not used meanwhile may go

  std::mt19937_64 random_{7};
  std::deque<Old> old_;
  std::uint32_t last_use_ = 0;  // after figures()
};

TEST_F(HeapAliases, AProgramOfEverNewSizesKeepsThemInProportionToItsPages) {
  DeviceHeap heap(device_, {});
  for (int part = 0; part < 8; ++part) {
    run(heap, 1000, 1_us);
    EXPECT_LE(heap.statistics().mappings.current, most(heap));
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

// Where uses need not be told, they may be of any stream.
TEST_F(HeapAliases, NoneGoesWhoseUsersNobodyKnows) {
  DeviceHeap heap(device_, {.trust = Trust::context});
  const Stream unknown = device_.new_stream();
  void* const x = allocate(heap, 1_MiB, a_);
  ASSERT_TRUE(device_.launch(unknown, Reads(x, 1_MiB), 1'000'000_ms).ok());
  run(heap, 3000, 1_us);
  EXPECT_GT(heap.statistics().mappings.current, most(heap));
  EXPECT_EQ(device_.calls(DeviceCall::unmap), 0u);
  device_.finish();
  run(heap, 3000, 1_us);
  EXPECT_GT(device_.calls(DeviceCall::unmap), 0u);
  free_old(heap);
}

// The holder of a page is waited for, though nobody else ever used the page and it is not idle.
TEST_F(HeapAliases, NoneGoesThatTheHolderOfItsPageUsesStill) {
  for (const Trust trust : {Trust::told, Trust::context}) {
    DeviceHeap heap(device_, {.trust = trust});
    // Told of nothing, a's work may be followed by any stream's.
    const Stream reader = trust == Trust::told ? a_ : device_.new_stream();
    random_.seed(7);
    for (int round = 0; round < 8; ++round) {
      replace_at_random(heap);
      random_.seed(7);
    }
    device_.finish();
    replace_at_random(heap, reader, 1'000_ms);
    std::vector<void*> live = lease_all(heap);
    TestAccess::last_use(TestAccess::table(heap)) += kLong;
    const std::uint64_t unmapped = device_.calls(DeviceCall::unmap);
    ask(heap, 3000);
    EXPECT_GT(TestAccess::aliases_retired(heap).size(), 0u) << "the program makes too few";
    EXPECT_EQ(device_.calls(DeviceCall::unmap), unmapped);
    device_.finish();
    ask(heap, 3000);
    EXPECT_GT(device_.calls(DeviceCall::unmap), unmapped);
    EXPECT_THAT(heap.validate(), IsEmpty());
    EXPECT_THAT(device_.races(), IsEmpty());
    for (void* const block : live) free(heap, block);
  }
}

// Runs are numbered in 32 bits: what is old stays old where these run out, and young what is young.
TEST_F(HeapAliases, ItMakesNoDifferenceThatNumbersOfRunsRunOut) {
  constexpr std::uint32_t kLowered = TestAccess::kUsesEnd / 2, kBefore = 40'000;
  const std::vector<std::uint64_t> expected = figures(kLowered - kBefore);
  const std::uint32_t end = last_use_;
  ASSERT_GT(end, kLowered + 1) << "the program takes too few runs";
  EXPECT_EQ(figures(TestAccess::kUsesEnd - 1 - kBefore), expected);
  EXPECT_EQ(last_use_, end) << "they did not run out";
}

// Retired ones are unmapped with their page, and nothing is left behind.
TEST_F(HeapAliases, TheyGoWithTheirPages) {
  DeviceHeap heap(device_, {});
  run(heap, 3000, 1_ms);
  free_old(heap);
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
  const Stream gone = device_.new_stream();
  void* const block = allocate_and_write(heap, 16_MiB, gone, 1_us);
  free(heap, block);
  ASSERT_TRUE(heap.retire(gone).ok());
  device_.finish();
  ASSERT_TRUE(device_.destroy_stream(gone).ok());
  run(heap, 7000, 1_us);
  EXPECT_LE(heap.statistics().mappings.current, most(heap));
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
  EXPECT_GT(heap.statistics().mappings.current, 20 * heap.statistics().pages.current)
      << "the program makes too few";
  EXPECT_EQ(device_.calls(DeviceCall::unmap), 0u);
}

}  // namespace
}  // namespace weir::test
