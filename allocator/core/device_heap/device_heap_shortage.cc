// SPDX-License-Identifier: Apache-2.0
// A request that found no memory: what is tried for it, and what is said if nothing helped.
#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "core/base/format.h"
#include "core/device_heap/device_heap_impl.h"

namespace weir {
namespace {

// After a launch is done: on an H200 0.03 to 0.2 ms.
constexpr std::chrono::milliseconds kUntilTheDriverSaysSo{100};

// `most`: that could ever be had; zero: unknown. Where the request alone is more, nothing that is
// freed will help.
const char* remedy(Bytes bytes, Bytes limit, Bytes most) {
  const bool may_raise = limit > 0_B && most == limit;
  if (most > 0_B && bytes > most) {
    return may_raise ? "Raise the limit, or ask for less."
                     : "The device has less than that in all: ask for less.";
  }
  return may_raise ? "Free blocks, raise the limit, or ask for less."
                   : "Free blocks, or ask for less.";
}

// The three streams whose blocks are the most bytes. A stream has a heap for each pool.
std::string largest_streams(const Statistics& now) {
  struct Held {
    std::uint64_t stream = 0, bytes = 0, blocks = 0;
  };
  std::map<std::uint64_t, Held> by_stream;
  for (const HeapStatistics& heap : now.heaps) {
    Held& held = by_stream[heap.stream];
    held.stream = heap.stream;
    held.bytes += heap.live_bytes.current;
    held.blocks += heap.live_blocks.current;
  }
  std::vector<Held> all;
  all.reserve(by_stream.size());
  for (const auto& [stream, held] : by_stream) all.push_back(held);
  std::stable_sort(all.begin(), all.end(),
                   [](const Held& a, const Held& b) { return a.bytes > b.bytes; });
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(all.size(), 3); ++i) {
    text += "; stream " + std::to_string(all[i].stream) + " holds " + format(Bytes{all[i].bytes}) +
            " in " + std::to_string(all[i].blocks) + " blocks";
  }
  return text;
}

void wait_for_streams(Timelines& timelines) {
  if (timelines.trust() == Trust::context) {
    FenceSet all;
    all.join(timelines.release_point(TimelineId{}));
    (void)timelines.host_wait(all);
    return;
  }
  const auto eager = [](Stream stream) { return !stream.is_in_capture() && !stream.is_all(); };
  for (const Fence fence : timelines.all(eager)) {
    FenceSet one;
    one.join(fence);
    (void)timelines.host_wait(one);
  }
}

}  // namespace

// Each step takes longer than the one before. One that may have helped has the request tried again.
Result<void*> DeviceHeap::Impl::allocate_when_short(const Request& request, Status status) {
  using Step = Result<bool> (Impl::*)(const Request&);
  constexpr std::array<Step, 5> kSteps{&Impl::free_what_is_due, &Impl::take_idle_pages_of_pools,
                                       &Impl::wait_for_other_work, &Impl::make_room_for_mappings,
                                       &Impl::ask_the_program};
  for (const Step step : kSteps) {
    if (status.error().code() != ErrorCode::out_of_memory) break;
    const Result<bool> may_have_helped = (this->*step)(request);
    // What a stream uses that is captured just now can't be asked about, nor waited for: it stays.
    if (!may_have_helped && may_have_helped.error().code() != ErrorCode::capture) {
      return may_have_helped.error();
    }
    if (may_have_helped && !*may_have_helped) continue;
    status = {};
    if (const Address at = try_allocate(request, status); at != Address{}) return at.pointer();
  }
  if (status.error().code() == ErrorCode::out_of_memory) return out_of_memory(request);
  if (status.error().code() == ErrorCode::asleep) return asleep(request);
  return std::move(status).error();
}

Result<bool> DeviceHeap::Impl::free_what_is_due(const Request&) {
  free_deferred();
  registry_.give_back_cached();
  return true;
}

Result<bool> DeviceHeap::Impl::take_idle_pages_of_pools(const Request& request) {
  const bool any = call_in_pools();
  Result<Bytes> gone =
      give_to_device(round_up(request.bytes, device_.granularity()), request.server.pool.get());
  if (!gone) return std::move(gone).error();
  return any || *gone > 0_B;
}

// Pages change pool only when the host knows their work to be done: rather than be out of memory,
// it waits. With one pool whose uses are told there are no others; but plain memory must be idle to
// go back to the device.
Result<bool> DeviceHeap::Impl::wait_for_other_work(const Request& request) {
  if (!budget_.shared() && options_.trust == Trust::told &&
      options_.reuse != ReusePolicy::no_wait && options_.memory == MemoryKind::pages) {
    return false;
  }
  const CapturePool* const pool = request.server.pool.get();
  if (Status waited = wait_for_idle_pages(pool); !waited) return std::move(waited).error();
  if (Result<Bytes> gone = give_to_device(kMostBytes, pool); !gone) return std::move(gone).error();
  return true;
}

Status DeviceHeap::Impl::wait_for_idle_pages(const CapturePool* requester) {
  if (Status freed = free_deferred_after_all_work(); !freed) return freed;
  registry_.give_back_cached();  // among them what was just freed
  wait_for_lingering_pools();
  if (Status waited = pages_.wait_for_idle_pages(); !waited) return waited;
  for (const std::shared_ptr<CapturePool>& pool : pools()) {
    if (pool.get() != requester && pool->capturing()) continue;
    if (Status waited = pool->pages().wait_for_idle_pages(); !waited) return waited;
  }
  (void)call_in_pools();
  return {};
}

