// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <unordered_map>

#include "look/report_blocks.h"
#include "look/streams.h"

namespace weir {
namespace {

// Which streams waited, and were waited for, at which events.
class WaitsByEvent {
 public:
  explicit WaitsByEvent(const EventLog& events) {
    std::size_t at = 0;
    for (const Event& event : events) {
      const bool host = event.kind == EventKind::host_wait;
      if (host) host_.push_back(at);
      if (host || event.kind == EventKind::stream_wait) awaited_[event.other].push_back(at);
      if (event.kind == EventKind::stream_wait) waiter_[event.stream].push_back(at);
      ++at;
    }
  }

  // False: no recorded wait, not even by way of other streams, can have told that the work of
  // `stream` up to event `since` was over for `waiter` at event `until`.
  bool may_have_ordered(std::uint64_t waiter, std::uint64_t stream, std::size_t since,
                        std::size_t until) const {
    if (host_waited(since, until)) return true;
    const bool awaited = is_within(of(awaited_, stream), since, until) ||
                         is_within(of(awaited_, Stream::all().id), since, until);
    return awaited && is_within(of(waiter_, waiter), since, until);
  }

  bool host_waited(std::size_t since, std::size_t until) const {
    return is_within(host_, since, until);
  }

 private:
  using Events = std::vector<std::size_t>;  // rising

  static bool is_within(const Events& events, std::size_t since, std::size_t until) {
    const auto first = std::upper_bound(events.begin(), events.end(), since);
    return first != events.end() && *first < until;
  }
  static const Events& of(const std::unordered_map<std::uint64_t, Events>& all, std::uint64_t id) {
    static const Events kNone;
    const auto found = all.find(id);
    return found == all.end() ? kNone : found->second;
  }

  Events host_;
  std::unordered_map<std::uint64_t, Events> waiter_, awaited_;
};

struct Found {
  std::size_t event;
  TimeDependence::Why why;
};

// The first block whose bytes another stream had freed, where nothing that was recorded orders the
// two; what happens in a capture is ordered by the graph. Or another pool, which gives pages away
// once their work is over.
std::optional<Found> first_asked(const Recording& recording, const BlockLifetimes& lifetimes) {
  const WaitsByEvent waits(recording.events);
  std::optional<Found> first;
  for (const BlockLifetime& old : lifetimes.blocks) {
    if (old.reused_by == BlockLifetime::kNone) continue;
    const BlockLifetime& next = lifetimes.blocks[old.reused_by];
    const std::size_t at = next.begin_event;
    if (first && first->event <= at) continue;
    if (old.pool == next.pool) {
      if (old.stream == next.stream) continue;
      if (is_captured_stream(old.stream) || is_captured_stream(next.stream)) continue;
      if (waits.may_have_ordered(next.stream, old.stream, old.end_event, at)) continue;
    } else if (waits.host_waited(old.end_event, at)) {
      continue;
    }
    first = {at, TimeDependence::Why::asked};
  }
  return first;
}

// Which pages are free of live blocks, and since when.
class PageUses {
 public:
  void map(Address at, Bytes bytes, PageId page) {
    mappings_[at.value] = {at.value + bytes.count, page.value};
  }
  // A page that has a live block is one of a sleeping pool.
  void unmap(Address at, Bytes bytes, PageId page) {
    mappings_.erase(at.value);
    const auto next = live_.lower_bound(at.value + bytes.count);
    if (next != live_.begin() && std::prev(next)->second > at.value) asleep_.insert(page.value);
  }
  void allocate(Address at, Bytes bytes) { live_[at.value] = at.value + bytes.count; }
  void deallocate(Address at, std::size_t event) {
    const auto block = live_.find(at.value);
    if (block == live_.end()) return;
    auto mapping = mappings_.lower_bound(block->second);
    while (mapping != mappings_.begin() && (--mapping)->second.end > at.value) {
      freed_[mapping->second.page] = event;
    }
    live_.erase(block);
  }
  // The last event that freed memory of the page, which is released; none: nothing did, or it is
  // released with its live blocks, as the program says.
  std::optional<std::size_t> release(PageId page) {
    const auto freed = freed_.extract(page.value);
    if (asleep_.erase(page.value) > 0 || freed.empty()) return std::nullopt;
    return freed.mapped();
  }

 private:
  struct Mapping {
    std::uint64_t end;
    std::uint32_t page;
  };
  std::map<std::uint64_t, Mapping> mappings_;    // by address
  std::map<std::uint64_t, std::uint64_t> live_;  // by address: ends
  std::unordered_map<std::uint32_t, std::size_t> freed_;
  std::set<std::uint32_t> asleep_;
};

// The first page that went back to the driver without a wait of the host since its last use; or
// events of the whole context that were lost; or addresses that were not those that were meant.
std::optional<Found> first_given_up(const Recording& recording) {
  PageUses pages;
  std::size_t at = 0, host_waited = 0;
  for (const Event& event : recording.events) {
    switch (event.kind) {
      case EventKind::context_events_lost:
        return Found{at, TimeDependence::Why::lost};
      case EventKind::region_elsewhere:
        return Found{at, TimeDependence::Why::elsewhere};
      case EventKind::host_wait:
        host_waited = at;
        break;
      case EventKind::map:
        pages.map(event.address, event.bytes, event.page);
        break;
      case EventKind::unmap:
        pages.unmap(event.address, event.bytes, event.page);
        break;
      case EventKind::allocate:
        pages.allocate(event.address, event.bytes);
        break;
      case EventKind::deallocate:
        pages.deallocate(event.address, at);
        break;
      case EventKind::release:
        if (const auto freed = pages.release(event.page); freed && *freed > host_waited) {
          return Found{at, TimeDependence::Why::released};
        }
        break;
      default:
        break;
    }
    ++at;
  }
  return std::nullopt;
}

}  // namespace

std::optional<TimeDependence> time_dependence_of(const Recording& recording,
                                                 const BlockLifetimes& lifetimes) {
  std::optional<Found> found = first_given_up(recording);
  const std::optional<Found> asked = first_asked(recording, lifetimes);
  if (asked && (!found || asked->event < found->event)) found = asked;
  if (!found) return std::nullopt;
  TimeDependence first{.why = found->why, .call = recording.calls_before};
  std::size_t at = 0;
  for (const Event& event : recording.events) {
    if (at > found->event) break;
    if (at++ < recording.initial) continue;
    first.call += is_call(event.kind) ? 1 : 0;
    first.time = event.time - recording.begin();
  }
  return first;
}

}  // namespace weir
