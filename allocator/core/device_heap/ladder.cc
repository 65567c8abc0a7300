// SPDX-License-Identifier: Apache-2.0
#include "core/device_heap/ladder.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/base/format.h"

namespace weir {
namespace {

// `most`: that could ever be had. Where the request alone is more, nothing that is freed will help.
const char* remedy(Bytes bytes, Bytes most, bool is_limit) {
  if (bytes > most) {
    return is_limit ? "Raise the limit, or ask for less."
                    : "The device has less than that in all: ask for less.";
  }
  return is_limit ? "Free blocks, raise the limit, or ask for less."
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

Error asleep(const BlockRequest& request) {
  const CapturePool* const pool = request.route.pool.get();
  return {ErrorCode::asleep, format(request.bytes) + " asked for on stream " +
                                 std::to_string(request.stream.id) + " are of the tag '" +
                                 (pool == nullptr ? kDefaultTag : pool->tag()) +
                                 "', which sleeps: wake it, or ask for memory of another tag"};
}

}  // namespace

Result<void*> Ladder::climb(const BlockRequest& request, Status status, const Retry& retry) {
  using Rung = Result<bool> (Ladder::*)(const BlockRequest&);
  // The program's callbacks at a miss, then what costs the program least.
  constexpr std::array<Rung, 6> kRungs{&Ladder::call_at_miss,
                                       &Ladder::free_what_is_due,
                                       &Ladder::take_idle_pages_of_pools,
                                       &Ladder::wait_for_other_work,
                                       &Ladder::make_room_for_mappings,
                                       &Ladder::ask_the_program};
  for (const Rung rung : kRungs) {
    if (status.error().code() != ErrorCode::out_of_memory) break;
    const Result<bool> may_have_helped = (this->*rung)(request);
    // What a stream uses that is captured just now can't be asked about, nor waited for: it stays.
    if (!may_have_helped && may_have_helped.error().code() != ErrorCode::capture) {
      return may_have_helped.error();
    }
    if (may_have_helped && !*may_have_helped) continue;
    status = {};
    if (const Address at = retry(status); at != Address{}) return at.pointer();
  }
  if (status.error().code() == ErrorCode::out_of_memory) return out_of_memory(request);
  if (status.error().code() == ErrorCode::asleep) return asleep(request);
  return std::move(status).error();
}

// What is freed at a miss comes before new memory, which the request may have from here on.
Result<bool> Ladder::call_at_miss(const BlockRequest& request) {
  if (request.route.pool != nullptr) return false;
  return call(at_miss_, request);
}

bool Ladder::call(const ShortageCallbacks& callbacks, const BlockRequest& request) {
  const std::vector<DeviceHeap::ShortageCallback> all = callbacks.all();
  for (const DeviceHeap::ShortageCallback& callback : all) callback(request.bytes);
  return !all.empty();
}

Result<bool> Ladder::free_what_is_due(const BlockRequest&) {
  pools_.free_due();
  shared_.registry.give_back_cached();
  return true;
}

Result<bool> Ladder::take_idle_pages_of_pools(const BlockRequest& request) {
  const bool any = exchange_.call_in();
  Result<Bytes> gone = exchange_.give_to_driver(
      round_up(request.bytes, shared_.device.granularity()), request.route.pool.get());
  if (!gone) return std::move(gone).error();
  return any || *gone > 0_B;
}

// The host waits for the work that still uses idle pages: only then may they change pool, or plain
// memory go back to the device. Where there is one pool, of pages, uses are told, and requests may
// make streams wait, nothing is gained by it: requests take pages that work still uses, and the
// GPU waits.
Result<bool> Ladder::wait_for_other_work(const BlockRequest& request) {
  Pool& own = pools_.own();
  if (!shared_.budget.shared() && own.is_told() && own.pages().makes_waits() &&
      own.memory() == MemoryKind::pages) {
    return false;
  }
  const CapturePool* const pool = request.route.pool.get();
  if (Status waited = exchange_.wait_for_idle_pages(pool); !waited) {
    return std::move(waited).error();
  }
  if (Result<Bytes> gone = exchange_.give_to_driver(PageHeap::kUnlimited, pool); !gone) {
    return std::move(gone).error();
  }
  return true;
}

// The host need only wait for idle pages where they must be unmapped.
Result<bool> Ladder::make_room_for_mappings(const BlockRequest& request) {
  PageHeap& pages = pools_.own().pages();
  if (request.route.pool != nullptr || !pages.listing()->totals().short_of_mappings) return false;
  if (Status waited = pages.wait_for_idle_pages(); !waited) return std::move(waited).error();
  if (Result<Bytes> gone = pages.idle()->give_to_driver(PageHeap::kUnlimited); !gone) {
    return std::move(gone).error();
  }
  return true;
}

Result<bool> Ladder::ask_the_program(const BlockRequest& request) {
  if (!call(when_out_, request)) return false;
  shared_.registry.give_back_cached();
  // What they freed may be of another stream, pool or kind than the request.
  if (Result<bool> waited = wait_for_other_work(request); !waited) return waited;
  return true;
}

Error Ladder::out_of_memory(const BlockRequest& request) const {
  const auto& [bytes, stream, route] = request;
  shared_.observer.emit(
      Event{.kind = EventKind::out_of_memory, .stream = stream.id, .requested = bytes});
  const bool short_of_mappings = pools_.own().pages().listing()->totals().short_of_mappings;
  const Statistics now = pools_.statistics();
  const Bytes held{now.reserved_bytes.current}, leased{now.leased_bytes.current};
  const Bytes used{now.live_bytes.current}, plain{now.plain_bytes.current};
  const Bytes limit = shared_.budget.limit();
  std::string message = "out of memory: " + format(bytes) + " asked for on stream " +
                        std::to_string(stream.id) + "; held " + format(held) +
                        (limit > 0_B ? " of a limit of " + format(limit) : " with no limit set");
  const Bytes page = shared_.device.granularity(), odd{limit.count % page.count};
  if (odd > 0_B) message += ", of which pages of " + format(page) + " fill " + format(limit - odd);
  Bytes most = limit > 0_B ? limit - odd : PageHeap::kUnlimited;
  bool is_limit = limit > 0_B;
  if (const Result<MemoryInfo> info = shared_.device.memory_info()) {
    is_limit = is_limit && most <= info->total;
    most = std::min(most, info->total);
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
  message += largest_streams(now) + ". " + remedy(bytes, most, is_limit);
  if (route.pool == nullptr) return {ErrorCode::out_of_memory, message};
  const GraphPoolStatistics of_pool = route.pool->statistics();
  const bool is_plain = route.pool->memory() == MemoryKind::plain;
  const Bytes pool_limit = route.pool->pages().listing()->totals().limit;
  return {ErrorCode::out_of_memory,
          (is_plain ? "plain memory of pool " : "graph pool ") + std::to_string(route.pool->id()) +
              " (" + format(of_pool.reserved_bytes) + " held" +
              (pool_limit > 0_B ? " of its limit of " + format(pool_limit) : "") + ", " +
              format(of_pool.live_bytes) + " live): " + message};
}

}  // namespace weir
