// SPDX-License-Identifier: Apache-2.0
// Pinned host memory, and copies to it and back: what every device does, and what it refuses.
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "tests/conformance/rig.h"

namespace weir::conformance {
namespace {

class Copies : public Conformance {
 protected:
  static constexpr Bytes kHost = 4_MiB;

  void* allocate_host(Bytes size) {
    Result<void*> memory = device().allocate_host(size);
    EXPECT_TRUE(memory.ok()) << (memory.ok() ? "" : memory.error().message());
    return memory.ok() ? *memory : nullptr;
  }
  Stream stream_of(Device::Direction direction) {
    Result<Stream> stream = device().copy_stream(direction);
    EXPECT_TRUE(stream.ok()) << (stream.ok() ? "" : stream.error().message());
    return stream.ok() ? *stream : Stream{};
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, Copies, each_kind_of_device(), kind_name);

TEST_P(Copies, BytesComeBackFromTheHostAlsoIntoOtherMemoryAtTheSameAddress) {
  const Bytes size = page_size() * 2;
  const PhysicalHandle first = create(size);
  const Address address = map(first, size);
  void* const host = allocate_host(round_up(size, kHost));
  const Stream writer = rig().new_stream();
  const Stream out = stream_of(Device::Direction::to_host);
  const Stream in = stream_of(Device::Direction::to_device);
  rig().fill(writer, address, size, 0xC0FFEE);
  finish(writer);
  expect_ok(device().copy_to_host(host, address, size, out));
  finish(out);
  unmap(address);
  drop(first);

  map(address, size, create(size));
  rig().fill(writer, address, size, 7);
  finish(writer);
  expect_ok(device().copy_to_device(address, host, size, in));
  finish(in);
  rig().expect_filled(address, size, 0xC0FFEE);
  expect_ok(device().fill_with_zeros(address + page_size(), page_size(), in));
  finish(in);
  rig().expect_filled(address, page_size(), 0xC0FFEE);
  rig().expect_filled(address + page_size(), page_size(), 0);

  expect_ok(device().free_host(host, round_up(size, kHost)));
}

TEST_P(Copies, APartOfTheHostsMemoryIsCopiedToAPartOfAPage) {
  const Bytes size = page_size();
  const Address address = map(create(size), size);
  void* const host = allocate_host(kHost);
  void* const middle = (Address::of(host) + 1_MiB).pointer();
  const Stream out = stream_of(Device::Direction::to_host);
  const Stream in = stream_of(Device::Direction::to_device);
  const Stream writer = rig().new_stream();
  rig().fill(writer, address, 64_KiB, 1);
  rig().fill(writer, address + 64_KiB, 64_KiB, 2);
  finish(writer);
  expect_ok(device().copy_to_host(middle, address, 64_KiB, out));
  finish(out);
  expect_ok(device().copy_to_device(address + 64_KiB, middle, 64_KiB, in));
  finish(in);
  rig().expect_filled(address, 128_KiB, 1);
  expect_ok(device().free_host(host, kHost));
}

TEST_P(Copies, EachDirectionHasOneStreamOfItsOwn) {
  const Stream out = stream_of(Device::Direction::to_host);
  const Stream in = stream_of(Device::Direction::to_device);
  EXPECT_FALSE(out == in);
  EXPECT_EQ(stream_of(Device::Direction::to_host), out);
  EXPECT_EQ(stream_of(Device::Direction::to_device), in);
}

TEST_P(Copies, SeveralThreadsMakeHostMemoryApart) {
  constexpr std::size_t kThreads = 4;
  std::vector<void*> memory(kThreads);
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (void*& mine : memory) {
    threads.emplace_back([&] { mine = allocate_host(kHost); });
  }
  for (std::thread& thread : threads) thread.join();
  for (void* const one : memory) {
    for (void* const other : memory) {
      const bool apart = Address::of(one) + kHost <= Address::of(other) ||
                         Address::of(other) + kHost <= Address::of(one);
      EXPECT_TRUE(one == other || apart);
    }
  }
  for (void* const one : memory) expect_ok(device().free_host(one, kHost));
}

TEST_P(Copies, HostMemoryIsFreedOnce) {
  void* const host = allocate_host(kHost);
  expect_ok(device().free_host(host, kHost));
  EXPECT_FALSE(device().free_host(host, kHost).ok());
}

}  // namespace
}  // namespace weir::conformance
