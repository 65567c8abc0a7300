// SPDX-License-Identifier: Apache-2.0
// Weir, through the core's interface (streams looked up before) and through the public one (stream
// handles, exceptions).
#pragma once

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>

#include "bench/peers/peer.h"
#include "weir/allocator.h"
#include "weir/device_heap.h"

namespace weir::peers {

class WeirHeap {
 public:
  static constexpr bool kFences = true;
  using StreamRef = Stream;

  // `device` must outlive it.
  WeirHeap(Device& device, ReusePolicy policy, Trust trust)
      : device_(device), heap_(device, {.reuse = policy, .trust = trust}) {}

  StreamRef stream_ref(void* stream) { return value_of(device_.stream(stream)); }
  void* allocate(std::size_t bytes, StreamRef& stream) {
    return value_of(heap_.allocate(Bytes{bytes}, stream));
  }
  void fence(void* block, StreamRef&, StreamRef& user) { check(heap_.fence(block, user)); }
  void free(void* block, StreamRef&) { check(heap_.deallocate(block)); }
  Reserved reserved() const { return heap_.statistics().reserved_bytes.current; }

 private:
  static void check(const Status& status) {
    if (!status.ok()) [[unlikely]]
      throw std::runtime_error(status.error().message());
  }
  template <class T>
  static T value_of(Result<T> result) {
    if (!result.ok()) [[unlikely]]
      throw std::runtime_error(result.error().message());
    return *std::move(result);
  }

  Device& device_;
  DeviceHeap heap_;
};

class WeirAllocator {
 public:
  static constexpr bool kFences = true;
  using StreamRef = void*;

  // The other settings are the defaults: of the environment only WEIR_TIME_DRIVER is read. `device`
  // must outlive it.
  WeirAllocator(Device& device, ReusePolicy policy)
      : allocator_(device,
                   {.reuse = policy, .time_driver = std::getenv("WEIR_TIME_DRIVER") != nullptr}) {}

  StreamRef stream_ref(void* stream) { return stream; }
  void* allocate(std::size_t bytes, StreamRef stream) {
    return allocator_.allocate(Bytes{bytes}, stream);
  }
  void fence(void* block, StreamRef, StreamRef user) { allocator_.fence(block, user); }
  void free(void* block, StreamRef) { allocator_.deallocate(block); }
  Reserved reserved() const { return allocator_.statistics().reserved_bytes.current; }
  DriverSplit driver_split() const {
    DriverSplit split;
    for (const DeviceCallCount& each : allocator_.statistics().driver_calls) {
      split[std::string(each.call)] = {each.calls, static_cast<std::uint64_t>(each.time.count)};
    }
    return split;
  }

 private:
  Allocator allocator_;
};

}  // namespace weir::peers
