// SPDX-License-Identifier: Apache-2.0
// Frees that the host delays until streams are done: what PyTorch's record_stream() asks for where
// no heap can make the GPU wait, which is with streams of another device, and with memory that is
// not the heap's.
//
// When a block is freed, an event is recorded on each stream that was named for it, on the stream's
// own device. The block is done once all of these events are complete. While a stream is being
// captured nothing is recorded on it; the event then follows in a later take_done().
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "weir/device.h"

namespace weir::pytorch {

// Threads: self-synchronised; calls about one block must not overlap.
class DeferredFrees {
 public:
  // "`user`, a stream of `device`, may use the block until it is freed." `device` must outlive
  // this.
  void add_user(const void* block, Device& device, Stream user);

  // The block is being freed. False: no stream was named for it, and it may be given back at once.
  // True: take_done() will return it. Errors: those of the device; the block is then forgotten.
  Result<bool> defer(void* block);
  bool is_waiting(const void* block) const;
  // The block has another owner now, or none: its users and its free mean nothing any more.
  void forget(const void* block);

  // Does any block have users, or wait? Cheap, and takes no lock.
  bool any() const { return blocks_.load(std::memory_order_relaxed) != 0; }

  struct Done {
    void* block = nullptr;
    Status status;  // an error: whether the streams are done can't be known
  };
  // The waiting blocks whose streams are done, each once.
  std::vector<Done> take_done();
  // The same after the host has waited for the streams that are not being captured.
  std::vector<Done> wait_and_take_done();

 private:
  class Event;
  struct Use {
    Device* device = nullptr;
    Stream user;
    std::shared_ptr<Event> event;  // null: not recorded yet
  };
  using Uses = std::vector<Use>;
  static Status record(Uses& uses);
  static Result<bool> is_done(Uses& uses);
  void count();

  mutable std::mutex mutex_;
  std::unordered_map<const void*, Uses> users_;  // guarded by mutex_; of live blocks
  std::unordered_map<void*, Uses> waiting_;      // guarded by mutex_; of freed ones
  std::atomic<std::size_t> blocks_{0};           // in the two
};

}  // namespace weir::pytorch
