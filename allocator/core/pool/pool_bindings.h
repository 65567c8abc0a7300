// SPDX-License-Identifier: Apache-2.0
// Which requests go to which graph pool, and which captures those pools serve: a table of bindings,
// of which the last opened is asked first.
//
// A capture's entry lasts as long as the driver says that the capture goes on, whatever becomes of
// the binding. A binding that is closed before pauses its capture: the next one of that pool and
// that capture, known by the driver's number, takes over the entry, and with it the capture's epoch
// in the pool. A binding that nobody closes serves nothing once its capture is over, unless it was
// opened within a capture of others: that one serves on until it is closed.
//
// While any binding is open, or paused, and while frees are deferred, every call has to ask the
// driver whether its stream is captured, so the heaps' fast paths are closed.
//
// Threads: self-synchronised by one lock, taken before the locks of the registry, of OpenCaptures,
// and of graph pools.
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
#include "weir/heap_types.h"

namespace weir {

class PoolBindings {
 public:
  // Of a stream, and the capture that the driver says it is in.
  using Takes = std::function<bool(Stream, const CaptureInfo&)>;
  // Whose requests a binding takes: eager ones; or a capture's, which a CaptureScope may end.
  enum class Kind { eager, captured, scoped };

  PoolBindings(HeapRegistry& registry, OpenCaptures& captures)
      : registry_(registry), captures_(captures) {}

  // An id that no binding has. Ids rise. They are the numbers of captures in OpenCaptures too.
  std::uint64_t next_id();
  struct Capture {
    std::optional<Stream> origin;  // that it begins on, where that is known
    std::uint64_t id = 0;          // the driver's; 0: it has not begun yet
    // The binding was opened within the capture, by somebody who is not done when that ends: it
    // serves on, without a capture, until it is closed.
    bool within = false;
    // It was going on when the binding was opened, the filter did not take its origin, and no
    // request of it came: it is another's, and a begin in that stream is refused.
    bool foreign = false;
    // It went on when its binding was closed, on an origin that can't be asked later.
    bool goes_on = false;
  };
  // The caller has closed the fast paths (HeapRegistry::hold_fast_paths()), which the binding takes
  // over. `capture`: none of an eager binding.
  void open(std::uint64_t id, std::shared_ptr<CapturePool> pool, Takes takes, Kind kind,
            const Capture& capture);
  // The binding is closed; a capture's is paused, until end_past() finds that capture over.
  // Returns the pool that counts a graph too many, where the capture was over already and is said
  // only now to have made none.
  std::shared_ptr<CapturePool> close(std::uint64_t id, bool keep);
  // Was it opened within a capture that was not the pool's?
  bool is_within(std::uint64_t id) const;
  // The stream to ask about an open binding's capture as that is closed: its number is not known,
  // or the stream may be gone later.
  std::optional<Stream> origin_to_ask(std::uint64_t id, bool lives) const;
  // That capture goes on, and has this number.
  void note_goes_on(std::uint64_t id, std::uint64_t capture);
  // The paused binding serves again, and is the last opened. Opens the fast paths that the caller
  // has closed.
  void resume(std::uint64_t id, Takes takes);

  // Captures that the driver says are over end, in their pools too: once this returns, whoever
  // called it, they are over for all. Returns whether there was any. `own`: the number of a
  // capture that goes on, as its own thread asks; then only paused ones are looked at. `origin`: a
  // stream that a capture is about to begin on, so that any other announced there is over; or that
  // the capture `own` is of, so that any other of another number there is.
  bool end_past(std::uint64_t own = 0, const std::optional<Stream>& origin = {});

  // The pool for a request; null: no binding takes it. A capture's first request is noted.
  std::shared_ptr<CapturePool> find(Stream stream, const CaptureInfo& info);
  bool lead_to(const CapturePool& pool) const;
  // The binding by which the pool serves, or served before a pause, the capture of that number; 0:
  // none. `paused`: only one that is paused.
  std::uint64_t of_capture(const CapturePool& pool, std::uint64_t capture,
                           bool paused = false) const;
  // Gives the attachment to the capture that `stream` is in. Nothing: no binding takes the capture.
  // False: no scope ends it.
  std::optional<bool> attach(Stream stream, const CaptureInfo& info, CaptureAttachment attachment);
  std::vector<CaptureAttachment> attached(std::uint64_t id) const;

  // The id of the last binding; and of the oldest one whose capture is neither over nor foreign, or
  // a number above all ids.
  std::uint64_t last() const;
  std::uint64_t oldest_capture() const;

 private:
  // open: requests come by it. paused: it was closed, and its capture goes on. over: its capture
  // is, and it was not closed yet (requests come by it still if it was opened within the capture).
  enum class State : std::uint8_t { open, paused, over };
  struct Binding {
    std::uint64_t id = 0;
    std::shared_ptr<CapturePool> pool;
    Takes takes;  // empty if no requests come by it
    Kind kind = Kind::eager;
    State state = State::open;
    Capture capture;
    std::vector<CaptureAttachment> attached;  // of a scope
    bool counts = false;                      // for a graph of the pool's

    bool captures() const { return kind != Kind::eager && state != State::over; }
    // Set with the lock shared, so not to be read in another way there.
    std::uint64_t capture_id() const {
      return std::atomic_ref(const_cast<std::uint64_t&>(capture.id))
          .load(std::memory_order_relaxed);
    }
    bool is_foreign() const {
      return std::atomic_ref(const_cast<bool&>(capture.foreign)).load(std::memory_order_relaxed);
    }
    bool serves(Stream stream, const CaptureInfo& info) const {
      return takes && takes(stream, info);
    }
  };
  // All are called with the lock held, alone or shared.
  // Of a capture that is over, as far as is known or can be asked. The rest as of end_past().
  bool has_ended(const Binding& binding, std::uint64_t own,
                 const std::optional<Stream>& origin) const;
  void pause(Binding& binding, bool keep);

  HeapRegistry& registry_;
  OpenCaptures& captures_;
  std::atomic<std::uint64_t> captures_on_{
      0};  // that are not over; changed with the lock held alone

  mutable std::shared_mutex mutex_;
  std::vector<Binding> bindings_;
  std::uint64_t last_ = 0;
};

}  // namespace weir
