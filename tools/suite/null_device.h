// SPDX-License-Identifier: Apache-2.0
// A device that answers every call at once, and does nothing: what is left is the cost of the host.
//
// It has 1 TiB of memory that never runs out, and a stream for each multiple of 16 as a handle.
// Nothing ever waits on it, and every event counts as finished. Threads: as Device. Addresses begin
// anew once nothing is reserved, so that a heap made after another one was destroyed sees the same
// device.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "weir/device.h"

namespace weir::bench {

class NullDevice : public Device {
 public:
  // The handle of stream `number`, from 0.
  static void* stream_handle(int number);

  std::string name() const override { return "null device"; }
  Bytes granularity() const override { return 2_MiB; }
  Result<MemoryInfo> memory_info() override { return MemoryInfo{1_TiB, 1_TiB}; }
  Result<Stream> stream(void* handle) override;

  Result<Address> reserve(Bytes size, Bytes alignment) override;
  Status unreserve(Address address, Bytes size) override;
  Result<PhysicalHandle> create(Bytes) override { return PhysicalHandle{++handles_}; }
  Status map(Address, Bytes, PhysicalHandle) override { return {}; }
  Status set_access(Address, Bytes) override { return {}; }
  Status unmap(Address, Bytes) override { return {}; }
  Status release(PhysicalHandle) override { return {}; }
  Result<Address> allocate_segment(Bytes size) override { return reserve(size, 2_MiB); }
  Status free_segment(Address address, Bytes size) override { return unreserve(address, size); }

  Result<EventHandle> create_event() override { return EventHandle{++events_}; }
  Status destroy_event(EventHandle) override { return {}; }
  Status record(EventHandle, Stream) override { return {}; }
  Status wait(Stream, EventHandle) override { return {}; }
  Result<bool> query(EventHandle) override { return true; }
  Status synchronize(EventHandle) override { return {}; }
  Status record_context(EventHandle) override { return {}; }
  Status synchronize_context() override { return {}; }

  Result<CaptureInfo> capture_info(Stream) override { return CaptureInfo{}; }
  Result<CaptureInfo::Status> capture_status(Stream) override { return CaptureInfo::Status::none; }
  Result<std::vector<GraphNode>> capture_tips(Stream) override { return std::vector<GraphNode>{}; }
  Status add_capture_dependencies(Stream, std::span<const GraphNode>) override { return {}; }

  // There are no captures, and so no graphs.
  Result<std::vector<GraphNode>> node_dependencies(GraphNode) override { return no_capture(); }
  Status retain(Stream, std::shared_ptr<void>) override { return no_capture(); }
  Status begin_capture(Stream, CaptureMode) override { return no_capture(); }
  Result<GraphHandle> end_capture(Stream) override { return no_capture(); }
  Result<ExecutableHandle> instantiate(GraphHandle) override { return no_capture(); }
  Status launch_graph(ExecutableHandle, Stream) override { return no_capture(); }
  Status destroy_executable(ExecutableHandle) override { return no_capture(); }
  Status destroy_graph(GraphHandle) override { return no_capture(); }

  Nanoseconds now() const override { return {}; }

 private:
  static Error no_capture();

  std::atomic<std::uint64_t> handles_ = 0, events_ = 0;  // the last one given out
  std::mutex mutex_;
  Address next_;          // guarded by mutex_
  Bytes reserved_ = 0_B;  // guarded by mutex_
};

}  // namespace weir::bench
