// SPDX-License-Identifier: Apache-2.0
// Frees that wait, and frees that failed.
//
// A free waits for the streams that PyTorch's record_stream() named, where no heap can make the GPU
// wait: for streams of another device, and for all streams of memory that is not the heap's. When
// the block is freed, an event is recorded on each stream, on the stream's own device, and the
// block may go back once all of these events are complete. While a stream is being captured nothing
// is recorded on it; the event then follows in a later take_done().
//
// A free happens in destructors, which must not throw: what failed is kept until an allocation can
// report it.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "weir/device.h"

namespace weir::pytorch {

// Threads: self-synchronised; calls about one block must not overlap.
class Frees {
 public:
  // `polls`: may blocks go back once streams are seen to be done? Else the host waits for them, so
  // that no time decides when (Addresses::fixed).
  explicit Frees(bool polls = true) : polls_(polls) {}

  // "`user`, a stream of `device`, may use the block until it is freed." `device` must outlive
  // this.
  void add_user(const void* block, Device& device, Stream user);

  // The block is being freed. False: no stream was named for it, and it may go back at once. True:
  // take_done() will return it; or the free has failed, as the device refused an event.
  bool defer(void* block);
  bool is_waiting(const void* block) const;
  // The block has another owner now, or none: its users and its free mean nothing any more.
  void forget(const void* block);
  // The waiting blocks whose streams are done, each once. Where a stream can't be asked, the free
  // has failed.
  std::vector<void*> take_done();
  // The same after the host has waited for the streams that are not being captured.
  std::vector<void*> wait_and_take_done();

  // The free of `block` failed with `error`, and its memory stays in use.
  void note_failed(const void* block, const Error& error);
  // The first error since the last call, with the block's address and the number of later ones.
  std::optional<Error> take_failure();

  // Does any block have users, or wait, or has a free failed since the last take_failure()? Takes
  // no lock.
  bool any() const { return any_.load(std::memory_order_relaxed); }

 private:
  struct Use {
    Device* device = nullptr;
    Stream user;
    std::shared_ptr<const EventHandle> event;  // null: not recorded yet
  };
  struct Block {
    std::vector<Use> uses;
    bool is_freed = false;
  };
  using Blocks = std::unordered_map<const void*, Block>;
  std::vector<void*> take_seen();
  static Status record(Block& block);
  static Result<bool> is_done(Block& block);
  void note_failure(const void* block, const Error& error);
  void note_any();

  const bool polls_;
  mutable std::mutex mutex_;
  Blocks blocks_;                   // guarded by mutex_; those with users
  std::optional<Error> failure_;    // guarded by mutex_; the first
  std::size_t later_failures_ = 0;  // guarded by mutex_
  std::atomic<bool> any_{false};
};

}  // namespace weir::pytorch
