// SPDX-License-Identifier: Apache-2.0
// Host memory for copies: slabs that are cut into pieces, made before they are needed, and given
// back.
#include "core/sleep/host_store.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "weir/interposed_device.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

constexpr Bytes kSlab = HostStore::kSlab;

class DeviceWithThreads : public ForwardingDevice {
 public:
  DeviceWithThreads(Device& inner, unsigned threads) : ForwardingDevice(inner), threads_(threads) {}
  unsigned host_threads() const override { return threads_; }

 private:
  const unsigned threads_;
};

class HostStores : public testing::TestWithParam<unsigned> {
 protected:
  HostStore::Piece take(Bytes most) {
    const Result<HostStore::Piece> piece = store_->take(most);
    EXPECT_TRUE(piece.ok()) << (piece.ok() ? "" : piece.error().message());
    return piece.ok() ? *piece : HostStore::Piece{};
  }
  static Address end_of(const HostStore::Piece& piece) {
    return Address::of(piece.memory) + piece.size;
  }
  std::uint64_t made() const { return device_.calls(DeviceCall::allocate_host); }

  SimDevice device_;
  DeviceWithThreads threaded_{device_, GetParam()};
  std::unique_ptr<HostStore> store_ = std::make_unique<HostStore>(threaded_);
};

TEST_P(HostStores, PiecesLieSideBySideUntilTheSlabIsFull) {
  const HostStore::Piece first = take(40_MiB), second = take(40_MiB), third = take(8_MiB);
  EXPECT_EQ(first.size, 40_MiB);
  EXPECT_EQ(Address::of(second.memory), end_of(first));
  EXPECT_EQ(second.size, 24_MiB) << "what is left of the slab";
  EXPECT_EQ(second.slab, first.slab);
  EXPECT_NE(third.slab, first.slab);
  EXPECT_EQ(third.size, 8_MiB);
  EXPECT_EQ(made(), 2u);
  EXPECT_EQ(store_->held(), kSlab * 2);
  store_.reset();
  EXPECT_EQ(device_.live().host_bytes, 0_B);
}

TEST_P(HostStores, ASlabWhoseLastPieceIsGivenServesFromItsStart) {
  const HostStore::Piece first = take(16_MiB), second = take(16_MiB);
  store_->give(first);
  const HostStore::Piece third = take(8_MiB);
  EXPECT_EQ(Address::of(third.memory), end_of(second)) << "a piece of it is in use";
  store_->give(second);
  store_->give(third);
  EXPECT_EQ(take(8_MiB).memory, first.memory);
  EXPECT_EQ(made(), 1u);
}

TEST_P(HostStores, WhatIsExpectedIsMadeBesideTheRoomThereIs) {
  const HostStore::Piece piece = take(16_MiB);
  ASSERT_TRUE(store_->expect(48_MiB).ok()) << "what the slab has left";
  EXPECT_EQ(made(), 1u);
  ASSERT_TRUE(store_->expect(48_MiB + kSlab + 512_B).ok());
  store_->settle();
  EXPECT_LE(made(), 3u);
  EXPECT_GE(made(), GetParam() == 0 ? 3u : 1u);
  for (Bytes taken; taken < 48_MiB + kSlab + 512_B;) {
    taken += take(48_MiB + kSlab + 512_B - taken).size;
  }
  EXPECT_EQ(made(), 3u);
  store_->give(piece);
  ASSERT_TRUE(store_->expect(60_MiB).ok());
  store_->settle();
  EXPECT_EQ(made(), 3u) << "the last slab has as much left";
}

TEST_P(HostStores, AnEmptySlabCountsAsRoomWhicheverWasCutLast) {
  const HostStore::Piece first = take(kSlab), second = take(kSlab);
  store_->give(first);
  store_->give(second);
  ASSERT_TRUE(store_->expect(kSlab * 2).ok());
  store_->settle();
  EXPECT_EQ(made(), 2u);
  (void)take(kSlab);
  (void)take(kSlab);
  EXPECT_EQ(made(), 2u);
}

