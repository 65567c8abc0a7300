// The streams that a communicator's operations run on: one for the eager ones, one for each capture
// that goes on.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/digest.h"
#include "weir/comm/nccl.h"
#include "weir/device.h"
#include "weir/device_heap.h"
#include "weir/result.h"

namespace weir {

struct Lane {
  Stream stream;
  std::uint64_t capture = 0;  // its id; 0: eager
  // What was captured, for ranks to compare.
  std::uint64_t operations = 0;
  std::uint64_t digest = kDigestStart;
  std::weak_ptr<void> graph;  // gone once the capture has failed, or its graph is destroyed
  // Events recorded in the capture; those after `used` are free.
  std::vector<EventHandle> events;
  std::size_t used = 0;
};

// Not thread-safe.
class Lanes {
 public:
  Lanes(Nccl& nccl, Device& device, DeviceHeap& heap) : nccl_(nccl), device_(device), heap_(heap) {}

  // The lane stays where it is while the Lanes live.
  Result<Lane*> eager();
  Result<Lane*> of_capture(std::uint64_t id);
  // Null: nothing was captured under this id.
  Lane* find(std::uint64_t capture);
  // An event that can be recorded in the lane's capture.
  Result<EventHandle> event_of(Lane& lane);

  // Retires and destroys all streams and events: none of their work is going on. The first error is
  // returned, and the rest is done all the same.
  Status destroy();

 private:
  Nccl& nccl_;
  Device& device_;
  DeviceHeap& heap_;
  std::unique_ptr<Lane> eager_;
  std::vector<std::unique_ptr<Lane>> captured_;
};

}  // namespace weir
