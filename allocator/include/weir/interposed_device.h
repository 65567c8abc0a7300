// SPDX-License-Identifier: Apache-2.0
// A device that passes its calls on to another through one function of its own, to count, time or
// fail them; ForwardingDevice is for changing some of them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weir/device.h"

namespace weir {

// `Self` derives from this and has a template pass(DeviceCall call, Make&& make), which returns the
// result of make() (the other device's answer) or an error instead. Calls that DeviceCall does not
// name are the other device's own.
//
// Threads: as Device.
template <class Self>
class InterposedDevice : public Device {
 public:
  // `inner` must outlive this.
  explicit InterposedDevice(Device& inner) : inner_(inner) {}

  std::string name() const override { return inner_.name(); }
  const void* context() const override { return inner_.context(); }
  std::vector<const void*> peer_contexts() const override { return inner_.peer_contexts(); }
  Result<Stream> stream(void* handle) override { return inner_.stream(handle); }
  Status prepare_to_synchronize() override { return inner_.prepare_to_synchronize(); }

  Bytes granularity() const override { return inner_.granularity(); }
  Result<MemoryInfo> memory_info() override {
    return through(DeviceCall::memory_info, [&] { return inner_.memory_info(); });
  }
  Result<Address> reserve(Bytes size, Bytes alignment) override {
    return through(DeviceCall::reserve, [&] { return inner_.reserve(size, alignment); });
  }
  Result<Address> reserve_at(Address wanted, Bytes size, Bytes alignment) override {
    return through(DeviceCall::reserve, [&] { return inner_.reserve_at(wanted, size, alignment); });
  }
  Status unreserve(Address at, Bytes size) override {
    return through(DeviceCall::unreserve, [&] { return inner_.unreserve(at, size); });
  }
  Result<PhysicalHandle> create(Bytes size) override {
    return through(DeviceCall::create, [&] { return inner_.create(size); });
  }
  Status map(Address at, Bytes size, PhysicalHandle page) override {
    return through(DeviceCall::map, [&] { return inner_.map(at, size, page); });
  }
  Status set_access(Address at, Bytes size) override {
    return through(DeviceCall::set_access, [&] { return inner_.set_access(at, size); });
  }
  Status unmap(Address at, Bytes size) override {
    return through(DeviceCall::unmap, [&] { return inner_.unmap(at, size); });
  }
  Status release(PhysicalHandle page) override {
    return through(DeviceCall::release, [&] { return inner_.release(page); });
  }
  Result<Address> allocate_segment(Bytes size) override {
    return through(DeviceCall::allocate_segment, [&] { return inner_.allocate_segment(size); });
  }
  Status free_segment(Address at, Bytes size) override {
    return through(DeviceCall::free_segment, [&] { return inner_.free_segment(at, size); });
  }

  Result<EventHandle> create_event() override {
    return through(DeviceCall::create_event, [&] { return inner_.create_event(); });
  }
  Status destroy_event(EventHandle event) override {
    return through(DeviceCall::destroy_event, [&] { return inner_.destroy_event(event); });
  }
  Status record(EventHandle event, Stream stream) override {
    return through(DeviceCall::record, [&] { return inner_.record(event, stream); });
  }
  Status wait(Stream stream, EventHandle event) override {
    return through(DeviceCall::wait, [&] { return inner_.wait(stream, event); });
  }
  Result<bool> query(EventHandle event) override {
    return through(DeviceCall::query, [&] { return inner_.query(event); });
  }
  Status synchronize(EventHandle event) override {
    return through(DeviceCall::synchronize, [&] { return inner_.synchronize(event); });
  }
  Status record_context(EventHandle event) override {
    return through(DeviceCall::record_context, [&] { return inner_.record_context(event); });
  }
  Status synchronize_context() override {
    return through(DeviceCall::synchronize_context, [&] { return inner_.synchronize_context(); });
  }
  Nanoseconds now() const override { return inner_.now(); }

