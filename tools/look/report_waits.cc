// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "look/report_blocks.h"
#include "look/streams.h"

namespace weir {
namespace {

void count_memory(const Event& event, Totals& totals) {
  const auto is = [&event](EventKind kind) { return event.kind == kind; };
  if (is(EventKind::allocate)) ++totals.allocations, totals.allocated += event.bytes;
  if (is(EventKind::deallocate)) ++totals.deallocations;
  if (is(EventKind::create)) {
    ++totals.pages_created;
    totals.created += event.bytes;
    totals.created_again += std::min(event.bytes, totals.released - totals.created_again);
  }
  if (is(EventKind::release)) ++totals.pages_released, totals.released += event.bytes;
  if (is(EventKind::map)) ++totals.maps;
  if (is(EventKind::unmap)) ++totals.unmaps;
  if (is(EventKind::trim)) totals.trimmed += event.bytes;
}

void count_time(const Event& event, Totals& totals) {
  if (event.kind == EventKind::stream_wait) {
    ++totals.stream_waits;
    totals.context_waits += Stream{.id = event.other}.is_all() ? 1 : 0;
  }
  if (event.kind == EventKind::fence) ++totals.fences;
  if (event.kind == EventKind::out_of_memory) ++totals.out_of_memory;
  if (event.kind == EventKind::capture_begin) ++totals.captures;
  if (event.kind != EventKind::host_wait) return;
  ++totals.host_waits.count;
  totals.host_waits.time += event.duration;
  totals.host_waits.longest = std::max(totals.host_waits.longest, event.duration);
}

std::uint32_t awaited_nth(std::uint64_t stream, ReportNames& names) {
  return Stream{.id = stream}.is_all() ? WaitPair::kAllStreams : names.streams.of(stream);
}

}  // namespace

Totals totals_of(const Recording& recording) {
  Totals totals;
  std::uint64_t mappings = 0;
  std::size_t before = 0;
  for (const Event& event : recording.events) {
    if (event.kind == EventKind::map) ++mappings;
    if (event.kind == EventKind::unmap && mappings > 0) --mappings;
    totals.mappings_peak = std::max(totals.mappings_peak, mappings);
    // It holds until the process ends, whenever it happened.
    if (event.kind == EventKind::context_events_lost) {
      totals.context_events_lost.push_back(static_cast<ContextEventsLost>(event.other));
    }
    if (before++ < recording.initial) continue;
    count_memory(event, totals);
    count_time(event, totals);
  }
  return totals;
}

std::vector<WaitPair> waits_of(const Recording& recording, const BlockLifetimes& lifetimes,
                               ReportNames& names) {
  std::map<std::pair<std::uint64_t, std::uint64_t>, WaitPair> pairs;
  for (const Event& event : recording.events) {
    if (event.kind == EventKind::stream_wait) ++pairs[{event.stream, event.other}].waits;
  }
  for (const BlockLifetime& lifetime : lifetimes.blocks) {
    for (std::uint32_t i = 0; i < lifetime.fences; ++i) {
      ++pairs[{lifetime.stream, lifetimes.fences[lifetime.first_fence + i].stream}].fences;
    }
  }
  std::vector<WaitPair> list;
  for (auto& [streams, pair] : pairs) {
    std::tie(pair.waiter, pair.awaited) = streams;
    pair.waiter_nth = names.streams.of(pair.waiter);
    pair.awaited_nth = awaited_nth(pair.awaited, names);
    pair.waiter_name = stream_text(pair.waiter);
    pair.awaited_name = stream_text(pair.awaited);
    list.push_back(pair);
  }
  std::sort(list.begin(), list.end(), [](const WaitPair& a, const WaitPair& b) {
    return std::tuple(b.waits, b.fences, a.waiter_nth, a.awaited_nth) <
           std::tuple(a.waits, a.fences, b.waiter_nth, b.awaited_nth);
  });
  return list;
}

std::vector<CostlyBlocks> costly_blocks(const BlockLifetimes& lifetimes, const ReportNames& names) {
  std::map<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>, std::uint64_t> groups;
  for (const BlockLifetime& lifetime : lifetimes.blocks) {
    if (!lifetime.waited_for) continue;
    ++groups[{names.number_of(lifetime.stack), lifetime.stream, lifetime.requested.count}];
  }
  std::vector<CostlyBlocks> list;
  for (const auto& [key, waits] : groups) {
    const auto& [stack, stream, requested] = key;
    list.push_back({.stack = stack,
                    .requested = Bytes{requested},
                    .stream = stream_text(stream),
                    .place = names.place(stack),
                    .waits = waits});
  }
  std::stable_sort(list.begin(), list.end(), [](const CostlyBlocks& a, const CostlyBlocks& b) {
    return a.waits != b.waits ? a.waits > b.waits : a.requested > b.requested;
  });
  return list;
}

}  // namespace weir
