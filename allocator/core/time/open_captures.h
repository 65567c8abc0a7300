// SPDX-License-Identifier: Apache-2.0
// Which captures may be going on in the process: those that were announced, as a binding of a graph
// pool is open for them, and those of streams that can be asked. An event of the whole context
// would break any of them, so the heaps of one context share what they know.
//
// A capture that nobody announced, once met, ends the use of such events for good: the next one may
// be of a stream that can't be asked.
//
// Threads: self-synchronised, by a lock for each context that is taken after Timelines'; the device
// is called under it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>

#include "core/base/mutex.h"
#include "weir/device.h"
#include "weir/result.h"

namespace weir {

class OpenCaptures {
 public:
  // `device` must outlive this. `context_events`: may there be any at all?
  OpenCaptures(Device& device, bool context_events)
      : device_(device),
        context_events_(context_events),
        kept_(Context::of(device)),
        context_(*kept_) {}
  ~OpenCaptures();
  OpenCaptures(const OpenCaptures&) = delete;
  OpenCaptures& operator=(const OpenCaptures&) = delete;

  // A capture is about to begin, on `origin` where that is known: until ended(). Returns its
  // number.
  std::uint64_t announce(std::optional<Stream> origin);
  void ended(std::uint64_t announced);
  // It has begun.
  void note_begun(std::uint64_t announced);

  // The stream can be asked from now on, until forget(), unless it may end without notice.
  void meet(Stream stream);
  void forget(Stream stream);

  // Errors: capture (the stream is being captured); device.
  Status not_captured(Stream stream);
  // Does a capture of this heap go on, as far as is known or can be asked? Errors: capture (one
  // does); device.
  Status none_goes_on();
  // Calls record(), which records an event of the whole context, if no stream is captured: nobody
  // announces a capture meanwhile. Errors: its own; capture; unavailable (there may be no such
  // event in this process, or no longer).
  template <class Record>
  Status record_context(Record&& record) {
    const MutexLock lock(context_.mutex);
    if (Status may = may_record_context(); !may) return may;
    return record();
  }
  // The device refused to record one: there was a capture that nobody could know of, or there is no
  // such call.
  void forgo_context_events() { context_events_.store(false, std::memory_order_relaxed); }
  bool has_context_events() const { return context_events_.load(std::memory_order_relaxed); }

 private:
  struct Announced {
    std::optional<Stream> origin;
    bool begun = false;
  };
  // Of one heap.
  struct Known {
    std::map<std::uint64_t, Announced> announced;
    std::unordered_map<std::uint64_t, Stream> asked;  // by Stream::id
  };
  // Lives as long as a heap of the context does.
  struct Context {
    Mutex mutex;
    std::map<const OpenCaptures*, Known> heaps WEIR_GUARDED_BY(mutex);
    std::uint64_t last WEIR_GUARDED_BY(mutex) = 0;

    static std::shared_ptr<Context> of(const Device& device);
  };

  Known& own() WEIR_REQUIRES(context_.mutex) { return context_.heaps[this]; }
  bool is_any_announced() const WEIR_REQUIRES(context_.mutex);
  Status may_record_context() WEIR_REQUIRES(context_.mutex);
  Status none_goes_on_in(Known& known) WEIR_REQUIRES(context_.mutex);
  Result<bool> goes_on(Announced& announced) WEIR_REQUIRES(context_.mutex);

  Device& device_;
  std::atomic<bool> context_events_;
  const std::shared_ptr<Context> kept_;
  Context& context_;
};

}  // namespace weir
