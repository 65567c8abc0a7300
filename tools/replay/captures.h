// SPDX-License-Identifier: Apache-2.0
// The captured phases of a trace: each is captured into one pool that all of them share.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "replay/replay_device.h"
#include "weir/device_heap.h"
#include "weir/graph_pool.h"

namespace weir {

// Not thread-safe.
class Captures {
 public:
  // Both must outlive this. Each graph is run in `orders` random orders besides.
  Captures(ReplayDevice& device, DeviceHeap& heap, std::uint64_t orders)
      : device_(device), orders_(orders), pool_(heap) {}

  // A captured phase begins: with the first work, on whatever stream that is.
  void begin() { wanted_ = true; }
  // Before work on `stream`. In a captured phase it is captured from then on: the first one is the
  // capture's, the others are forked from it.
  Status use(Stream stream);
  // The phase ends, if one is open: the streams join, and the graph is launched once.
  Status end();
  // The graphs are dropped, and so the pool's memory is no longer kept.
  void drop_graphs() { graphs_.clear(); }

  std::uint64_t made() const { return made_; }

 private:
  ReplayDevice& device_;
  const std::uint64_t orders_;
  GraphPool pool_;
  bool wanted_ = false;
  std::optional<CaptureScope> open_;
  std::vector<Stream> streams_;  // captured now; the capture's own first
  std::vector<Graph> graphs_;
  std::uint64_t made_ = 0;
};

}  // namespace weir