// Pieces are cut of memory that is there.
TEST_P(HostStores, NothingIsCutFromASlabThatHasGone) {
  const HostStore::Piece first = take(kSlab), second = take(8_MiB);
  store_->give(second);
  ASSERT_TRUE(store_->shrink(0_B).ok());
  EXPECT_EQ(store_->held(), kSlab);
  EXPECT_EQ(device_.live().host_bytes, kSlab);
  const HostStore::Piece third = take(8_MiB);
  ASSERT_NE(third.memory, nullptr);
  EXPECT_EQ(third.slab, second.slab) << "the number serves again";
  store_->give(first);
  EXPECT_EQ(store_->held(), kSlab * 2);
  EXPECT_EQ(Address::of(take(8_MiB).memory), end_of(third));
  ASSERT_TRUE(store_->shrink(0_B).ok());
  EXPECT_EQ(store_->held(), kSlab);
  EXPECT_EQ(device_.live().host_bytes, kSlab);
  EXPECT_EQ(Address::of(take(8_MiB).memory), end_of(third) + 8_MiB)
      << "the one that is cut is not the one that has gone";
}

TEST_P(HostStores, EmptyOnesGoWhileMoreThanIsKeptIsHeld) {
  std::vector<HostStore::Piece> slabs;
  for (int i = 0; i < 5; ++i) slabs.push_back(take(kSlab));
  store_->give(slabs[1]);
  store_->give(slabs[3]);
  store_->give(slabs[4]);
  ASSERT_TRUE(store_->shrink(kSlab * 5).ok());
  EXPECT_EQ(device_.calls(DeviceCall::free_host), 0u);
  ASSERT_TRUE(store_->shrink(kSlab * 4 - 1_B).ok());
  EXPECT_EQ(store_->held(), kSlab * 3);
  ASSERT_TRUE(store_->shrink(0_B).ok());
  EXPECT_EQ(store_->held(), kSlab * 2);
  EXPECT_EQ(device_.live().host_bytes, kSlab * 2);
  ASSERT_TRUE(store_->shrink(0_B).ok());
  EXPECT_EQ(device_.calls(DeviceCall::free_host), 3u);
}

TEST_P(HostStores, WhatTheDeviceDoesNotFreeStaysAndServes) {
  std::vector<HostStore::Piece> slabs;
  for (int i = 0; i < 3; ++i) slabs.push_back(take(kSlab));
  for (const HostStore::Piece& slab : slabs) store_->give(slab);
  device_.fail(DeviceCall::free_host, 2);
  const Status shrunk = store_->shrink(0_B);
  ASSERT_FALSE(shrunk.ok());
  EXPECT_EQ(shrunk.error().code(), ErrorCode::device);
  EXPECT_EQ(store_->held(), kSlab);
  EXPECT_EQ(device_.live().host_bytes, kSlab);
  EXPECT_EQ(take(8_MiB).size, 8_MiB);
  EXPECT_EQ(made(), 3u);
}

TEST_P(HostStores, MemoryThatCanNotBeMadeIsAnErrorOnceAndWhatWasMadeServes) {
  device_.fail(DeviceCall::allocate_host, 3, ErrorCode::out_of_memory);
  const Status expected = store_->expect(kSlab * 4);  // threads tell of it later
  int taken = 0, refused = expected.ok() ? 0 : 1;
  while (taken < 2) {
    const Result<HostStore::Piece> piece = store_->take(kSlab);
    if (piece) {
      ++taken;
      continue;
    }
    EXPECT_EQ(piece.error().code(), ErrorCode::out_of_memory);
    ASSERT_EQ(++refused, 1);
  }
  while (refused == 0) {
    const Result<HostStore::Piece> piece = store_->take(kSlab);
    if (!piece) ++refused;
    if (piece && ++taken > 4) FAIL() << "nobody was told";
  }
  EXPECT_EQ(take(kSlab).size, kSlab) << "it is tried again";
  EXPECT_EQ(device_.forget_faults(), 0u);
  store_.reset();
  EXPECT_EQ(device_.live().host_bytes, 0_B);
}

INSTANTIATE_TEST_SUITE_P(Threads, HostStores, testing::Values(0u, 3u),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace
}  // namespace weir
