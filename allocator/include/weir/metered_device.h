// SPDX-License-Identifier: Apache-2.0
// A device that counts and times the calls made to another: the same figures for every device.
//
// Threads: as Device; the figures may be read at any time, each by itself exact, but not all of one
// moment. Time is taken from the other device's clock. SimDevice's one clock stands for one host
// thread: with several, each call's time includes what the others' calls cost meanwhile.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "weir/device.h"

namespace weir {

class SimDevice;

class MeteredDevice final : public Device {
 public:
  // `inner` must outlive this.
  explicit MeteredDevice(Device& inner);

  std::uint64_t calls(DeviceCall call) const;  // that failed, included
  Nanoseconds time_in(DeviceCall call) const;  // host time spent in those calls
  Nanoseconds total_time() const;              // ... in all calls
  // Successful synchronize() calls whose event had not finished when they were made, and successful
  // synchronize_context() calls. On a real
  // device that takes one more query of the event, which is neither counted nor timed.
  std::uint64_t host_waits() const;
  void reset();

  std::string name() const override { return inner_.name(); }
  const void* context() const override { return inner_.context(); }
  std::vector<const void*> peer_contexts() const override { return inner_.peer_contexts(); }
  Bytes granularity() const override { return inner_.granularity(); }
  Result<MemoryInfo> memory_info() override;
  Result<Stream> stream(void* handle) override { return inner_.stream(handle); }
  Result<Address> reserve(Bytes size, Bytes alignment) override;
  Status unreserve(Address address, Bytes size) override;
  Result<PhysicalHandle> create(Bytes size) override;
  Status map(Address address, Bytes size, PhysicalHandle handle) override;
  Status set_access(Address address, Bytes size) override;
  Status unmap(Address address, Bytes size) override;
  Status release(PhysicalHandle handle) override;
  Result<Address> allocate_segment(Bytes size) override;
  Status free_segment(Address address, Bytes size) override;
  Result<void*> allocate_host(Bytes size) override;
  Status free_host(void* memory, Bytes size) override;
  Result<Stream> copy_stream(Direction direction) override;
  Status copy_to_host(void* to, Address from, Bytes size, Stream stream) override;
  Status copy_to_device(Address to, const void* from, Bytes size, Stream stream) override;
  Status fill_with_zeros(Address at, Bytes size, Stream stream) override;
  Result<OpenedFile> open_file(const std::string& folder, Bytes size) override;
  Status write_file(FileHandle file, Bytes offset, const void* from, Bytes size) override;
  Status read_file(FileHandle file, Bytes offset, void* to, Bytes size) override;
  Status sync_file(FileHandle file) override;
  Status close_file(FileHandle file) override;
  unsigned host_threads() const override { return inner_.host_threads(); }
  Result<EventHandle> create_event() override;
  Status destroy_event(EventHandle event) override;
  Status record(EventHandle event, Stream stream) override;
  Status wait(Stream stream, EventHandle event) override;
  Result<bool> query(EventHandle event) override;
  Status synchronize(EventHandle event) override;
  Status record_context(EventHandle event) override;
  Status synchronize_context() override;
  Status prepare_to_synchronize() override;
  Result<CaptureInfo> capture_info(Stream stream) override;
  Result<CaptureInfo::Status> capture_status(Stream stream) override;
  Result<std::vector<GraphNode>> capture_tips(Stream stream) override;
  Status add_capture_dependencies(Stream stream, std::span<const GraphNode> nodes) override;
  Result<std::vector<GraphNode>> node_dependencies(GraphNode node) override;
  Status retain(Stream stream, std::shared_ptr<void> object) override;
  Status begin_capture(Stream stream, CaptureMode mode) override;
  Result<GraphHandle> end_capture(Stream stream) override;
  Result<ExecutableHandle> instantiate(GraphHandle graph) override;
  Status launch_graph(ExecutableHandle executable, Stream stream) override;
  Status destroy_executable(ExecutableHandle executable) override;
  Status destroy_graph(GraphHandle graph) override;
  Nanoseconds now() const override { return inner_.now(); }

 private:
  struct Meter {
    std::atomic<std::uint64_t> calls = 0;
    std::atomic<std::int64_t> nanoseconds = 0;
  };
  class Timed;

  bool finished(EventHandle event);
  const Meter& meter(DeviceCall call) const { return meters_[static_cast<std::size_t>(call)]; }

  Device& inner_;
  SimDevice* const sim_;  // inner_, if it is one: it can tell what a query would say at no cost
  std::array<Meter, kDeviceCalls> meters_;
  std::atomic<std::uint64_t> host_waits_ = 0;
};

}  // namespace weir
