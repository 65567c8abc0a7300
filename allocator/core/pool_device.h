// A device as a graph pool sees it: the same memory, and two kinds of time.
//
// A stream that is being captured into the pool goes by an identity of its own (captured()), beside
// its eager one: what was captured on it runs whenever the graph is launched, in no order with what
// was queued on it eagerly. An event recorded on such a stream is the set of graph nodes that its
// next node would have depended on; waiting for it makes those nodes dependencies of the waiter's
// next node, unless the graph gives that order already. When the capture ends, all of this is past.
//
// Threads: self-synchronised, by a lock that is taken after Timelines'; the device is called under
// it.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "core/mutex.h"
#include "core/node_set.h"
#include "weir/device.h"

namespace weir {

class PoolDevice final : public Device {
 public:
  // `inner` must outlive this.
  explicit PoolDevice(Device& inner) : inner_(inner) {}

  // The identity of `stream` while it is captured into the pool.
  static Stream captured(Stream stream) { return {stream.handle, stream.id | kCaptured}; }
  static bool is_captured(Stream stream) { return (stream.id & kCaptured) != 0; }

  // One capture at a time. Whatever was recorded in the one that ends is past.
  void begin();
  void end();

  std::string name() const override { return inner_.name(); }
  Bytes granularity() const override { return inner_.granularity(); }
  Result<MemoryInfo> memory_info() override { return inner_.memory_info(); }
  Result<Stream> stream(void* handle) override { return inner_.stream(handle); }
  Result<Address> reserve(Bytes size, Bytes alignment) override {
    return inner_.reserve(size, alignment);
  }
  Status unreserve(Address at, Bytes size) override { return inner_.unreserve(at, size); }
  Result<PhysicalHandle> create(Bytes size) override { return inner_.create(size); }
  Status map(Address at, Bytes size, PhysicalHandle handle) override {
    return inner_.map(at, size, handle);
  }
  Status set_access(Address at, Bytes size) override { return inner_.set_access(at, size); }
  Status unmap(Address at, Bytes size) override { return inner_.unmap(at, size); }
  Status release(PhysicalHandle handle) override { return inner_.release(handle); }

  Result<EventHandle> create_event() override;
  Status destroy_event(EventHandle event) override;
  Status record(EventHandle event, Stream stream) override;
  Status wait(Stream stream, EventHandle event) override;
  Result<bool> query(EventHandle event) override;
  Status synchronize(EventHandle event) override;

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
  Status begin_capture(Stream stream, CaptureMode mode) override {
    return inner_.begin_capture(stream, mode);
  }
  Result<GraphHandle> end_capture(Stream stream) override { return inner_.end_capture(stream); }
  Result<ExecutableHandle> instantiate(GraphHandle graph) override {
    return inner_.instantiate(graph);
  }
  Status launch_graph(ExecutableHandle executable, Stream stream) override {
    return inner_.launch_graph(executable, stream);
  }
  Status destroy_executable(ExecutableHandle executable) override {
    return inner_.destroy_executable(executable);
  }
  Status destroy_graph(GraphHandle graph) override { return inner_.destroy_graph(graph); }
  Nanoseconds now() const override { return inner_.now(); }

 private:
  static constexpr std::uint64_t kCaptured = std::uint64_t{1} << 63;
  static Stream real(Stream stream) { return {stream.handle, stream.id & ~kCaptured}; }

  struct Event {
    EventHandle eager;  // the device's; none (0) until the first record on an eager stream
    bool is_captured = false;
    std::uint64_t capture = 0;  // number of the capture that it was recorded in
    std::vector<GraphNode> nodes;
  };
  // The nodes that a stream's next node is known to come after.
  using Past = NodeSet;

  bool is_past(const Event& event) const WEIR_REQUIRES(mutex_) {
    return !capturing_ || event.capture != capture_;
  }
  Status wait_in_capture(Stream stream, const Event& event) WEIR_REQUIRES(mutex_);
  Result<std::vector<GraphNode>> not_reached(Stream stream, const std::vector<GraphNode>& nodes)
      WEIR_REQUIRES(mutex_);
  Status walk_back(Past& past, std::vector<GraphNode> from) WEIR_REQUIRES(mutex_);

  Device& inner_;
  Mutex mutex_;
  std::unordered_map<std::uint64_t, Event> events_ WEIR_GUARDED_BY(mutex_);
  std::uint64_t last_event_ WEIR_GUARDED_BY(mutex_) = 0;
  bool capturing_ WEIR_GUARDED_BY(mutex_) = false;
  std::uint64_t capture_ WEIR_GUARDED_BY(mutex_) = 0;
  std::unordered_map<std::uint64_t, Past> pasts_ WEIR_GUARDED_BY(mutex_);  // by Stream::id
};

}  // namespace weir
