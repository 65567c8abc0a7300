// SPDX-License-Identifier: Apache-2.0
// The waits of the stream that a heap serves, before memory that it has already serves it again: a
// cached block, or a slot of a slab, which other streams were named for. (Memory that comes from
// the page heap was waited for there: reuse.h.)
//
// Where uses need not be told, a graph is not ordered behind what its stream was made to wait for.
// So these waits are remembered until they are seen to be over, and every request asks meanwhile
// whether the stream is in a capture that nobody announced.
// Not thread-safe: the heap's lock guards it.
#pragma once

#include <cstdint>

#include "core/heap/served_stream.h"
#include "core/memory/block_uses.h"
#include "core/time/fence_set.h"
#include "weir/result.h"

namespace weir {

class StreamWaits {
 public:
  explicit StreamWaits(ServedStream& served) : served_(served) {}

  // Before bytes that carry `uses` serve the next block: makes the stream wait or, where no request
  // waits, checks that nobody is to be waited for. Then `uses` is null.
  // Errors: capture (this memory can't be waited for); device.
  Status wait_for(BlockUsesPtr& uses) { return uses ? wait_and_clear(uses) : Status{}; }
  // Is it only that this memory can't be waited for?
  static bool is_in_the_way(const Status& status) {
    return !status && status.error().code() == ErrorCode::capture;
  }
  // Is nobody to be waited for, as far as is known or can be seen now?
  bool is_settled(const FenceSet& fences) const;

  // The stream was made to wait for these. Under Trust::told nothing is noted.
  void note(const FenceSet& fences) {
    if (!fences.empty() && served_.timelines->trust() != Trust::told) made_.join(fences);
  }
  // Are there waits that were not seen to be over?
  bool any() const { return !made_.empty(); }
  // To be asked if any(): is the stream in a capture that nobody announced? (Now and then this
  // looks whether the waits are over.)
  bool is_captured();
  void forget() { made_.clear(); }

 private:
  Status wait_and_clear(BlockUsesPtr& uses);

  ServedStream& served_;
  FenceSet made_;
  std::uint32_t asked_ = 0;
};

}  // namespace weir
