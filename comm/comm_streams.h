// SPDX-License-Identifier: Apache-2.0
// The streams that a communicator's overlapped operations run on: one for eager operations, one for
// each capture that has such operations; and what is known of each capture.
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

struct CommStream {
  Stream stream;              // id 0: there is none, as no operation of the capture overlapped
  std::uint64_t capture = 0;  // its id; 0: eager
  bool forked = false;        // is the stream part of that capture?
  // What was captured, for ranks to compare.
  std::uint64_t operations = 0;
  std::uint64_t digest = kDigestStart;
  std::weak_ptr<void> graph;  // gone once the capture has failed, or its graph is destroyed
  // Events recorded in the capture; those after `used` are free.
  std::vector<EventHandle> events;
  std::size_t used = 0;
};

// Not thread-safe.
class CommStreams {
 public:
  CommStreams(Nccl& nccl, Device& device, DeviceHeap& heap)
      : nccl_(nccl), device_(device), heap_(heap) {}

  // The CommStream's address is stable while the CommStreams live.
  Result<CommStream*> eager();
  Result<CommStream*> of_capture(std::uint64_t id);
  // Creates a stream for what was captured, if it has none.
  Status give_stream(CommStream& captured);
  // Null: nothing was captured under this id.
  CommStream* find(std::uint64_t capture);
  // An event that can be recorded in the stream's capture.
  Result<EventHandle> event_of(CommStream& comm_stream);

  // Retires and destroys all streams and events; their work must be done. Continues after an error,
  // and returns the first.
  Status destroy();

 private:
  Nccl& nccl_;
  Device& device_;
  DeviceHeap& heap_;
  std::unique_ptr<CommStream> eager_;
  std::vector<std::unique_ptr<CommStream>> captured_;
};

}  // namespace weir
