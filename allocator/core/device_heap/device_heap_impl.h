// SPDX-License-Identifier: Apache-2.0
// The parts of a device heap, put together; and the way of a block in and out. DeviceHeap passes
// every other call on to the part that it concerns.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "core/base/callbacks.h"
#include "core/device_heap/entrance.h"
#include "core/device_heap/ladder.h"
#include "core/pool/page_exchange.h"
#include "core/pool/pools.h"
#include "core/pool/waiting_frees.h"
#include "core/sleep/tag_sleep.h"
#include "weir/device_heap.h"

namespace weir {

// Threads: self-synchronised. The calls of a block's life take the locks of the pool and of the
// registry for the first that is made for a stream only.
class DeviceHeap::Impl {
 public:
  Impl(DeviceHeap& heap, Device& device, const HeapOptions& options, EventSink* sink);
  ~Impl() { registry.clear(); }

  Result<void*> allocate_after_miss(StreamHeap& heap, Bytes bytes,
                                    Stream stream) WEIR_NO_THREAD_ANALYSIS;
  // `into`: the graph pool that is to serve it; null: as the bindings say. (By its address, so that
  // the fast path saves no registers for it.)
  Result<void*> allocate_block(Bytes bytes, Stream stream,
                               const std::shared_ptr<CapturePool>* into = nullptr);
  Result<void*> take_free_in(std::shared_ptr<CapturePool> pool, Bytes bytes, Stream stream);
  Status deallocate(void* block);
  Status begin_launch(CapturePool& pool, Stream stream);
  // A call that takes back what a graph pool has lent: where there is no memory for that, idle
  // memory goes, and the call is made again.
  template <class Call>
  auto taking_back(Call&& call) {
    auto done = call();
    const bool is_short = !done && done.error().code() == ErrorCode::out_of_memory;
    if (is_short && exchange.trim(0_B, Trim::waits)) return call();
    return done;
  }

  // Which heap served the stream the last time, perhaps: streams meet in a place now and then. The
  // heap itself knows whom it serves.
  std::atomic<StreamHeap*>& known(Stream stream) { return known_[stream.id % known_.size()]; }
  Tile* tile_near(Address address) { return registry.index().near(address); }
  // In all, whoever has them; zero: unknown.
  Bytes device_bytes() const { return device_bytes_ < kMostBytes ? device_bytes_ : 0_B; }

 private:
  Address try_allocate(Bytes bytes, Stream stream, PageHeap::Create create, Status& status);
  // `create`: of the device heap's own pool.
  Address serve(const BlockRequest& request, PageHeap::Create create, Status& status);
  Result<void*> allocate_when_short(const BlockRequest& request, Status status);
  // Does the block wait for captures to end now? Errors: unknown_pointer (it waits already);
  // device.
  Result<bool> defer(StreamHeap& heap, Address block);
  void note_context_events_lost(ContextEventsLost why, std::uint64_t stream);

  // No device has more: what is asked where the driver does not say how much there is.
  static constexpr Bytes kMostBytes = 1024_TiB;

  std::array<std::atomic<StreamHeap*>, 256> known_{};
  const std::uint64_t number_;  // of this device heap, in the process; from 1, never reused
  const Bytes device_bytes_;    // kMostBytes: unknown

 public:
  HeapRegistry registry;
  Budget budget;
  Observer observer;
  AddressSpace addresses;
  Callbacks<HeapCaptures::ContextEventsLostCallback> when_lost;
  OpenCaptures captures;
  RemoteWork remote_work;
  SparingPools sparing, lending;
  PoolBindings bindings{registry, captures};
  WaitingFrees waiting{registry};
  Pools pools;
  PageExchange exchange{pools};
  Entrance entrance{number_, pools};
  Ladder ladder{pools, exchange};
  TagSleep sleep;
};

}  // namespace weir
