// SPDX-License-Identifier: Apache-2.0
// Addresses and pages: what every device does, and what it refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/conformance/rig.h"

namespace weir::conformance {
namespace {

class DeviceMemory : public Conformance {
 protected:
  Bytes free_memory() {
    Result<MemoryInfo> info = device().memory_info();
    EXPECT_TRUE(info.ok()) << info.error().message();
    return info.ok() ? info->free : Bytes{};
  }
  void expect_about(Bytes actual, Bytes expected) {
    const Bytes apart = std::max(actual, expected) - std::min(actual, expected);
    EXPECT_LE(apart, rig().memory_info_slack()) << actual.count << " against " << expected.count;
  }
  // By work of a stream of its own, which is done.
  void fill(Address address, Bytes bytes, std::uint32_t value) {
    const Stream stream = rig().new_stream();
    rig().fill(stream, address, bytes, value);
    finish(stream);
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, DeviceMemory, each_kind_of_device(), kind_name);

TEST_P(DeviceMemory, SaysWhatItIs) {
  EXPECT_FALSE(device().name().empty());
  const std::uint64_t granularity = device().granularity().count;
  ASSERT_GT(granularity, 0u);
  EXPECT_EQ(granularity & (granularity - 1), 0u);
  const Result<MemoryInfo> info = device().memory_info();
  ASSERT_TRUE(info.ok());
  EXPECT_GT(info->total, 0_B);
  EXPECT_LE(info->free, info->total);
}

TEST_P(DeviceMemory, ReservationsAreAlignedAndApart) {
  struct Range {
    Address address;
    Bytes size;
  };
  std::vector<Range> ranges;
  for (const std::uint64_t pages : {1, 3, 64, 1000}) {
    const Bytes size = page_size() * pages;
    const Bytes alignment = page_size() * 32;
    const Result<Address> address = device().reserve(size, alignment);
    ASSERT_TRUE(address.ok()) << address.error().message();
    EXPECT_EQ(address->value % alignment.count, 0u);
    for (const Range& other : ranges) {
      EXPECT_TRUE(*address + size <= other.address || other.address + other.size <= *address);
    }
    ranges.push_back({*address, size});
  }
  for (const Range& range : ranges) expect_ok(device().unreserve(range.address, range.size));
}

TEST_P(DeviceMemory, AReservationLiesWhereItIsWantedIfThatIsFree) {
  const Bytes size = page_size() * 64;
  constexpr Address kWanted{std::uint64_t{16} << 40};
  const Result<Address> first = device().reserve_at(kWanted, size, size);
  ASSERT_TRUE(first.ok()) << first.error().message();
  EXPECT_EQ(*first, kWanted);
  const Result<Address> second = device().reserve_at(kWanted, size, size);
  ASSERT_TRUE(second.ok()) << second.error().message();
  EXPECT_TRUE(*second + size <= kWanted || kWanted + size <= *second);
  expect_ok(device().unreserve(*second, size));
  expect_ok(device().unreserve(*first, size));
  EXPECT_EQ(device().reserve_at(kWanted, size, size).value(), kWanted) << "it is free again";
  expect_ok(device().unreserve(kWanted, size));
}

TEST_P(DeviceMemory, AVastReservationTakesNoMemory) {
  const Bytes before = free_memory();
  (void)reserve(1_TiB);
  expect_about(free_memory(), before);
}

TEST_P(DeviceMemory, APageCanBeUsedWhereItIsMapped) {
  const Bytes size = page_size() * 3;
  const Address address = reserve(size * 2);
  const PhysicalHandle handle = create(size);
  map(address + page_size(), size, handle);
  fill(address + page_size(), size, 0xC0FFEE);
  rig().expect_filled(address + page_size(), size, 0xC0FFEE);
}

TEST_P(DeviceMemory, AliasesAreTheSameBytes) {
  const Bytes size = page_size();
  const PhysicalHandle handle = create(size);
  const Address first = map(handle, size), second = map(handle, size);
  fill(first, size, 1);
  fill(second, size / 2, 2);
  rig().expect_filled(first, size / 2, 2);
  rig().expect_filled(second + size / 2, size / 2, 1);
  unmap(first);
  rig().expect_filled(second, size / 2, 2);
}

TEST_P(DeviceMemory, ASegmentIsUsableAtOnceAndGoesBackWhole) {
  const Bytes size = std::max(page_size(), 2_MiB) * 3;
  const Bytes free = free_memory();
  const Result<Address> one = device().allocate_segment(size);
  ASSERT_TRUE(one.ok()) << one.error().message();
  const Result<Address> other = device().allocate_segment(size * 2);
  ASSERT_TRUE(other.ok()) << other.error().message();
  EXPECT_EQ(one->value % (2_MiB).count, 0u);
  EXPECT_EQ(other->value % (2_MiB).count, 0u);
  expect_about(free_memory(), free - size * 3);
  fill(*one, size, 1);
  fill(*other, size * 2, 2);
  rig().expect_filled(*one, size, 1);
  rig().expect_filled(*other, size * 2, 2);
  EXPECT_FALSE(device().free_segment(*one + 2_MiB, size - 2_MiB).ok());
  expect_ok(device().free_segment(*one, size));
  expect_ok(device().free_segment(*other, size * 2));
  expect_about(free_memory(), free);
}

// It may wait; what was queued has its memory until it is done.
TEST_P(DeviceMemory, ASegmentInUseIsFreedAfterTheWorkOnIt) {
  const Bytes size = std::max(page_size(), 2_MiB);
  const Address segment = device().allocate_segment(size).value();
  const Stream stream = rig().new_stream();
  rig().fill(stream, segment, size, 1);
  expect_ok(device().free_segment(segment, size));
  finish(stream);
}

TEST_P(DeviceMemory, SegmentsOfOddSizesAreRefused) {
  for (const Bytes size : {0_B, 1_B, 1_MiB, 2_MiB + 1_B}) {
    EXPECT_FALSE(device().allocate_segment(size).ok()) << size.count;
  }
  const Result<Address> too_large = device().allocate_segment(256_TiB);
  ASSERT_FALSE(too_large.ok());
}

TEST_P(DeviceMemory, APageKeepsItsBytesWhenItMoves) {
  const Bytes size = page_size();
  const PhysicalHandle handle = create(size);
  const Address range = reserve(size * 2);
  map(range, size, handle);
  fill(range, size, 7);
  unmap(range);
  map(range + size, size, handle);
  rig().expect_filled(range + size, size, 7);
}

TEST_P(DeviceMemory, AnAddressShowsThePageThatIsMappedThereNow) {
  const Bytes size = page_size();
  const PhysicalHandle one = create(size), other = create(size);
  const Address range = reserve(size);
  for (const PhysicalHandle handle : {one, other}) {
    map(range, size, handle);
    fill(range, size, handle == one ? 1 : 2);
    unmap(range);
  }
  map(range, size, one);
  rig().expect_filled(range, size, 1);
}

TEST_P(DeviceMemory, PagesInARowAreOneRange) {
  const Bytes size = page_size() * 4;
  const Address range = reserve(size);
  const PhysicalHandle small = create(page_size());
  const PhysicalHandle large = create(page_size() * 3);
  expect_ok(device().map(range, page_size(), small));
  expect_ok(device().map(range + page_size(), page_size() * 3, large));
  expect_ok(device().set_access(range, size));
  fill(range, size, 5);
  rig().expect_filled(range, size, 5);
  expect_ok(device().unmap(range, page_size()));
  expect_ok(device().unmap(range + page_size(), page_size() * 3));
}

TEST_P(DeviceMemory, MemoryComesBackOnceReleasedAndUnmappedEverywhere) {
  const Bytes size = round_up(256_MiB, page_size());
  const Address first = reserve(size);
  const Address second = reserve(size);
  const Bytes before = free_memory();
  const PhysicalHandle handle = create(size);
  expect_about(free_memory(), before - size);
  map(first, size, handle);
  map(second, size, handle);
  expect_about(free_memory(), before - size);
  drop(handle);
  expect_about(free_memory(), before - size);
  unmap(first);
  expect_about(free_memory(), before - size);
  unmap(second);
  expect_about(free_memory(), before);
}

TEST_P(DeviceMemory, MoreThanThereIsIsOutOfMemory) {
  const Result<MemoryInfo> info = device().memory_info();
  ASSERT_TRUE(info.ok());
  const Result<PhysicalHandle> handle =
      device().create(round_up(info->total + page_size(), page_size()));
  ASSERT_FALSE(handle.ok());
  EXPECT_EQ(handle.error().code(), ErrorCode::out_of_memory) << handle.error().message();
}

// Refusals. Each leaves the device as it was, and usable.

TEST_P(DeviceMemory, SizesThatAreNoMultipleOfTheGranularityAreRefused) {
  expect_refused(device().create(page_size() + 1_B));
  expect_refused(device().create(page_size() / 2));
  expect_refused(device().create(0_B));
  expect_refused(device().reserve(0_B, page_size()));
}

TEST_P(DeviceMemory, MappingOverAMappingIsRefusedAndTheFirstStays) {
  const Bytes size = page_size();
  const PhysicalHandle one = create(size), other = create(size);
  const Address range = map(one, size);
  expect_refused(device().map(range, size, other));
  fill(range, size, 3);
  unmap(range);
  map(range, size, one);
  rig().expect_filled(range, size, 3);
}

TEST_P(DeviceMemory, MappingOutsideAnyReservationIsRefused) {
  const Bytes size = page_size();
  const Address range = reserve(size);
  unreserve(range);
  expect_refused(device().map(range, size, create(size)));
}

TEST_P(DeviceMemory, MappingOrUnmappingInPartIsRefused) {
  const Bytes size = page_size() * 2;
  const Address range = reserve(size);
  const PhysicalHandle handle = create(size);
  expect_refused(device().map(range, page_size(), handle));
  map(range, size, handle);
  expect_refused(device().unmap(range, page_size()));
  expect_refused(device().unmap(range + page_size(), page_size()));
}

// (Unmapping it is the caller's mistake too, but the driver lets it pass.)
TEST_P(DeviceMemory, WhatIsNotMappedCanNotBeMadeAccessible) {
  expect_refused(device().set_access(reserve(page_size()), page_size()));
}

TEST_P(DeviceMemory, AReservationGoesWholeOrNotAtAll) {
  const Bytes size = page_size() * 4;
  const Address range = reserve(size);
  expect_refused(device().unreserve(range, page_size()));
  expect_refused(device().unreserve(range + page_size(), page_size() * 3));
}

}  // namespace
}  // namespace weir::conformance
