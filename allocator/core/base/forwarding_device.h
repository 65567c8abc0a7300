// SPDX-License-Identifier: Apache-2.0
// A device that passes every call on to another, for those that change some of them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weir/device.h"

namespace weir {

class ForwardingDevice : public Device {
 public:
  // `inner` must outlive this.
  explicit ForwardingDevice(Device& inner) : inner_(inner) {}

  std::string name() const override { return inner_.name(); }
  const void* context() const override { return inner_.context(); }
  std::vector<const void*> peer_contexts() const override { return inner_.peer_contexts(); }
  Bytes granularity() const override { return inner_.granularity(); }
  Result<MemoryInfo> memory_info() override { return inner_.memory_info(); }
  Result<Stream> stream(void* handle) override { return inner_.stream(handle); }
  Result<Address> reserve(Bytes size, Bytes alignment) override {
    return inner_.reserve(size, alignment);
  }
  Status unreserve(Address at, Bytes size) override { return inner_.unreserve(at, size); }
  Result<PhysicalHandle> create(Bytes size) override { return inner_.create(size); }
  Status map(Address at, Bytes size, PhysicalHandle page) override {
    return inner_.map(at, size, page);
  }
  Status set_access(Address at, Bytes size) override { return inner_.set_access(at, size); }
  Status unmap(Address at, Bytes size) override { return inner_.unmap(at, size); }
  Status release(PhysicalHandle page) override { return inner_.release(page); }
  Result<Address> allocate_segment(Bytes size) override { return inner_.allocate_segment(size); }
  Status free_segment(Address at, Bytes size) override { return inner_.free_segment(at, size); }
  Result<void*> allocate_host(Bytes size) override { return inner_.allocate_host(size); }
  Status free_host(void* memory, Bytes size) override { return inner_.free_host(memory, size); }
  unsigned host_threads() const override { return inner_.host_threads(); }
  Result<Stream> copy_stream(Direction direction) override { return inner_.copy_stream(direction); }
  Status copy_to_host(void* to, Address from, Bytes size, Stream stream) override {
    return inner_.copy_to_host(to, from, size, stream);
  }
  Status copy_to_device(Address to, const void* from, Bytes size, Stream stream) override {
    return inner_.copy_to_device(to, from, size, stream);
  }
  Status fill_with_zeros(Address at, Bytes size, Stream stream) override {
    return inner_.fill_with_zeros(at, size, stream);
  }
  Result<OpenedFile> open_file(const std::string& folder, Bytes size) override {
    return inner_.open_file(folder, size);
  }
  Status write_file(FileHandle file, Bytes offset, const void* from, Bytes size) override {
    return inner_.write_file(file, offset, from, size);
  }
  Status read_file(FileHandle file, Bytes offset, void* to, Bytes size) override {
    return inner_.read_file(file, offset, to, size);
  }
  Status sync_file(FileHandle file) override { return inner_.sync_file(file); }
  Status close_file(FileHandle file) override { return inner_.close_file(file); }
  Result<EventHandle> create_event() override { return inner_.create_event(); }
  Status destroy_event(EventHandle event) override { return inner_.destroy_event(event); }
  Status record(EventHandle event, Stream stream) override { return inner_.record(event, stream); }
  Status wait(Stream stream, EventHandle event) override { return inner_.wait(stream, event); }
  Result<bool> query(EventHandle event) override { return inner_.query(event); }
  Status synchronize(EventHandle event) override { return inner_.synchronize(event); }
  Status record_context(EventHandle event) override { return inner_.record_context(event); }
  Status synchronize_context() override { return inner_.synchronize_context(); }
  Status prepare_to_synchronize() override { return inner_.prepare_to_synchronize(); }
  Result<CaptureInfo::Status> capture_status(Stream stream) override {
    return inner_.capture_status(stream);
  }
  Result<CaptureInfo> capture_info(Stream stream) override { return inner_.capture_info(stream); }
  Result<std::vector<GraphNode>> capture_tips(Stream stream) override {
    return inner_.capture_tips(stream);
  }
  Status add_capture_dependencies(Stream stream, std::span<const GraphNode> nodes) override {
    return inner_.add_capture_dependencies(stream, nodes);
  }
  Result<std::vector<GraphNode>> node_dependencies(GraphNode node) override {
    return inner_.node_dependencies(node);
  }
  Status retain(Stream stream, std::shared_ptr<void> object) override {
    return inner_.retain(stream, std::move(object));
  }
  Status begin_capture(Stream stream, CaptureMode mode) override {
    return inner_.begin_capture(stream, mode);
  }
  Result<GraphHandle> end_capture(Stream stream) override { return inner_.end_capture(stream); }
  Result<ExecutableHandle> instantiate(GraphHandle graph) override {
    return inner_.instantiate(graph);
  }
  Status launch_graph(ExecutableHandle graph, Stream stream) override {
    return inner_.launch_graph(graph, stream);
  }
  Status destroy_executable(ExecutableHandle graph) override {
    return inner_.destroy_executable(graph);
  }
  Status destroy_graph(GraphHandle graph) override { return inner_.destroy_graph(graph); }
  Nanoseconds now() const override { return inner_.now(); }

 protected:
  Device& inner_;
};

}  // namespace weir
