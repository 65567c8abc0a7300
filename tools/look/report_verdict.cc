// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "look/report.h"
#include "look/stack_calls.h"
#include "replay/report_table.h"
#include "replay/units.h"

namespace weir {
namespace {

Bytes less(Bytes from, Bytes what) { return from - std::min(from, what); }

// " on device 1 of 4"; "": no file of PyTorch's.
std::string on_device(const Origin& origin) {
  const std::string text = fmt::format(" on device {}", origin.device);
  if (origin.devices.empty()) return origin.is_pytorchs() ? text : "";
  return text + fmt::format(" of {}", origin.devices.size());
}

// " on device 1 of 4, which held most": what is shown, and why.
std::string on_shown_device(const Origin& origin) {
  const auto& all = origin.devices;
  if (all.empty()) return on_device(origin);
  const DeviceInFile& shown = all[static_cast<std::size_t>(origin.device)];
  const bool is_only = std::ranges::count_if(all, &DeviceInFile::is_used) < 2;
  const bool has_most = std::ranges::none_of(all, [&](const DeviceInFile& other) {
    return &other != &shown && other.peak_reserved >= shown.peak_reserved;
  });
  return on_device(origin) + (is_only         ? ", the only one used"
                              : shown.ran_out ? ", which ran out of memory"
                              : has_most      ? ", which held most"
                                              : "");
}

// "1.45 s"; of a file without times "event 1,234".
std::string at_time(const Report& report, Nanoseconds time) {
  if (report.origin.has_times) return "at " + in_words(time);
  return "after event " + with_commas(static_cast<std::uint64_t>(time.count));
}

// "29.7 GiB (37.9 %)"
std::string part(const Share& share, const Moment& moment) {
  return fmt::format("{} ({})", in_words(share.bytes), percent(share.bytes, moment.live));
}

const char* most(const Share& share, const Moment& moment) {
  return share.bytes > moment.live / 2 ? "Most of it: " : "The largest part: ";
}

// The first `calls` of a place, which names more of them.
std::string innermost(const std::string& place, int calls) {
  std::size_t end = 0;
  for (; calls > 0 && end != std::string::npos; --calls) end = place.find(" < ", end + 1);
  return place.substr(0, end);
}

// The code that allocated most. What was there before the recording, and what backward passes
// allocated, may be more, and has no line of the program's.
std::string largest(const Report& report, const Moment& moment) {
  std::string text;
  for (const Share& share : moment.by_stack) {
    if (share.id == 0 || share.rest) continue;
    const bool is_early = share.name == kEarlyBlocks || share.name == kPassingBlocks ||
                          share.name == kUnrecordedBlocks;
    const bool has_line = !is_early && share.name.find(kBackwardPass) == std::string::npos;
    if (!text.empty() && (!has_line || share.bytes < moment.live / 100)) continue;
    const std::string bytes = part(share, moment);
    std::string name = innermost(share.name, 2);
    if (text.empty()) {
      constexpr std::string_view kNode = " (backward pass)";
      if (const std::size_t at = name.find(kNode); at != std::string::npos) {
        name.replace(at, kNode.size(), " in the backward pass, of no line that the file names");
      }
      const char* const by = is_early ? "" : has_line ? "by " : "made by ";
      text = fmt::format("{}{} {}{}", most(share, moment), bytes, by, name);
    } else {
      text += fmt::format("; of the program's own lines the most is {}, by {}", bytes, name);
    }
    if (has_line) break;
  }
  if (text.empty() && moment.by_size.empty()) text = "No stack was recorded";
  if (text.empty()) {
    const Share& share = moment.by_size.front();
    text = fmt::format("{}{} in {} of {}; no stack was recorded", most(share, moment),
                       part(share, moment), counted(share.blocks, "block"), share.name);
  }
  const bool no_history = report.origin.is_pytorchs() && report.events == 0;
  if (!no_history || !text.ends_with("recorded")) return text + ".";
  return text + ": call torch.cuda.memory._record_memory_history() first.";
}

// What ran out, and why.
std::string failed(const Report& report) {
  const FailedRequest& failure = *report.origin.failure;
  const std::optional<Held>& held = report.origin.held;
  const Bytes unused = held ? less(held->reserved, held->live) : 0_B;
  std::string text = "Out of memory";
  text += on_device(report.origin);
  if (unused >= failure.wanted && held->largest_inactive < failure.wanted) {
    text += " by fragmentation";
  }
  text += fmt::format(": {} wanted {}", in_words(failure.wanted), at_time(report, failure.time));
  if (!report.failed_in.empty()) text += " by " + innermost(report.failed_in, 1);
  const Bytes live = report.failed->live;
  text += live == 0_B ? "; nothing was live" : fmt::format("; {} was live", in_words(live));
  if (held && unused >= failure.wanted / 8) {
    text += fmt::format(", {} unused in pieces of at most {}", in_words(unused),
                        in_words(held->largest_inactive));
  }
  if (failure.free) text += fmt::format(", {} free on the device", in_words(*failure.free));
  text += '.';
  if (failure.count > 1) text += fmt::format(" It was the last of {} that failed.", failure.count);
  return text;
}

std::string held(const Report& report) {
  const Held& held = *report.origin.held;
  const Bytes unused = less(held.reserved, held.live);
  const std::string text = fmt::format("PyTorch held {}", in_words(held.reserved));
  if (unused.count * 100 < held.reserved.count) {
    if (!report.origin.help && report.advice.empty()) return {};  // what_helps() said so
    const std::string but = unused > 0_B ? " but " + in_words(unused) : "";
    return text + fmt::format(", of which it used all{}.", but);
  }
  return text + fmt::format(": {} of it ({}) had no block, in pieces of at most {}.",
                            in_words(unused), percent(unused, held.reserved),
                            in_words(held.largest_inactive));
}

}  // namespace

std::string devices_text(const Origin& origin) {
  if (origin.devices.empty()) return {};
  std::string others;
  int count = 0;
  for (std::size_t i = 0; i < origin.devices.size(); ++i) {
    const DeviceInFile& device = origin.devices[i];
    if (static_cast<int>(i) == origin.device || !device.is_used()) continue;
    others +=
        fmt::format("{}{} held {}{}", others.empty() ? "; device " : ", ", i,
                    in_words(device.peak_reserved), device.ran_out ? " and ran out of memory" : "");
    ++count;
  }
  if (count > 0) others += fmt::format(": --device shows {}", count > 1 ? "them" : "it");
  return on_shown_device(origin).substr(std::string_view(" on ").size()) + others;
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
    verdict.push_back(fmt::format("{} {} was live in {}{}.", when, in_words(moment.live),
                                  counted(moment.blocks, "block"), on_shown_device(report.origin)));
  }
  verdict.push_back(largest(report, moment));
  verdict.push_back(what_helps(report));
  if (report.origin.held && !report.failed) verdict.push_back(held(report));
  if (verdict.back().empty()) verdict.pop_back();
  if (report.origin.lacks_segments) {
    verdict.push_back(
        fmt::format("The file lacks segments of device {}: what PyTorch held is not "
                    "known, nor what was live before the recording.",
                    report.origin.device));
  }
  return verdict;
}

}  // namespace weir
