// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "look/report.h"
#include "look/stack_calls.h"
#include "replay/report_table.h"
#include "replay/units.h"

namespace weir {
namespace {

double as_double(Bytes bytes) { return static_cast<double>(bytes.count); }
Bytes less(Bytes from, Bytes what) { return from - std::min(from, what); }

// "1.45 s"; of a file without times "event 1,234".
std::string at_time(const Report& report, Nanoseconds time) {
  if (report.origin.has_times) return "at " + in_words(time);
  return "after event " + with_commas(static_cast<std::uint64_t>(time.count));
}

// "29.7 GiB (37.9 %) in 12 blocks"
std::string part(const Share& share, const Moment& moment) {
  return fmt::format("{} ({}) in {}", in_words(share.bytes),
                     percent(as_double(share.bytes), as_double(moment.live)),
                     counted(share.blocks, "block"));
}

const char* most(const Share& share, const Moment& moment) {
  return share.bytes > moment.live / 2 ? "Most of it" : "The largest part";
}

// The code that allocated most. What was there before the recording, and what backward passes
// allocated, may be more, and has no line of the program's.
std::string largest(const Moment& moment) {
  std::string before;
  for (const Share& share : moment.by_stack) {
    if (share.id == 0 || share.rest) continue;
    if (share.name == kEarlyBlocks || share.name == kPassingBlocks) {
      before += fmt::format("{} was {}. ", part(share, moment), share.name);
      continue;
    }
    const bool is_backward = share.name.find(kBackwardPass) != std::string::npos;
    const char* const which = before.empty() ? most(share, moment)
                              : is_backward  ? "The largest part of the rest"
                                             : "The largest part by a line of the program";
    const std::string text =
        fmt::format("{}: {} was allocated by {}.", which, part(share, moment), share.name);
    if (!is_backward) return before + text;
    if (before.find(kBackwardPass) == std::string::npos) before += text + " ";
  }
  if (!before.empty()) return before.substr(0, before.size() - 1);
  if (moment.by_size.empty()) return {};
  const Share& share = moment.by_size.front();
  return fmt::format("{}: {} of {}. No stack was recorded.", most(share, moment),
                     part(share, moment), share.name);
}

std::string failed(const Report& report) {
  const FailedRequest& failure = *report.origin.failure;
  std::string text = "Out of memory";
  if (!report.origin.devices.empty()) text += fmt::format(" on device {}", report.origin.device);
  text += fmt::format(": a request of {} failed {}", in_words(failure.wanted),
                      at_time(report, failure.time));
  if (!report.failed_in.empty()) text += ", by " + report.failed_in;
  const Bytes live = report.failed->live;
  text += live == 0_B ? ". Nothing was live" : fmt::format(". {} was live", in_words(live));
  if (failure.free) text += fmt::format(", and {} free on the device", in_words(*failure.free));
  text += '.';
  if (failure.count > 1) text += fmt::format(" It was the last of {} that failed.", failure.count);
  return text;
}

std::string held(const Report& report) {
  const Held& held = *report.origin.held;
  const Bytes unused = less(held.reserved, held.live);
  std::string text = fmt::format("PyTorch held {}", in_words(held.reserved));
  if (report.failed) text += " then";
  if (unused == 0_B) return text + ", all of it in blocks.";
  if (unused.count * 100 < held.reserved.count) {
    return text + fmt::format(", of which it used all but {}.", in_words(unused));
  }
  return text + fmt::format(": {} of it ({}) had no block, in pieces of at most {}.",
                            in_words(unused), percent(as_double(unused), as_double(held.reserved)),
                            in_words(held.largest_inactive));
}

std::string weir_would(const Report& report) {
  const Bytes weir = report.peak_reserved.reserved;
  if (report.failed && report.origin.held) {
    const FailedRequest& failure = *report.origin.failure;
    const Bytes needed = std::max(report.failed->reserved, report.failed->live + failure.wanted);
    const std::string with =
        fmt::format("Weir would have needed about {} with the request", in_words(needed));
    if (!failure.free) return with + ".";
    const Bytes there = report.origin.held->reserved + *failure.free;
    if (needed <= there)
      return with + fmt::format(": it fits into the {} there were.", in_words(there));
    return with + fmt::format(": {} more than the {} there were.", in_words(needed - there),
                              in_words(there));
  }
  if (report.events == 0 && report.origin.held) {
    return fmt::format("Weir would hold {} for the same blocks.", in_words(weir));
  }
  if (!report.pytorch_peak_reserved) return {};
  // Of a program that needs less than a page the difference says nothing.
  const double pytorch = as_double(*report.pytorch_peak_reserved);
  const double more = 100 * (as_double(weir) / std::max(pytorch, 1.0) - 1);
  const std::string than = !report.shows_peak               ? ""
                           : std::abs(more) < 1             ? ", about as much as PyTorch"
                           : as_double(weir) < 10 * pytorch ? fmt::format(" ({:+.1f} %)", more)
                                                            : "";
  return fmt::format("Weir would have held {} at most{}.", in_words(weir), than);
}

}  // namespace

std::string devices_text(const Origin& origin) {
  if (origin.devices.empty()) return {};
  std::string others;
  for (std::size_t i = 0; i < origin.devices.size(); ++i) {
    const DeviceInFile& device = origin.devices[i];
    if (static_cast<int>(i) == origin.device) continue;
    if (!device.is_used()) continue;
    others +=
        fmt::format("{}{} (held {}{})", others.empty() ? "" : ", ", i,
                    in_words(device.peak_reserved), device.ran_out ? ", ran out of memory" : "");
  }
  std::string text = fmt::format("device {} of {}", origin.device, origin.devices.size());
  return others.empty() ? text : text + "; --device shows " + others;
}

std::string_view when_of_peak(const Report& report) {
  if (report.shows_peak) return "at its peak";
  return report.events == 0 ? "at the moment of the snapshot" : "at the beginning of the recording";
}

std::vector<std::string> verdict_of(const Report& report) {
  const Moment& moment = report.failed ? *report.failed : report.peak_live;
  std::vector<std::string> verdict;
  if (report.failed) {
    verdict.push_back(failed(report));
  } else {
    std::string when(when_of_peak(report));
    when.front() = 'A';
    if (report.shows_peak) when += ", " + at_time(report, moment.time) + ",";
    verdict.push_back(fmt::format("{} {} was live in {}.", when, in_words(moment.live),
                                  counted(moment.blocks, "block")));
  }
  if (std::string text = largest(moment); !text.empty()) verdict.push_back(std::move(text));
  if (report.origin.held) verdict.push_back(held(report));
  if (report.origin.lacks_segments) {
    verdict.push_back(
        fmt::format("The file has no segments of device {}: what PyTorch held is not "
                    "known, nor what was live before the recording.",
                    report.origin.device));
  }
  if (std::string text = weir_would(report); !text.empty()) verdict.push_back(std::move(text));
  return verdict;
}

}  // namespace weir
