// SPDX-License-Identifier: Apache-2.0
// Addresses that follow from the program alone (HeapOptions::addresses), and the layouts that say
// where a program's memory lay (DeviceHeap::layouts()).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "weir/device_heap.h"
#include "weir/graph_pool.h"
#include "weir/recorder.h"
#include "weir/sim_device.h"

namespace weir::test {
namespace {

using testing::HasSubstr;

constexpr Address kFirst{std::uint64_t{16} << 40};  // of the first window

void* allocate(DeviceHeap& heap, Bytes bytes, Stream stream) {
  const Result<void*> block = heap.allocate(bytes, stream);
  EXPECT_TRUE(block.ok()) << (block.ok() ? "" : block.error().message());
  return block.ok() ? *block : nullptr;
}
void free(DeviceHeap& heap, void* block) { EXPECT_TRUE(heap.deallocate(block).ok()); }

struct Seen {
  std::vector<Address> addresses;
  std::vector<PoolLayout> layouts;
};

struct World {
  std::uint64_t address_seed = 0;
  int other_streams = 0;          // of the process, made before the program's
  Nanoseconds kernel = 1_us;      // how long the GPU works on each block
  EventSink* recorder = nullptr;  // who records
};

// Blocks of many sizes on two streams, in pieces that only a stitched row joins, and a graph pool
// that takes and gives pages.
Seen run(const HeapOptions& options, const World& world) {
  SimDevice device({.memory = 8_GiB, .address_seed = world.address_seed});
  for (int i = 0; i < world.other_streams; ++i) (void)device.new_stream();
  const Stream a = device.new_stream(), b = device.new_stream();
  DeviceHeap heap(device, options, world.recorder);
  Seen seen;
  const auto give = [&](Bytes bytes, Stream stream) {
    void* const block = allocate(heap, bytes, stream);
    seen.addresses.push_back(Address::of(block));
    EXPECT_TRUE(device.launch(stream, Writes(block, bytes), world.kernel).ok());
    return block;
  };
  std::vector<void*> blocks;
  for (int i = 0; i < 40; ++i) blocks.push_back(give(20_MiB + 2_MiB * (i % 7), i % 3 ? a : b));
  for (int i = 0; i < 40; i += 2) free(heap, std::exchange(blocks[i], nullptr));
  for (int i = 0; i < 200; ++i) blocks.push_back(give(512_B * (1 + i * 37 % 900), a));
  for (int i = 0; i < 6; ++i) blocks.push_back(give(150_MiB, i % 2 ? a : b));
  {
    GraphPool pool(heap);
    auto binding = pool.warm_up(b);
    EXPECT_TRUE(binding.ok());
    for (int i = 0; i < 8; ++i) blocks.push_back(give(30_MiB, b));
    for (int i = 0; i < 8; ++i) {
      free(heap, blocks.back());
      blocks.pop_back();
    }
    seen.layouts = heap.layouts();
  }
  for (int i = 0; i < 12; ++i) blocks.push_back(give(200_MiB, i % 2 ? b : a));
  for (void* const block : blocks) free(heap, block);
  for (int i = 0; i < 4; ++i) blocks.push_back(give(20_MiB, a));
  for (const PoolLayout& each : heap.layouts()) seen.layouts.push_back(each);
  EXPECT_EQ(device.race_count(), 0u);
  device.finish();
  EXPECT_THAT(heap.validate(), testing::IsEmpty());
  return seen;
}

class Nobody final : public EventSink {
  void on_event(const Event&) override {}
};

TEST(FixedAddresses, AreEqualInProcessesWhoseFreeAddressesSpeedAndStreamsDiffer) {
  Nobody nobody;
  for (const Trust trust : {Trust::told, Trust::context}) {
    const HeapOptions options{.trust = trust, .addresses = Addresses::fixed};
    const Seen one = run(options, {});
    EXPECT_EQ(one.addresses.front(), kFirst);
    for (const World& world :
         {World{.address_seed = 1}, World{.address_seed = 99, .other_streams = 300},
          World{.address_seed = 3, .other_streams = 7, .kernel = 5_ms},
          World{.other_streams = 1, .kernel = 200_us, .recorder = &nobody}}) {
      const Seen other = run(options, world);
      EXPECT_EQ(one.addresses, other.addresses);
      EXPECT_EQ(one.layouts, other.layouts);
    }
  }
}

TEST(FixedAddresses, ArePassedOnToTheDeviceByNobodyWhoAsksForAny) {
  EXPECT_NE(run({}, {.address_seed = 1}).addresses, run({}, {.address_seed = 2}).addresses);
}

TEST(FixedAddresses, ThatTheDriverRefusesAreAnErrorWithTheRemedy) {
  SimDevice device;
  const Stream stream = device.new_stream();
  ASSERT_EQ(device.reserve_at(kFirst + 2_MiB, 2_MiB, 2_MiB).value(), kFirst + 2_MiB);
  DeviceHeap heap(device, {.addresses = Addresses::fixed});
  const std::uint64_t reserved = device.live().reservations;
  const Result<void*> block = heap.allocate(1_MiB, stream);
  ASSERT_FALSE(block.ok());
  EXPECT_EQ(block.error().code(), ErrorCode::device);
  EXPECT_THAT(block.error().message(), HasSubstr("0x100000000000"));
  EXPECT_THAT(block.error().message(), HasSubstr(device.name()));
  EXPECT_THAT(block.error().message(), HasSubstr("WEIR_ADDRESSES=prefer"));
  EXPECT_EQ(device.live().reservations, reserved) << "what the driver gave instead went back";
  EXPECT_EQ(heap.statistics().regions_elsewhere, 0u);
  // Once the addresses are free, the same request has them.
  ASSERT_TRUE(device.unreserve(kFirst + 2_MiB, 2_MiB).ok());
  EXPECT_EQ(Address::of(allocate(heap, 1_MiB, stream)), kFirst);
}

TEST(FixedAddresses, ThatTheDriverRefusesAreOthersAndCountedWherePreferred) {
  SimDevice device;
  const Stream stream = device.new_stream();
  ASSERT_TRUE(device.reserve_at(kFirst, 2_MiB, 2_MiB).ok());
  DeviceHeap heap(device, {.addresses = Addresses::prefer});
  EXPECT_NE(Address::of(allocate(heap, 1_MiB, stream)), kFirst);
  EXPECT_EQ(heap.statistics().regions_elsewhere, 1u);
  SimDevice other;
  DeviceHeap undisturbed(other, {.addresses = Addresses::prefer});
  EXPECT_EQ(Address::of(allocate(undisturbed, 1_MiB, other.new_stream())), kFirst);
  EXPECT_EQ(undisturbed.statistics().regions_elsewhere, 0u);
}

TEST(FixedAddresses, BeyondWhatAHeapHasAreAnErrorAndOthersWherePreferred) {
  constexpr Bytes kTooMany = 5_TiB;  // the device's own memory has 4
  for (const Addresses addresses : {Addresses::fixed, Addresses::prefer}) {
    SimDevice device({.memory = 8_TiB});
    const Stream stream = device.new_stream();
    DeviceHeap heap(device, {.addresses = addresses});
    const Result<void*> block = heap.allocate(kTooMany, stream);
    EXPECT_EQ(block.ok(), addresses == Addresses::prefer);
    EXPECT_EQ(heap.statistics().regions_elsewhere, addresses == Addresses::prefer ? 1u : 0u);
    if (block.ok()) continue;
    EXPECT_THAT(block.error().message(), HasSubstr("4.00 TiB of addresses of the device's own"));
    EXPECT_THAT(block.error().message(), HasSubstr("WEIR_ADDRESSES=prefer"));
    EXPECT_EQ(Address::of(allocate(heap, 1_MiB, stream)), kFirst) << "what fits is served still";
  }
}

TEST(FixedAddresses, OfTwoHeapsOfAProcessLieInWindowsOfTheirOwn) {
  SimDevice device;
  const std::unique_ptr<SimDevice> second = device.new_device();
  DeviceHeap one(device, {.addresses = Addresses::fixed, .address_window = 0});
  DeviceHeap two(*second, {.addresses = Addresses::fixed, .address_window = 1});
  const Address first = Address::of(allocate(one, 1_MiB, device.new_stream()));
  const Address other = Address::of(allocate(two, 1_MiB, second->new_stream()));
  EXPECT_EQ(first, kFirst);
  EXPECT_EQ(other, kFirst + 8_TiB);
  for (const std::uint32_t window : {kAddressWindows, ~std::uint32_t{0}}) {
    DeviceHeap none(*second, {.addresses = Addresses::fixed, .address_window = window});
    const Result<void*> block = none.allocate(1_MiB, second->new_stream());
    ASSERT_FALSE(block.ok());
    EXPECT_THAT(block.error().message(), HasSubstr("address_window"));
  }
}

TEST(FixedAddresses, OfTheDevicesOwnMemoryStayWhateverGraphPoolsDo) {
  std::vector<Address> own;
  for (const int pools : {0, 5}) {
    SimDevice device;
    const Stream stream = device.new_stream();
    DeviceHeap heap(device, {.addresses = Addresses::fixed});
    std::vector<std::unique_ptr<GraphPool>> open;
    for (int i = 0; i < pools; ++i) {
      open.push_back(std::make_unique<GraphPool>(heap));
      ASSERT_TRUE(open.back()->allocate(40_MiB, stream).ok());
    }
    own.push_back(Address::of(allocate(heap, 64_MiB, stream)));
  }
  EXPECT_EQ(own[0], own[1]);
}

// --- Layouts.

// Two blocks of one size are freed in one order or the other, and the next requests have either.
Seen seen_after(const std::vector<int>& order, Bytes size) {
  SimDevice device;
  const Stream stream = device.new_stream();
  DeviceHeap heap(device);
  Seen seen;
  std::vector<void*> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(allocate(heap, size, stream));
  for (int round = 0; round < 4; ++round) {
    for (const int i : order) free(heap, blocks[i]);
    for (const int i : {0, 1}) {
      blocks[i] = allocate(heap, size, stream);
      seen.addresses.push_back(Address::of(blocks[i]));
    }
  }
  seen.layouts = heap.layouts();
  return seen;
}

TEST(Layouts, DifferWhereABlockLiesElsewhereThoughAllSizesAreEqual) {
  for (const Bytes size : {1_KiB, 4_MiB}) {
    const Seen one = seen_after({0, 1}, size), other = seen_after({1, 0}, size);
    EXPECT_EQ(one.layouts.front().placements, other.layouts.front().placements);
    EXPECT_EQ(one.layouts.front().hash == other.layouts.front().hash,
              one.addresses == other.addresses);
    EXPECT_EQ(one.layouts, seen_after({0, 1}, size).layouts);
  }
  EXPECT_NE(seen_after({0, 1}, 1_KiB).addresses, seen_after({1, 0}, 1_KiB).addresses)
      << "the fast path gives out what was freed last";
}

TEST(Layouts, DifferWhereABlockIsLargerThoughItLiesInTheSamePlace) {
  const auto layouts = [](Bytes first) {
    SimDevice device;
    DeviceHeap heap(device);
    (void)allocate(heap, first, device.new_stream());
    return heap.layouts();
  };
  EXPECT_NE(layouts(1_KiB), layouts(2_KiB));
  EXPECT_NE(layouts(40_MiB), layouts(41_MiB));
}

// A stream's heap serves another stream once the first is retired.
TEST(Layouts, CountEachPlacementOnceThoughItsStreamIsRetired) {
  SimDevice device;
  DeviceHeap heap(device);
  const Stream first = device.new_stream(), second = device.new_stream();
  for (int i = 0; i < 3; ++i) free(heap, allocate(heap, 1_MiB, first));
  ASSERT_TRUE(heap.retire(first).ok());
  free(heap, allocate(heap, 1_MiB, second));
  EXPECT_EQ(heap.layouts().front().placements, 4u);
}

}  // namespace
}  // namespace weir::test
