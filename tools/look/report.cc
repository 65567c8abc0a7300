// SPDX-License-Identifier: Apache-2.0
#include "look/report.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "look/block_lifetimes.h"
#include "look/report_blocks.h"
#include "look/report_moment.h"
#include "weir/device.h"

namespace weir {
namespace {

template <class T>
void shorten(std::vector<T>& list, std::size_t top) {
  if (list.size() > top) list.erase(list.begin() + static_cast<std::ptrdiff_t>(top), list.end());
}

// The last mark of Recordings::mark_end(): "driver calls: create 430, map 983 (19660000 ns)".
std::vector<DeviceCallCount> driver_calls_of(const Recording& recording) {
  constexpr std::string_view kMark = "driver calls";
  std::vector<DeviceCallCount> calls;
  const auto mark = std::find_if(recording.marks.rbegin(), recording.marks.rend(),
                                 [&](const auto& each) { return each.text.starts_with(kMark); });
  if (mark == recording.marks.rend()) return calls;
  for (int i = 0; i < kDeviceCalls; ++i) {
    const std::string_view name = name_of(static_cast<DeviceCall>(i));
    const std::size_t at = mark->text.find(" " + std::string(name) + " ");
    if (at == std::string::npos) continue;
    unsigned long long made = 0, nanoseconds = 0;
    if (std::sscanf(mark->text.c_str() + at + name.size() + 2, "%llu (%llu ns)", &made,
                    &nanoseconds) > 0) {
      calls.push_back({name, made, Nanoseconds{static_cast<std::int64_t>(nanoseconds)}});
    }
  }
  return calls;
}

}  // namespace

std::string_view name_of(Cause cause) {
  constexpr std::array<std::string_view, kCauses> kNames = {
      "rounding", "page_tails", "placement", "stream_partition", "pool_partition", "idle_pages"};
  return kNames[static_cast<std::size_t>(cause)];
}

std::string_view meaning_of(Cause cause) {
  constexpr std::array<std::string_view, kCauses> kMeanings = {
      "rounding of blocks to multiples of 512 bytes",
      "free at the ends of pages in use",
      "free between two blocks of a page",
      "held by streams that have nothing on it",
      "kept by graph pools, unused",
      "idle, free for every stream"};
  return kMeanings[static_cast<std::size_t>(cause)];
}

std::string_view name_of(TimeDependence::Why why) {
  switch (why) {
    case TimeDependence::Why::asked:
      return "asked";
    case TimeDependence::Why::released:
      return "released";
    case TimeDependence::Why::lost:
      return "context_events_lost";
    case TimeDependence::Why::elsewhere:
      return "region_elsewhere";
  }
  return {};
}

Report report_of(const Recording& recording, const ReportOptions& options, const Origin& origin) {
  const BlockLifetimes lifetimes = lifetimes_of(recording);
  ReportNames names(recording, lifetimes);
  const auto look = [&](std::size_t events) {
    return moment_after(events, recording, lifetimes, names, options.top);
  };

  Report report{.source = recording.source,
                .program = recording.program,
                .device = recording.device,
                .damage = recording.damage,
                .origin = origin,
                .device_bytes = recording.device_bytes,
                .length = recording.end() - recording.begin(),
                .events = recording.events.size() - recording.initial,
                .dropped = recording.dropped,
                .streams = lifetimes.streams.size(),
                .pools = lifetimes.pools.size(),
                .totals = totals_of(recording)};
  // Of traces only the peak is known, and they may be of a part of what PyTorch held.
  if (!recording.other_reserved.empty()) {
    report.pytorch_peak_reserved = recording.other_peak_reserved;
  }
  report.peak_live = look(events_at(lifetimes.peak_live, recording));
  report.shows_peak = report.peak_live.events > recording.initial || report.peak_live.live == 0_B;
  report.peak_reserved = look(events_at(lifetimes.peak_reserved, recording));
  report.end = look(recording.events.size());
  report.late_peak_live = lifetimes.late_peak_live;
  if (options.at) report.at = look(*options.at);
  if (const std::optional<FailedRequest>& failure = origin.failure) {
    report.failed = look(std::min(failure->events, recording.events.size()));
    report.failed->time = failure->time;
    if (failure->stack != 0) report.failed_in = names.place(names.number_of(failure->stack));
  }
  report.waits = waits_of(recording, lifetimes, names);
  report.costly = costly_blocks(lifetimes, names);
  report.growth = growth_of(recording, lifetimes, names);
  if (recording.dropped == 0) report.lent = lent_of(recording, names);
  report.time_dependence = time_dependence_of(recording, lifetimes);
  report.driver_calls = driver_calls_of(recording);
  report.advice = advice_on(report);
  shorten(report.waits, options.top);
  shorten(report.costly, options.top);
  shorten(report.growth, options.top);
  report.stacks = std::move(names.stacks);
  return report;
}

}  // namespace weir
