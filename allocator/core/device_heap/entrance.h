// SPDX-License-Identifier: Apache-2.0
// Where a call of the device heap belongs: which pool serves a stream's request, and whether a
// stream's work runs eagerly or in a capture. Both are asked of the driver here, once a call, and
// of nobody while no graph pool is bound. Opens and closes the bindings that lead to graph pools.
//
// It also names the streams that programs know by their handles: one name a stream, whether or not
// the stream is captured when somebody asks, and whichever thread asks. A stream goes by the
// driver's id. The driver tells no id of a stream that is captured, so a stream that is met first
// in a capture goes by a number of Weir's own (Stream::of_captured), then and later. With two names
// it would be two streams, and memory that it freed under the one could not serve it under the
// other within a capture (docs/decisions.md, 030). Once a stream is gone the driver may give its
// handle to another one. The id that the driver tells outside captures shows that; a name within a
// capture goes by the handle alone.
//
// Threads: self-synchronised; no other lock is taken under that of names. A name that the thread
// has looked up before needs no lock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>

#include "core/base/mutex.h"
#include "core/pool/pool_bindings.h"
#include "core/pool/pools.h"
#include "weir/device_heap.h"

namespace weir {

// Who serves a request.
struct Route {
  std::shared_ptr<CapturePool> pool;  // null: the device heap's own pool
  std::uint64_t capture = 0;          // the driver's number of the stream's capture; 0: none
};

class Entrance {
 public:
  // `number`: of the device heap, in the process; never reused.
  Entrance(std::uint64_t number, Pools& pools) : pools_(pools), number_(number) {}

  // May a request go to a graph pool, or a free have to wait? Then no call takes a fast path.
  bool bound() const { return registry_.are_fast_paths_held(); }

  // The route of a request on `stream`: to the pool `into`, or (null) as the bindings say. Captures
  // that are over end first. Errors: device; invalid_argument (Stream::all()); capture (no graph
  // pool serves the stream's capture).
  Result<Route> route(Stream stream, std::shared_ptr<CapturePool> into = nullptr);
  // Where the work of `user` runs, as `pool` (null: the device heap's own) sees it. Errors: device.
  Result<UsedIn> used_in(Stream user, const CapturePool* pool);
  // Errors: capture (it is captured); device.
  Status refuse_captured(Stream stream, const char* call);
  // Errors: invalid_argument (it is Stream::all()).
  static Status refuse_all(Stream stream, const char* call);

  // DeviceHeap::stream(), and DeviceHeap::retire().
  Result<Stream> stream(void* handle);
  Status retire(Stream stream);

  // Has requests go to the pool until unbind(). `origin`: the stream that the capture begins on,
  // where it is known. Returns the binding's id.
  Result<std::uint64_t> bind(std::shared_ptr<CapturePool> pool, PoolBindings::Takes takes,
                             PoolBindings::Kind kind, std::optional<Stream> origin = std::nullopt);
  // `keep`: the capture made a graph.
  void unbind(std::uint64_t binding, bool keep, bool origin_lives);
  // HeapCaptures::attach().
  Result<bool> attach(Stream captured, CaptureAttachment attachment);

  Result<bool> is_captured(Stream stream);

 private:
  Result<std::uint64_t> bind_capture(std::shared_ptr<CapturePool> pool, PoolBindings::Takes takes,
                                     PoolBindings::Kind kind, std::optional<Stream> origin);
  void settle(bool goes_on);

  // A stream's name, and the driver's id of it; nothing: the driver was not asked yet.
  struct Named {
    Stream name;
    std::optional<std::uint64_t> id;
  };
  // The stream that the driver calls `found`, by its name.
  Stream name_of(Stream found);
  Stream look_up(Stream found) WEIR_EXCLUDES(names_mutex_);
  // The name of the stream that has the handle, as far as is known; nothing: none was met.
  std::optional<Named> named(void* handle) const WEIR_EXCLUDES(names_mutex_);
  // That name; of a stream that was not met, a new one.
  Stream name_of_captured(void* handle) WEIR_EXCLUDES(names_mutex_);
  // The stream was retired: its handle may be another's from now on.
  void forget_name(Stream stream) WEIR_EXCLUDES(names_mutex_);

  Pools& pools_;
  Device& device_ = pools_.shared().device;
  HeapRegistry& registry_ = pools_.shared().registry;
  PoolBindings& bindings_ = pools_.bindings();

  const std::uint64_t number_;
  mutable Mutex names_mutex_;
  std::unordered_map<void*, Named> by_handle_ WEIR_GUARDED_BY(names_mutex_);
  std::uint64_t last_own_ WEIR_GUARDED_BY(names_mutex_) = 0;
};

}  // namespace weir
