// SPDX-License-Identifier: Apache-2.0
// What a communicator knows of captures that have operations of it, and the streams that its
// overlapped operations run on: one for eager operations, one for each capture at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "weir/comm/nccl.h"
#include "weir/device.h"
#include "weir/device_heap.h"
#include "weir/result.h"

namespace weir {

// What was captured, for ranks to compare.
struct CapturedOperations {
  std::uint64_t count = 0;
  std::uint64_t digest = 0xcbf29ce484222325;  // FNV-1a (Fowler, Noll, Vo) of what describes them

  void add(const Operation& operation, int ranks);
  friend bool operator==(const CapturedOperations&, const CapturedOperations&) = default;
};

struct Captured {
  Stream forked;  // that overlapped operations of the capture run on; id 0: there are none
  CapturedOperations operations;
  std::weak_ptr<void> graph;  // gone once the capture has failed, or its graph is destroyed
};

// Not thread-safe.
class Captures {
 public:
  Captures(Nccl& nccl, CaptureCalls& device, DeviceHeap& heap)
      : nccl_(nccl), device_(device), heap_(heap) {}

  // Null: nothing was captured under this id.
  Captured* find(std::uint64_t id);
  // A new one, which stays at its place until its graph is gone and another capture is added: ranks
  // may agree on a capture long after its end.
  Captured& add(std::uint64_t id, std::weak_ptr<void> graph);
  // A stream that is in no capture.
  Result<Stream> stream_to_fork();
  Result<Stream> eager_stream();

  // Retires and destroys all streams, whose work must be done. Continues after an error, and
  // returns the first.
  Status destroy();

 private:
  Nccl& nccl_;
  CaptureCalls& device_;
  DeviceHeap& heap_;
  std::map<std::uint64_t, Captured> captured_;  // by the capture's id
  std::optional<Stream> eager_;
  std::vector<Stream> forked_;
};

}  // namespace weir