  Result<CaptureInfo> capture_info(Stream stream) override {
    return through(DeviceCall::capture_info, [&] { return inner_.capture_info(stream); });
  }
  Result<CaptureInfo::Status> capture_status(Stream stream) override {
    return through(DeviceCall::capture_info, [&] { return inner_.capture_status(stream); });
  }
  Result<std::vector<GraphNode>> capture_tips(Stream stream) override {
    return through(DeviceCall::capture_tips, [&] { return inner_.capture_tips(stream); });
  }
  Status add_capture_dependencies(Stream stream, std::span<const GraphNode> nodes) override {
    return through(DeviceCall::add_capture_dependencies,
                   [&] { return inner_.add_capture_dependencies(stream, nodes); });
  }
  Result<std::vector<GraphNode>> node_dependencies(GraphNode node) override {
    return through(DeviceCall::node_dependencies, [&] { return inner_.node_dependencies(node); });
  }
  Status retain(Stream stream, std::shared_ptr<void> object) override {
    return through(DeviceCall::retain, [&] { return inner_.retain(stream, std::move(object)); });
  }
  Status begin_capture(Stream stream, CaptureMode mode) override {
    return through(DeviceCall::begin_capture, [&] { return inner_.begin_capture(stream, mode); });
  }
  Result<GraphHandle> end_capture(Stream stream) override {
    return through(DeviceCall::end_capture, [&] { return inner_.end_capture(stream); });
  }
  Result<ExecutableHandle> instantiate(GraphHandle graph) override {
    return through(DeviceCall::instantiate, [&] { return inner_.instantiate(graph); });
  }
  Status launch_graph(ExecutableHandle graph, Stream stream) override {
    return through(DeviceCall::launch_graph, [&] { return inner_.launch_graph(graph, stream); });
  }
  Status destroy_executable(ExecutableHandle graph) override {
    return through(DeviceCall::destroy_executable,
                   [&] { return inner_.destroy_executable(graph); });
  }
  Status destroy_graph(GraphHandle graph) override {
    return through(DeviceCall::destroy_graph, [&] { return inner_.destroy_graph(graph); });
  }

  Result<void*> allocate_host(Bytes size) override {
    return through(DeviceCall::allocate_host, [&] { return inner_.allocate_host(size); });
  }
  Status free_host(void* memory, Bytes size) override {
    return through(DeviceCall::free_host, [&] { return inner_.free_host(memory, size); });
  }
  unsigned host_threads() const override { return inner_.host_threads(); }
  Result<Stream> copy_stream(Direction direction) override {
    return through(DeviceCall::copy_stream, [&] { return inner_.copy_stream(direction); });
  }
  Status copy_to_host(void* to, Address from, Bytes size, Stream stream) override {
    return through(DeviceCall::copy_to_host,
                   [&] { return inner_.copy_to_host(to, from, size, stream); });
  }
  Status copy_to_device(Address to, const void* from, Bytes size, Stream stream) override {
    return through(DeviceCall::copy_to_device,
                   [&] { return inner_.copy_to_device(to, from, size, stream); });
  }
  Status fill_with_zeros(Address at, Bytes size, Stream stream) override {
    return through(DeviceCall::fill_with_zeros,
                   [&] { return inner_.fill_with_zeros(at, size, stream); });
  }

 protected:
  Device& inner_;

 private:
  template <class Make>
  auto through(DeviceCall call, Make&& make) -> decltype(make()) {
    return static_cast<Self&>(*this).pass(call, make);
  }
};

// A device that passes every call on as it is, for those that override some of them.
class ForwardingDevice : public InterposedDevice<ForwardingDevice> {
 public:
  using InterposedDevice::InterposedDevice;

 private:
  friend class InterposedDevice<ForwardingDevice>;
  template <class Make>
  static auto pass(DeviceCall, Make&& make) -> decltype(make()) {
    return make();
  }
};

}  // namespace weir
