// SPDX-License-Identifier: Apache-2.0
// Which requests go to which graph pool: a table of bindings, of which the last opened is asked
// first.
//
// While any binding is open, and while frees are deferred, every call has to ask the driver whether
// its stream is captured, so the heaps' fast paths are closed.
//
// Threads: self-synchronised by one lock, taken before the registry's and OpenCaptures'.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <vector>

#include "core/heap/heap_registry.h"
#include "core/pool/capture_pool.h"
#include "core/time/open_captures.h"
#include "weir/device.h"
#include "weir/device_heap.h"

namespace weir {

class PoolBindings {
 public:
  // Of a stream, and the capture that the driver says it is in.
  using Takes = std::function<bool(Stream, const CaptureInfo&)>;
  // Whose requests a binding takes: eager ones; or a capture's, which a CaptureScope may end.
  enum class Kind { eager, captured, scoped };

  PoolBindings(HeapRegistry& registry, OpenCaptures& captures)
      : registry_(registry), captures_(captures) {}

  // Are the fast paths closed?
  bool any() const { return open_.load(std::memory_order_acquire) != 0; }
  // Closes the fast paths until it is let go: before a binding is opened, and for what else must
  // see every call.
  void hold();
  void let_go();

  // Takes over a hold(). `announced`: OpenCaptures' number of its capture. Returns its id.
  std::uint64_t open(std::shared_ptr<CapturePool> pool, Takes takes, Kind kind,
                     std::uint64_t announced);
  struct Closed {
    std::shared_ptr<CapturePool> pool;
    bool captures = false;
  };
  // Nothing: there is no such binding.
  std::optional<Closed> close(std::uint64_t id);

  // The pool for a request; null: no binding takes it. A capture's first request is noted.
  std::shared_ptr<CapturePool> find(Stream stream, const CaptureInfo& info);
  bool lead_to(const CapturePool& pool) const;
  // Gives the attachment to the capture that `stream` is in. Nothing: no binding takes the capture.
  // False: no scope ends it.
  std::optional<bool> attach(Stream stream, const CaptureInfo& info, CaptureAttachment attachment);
  std::vector<CaptureAttachment> attached(std::uint64_t id) const;

  // Ids rise, and none is used again. The last; and the oldest that a capture has, or more than
  // all.
  std::uint64_t last() const;
  std::uint64_t oldest_capture() const;

 private:
  struct Binding {
    std::uint64_t id = 0;
    std::shared_ptr<CapturePool> pool;
    Takes takes;
    Kind kind = Kind::eager;
    std::vector<CaptureAttachment> attached;
    std::uint64_t announced = 0;
    bool begun = false;  // as far as OpenCaptures was told; set with the lock shared

    bool captures() const { return kind != Kind::eager; }
  };
  void let_go_locked();

  HeapRegistry& registry_;
  OpenCaptures& captures_;
  std::atomic<std::uint64_t> open_{0};  // changed with the lock held alone

  mutable std::shared_mutex mutex_;
  std::vector<Binding> bindings_;
  std::uint64_t last_ = 0;
};

}  // namespace weir
