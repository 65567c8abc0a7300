// SPDX-License-Identifier: Apache-2.0
// The addresses of a page heap: several regions, of whatever size and wherever the device has them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "core/base/range.h"
#include "tests/unit/core_heap_fixture.h"
#include "weir/interposed_device.h"

namespace weir::test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr Bytes kRegion = 4_GiB;  // the smallest that are asked for

// Has no more than `most` addresses in one piece.
class SmallRegions : public ForwardingDevice {
 public:
  SmallRegions(Device& inner, Bytes most) : ForwardingDevice(inner), most_(most) {}

  Result<Address> reserve(Bytes size, Bytes alignment) override {
    if (size > most_) return Error(ErrorCode::device, "reserve: no addresses in one piece");
    Result<Address> at = inner_.reserve(size, alignment);
    if (at) {
      sizes.push_back(size);
      regions.push_back({*at, size});
    }
    return at;
  }
  Status unreserve(Address at, Bytes size) override {
    std::erase(regions, Range{at, size});
    return inner_.unreserve(at, size);
  }

  std::vector<Bytes> sizes;    // of what was reserved
  std::vector<Range> regions;  // what is

 private:
  Bytes most_;
};

class HeapRegions : public CoreHeap {
 protected:
  static std::size_t region_of(const SmallRegions& device, void* block) {
    const auto& all = device.regions;
    const auto found = std::find_if(all.begin(), all.end(), [&](Range region) {
      return region.contains({Address::of(block), kGrain});
    });
    return static_cast<std::size_t>(found - all.begin());
  }
  // Blocks of random sizes, a few of them large, by two streams. Returns what is live.
  std::vector<void*> churn(DeviceHeap& heap, int requests, Bytes most_in_use) {
    std::mt19937_64 random(3);
    std::vector<std::pair<void*, Bytes>> live;
    Bytes in_use;
    for (int i = 0; i < requests; ++i) {
      const Bytes size = 1_MiB * (1 + random() % (random() % 8 == 0 ? 1500 : 100));
      for (; in_use + size > most_in_use; live.pop_back()) {
        std::swap(live[random() % live.size()], live.back());
        in_use -= live.back().second;
        free(heap, live.back().first);
      }
      const Stream stream = random() % 3 == 0 ? b_ : a_;
      live.emplace_back(allocate(heap, size, stream), size);
      in_use += size;
      write(stream, live.back().first, size, 1_us);
      device_.advance(1_ms);
    }
    std::vector<void*> blocks;
    for (const auto& [block, size] : live) blocks.push_back(block);
    return blocks;
  }
};

TEST_F(HeapRegions, WhereOneIsFullTheRowGoesOnInAnother) {
  SmallRegions device(device_, kRegion);
  DeviceHeap heap(device);
  std::vector<void*> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(allocate(heap, 1500_MiB, a_));
  // Two fit in each; what is left of a region serves smaller ones.
  std::vector<std::size_t> where;
  for (void* const block : blocks) where.push_back(region_of(device, block));
  EXPECT_THAT(where, ElementsAre(0, 0, 1, 1, 2, 2));
  void* const smaller = allocate(heap, 1000_MiB, b_);
  EXPECT_EQ(region_of(device, smaller), 0u);
  EXPECT_THAT(device.sizes, Each(kRegion));
  EXPECT_EQ(device_.physical_bytes(), 10'000_MiB);
  EXPECT_THAT(heap.validate(), IsEmpty());
  for (void* const block : blocks) free(heap, block);
  EXPECT_THAT(heap.validate(), IsEmpty());
}

// Rows come and go, and their addresses with them: none ever lies in two regions.
TEST_F(HeapRegions, NoStitchedRowLiesInTwo) {
  SmallRegions device(device_, kRegion);
  DeviceHeap heap(device, {.limit = 6_GiB});
  for (int round = 0; round < 6; ++round) {
    for (void* const block : churn(heap, 300, 5500_MiB)) free(heap, block);
    EXPECT_THAT(heap.validate(), IsEmpty());
    device_.finish();
    ASSERT_TRUE(heap.trim(1_GiB).ok());
    EXPECT_THAT(heap.validate(), IsEmpty());
  }
  EXPECT_GT(device.regions.size(), 3u);
  EXPECT_GT(device_.calls(DeviceCall::unmap), 100u);
  EXPECT_THAT(device_.races(), IsEmpty());
}

TEST_F(HeapRegions, ADeviceWithFewAddressesIsAskedForLess) {
  for (const Bytes most : {100_GiB, 64_GiB, 20_GiB, 4_GiB}) {
    SmallRegions device(device_, most);
    DeviceHeap heap(device);
    void* const block = allocate(heap, 64_MiB, a_);
    ASSERT_THAT(device.regions, SizeIs(1));
    EXPECT_LE(device.regions[0].size, most);
    EXPECT_GE(device.regions[0].size * 4, most);
    free(heap, block);
    EXPECT_THAT(heap.validate(), IsEmpty());
  }
}

// A scripted fault at each reservation of a program, one at a time.
TEST_F(HeapRegions, AReservationThatFailsLeavesTheHeapAsItWas) {
  for (std::uint64_t nth = 1; nth <= 6; ++nth) {
    SimDevice sim;
    const Stream stream = sim.new_stream();
    SmallRegions device(sim, kRegion);
    {
      DeviceHeap heap(device, {.limit = 8000_MiB});
      sim.fail(DeviceCall::reserve, nth);
      std::vector<void*> blocks;
      int refused = 0;
      const auto get = [&](Bytes size) {
        Result<void*> block = heap.allocate(size, stream);
        if (!block.ok()) {
          ++refused;
          EXPECT_EQ(block.error().code(), ErrorCode::device);
          EXPECT_THAT(heap.validate(), IsEmpty());
          block = heap.allocate(size, stream);
        }
        EXPECT_TRUE(block.ok());
        return *block;
      };
      for (int i = 0; i < 8; ++i) blocks.push_back(get(1000_MiB));
      for (void* const block : blocks) free(heap, block);
      void* const large = get(4001_MiB);  // stitched
      EXPECT_LE(refused, 1);
      EXPECT_THAT(heap.validate(), IsEmpty());
      free(heap, large);
    }
    EXPECT_EQ(sim.live().reservations, 0u);
    EXPECT_EQ(sim.live().handles, 0u);
  }
}

// Has addresses that a block's index has no room for.
class HighAddresses : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  Result<Address> reserve(Bytes, Bytes) override { return kHigh; }
  Status unreserve(Address at, Bytes size) override {
    EXPECT_EQ(at, kHigh);
    given_back.push_back(size);
    return {};
  }

  static constexpr Address kHigh{std::uint64_t{1} << 49};
  std::vector<Bytes> given_back;
};

TEST_F(HeapRegions, AddressesBeyond49BitsAreRefusedAndGoBack) {
  HighAddresses device(device_);
  DeviceHeap heap(device);
  const Result<void*> refused = heap.allocate(1_MiB, a_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::device);
  EXPECT_THAT(refused.error().message(), testing::HasSubstr("beyond 49 bits"));
  EXPECT_THAT(device.given_back, ElementsAre(256_GiB));
  EXPECT_EQ(device_.physical_bytes(), 0_B);
}

}  // namespace
}  // namespace weir::test
