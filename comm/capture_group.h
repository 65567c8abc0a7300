// The communicators whose operations are in one capture, and in the graph that the capture becomes:
// all of them must agree on the capture, and all watch the graph's launches.
//
// Threads: self-synchronised.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "weir/device.h"
#include "weir/device_heap.h"

namespace weir {

class CommState;

class CaptureGroup {
 public:
  // The group of a capture on the heap's device; created if there is none. The group lives as long
  // as its CaptureMembers.
  static std::shared_ptr<CaptureGroup> of_capture(const DeviceHeap& heap, std::uint64_t id);
  // Null: no communicator has operations in the capture, or graph.
  static std::shared_ptr<CaptureGroup> find_capture(const DeviceHeap& heap, std::uint64_t id);
  static std::shared_ptr<CaptureGroup> find_graph(const DeviceHeap& heap, GraphHandle graph);

  // The capture of `group` has become this graph.
  static void becomes(const std::shared_ptr<CaptureGroup>& group, const DeviceHeap& heap,
                      GraphHandle graph);

  CaptureGroup() = default;
  ~CaptureGroup();
  CaptureGroup(const CaptureGroup&) = delete;
  CaptureGroup& operator=(const CaptureGroup&) = delete;

  void add(const std::shared_ptr<CommState>& member);
  // In the order in which they joined, without those that are gone.
  std::vector<std::shared_ptr<CommState>> members() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<CommState>> members_;
};

// One communicator's membership in a capture, held as long as the graph lives. The driver may hold
// the last reference: the destructor makes no call to the device.
struct CaptureMember {
  const std::shared_ptr<std::atomic<int>> graphs;  // the communicator's count
  const std::shared_ptr<CaptureGroup> group;
  CaptureMember(const std::shared_ptr<CommState>& state, std::shared_ptr<CaptureGroup> all);
  ~CaptureMember();
  CaptureMember(const CaptureMember&) = delete;
  CaptureMember& operator=(const CaptureMember&) = delete;
};

}  // namespace weir
