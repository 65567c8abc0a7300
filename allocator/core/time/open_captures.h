// SPDX-License-Identifier: Apache-2.0
// Which captures may be going on in the process: those that were announced, as a binding of a graph
// pool is open for them, and those of streams that can be asked. An event of the whole context
// would break any of them, so all heaps share what they know: that of a heap's context, and of the
// contexts of its device's peers (Device::peer_contexts()), counts.
//
// A capture that nobody announced, once met, ends the use of such events for good: the next one may
// be of a stream that can't be asked. Whatever ends it is told to `Lost`, once for each reason.
//
// Threads: self-synchronised, by one lock in the process that is taken after Timelines'; devices
// are called under it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "core/base/mutex.h"
#include "weir/device.h"
#include "weir/event.h"
#include "weir/result.h"

namespace weir {

class OpenCaptures {
 public:
  // May be called under the context's lock, and those that are taken before it. `stream`:
  // Stream::id of the one that showed it; 0: none did.
  using Lost = std::function<void(ContextEventsLost why, std::uint64_t stream)>;

  // `device` must outlive this. `context_events`: may there be any at all?
  OpenCaptures(Device& device, bool context_events, Lost lost = {})
      : device_(device),
        of_(device.context()),
        context_events_(context_events),
        lost_(std::move(lost)) {
    const MutexLock lock(process_.mutex);
    process_.heaps[this];
  }
  ~OpenCaptures();
  OpenCaptures(const OpenCaptures&) = delete;
  OpenCaptures& operator=(const OpenCaptures&) = delete;

  // A capture is about to begin, on `origin` where that is known, or goes on already (`begun`):
  // until ended(). `number`: the caller's for it, which no other of this heap has.
  void announce(std::uint64_t number, std::optional<Stream> origin, bool begun = false);
  void ended(std::uint64_t number);
  // It has begun.
  void note_begun(std::uint64_t number);
  // The stream is there, though it may end without notice: asks now whether what began on it is
  // over.
  void ask_about(Stream stream);
  // What the driver says of it. unknown: its origin is not known, or may be gone.
  enum class Progress { unknown, about_to_begin, going_on, over };
  // Errors: device.
  Result<Progress> progress(std::uint64_t number);

  // The stream can be asked from now on, until forget(), unless it may end without notice.
  void meet(Stream stream);
  void forget(Stream stream);

  // Errors: capture (the stream is being captured, and not by a pool's own capture: what that
  // orders is for PoolEvents to judge); device.
  Status not_captured(Stream stream);
  // Does a capture of this heap go on, as far as is known or can be asked? Errors: capture (one
  // does); device.
  Status none_goes_on();
  // Calls record(), which records an event of the whole context, if no stream is captured: nobody
  // announces a capture meanwhile. Errors: its own; capture; unavailable (there may be no such
  // event in this process, or no longer).
  template <class Record>
  Status record_context(Record&& record) {
    const MutexLock lock(process_.mutex);
    if (Status may = may_record_context(); !may) return may;
    return record();
  }
  // From now on no event of the whole context is recorded.
  void forgo_context_events(ContextEventsLost why, std::uint64_t stream = 0);
  bool has_context_events() const { return context_events_ && reasons() == 0; }
  // A bit for each reason why they were given up.
  std::uint32_t reasons() const { return reasons_.load(std::memory_order_relaxed); }

 private:
  struct Announced {
    std::optional<Stream> origin;
    bool begun = false;
  };
  // Of one heap.
  struct Known {
    std::map<std::uint64_t, Announced> announced;     // by number
    std::unordered_map<std::uint64_t, Stream> asked;  // by Stream::id
  };
  struct Process {
    Mutex mutex;
    std::map<const OpenCaptures*, Known> heaps WEIR_GUARDED_BY(mutex);
  };
  static Process& process();

  Known& own() WEIR_REQUIRES(process_.mutex) { return process_.heaps.at(this); }
  // Of this heap's context and its peers'.
  bool is_any_announced() const WEIR_REQUIRES(process_.mutex);
  Status may_record_context() WEIR_REQUIRES(process_.mutex);
  static Result<Progress> progress_of(Device& device, Announced& announced);
  // Do captures go on that the heap `of` knows?
  Status none_goes_on_in(const OpenCaptures& of, Known& known) WEIR_REQUIRES(process_.mutex);

  Device& device_;
  const void* const of_;  // its context
  const bool context_events_;
  const Lost lost_;
  std::atomic<std::uint32_t> reasons_{0};
  Process& process_ = process();
};

}  // namespace weir
