// The parts of a device heap, put together.
#pragma once

#include <memory>
#include <shared_mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/address_map.h"
#include "core/observer.h"
#include "core/page_heap.h"
#include "core/stream_heap.h"
#include "core/timelines.h"
#include "weir/device_heap.h"

namespace weir {

// Threads: self-synchronised. `heaps_mutex_` (which heaps there are) is taken before every heap's
// lock, and shared on all but the first request of a stream.
class DeviceHeap::Impl {
 public:
  Impl(Device& device, const HeapOptions& options, EventSink* sink);

  Result<Address> allocate(Bytes bytes, Stream stream);
  Status fence(std::span<void* const> blocks, Stream user);
  Status record_stream(void* block, Stream user);
  Status deallocate(void* block);
  std::optional<BlockInfo> find(Address address) const;
  Status retire(Stream stream);
  void on_out_of_memory(OutOfMemoryCallback callback);
  Statistics statistics() const;
  void reset_peaks();
  HeapSnapshot snapshot() const;
  std::vector<std::string> validate() const;
  PageHeap& pages() { return pages_; }

 private:
  friend struct TestAccess;
  // As many as AddressMap can tell apart.
  static constexpr std::size_t kMostHeaps = 65'000;

  Result<StreamHeap*> heap_of(Stream stream);
  StreamHeap* owner_of(Address address) const;
  Result<StreamHeap*> owner_of_block(const void* block, const char* call) const;
  // Asks the callbacks for memory; false if there are none.
  bool call_back(Bytes bytes);
  Error out_of_memory(Bytes bytes, Stream stream);
  std::vector<std::string> validate_statistics(const Statistics& all) const;

  Device& device_;
  AddressMap addresses_;
  Observer observer_;
  Timelines timelines_;
  PageHeap pages_;
  const Bytes device_bytes_;  // in all, whoever has them

  mutable std::shared_mutex heaps_mutex_;
  std::vector<std::unique_ptr<StreamHeap>> heaps_;            // by HeapId
  std::unordered_map<std::uint64_t, StreamHeap*> by_stream_;  // by Stream::id; not the retired
  std::vector<OutOfMemoryCallback> callbacks_;
};

}  // namespace weir
