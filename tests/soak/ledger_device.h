// SPDX-License-Identifier: Apache-2.0
// A device that counts what it gave out and did not get back, and that fails a call of the thread
// that asked for it: the same on a simulated device and on a GPU.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/forwarding_device.h"
#include "weir/device.h"
#include "weir/types.h"

namespace weir::soak {

// What is out now.
struct Ledger {
  std::int64_t events = 0, pages = 0, mappings = 0, reservations = 0, segments = 0, graphs = 0,
               executables = 0, host_blocks = 0;
};

// Threads: as Device.
class LedgerDevice final : public ForwardingDevice {
 public:
  explicit LedgerDevice(Device& inner) : ForwardingDevice(inner) {}

  Ledger ledger() const;

  // While it lives, the `nth` call (1: the next) that this thread makes of any LedgerDevice fails
  // with ErrorCode::device, before the device hears of it. One in a thread at a time.
  class Fault {
   public:
    explicit Fault(std::uint64_t nth);
    ~Fault();
    Fault(const Fault&) = delete;
    Fault& operator=(const Fault&) = delete;
    bool hit() const;
  };

  Result<MemoryInfo> memory_info() override;
  Result<Address> reserve(Bytes size, Bytes alignment) override;
  Status unreserve(Address at, Bytes size) override;
  Result<PhysicalHandle> create(Bytes size) override;
  Status map(Address at, Bytes size, PhysicalHandle page) override;
  Status set_access(Address at, Bytes size) override;
  Status unmap(Address at, Bytes size) override;
  Status release(PhysicalHandle page) override;
  Result<Address> allocate_segment(Bytes size) override;
  Status free_segment(Address at, Bytes size) override;
  Result<void*> allocate_host(Bytes size) override;
  Status free_host(void* memory, Bytes size) override;
  Result<Stream> copy_stream(Direction direction) override;
  Status copy_to_host(void* to, Address from, Bytes size, Stream stream) override;
  Status copy_to_device(Address to, const void* from, Bytes size, Stream stream) override;
  Status fill_with_zeros(Address at, Bytes size, Stream stream) override;
  Result<EventHandle> create_event() override;
  Status destroy_event(EventHandle event) override;
  Status record(EventHandle event, Stream stream) override;
  Status wait(Stream stream, EventHandle event) override;
  Result<bool> query(EventHandle event) override;
  Status synchronize(EventHandle event) override;
  Status record_context(EventHandle event) override;
  Status synchronize_context() override;
  Status prepare_to_synchronize() override { return inner_.prepare_to_synchronize(); }
  Result<CaptureInfo> capture_info(Stream stream) override;
  Result<CaptureInfo::Status> capture_status(Stream stream) override;
  Result<std::vector<GraphNode>> capture_tips(Stream stream) override;
  Status add_capture_dependencies(Stream stream, std::span<const GraphNode> nodes) override;
  Result<std::vector<GraphNode>> node_dependencies(GraphNode node) override;
  Status retain(Stream stream, std::shared_ptr<void> object) override;
  Status begin_capture(Stream stream, CaptureMode mode) override;
  // Never failed by this device: a capture that ended has ended, whatever is told.
  Result<GraphHandle> end_capture(Stream stream) override;
  Result<ExecutableHandle> instantiate(GraphHandle graph) override;
  Status launch_graph(ExecutableHandle graph, Stream stream) override;
  Status destroy_executable(ExecutableHandle graph) override;
  Status destroy_graph(GraphHandle graph) override;

 private:
  using Count = std::atomic<std::int64_t>;
  // Calls `body`, unless this call is to fail; one that succeeds adds `by` to `count`.
  template <class Body>
  static auto counted(DeviceCall call, Count& count, std::int64_t by, Body&& body)
      -> decltype(body());
  template <class Body>
  static auto plain(DeviceCall call, Body&& body) -> decltype(body());

  Count events_ = 0, pages_ = 0, mappings_ = 0, reservations_ = 0, segments_ = 0, graphs_ = 0,
        executables_ = 0, host_blocks_ = 0;
};

}  // namespace weir::soak
