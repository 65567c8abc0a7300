// SPDX-License-Identifier: Apache-2.0
// CudaDevice over the driver. Its memory, events and opening are in cuda_device.cc, waits for whole
// contexts in context_work.cc, memory of other processes in cuda_exchange.cc, its captures and
// graphs in cuda_capture.cc, what sleep needs in cuda_copies.cc.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda/context_work.h"
#include "cuda/driver.h"
#include "weir/cuda_device.h"

namespace weir::cuda {

inline CUstream driver_stream(Stream stream) { return static_cast<CUstream>(stream.handle); }
inline CUevent driver_event(EventHandle event) {
  return static_cast<CUevent>(Address{event.value}.pointer());
}

struct OpenedContext {
  int ordinal = 0;
  CUdevice device = 0;
  CUcontext context = nullptr;
  std::string name;
  Bytes granularity;
};

// How pages are made.
struct PageKind {
  CUmemAllocationProp properties{};
  bool is_known = false;  // false: the device was too full to try better ones
};
PageKind find_page_kind(const Driver& driver, CUdevice device, int ordinal);

// True if pages made so can be exported as handles of that kind.
inline bool exports(const CUmemAllocationProp& page, CUmemAllocationHandleType kind) {
  return (static_cast<unsigned>(page.requestedHandleTypes) & static_cast<unsigned>(kind)) != 0;
}

class DriverDevice final : public CudaDevice {
 public:
  // Takes over the retained context.
  DriverDevice(const Driver& driver, OpenedContext opened, PageKind page)
      : driver_(driver), opened_(std::move(opened)), page_(page) {}
  ~DriverDevice() override;

  int ordinal() const override { return opened_.ordinal; }
  Result<int> export_page(PhysicalHandle page) override;
  Result<PhysicalHandle> import_page(int descriptor) override;
  Result<SharedSegment> export_segment(Address segment) override;
  Result<Address> import_segment(const std::string& handle) override;
  Status close_segment(Address imported) override;
  Status add_peer(int ordinal) override;
  std::string name() const override { return opened_.name; }
  const void* context() const override { return opened_.context; }
  std::vector<const void*> peer_contexts() const override;
  Bytes granularity() const override { return opened_.granularity; }
  Result<MemoryInfo> memory_info() override;
  Result<Stream> stream(void* handle) override;
  Result<Address> reserve(Bytes size, Bytes alignment) override;
  Result<Address> reserve_at(Address wanted, Bytes size, Bytes alignment) override;
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
  unsigned host_threads() const override;
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
  Nanoseconds now() const override;

 private:
  ContextScope current() const { return ContextScope(driver_, opened_.context); }
  static bool is_special(Stream stream) {
    return Address::of(stream.handle) <= Address::of(CU_STREAM_PER_THREAD);
  }
  // Is another context of this device current (a green context)?
  bool is_in_another_context() const;
  // Makes a call that names `stream`. The driver finds the context of a stream by its handle,
  // whichever is current; but its special handles (null and two small numbers) mean a stream of the
  // current context, and a thread that has none may be refused. Source: the CUDA C++ Programming
  // Guide, "Stream and Event Behavior".
  template <class Call>
  CUresult on(Stream stream, Call&& call) const {
    if (!is_special(stream)) [[likely]] {
      const CUresult result = call();
      if (result != CUDA_ERROR_INVALID_CONTEXT) [[likely]]
        return result;
    }
    const ContextScope scope = current();
    return call();
  }

  // A device whose work may use this one's memory. It need not be open.
  struct Peer {
    Peer(const Driver& driver, int number, CUdevice device, CUcontext context)
        : ordinal(number), retained(driver, device), work(driver, context, number) {}
    const int ordinal;
    const RetainedContext retained;
    ContextWork work;
  };

  void destroy_copy_streams();
  CUmemAllocationProp page_properties();
  // Of the own context and the peers', which stay.
  std::vector<ContextWork*> all_work();

  const Driver& driver_;
  const OpenedContext opened_;
  const RetainedContext retained_{driver_, opened_.device};
  ContextWork work_{driver_, opened_.context, opened_.ordinal};
  std::mutex page_mutex_;
  PageKind page_;  // guarded by page_mutex_
  std::mutex segments_mutex_;
  static constexpr Bytes kSegmentUnit = 2_MiB;
  // Segments that lie within what the driver gave, and where that begins. Guarded by
  // segments_mutex_.
  std::unordered_map<std::uint64_t, CUdeviceptr> displaced_;
  const std::chrono::steady_clock::time_point opened_at_ = std::chrono::steady_clock::now();
  std::mutex copies_mutex_;
  std::array<Stream, 2> copy_streams_;  // guarded by copies_mutex_; by Direction
  mutable std::mutex peers_mutex_;
  std::vector<std::unique_ptr<Peer>> peers_;  // guarded by peers_mutex_; none goes before this does
  // Waits for events of all contexts, so that one event on it stands for them. Guarded by
  // peers_mutex_; null: there are no peers.
  CUstream join_stream_ = nullptr;
};

}  // namespace weir::cuda
