// SPDX-License-Identifier: Apache-2.0
// The checker checks: histories that no heap can have had, one for each thing that it looks for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "tests/property/levels.h"
#include "tests/property/linearizable.h"

namespace weir::test {
namespace {

using Kind = Call::Kind;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Address kA{0x10000}, kB{0x20000};

// A history is forged call by call, each with the stamps that it is given.
class Forged {
 public:
  Call& add(Kind kind, Stamp begin, Stamp end, std::vector<Address> addresses = {}) {
    Call call;
    call.kind = kind;
    call.begin = begin;
    call.end = end;
    call.addresses = std::move(addresses);
    history_.push_back(std::move(call));
    return history_.back();
  }
  Call& allocate(Stamp begin, Stamp end, Address at, Bytes bytes = 1000_B,
                 std::uint64_t stream = 1) {
    Call& call = add(Kind::allocate, begin, end, {at});
    call.bytes = bytes;
    call.stream = stream;
    return call;
  }
  Call& deallocate(Stamp begin, Stamp end, Address at) {
    return add(Kind::deallocate, begin, end, {at});
  }
  Call& find(Stamp begin, Stamp end, Address at) { return add(Kind::find, begin, end, {at}); }
  Call& snapshot(Stamp begin, Stamp end, std::vector<BlockInfo> blocks) {
    Call& call = add(Kind::snapshot, begin, end);
    call.blocks = std::move(blocks);
    return call;
  }
  // Of one heap, for stream 1, whose gauges are the device's.
  Call& statistics(Stamp begin, Stamp end, Gauge blocks, Gauge bytes, Gauge requested) {
    Call& call = add(Kind::statistics, begin, end);
    call.statistics = std::make_shared<Statistics>();
    HeapStatistics heap;
    heap.live_blocks = call.statistics->live_blocks = blocks;
    heap.live_bytes = call.statistics->live_bytes = bytes;
    heap.requested_bytes = call.statistics->requested_bytes = requested;
    call.statistics->heaps = {heap};
    return call;
  }

  std::vector<std::string> check() const { return contradictions(history_); }

