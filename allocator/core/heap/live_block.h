// SPDX-License-Identifier: Apache-2.0
// One live block of a stream heap, and who beside its own stream uses it.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/mutex.h"
#include "core/heap/block_ref.h"
#include "core/heap/served_stream.h"
#include "weir/heap_types.h"
#include "weir/result.h"

namespace weir {

// Of a block of the heap that serves this stream.
BlockInfo info_of(BlockRef block, const ServedStream& served);

// The heap stays locked for as long as the LiveBlock lives, which is a local variable or shorter:
// no lock that comes before a heap's is taken meanwhile. All calls but `bool` need a block.
class LiveBlock {
 public:
  // Where a fence that record_stream asked for can't be taken, since its stream is gone: an error;
  // or the work of all streams is waited for instead; or it is over.
  enum class Gone { error, behind_all, after_all };

  // `locked` is the heap's lock, which the caller took. No block: there is none to be found.
  LiveBlock(Mutex& locked, ServedStream& served, BlockRef block)
      : locked_(locked), served_(served), block_(block) {}
  ~LiveBlock() WEIR_NO_THREAD_ANALYSIS { locked_.unlock(); }
  LiveBlock(const LiveBlock&) = delete;
  LiveBlock& operator=(const LiveBlock&) = delete;

  explicit operator bool() const { return static_cast<bool>(block_); }
  BlockRef ref() const { return block_; }
  BlockInfo info() const { return info_of(block_, served_); }
  // The stream that it was allocated for, and the capture epoch then.
  Stream stream() const { return served_.stream; }
  std::uint32_t epoch() const { return block_.epoch(); }

  void add(Fence fence) const;
  // `user`'s stream uses the block: takes a fence on the work queued on it so far, or notes that
  // one is to be taken when the block is freed; none is taken on the block's own stream. Errors:
  // device.
  enum class Fenced { now, at_free };
  Status note_use(TimelineId user, Fenced fenced) const;
  void add_user(TimelineId user) const;  // at_free
  // Those that add_user() named.
  std::vector<TimelineId> users() const;
  // Takes the fences of these users. Errors: capture, device (such a fence could not be taken).
  Status fence_users(Gone gone) const { return block_.uses() ? fence_each_user(gone) : Status{}; }

 private:
  Status fence_each_user(Gone gone) const;

  Mutex& locked_;
  ServedStream& served_;
  const BlockRef block_;
};

}  // namespace weir
