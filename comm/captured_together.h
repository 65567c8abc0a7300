// The communicators whose operations are in one capture, and in the graph that is made of it: all
// must agree on it, and all wait for its launches.
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

class CapturedTogether {
 public:
  // Of a capture on the heap's device; made, if there is none. It lives as long as its members'
  // parts of the capture do.
  static std::shared_ptr<CapturedTogether> of_capture(const DeviceHeap& heap, std::uint64_t id);
  // Null: no communicator is known to be in it.
  static std::shared_ptr<CapturedTogether> find_capture(const DeviceHeap& heap, std::uint64_t id);
  static std::shared_ptr<CapturedTogether> find_graph(const DeviceHeap& heap, GraphHandle graph);

  // The capture that it is of has become this graph.
  static void becomes(const std::shared_ptr<CapturedTogether>& together, const DeviceHeap& heap,
                      GraphHandle graph);

  CapturedTogether() = default;
  ~CapturedTogether();
  CapturedTogether(const CapturedTogether&) = delete;
  CapturedTogether& operator=(const CapturedTogether&) = delete;

  void add(const std::shared_ptr<CommState>& member);
  // In the order in which they joined; those that are gone are left out.
  std::vector<std::shared_ptr<CommState>> members() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<CommState>> members_;
};

// One communicator's part of a capture, held as long as the graph lives. The driver may be the last
// to let it go: its destructor calls nothing of the device's.
struct CapturedPart {
  const std::shared_ptr<std::atomic<int>> graphs;  // the communicator's count
  const std::shared_ptr<CapturedTogether> together;
  CapturedPart(const std::shared_ptr<CommState>& state, std::shared_ptr<CapturedTogether> all);
  ~CapturedPart();
  CapturedPart(const CapturedPart&) = delete;
  CapturedPart& operator=(const CapturedPart&) = delete;
};

}  // namespace weir