 private:
  History history_;
};

BlockInfo info(Address at, Bytes bytes = 1000_B, std::uint64_t stream = 1) {
  return {at, round_up(bytes, kGrain), bytes, HeapId{static_cast<std::uint32_t>(stream - 1)},
          stream};
}

#define EXPECT_REPORTS(forged, words) EXPECT_THAT((forged).check(), Contains(HasSubstr(words)))

// What is forged, and what the checker says of it; nothing where such a history can be.
struct Row {
  const char* name;
  const char* says;
  void (*forge)(Forged& forged);
};
const Row kRows[] = {
    {"TakesAHistoryThatCanBe", nullptr,
     [](Forged& forged) {
       forged.allocate(1, 4, kA);
       forged.find(2, 3, kA).blocks = {info(kA)};
       forged.snapshot(5, 6, {info(kA)});
       forged.statistics(7, 8, {1, 1, 1}, {1024, 1024, 1024}, {1000, 1000, 1000});
       forged.deallocate(9, 14, kA);
       forged.find(10, 11, kA);
       forged.allocate(12, 13, kA);  // while its deallocate is still under way
       forged.deallocate(15, 16, kA);
       forged.deallocate(17, 18, kA).error = ErrorCode::unknown_pointer;
     }},
    {"ReportsABlockGivenOutTwice", "given out again",
     [](Forged& forged) {
       forged.allocate(1, 2, kA);
       forged.allocate(3, 4, kA);
     }},
    {"ReportsBlocksThatOverlap", "share addresses",
     [](Forged& forged) {
       forged.allocate(1, 4, kA, 1000_B);
       forged.allocate(2, 3, kA + 512_B, 2000_B, 2);
       forged.deallocate(5, 6, kA);
     }},
    {"ReportsBlocksThatShareBytesOfAPage", "share bytes of a page",
     [](Forged& forged) {
       forged.allocate(1, 2, kA).segments = {{PhysicalHandle{7}, 0_B, 1024_B}};
       forged.allocate(3, 4, kB).segments = {{PhysicalHandle{7}, 512_B, 1024_B}};
     }},
    {"TakesBlocksThatMayFollowOneAnother", nullptr,
     [](Forged& forged) {
       forged.allocate(1, 2, kA, 1000_B).segments = {{PhysicalHandle{7}, 0_B, 1024_B}};
       forged.deallocate(3, 6, kA);
       forged.allocate(4, 5, kA + 512_B, 2000_B).segments = {{PhysicalHandle{7}, 0_B, 1024_B},
                                                             {PhysicalHandle{8}, 0_B, 1024_B}};
     }},
    {"ReportsASecondDeallocateThatWasTaken", "deallocate took what was not live",
     [](Forged& forged) {
       forged.allocate(1, 2, kA);
       forged.deallocate(3, 4, kA);
       forged.deallocate(5, 6, kA);
     }},
    {"ReportsAFenceOfWhatWasNotLive", "was not live",
     [](Forged& forged) {
       forged.allocate(1, 2, kA);
       forged.add(Kind::fence, 3, 4, {kA, kB});
     }},
    {"TakesARefusalForOneOfSeveralBlocks", nullptr,
     [](Forged& forged) {
       forged.allocate(1, 2, kA);
       forged.add(Kind::fence, 3, 4, {kA, kB}).error = ErrorCode::unknown_pointer;
     }},
    {"ReportsAFindThatMissesALiveBlock", "find missed",
     [](Forged& forged) {
       forged.allocate(1, 2, kA);
       forged.find(3, 4, kA + 1023_B);
       forged.deallocate(5, 6, kA);
     }},
    {"TakesAFindPastTheEnd", nullptr,
     [](Forged& forged) {
       forged.allocate(1, 2, kA);
       forged.find(3, 4, kA + 1024_B);
     }},
    {"ReportsAFindOfWhatWasGone", "not live",
     [](Forged& forged) {
       forged.allocate(1, 2, kA);
       forged.deallocate(3, 4, kA);
       forged.find(5, 6, kA).blocks = {info(kA)};
     }},
    {"ReportsAFindWithAnotherSize", "not as it was asked for",
     [](Forged& forged) {
       forged.allocate(1, 2, kA);
       forged.find(3, 4, kA).blocks = {info(kA, 999_B)};
     }},
    {"ReportsAFindOfABlockElsewhere", "elsewhere",
     [](Forged& forged) {
       forged.allocate(1, 2, kA);
       forged.find(3, 4, kB).blocks = {info(kA)};
     }},
    {"ReportsABlockMissingFromASnapshot", "lacks a live block",
     [](Forged& forged) {
       forged.allocate(1, 2, kA);
       forged.allocate(3, 4, kB);
       forged.snapshot(5, 6, {info(kB)});
     }},
    {"ReportsAGhostInASnapshot", "a snapshot has a block that was not live",
     [](Forged& forged) {
       forged.allocate(1, 2, kA);
       forged.deallocate(3, 4, kA);
       forged.snapshot(5, 6, {info(kA)});
     }},
    {"ReportsBlocksOfASnapshotThatOverlap", "overlap",
     [](Forged& forged) {
       forged.allocate(1, 2, kA);
       forged.snapshot(3, 4, {info(kA), info(kA)});
     }},
    {"ReportsAPageThatIsIdleAndInUse", "not leased",
     [](Forged& forged) {
       forged.snapshot(1, 2, {}).pages = {
           {.page = {}, .bytes = 2_MiB, .used = 512_B, .lease = std::nullopt}};
     }},
    {"ReportsAStreamWithBlocksOfTwoHeaps", "blocks of two heaps",
     [](Forged& forged) {
       forged.allocate(1, 2, kA);
       forged.find(3, 4, kA).blocks = {info(kA)};
       BlockInfo other = info(kA);
       other.heap = HeapId{5};
       forged.find(5, 6, kA).blocks = {other};
     }},
    {"ReportsOutOfMemoryThatWasNotCounted", "out_of_memory",
     [](Forged& forged) {
       Call& refused = forged.add(Kind::allocate, 1, 2);
       refused.bytes = 1_GiB;
       refused.error = ErrorCode::out_of_memory;
       forged.statistics(3, 4, {}, {}, {});
     }},
    {"ReportsErrorsThatAreNotPromised", "an error",
     [](Forged& forged) { forged.add(Kind::trim, 1, 2).error = ErrorCode::device; }},
    {"ReportsWhatValidateSays", "a page is lost",
     [](Forged& forged) { forged.add(Kind::validate, 1, 2).broken = {"a page is lost"}; }},
    {"ReportsNullForABlock", "null is for zero bytes",
     [](Forged& forged) { forged.add(Kind::allocate, 1, 2).bytes = 100_B; }},
    {"ReportsABlockThatIsNotMapped", "not all of a block is mapped",
     [](Forged& forged) {
       forged.allocate(1, 2, kA).segments = {{PhysicalHandle{1}, 0_B, 512_B}};
     }},
};

TEST(LinearizableChecker, SaysOfEachForgedHistoryWhatIsWrongWithIt) {
  for (const Row& row : kRows) {
    Forged forged;
    row.forge(forged);
    if (row.says == nullptr) {
      EXPECT_THAT(forged.check(), IsEmpty()) << row.name;
    } else {
      EXPECT_THAT(forged.check(), Contains(HasSubstr(row.says))) << row.name;
    }
  }
}

TEST(LinearizableChecker, ReportsASightingThatMakesBlocksOverlap) {
  Forged forged;
  forged.allocate(1, 2, kA);
  forged.deallocate(3, 10, kA);
  forged.allocate(4, 11, kA + 512_B);
  EXPECT_THAT(forged.check(), IsEmpty());
  forged.find(5, 6, kA + 512_B).blocks = {info(kA + 512_B)};
  forged.find(7, 8, kA).blocks = {info(kA)};  // after the one that needs its bytes was seen
  EXPECT_REPORTS(forged, "share addresses");
}

TEST(LinearizableChecker, ReportsALiveBlockThatWasRefused) {
  for (const Kind kind : {Kind::deallocate, Kind::fence, Kind::record_stream}) {
    Forged forged;
    forged.allocate(1, 2, kA);
    forged.add(kind, 3, 4, {kA}).error = ErrorCode::unknown_pointer;
    EXPECT_REPORTS(forged, "a live block was refused");
  }
}

// The first block went before the second came, all while the snapshot was taken.
Forged one_after_another(std::uint64_t second_stream) {
  Forged forged;
  forged.allocate(1, 2, kA, 1000_B, 1);
  forged.deallocate(4, 5, kA);
  forged.allocate(6, 7, kB, 1000_B, second_stream);
  forged.snapshot(3, 8, {info(kA, 1000_B, 1), info(kB, 1000_B, second_stream)});
  return forged;
}

TEST(LinearizableChecker, ReportsASnapshotOfAStreamAtNoOneMoment) {
  EXPECT_REPORTS(one_after_another(1), "no one moment");
  EXPECT_THAT(one_after_another(2).check(), IsEmpty());
}

TEST(LinearizableChecker, ReportsASnapshotAfterAnotherThatTellsMore) {
  Forged forged;
  forged.allocate(1, 10, kA);
  forged.snapshot(2, 3, {info(kA)});
  EXPECT_THAT(forged.check(), IsEmpty());
  forged.snapshot(4, 5, {});
  EXPECT_REPORTS(forged, "lacks a live block");
}

// One block of 1000 bytes from 2 to 20; then one of 3000 as well, while `during` or before it.
Forged counted() {
  Forged forged;
  forged.allocate(1, 2, kA);
  forged.find(3, 4, kA).blocks = {info(kA)};
  forged.allocate(5, 6, kB, 3000_B);
  forged.deallocate(7, 8, kB);
  return forged;
}
constexpr Gauge kBlocks{1, 2, 2}, kBytes{1024, 4096, 4096}, kRequested{1000, 4000, 4000};

TEST(LinearizableChecker, ReportsStatisticsThatCantBe) {
  Forged right = counted();
  right.statistics(9, 10, kBlocks, kBytes, kRequested);
  EXPECT_THAT(right.check(), IsEmpty());

  const auto reports = [](Gauge blocks, Gauge bytes, Gauge requested, const char* what) {
    Forged forged = counted();
    forged.statistics(9, 10, blocks, bytes, requested);
    EXPECT_REPORTS(forged, what);
  };
  reports({0, 2, 2}, kBytes, kRequested, "live_blocks, current = 0");
  reports(kBlocks, {4096, 4096, 4096}, kRequested, "live_bytes, current = 4096");
  reports(kBlocks, kBytes, {1024, 4000, 4000}, "requested_bytes, current = 1024");
  reports(kBlocks, {1024, 3072, 4096}, kRequested, "live_bytes, peak = 3072");
  reports(kBlocks, {1024, 5120, 4096}, kRequested, "live_bytes, peak = 5120");
  reports(kBlocks, kBytes, {1000, 4000, 4001}, "requested_bytes, total = 4001");
  reports(kBlocks, kBytes, {1000, 4000, 1000}, "requested_bytes, total = 1000");
}

TEST(LinearizableChecker, ReportsADevicesPeakBelowAHeaps) {
  Forged forged;
  forged.allocate(1, 2, kA);
  forged.find(3, 4, kA).blocks = {info(kA)};
  forged.deallocate(5, 6, kA);
  forged.statistics(7, 8, {0, 1, 1}, {0, 512, 1024}, {0, 1000, 1000});
  EXPECT_REPORTS(forged, "live_bytes, peak = 512");
}

TEST(LinearizableChecker, ReportsAPeakFromBeforeAReset) {
  Forged forged = counted();
  forged.add(Kind::reset_peaks, 9, 10);
  forged.statistics(11, 12, kBlocks, kBytes, kRequested);
  EXPECT_REPORTS(forged, "live_bytes, peak = 4096");
}

TEST(LinearizableChecker, TakesWhatWasPossibleDuringACall) {
  for (const Gauge& bytes : {Gauge{1024, 1024, 1024}, Gauge{4096, 4096, 4096}}) {
    Forged forged;
    forged.allocate(1, 2, kA);
    forged.find(3, 4, kA).blocks = {info(kA)};
    forged.allocate(5, 8, kB, 3000_B);
    const Gauge blocks = bytes.current == 1024 ? Gauge{1, 1, 1} : Gauge{2, 2, 2};
    const Gauge requested =
        bytes.current == 1024 ? Gauge{1000, 1000, 1000} : Gauge{4000, 4000, 4000};
    forged.statistics(6, 7, blocks, bytes, requested);
    EXPECT_THAT(forged.check(), IsEmpty());
  }
}

TEST(LinearizableChecker, ReportsADeviceLevelThatNeverWas) {
  // Two heaps, one block each: the first goes before the second comes.
  Forged forged;
  forged.allocate(1, 2, kA, 1000_B, 1);
  forged.find(3, 4, kA).blocks = {info(kA, 1000_B, 1)};
  forged.deallocate(6, 7, kA);
  forged.allocate(8, 9, kB, 1000_B, 2);
  forged.find(11, 12, kB).blocks = {info(kB, 1000_B, 2)};
  Call& call = forged.add(Kind::statistics, 5, 10);
  call.statistics = std::make_shared<Statistics>();
  HeapStatistics first, second;
  second.heap = HeapId{1};
  first.live_blocks = second.live_blocks = {1, 1, 1};
  first.live_bytes = second.live_bytes = {1024, 1024, 1024};
  first.requested_bytes = second.requested_bytes = {1000, 1000, 1000};
  call.statistics->heaps = {first, second};
  // Two blocks are what the heaps had, one after the other; no moment had both.
  call.statistics->live_blocks = {2, 2, 2};
  call.statistics->live_bytes = {1024, 1024, 2048};
  call.statistics->requested_bytes = {1000, 1000, 2000};
  EXPECT_REPORTS(forged, "live_blocks, current = 2");
}

}  // namespace
}  // namespace weir::test
