// A device that passes every call on, for tests that change one of them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "weir/device.h"

namespace weir::test {

class ForwardingDevice : public Device {
 public:
  explicit ForwardingDevice(Device& to) : to_(to) {}

  std::string name() const override { return to_.name(); }
  Bytes granularity() const override { return to_.granularity(); }
  Result<MemoryInfo> memory_info() override { return to_.memory_info(); }
  Result<Stream> stream(void* handle) override { return to_.stream(handle); }
  Result<Address> reserve(Bytes size, Bytes alignment) override {
    return to_.reserve(size, alignment);
  }
  Status unreserve(Address at, Bytes size) override { return to_.unreserve(at, size); }
  Result<PhysicalHandle> create(Bytes size) override { return to_.create(size); }
  Status map(Address at, Bytes size, PhysicalHandle page) override {
    return to_.map(at, size, page);
  }
  Status set_access(Address at, Bytes size) override { return to_.set_access(at, size); }
  Status unmap(Address at, Bytes size) override { return to_.unmap(at, size); }
  Status release(PhysicalHandle page) override { return to_.release(page); }
  Result<EventHandle> create_event() override { return to_.create_event(); }
  Status destroy_event(EventHandle event) override { return to_.destroy_event(event); }
  Status record(EventHandle event, Stream stream) override { return to_.record(event, stream); }
  Status wait(Stream stream, EventHandle event) override { return to_.wait(stream, event); }
  Result<bool> query(EventHandle event) override { return to_.query(event); }
  Status synchronize(EventHandle event) override { return to_.synchronize(event); }
  Result<CaptureInfo> capture_info(Stream stream) override { return to_.capture_info(stream); }
  Result<std::vector<GraphNode>> capture_tips(Stream stream) override {
    return to_.capture_tips(stream);
  }
  Status add_capture_dependencies(Stream stream, std::span<const GraphNode> nodes) override {
    return to_.add_capture_dependencies(stream, nodes);
  }
  Result<std::vector<GraphNode>> node_dependencies(GraphNode node) override {
    return to_.node_dependencies(node);
  }
  Status begin_capture(Stream stream, CaptureMode mode) override {
    return to_.begin_capture(stream, mode);
  }
  Result<GraphHandle> end_capture(Stream stream) override { return to_.end_capture(stream); }
  Result<ExecutableHandle> instantiate(GraphHandle graph) override {
    return to_.instantiate(graph);
  }
  Status launch_graph(ExecutableHandle graph, Stream stream) override {
    return to_.launch_graph(graph, stream);
  }
  Status destroy_executable(ExecutableHandle graph) override {
    return to_.destroy_executable(graph);
  }
  Status destroy_graph(GraphHandle graph) override { return to_.destroy_graph(graph); }
  Nanoseconds now() const override { return to_.now(); }

 private:
  Device& to_;
};

}  // namespace weir::test