// The host need only wait for idle pages where they must be unmapped.
Result<bool> DeviceHeap::Impl::make_room_for_mappings(const Request& request) {
  if (request.server.pool != nullptr || !pages_.totals().short_of_mappings) return false;
  if (Status waited = pages_.wait_for_idle_pages(); !waited) return std::move(waited).error();
  if (Result<Bytes> gone = pages_.give_to_device(kMostBytes); !gone) return std::move(gone).error();
  return true;
}

Result<bool> DeviceHeap::Impl::ask_the_program(const Request& request) {
  std::vector<OutOfMemoryCallback> callbacks;
  {
    const std::lock_guard lock(callbacks_mutex_);
    callbacks = callbacks_;
  }
  if (callbacks.empty()) return false;
  for (const OutOfMemoryCallback& callback : callbacks) callback(request.bytes);
  registry_.give_back_cached();
  // What they freed may be of another stream, pool or kind than the request.
  if (Result<bool> waited = wait_for_other_work(request); !waited) return waited;
  return true;
}

// Graphs are gone, and their launches run on streams that nobody named: all work so far is waited
// for, of all streams that are known. What can't be waited for stays as it is.
void DeviceHeap::Impl::wait_for_lingering_pools() {
  (void)call_in_pools();
  const std::vector<std::shared_ptr<CapturePool>> all = pools();
  std::vector<std::shared_ptr<CapturePool>> lingering;  // that are, before anything is waited for
  std::copy_if(all.begin(), all.end(), std::back_inserter(lingering),
               [](const auto& pool) { return pool->lingers(); });
  if (lingering.empty()) return;
  wait_for_streams(timelines_);
  for (const std::shared_ptr<CapturePool>& pool : all) wait_for_streams(pool->timelines());
  (void)call_in_pools();
  // The driver says that a graph is gone in a thread of its own. One that is there still after so
  // long was not destroyed, or leaks.
  const auto patience = std::chrono::steady_clock::now() + kUntilTheDriverSaysSo;
  const auto hopes = [](const auto& pool) { return pool->may_end_lingering(); };
  while (!graphs_leak_ && std::any_of(lingering.begin(), lingering.end(), hopes) &&
         std::chrono::steady_clock::now() < patience) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    (void)call_in_pools();
  }
  for (const std::shared_ptr<CapturePool>& pool : lingering) pool->note_lingers_on(graphs_leak_);
}

Error DeviceHeap::Impl::asleep(const Request& request) {
  const CapturePool* const pool = request.server.pool.get();
  return {ErrorCode::asleep, format(request.bytes) + " asked for on stream " +
                                 std::to_string(request.stream.id) + " are of the tag '" +
                                 (pool == nullptr ? kDefaultTag : pool->tag()) +
                                 "', which sleeps: wake it, or ask for memory of another tag"};
}

Error DeviceHeap::Impl::out_of_memory(const Request& request) {
  const auto& [bytes, stream, server] = request;
  observer_.emit(Event{.kind = EventKind::out_of_memory, .stream = stream.id, .requested = bytes});
  const bool short_of_mappings = pages_.totals().short_of_mappings;
  const Statistics now = statistics();
  const Bytes held{now.reserved_bytes.current}, leased{now.leased_bytes.current};
  const Bytes used{now.live_bytes.current}, plain{now.plain_bytes.current};
  const Bytes limit = budget_.limit();
  std::string message = "out of memory: " + format(bytes) + " asked for on stream " +
                        std::to_string(stream.id) + "; held " + format(held) +
                        (limit > 0_B ? " of a limit of " + format(limit) : " with no limit set");
  Bytes most = limit;
  if (const Result<MemoryInfo> info = device_.memory_info()) {
    if (limit == 0_B || info->total < limit) most = info->total;
    message += ", the device has " + format(info->free) + " free of " + format(info->total);
  }
  message += "; in use " + format(used) + ", idle " + format(held - leased) +
             // Blocks that sleep are live, and on no page.
             ", free within pages in use " + format(leased - std::min(leased, used));
  if (plain > 0_B && plain < held) {
    const Bytes plain_leased{now.plain_leased_bytes.current}, plain_used{now.plain_live_bytes};
    message += "; of it plain memory: held " + format(plain) + ", in use " + format(plain_used) +
               ", idle " + format(plain - plain_leased) + ", free within segments in use " +
               format(plain_leased - plain_used);
  }
  if (short_of_mappings) {
    message += "; " + std::to_string(now.mappings.current) +
               " mappings are held, and HeapOptions::most_mappings allows too few more";
  }
  message += largest_streams(now) + ". " + remedy(bytes, limit, most);
  if (server.pool == nullptr) return {ErrorCode::out_of_memory, message};
  const GraphPoolStatistics of_pool = server.pool->statistics();
  const bool is_plain = server.pool->memory() == MemoryKind::plain;
  const Bytes pool_limit = server.pool->pages().totals().limit;
  return {ErrorCode::out_of_memory,
          (is_plain ? "plain memory of pool " : "graph pool ") + std::to_string(server.pool->id()) +
              " (" + format(of_pool.reserved_bytes) + " held" +
              (pool_limit > 0_B ? " of its limit of " + format(pool_limit) : "") + ", " +
              format(of_pool.live_bytes) + " live): " + message};
}

}  // namespace weir
