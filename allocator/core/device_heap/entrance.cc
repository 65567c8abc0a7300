// SPDX-License-Identifier: Apache-2.0
#include "core/device_heap/entrance.h"

#include <array>
#include <string>
#include <utility>

namespace weir {
namespace {

// CUDA's CU_STREAM_PER_THREAD.
constexpr Address kPerThreadHandle{2};

// The names that a thread looked up last. The driver never gives an id again, and which name it has
// never changes, so nothing here can be out of date.
struct KnownName {
  std::uint64_t number = 0;  // of the device heap
  std::uint64_t id = 0;      // the driver's
  std::uint64_t name = 0;    // Stream::id
};
constinit thread_local std::array<KnownName, 8> the_known_names;

Error not_served(Stream stream) {
  return {ErrorCode::capture,
          "stream " + std::to_string(stream.id) +
              " is being captured, and no graph pool serves its capture: begin it with "
              "CaptureScope, or open a binding with GraphPool::capture() before it begins"};
}

}  // namespace

Status Entrance::refuse_all(Stream stream, const char* call) {
  if (!stream.is_all()) [[likely]]
    return {};
  return Error(
      ErrorCode::invalid_argument,
      std::string(call) + ": Stream::all() is no stream of the program's: name each stream");
}

Result<Route> Entrance::route(Stream stream, std::shared_ptr<CapturePool> into) {
  if (Status one = refuse_all(stream, "allocate"); !one) return std::move(one).error();
  if (pools_.shared().waiting.has_any_to_retry()) pools_.free_due();
  const Result<CaptureInfo> info = device_.capture_info(stream);
  if (!info) return info.error();
  const bool captured = info->status != CaptureInfo::Status::none;
  const std::uint64_t capture = captured ? info->id : 0;
  if (bindings_.end_past(capture)) pools_.free_due();
  if (into == nullptr) into = bindings_.find(stream, *info);
  if (into != nullptr) return Route{std::move(into), capture};
  if (!captured || !pools_.own().is_told()) return Route{};
  return not_served(stream);
}

Result<bool> Entrance::is_captured(Stream stream) {
  Timelines& timelines = pools_.own().timelines();
  // The handle of a retired stream may be nobody's any more, or another's. (A number of Weir's own
  // may be one that the device heap never met.)
  if (!stream.is_of_captured()) (void)timelines.of(stream);
  if (timelines.retired(stream)) return false;
  const Result<CaptureInfo::Status> status = device_.capture_status(stream);
  if (!status) return status.error();
  return *status != CaptureInfo::Status::none;
}

Result<UsedIn> Entrance::used_in(Stream user, const CapturePool* pool) {
  if (!bound()) return UsedIn::eager;
  const Result<bool> captured = is_captured(user);
  if (!captured) return captured.error();
  if (!*captured) return UsedIn::eager;
  if (pool == nullptr) return UsedIn::other_capture;
  const Result<CaptureInfo> info = device_.capture_info(user);
  if (!info) return info.error();
  const std::uint64_t known = bindings_.of_capture(*pool, info->id);
  const bool own = known != 0 ? pool->capture() == known
                              : bindings_.find(user, *info).get() == pool && pool->capture() != 0;
  return own ? UsedIn::own_capture : UsedIn::other_capture;
}

Status Entrance::refuse_captured(Stream stream, const char* call) {
  const Result<UsedIn> where = used_in(stream, nullptr);
  if (!where) return where.error();
  if (*where == UsedIn::eager) return {};
  return Error(ErrorCode::capture, std::string(call) + ": stream " + std::to_string(stream.id) +
                                       " is being captured, where eager points mean nothing: the "
                                       "graph's edges order its work");
}

// Whether a stream lasts its owner knows best; of the default one it is sure.
Result<Stream> Entrance::stream(void* handle) {
  if (Address::of(handle) == kPerThreadHandle) [[unlikely]] {
    if (pools_.own().is_told()) {
      return Error(ErrorCode::invalid_argument,
                   "the per-thread default stream can't be used: its handle names another stream "
                   "in each thread, and memory is waited for by any; make a stream of your own");
    }
    Result<Stream> stream = device_.stream(handle);
    if (stream) stream->may_end = true;  // with its thread, which alone may name it
    return stream;
  }
  if (!bound() && pools_.own().is_told()) return device_.stream(handle);
  const bool may_end = !pools_.own().is_told() && handle != nullptr;
  const Result<CaptureInfo::Status> status = device_.capture_status(Stream::of_captured(handle));
  if (!status) return status.error();
  if (*status == CaptureInfo::Status::none) {
    Result<Stream> found = device_.stream(handle);
    if (!found) return found;
    // Under Trust::told it goes by the driver's id outside captures, whatever it went by in one.
    if (!pools_.own().is_told()) *found = name_of(*found);
    found->may_end = may_end;
    if (may_end && bound()) pools_.shared().captures.ask_about(*found);
    return found;
  }
  const std::optional<Named> known = named(handle);
  std::optional<Stream> used;  // the last that had the handle, which may be gone all the same
  for (const Stream each : pools_.own().timelines().streams()) {
    if (each.handle == handle) used = each;
  }
  if (used && (pools_.own().is_told() || !known || known->name == *used)) return *used;
  Stream stream = known ? known->name : name_of_captured(handle);
  stream.may_end = may_end;
  return stream;
}

Status Entrance::retire(Stream stream) {
  if (Status one = refuse_all(stream, "retire"); !one) return one;
  // The number of Weir's own that it goes by, or went by in captures, beside this name goes too.
  std::optional<Stream> beside;
  if (const std::optional<Named> known = named(stream.handle)) {
    const bool is_it = !known->id || *known->id == stream.id;
    if (is_it && known->name.is_of_captured() && known->name != stream) beside = known->name;
  }
  if (Status status = pools_.retire(stream, beside); !status) return status;
  forget_name(stream);
  return {};
}

Stream Entrance::name_of(Stream found) {
  KnownName& known = the_known_names[found.id % the_known_names.size()];
  if (known.number != number_ || known.id != found.id) {
    known = {number_, found.id, look_up(found).id};
  }
  found.id = known.name;
  return found;
}

Stream Entrance::look_up(Stream found) {
  const MutexLock lock(names_mutex_);
  const auto [known, is_new] = by_handle_.try_emplace(found.handle, Named{found, found.id});
  Named& named = known->second;
  if (!named.id) named.id = found.id;
  if (*named.id != found.id) named = {found, found.id};
  return named.name;
}

std::optional<Entrance::Named> Entrance::named(void* handle) const {
  const MutexLock lock(names_mutex_);
  const auto known = by_handle_.find(handle);
  return known == by_handle_.end() ? std::nullopt : std::optional(known->second);
}

Stream Entrance::name_of_captured(void* handle) {
  const MutexLock lock(names_mutex_);
  const auto [known, is_new] = by_handle_.try_emplace(handle);
  if (is_new) known->second.name = Stream::of_captured(handle, ++last_own_);
  return known->second.name;
}

void Entrance::forget_name(Stream stream) {
  const MutexLock lock(names_mutex_);
  const auto known = by_handle_.find(stream.handle);
  if (known == by_handle_.end()) return;
  const Named& named = known->second;
  if (!named.id || *named.id == stream.id || named.name == stream) by_handle_.erase(known);
}

Result<std::uint64_t> Entrance::bind(std::shared_ptr<CapturePool> pool, PoolBindings::Takes takes,
                                     PoolBindings::Kind kind, std::optional<Stream> origin) {
  registry_.hold_fast_paths();
  const auto let_go = [](HeapRegistry* registry) { registry->let_go_of_fast_paths(); };
  std::unique_ptr<HeapRegistry, decltype(let_go)> held(&registry_, let_go);  // if the filter throws
  Result<std::uint64_t> id = [&]() -> Result<std::uint64_t> {
    if (kind != PoolBindings::Kind::eager) {
      return bind_capture(std::move(pool), std::move(takes), kind, origin);
    }
    bindings_.end_past();
    if (pool->refuses_warm_ups()) {
      return Error(
          ErrorCode::invalid_argument,
          "graph pool " + std::to_string(pool->id()) +
              ": a capture into it is going on; warm up before it begins, or after its end");
    }
    const std::uint64_t eager = bindings_.next_id();
    bindings_.open(eager, std::move(pool), std::move(takes), kind, {});
    return eager;
  }();
  if (id) (void)held.release();
  return id;
}

Result<std::uint64_t> Entrance::bind_capture(std::shared_ptr<CapturePool> pool,
                                             PoolBindings::Takes takes, PoolBindings::Kind kind,
                                             std::optional<Stream> origin) {
  PoolBindings::Capture capture;
  capture.origin = origin;
  if (origin && kind == PoolBindings::Kind::captured) {
    const Result<CaptureInfo> info = device_.capture_info(*origin);
    if (!info) return info.error();
    if (info->status != CaptureInfo::Status::none) {
      capture.id = info->id;
      capture.within = takes(*origin, *info);
      capture.foreign = !capture.within;
    }
  }
  const bool goes_on = capture.id != 0;
  bindings_.end_past(capture.id, origin);
  if (origin) {
    pools_.shared().captures.meet(*origin);
    // Other threads ask for its name by the handle, once it is captured.
    if (!origin->is_of_captured()) (void)name_of(*origin);
  }
  const std::uint64_t paused =
      goes_on ? bindings_.of_capture(*pool, capture.id, /*paused=*/true) : 0;
  if (paused != 0) {
    if (Status begun = pool->begin_capture(paused, /*watches=*/true, goes_on); !begun) {
      return std::move(begun).error();
    }
    bindings_.resume(paused, std::move(takes));
    return paused;
  }
  settle(goes_on);
  const std::uint64_t id = bindings_.next_id();
  const bool watches = kind == PoolBindings::Kind::captured;
  if (Status begun = pool->begin_capture(id, watches, goes_on); !begun)
    return std::move(begun).error();
  pools_.shared().captures.announce(id, origin, goes_on);
  bindings_.open(id, std::move(pool), std::move(takes), kind, capture);
  return id;
}

// Before a capture begins. What is cached goes back: it is freed at this moment, for the pages.
// Work of a stream that will be captured can't be recorded then, and others may wait for it. (Of
// one that is captured already, `goes_on`, it is too late.)
void Entrance::settle(bool goes_on) {
  registry_.give_back_cached();
  if (goes_on) return;
  pools_.own().timelines().settle();
  for (const std::shared_ptr<CapturePool>& each : pools_.graph_pools()) each->settle();
}

// The thread that closes it is the capture's own, or the capture has ended: so its number may be
// asked for; but not of a stream that was retired, whose handle may be nobody's any more.
void Entrance::unbind(std::uint64_t binding, bool keep, bool origin_lives) {
  const auto origin = bindings_.origin_to_ask(binding, origin_lives);
  if (origin && !pools_.own().timelines().retired(*origin)) {
    const Result<CaptureInfo> info = device_.capture_info(*origin);
    if (info && info->status != CaptureInfo::Status::none) {
      bindings_.note_goes_on(binding, info->id);
    }
  }
  if (const auto counts_too_many = bindings_.close(binding, keep)) counts_too_many->release_graph();
  pools_.free_due();
}

Result<bool> Entrance::attach(Stream captured, CaptureAttachment attachment) {
  const Result<CaptureInfo> info = device_.capture_info(captured);
  if (!info) return info.error();
  if (info->status == CaptureInfo::Status::none) return false;
  const std::optional<bool> attached = bindings_.attach(captured, *info, std::move(attachment));
  if (!attached) return not_served(captured);
  return *attached;
}

}  // namespace weir
