// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "look/streams.h"
#include "look/top.h"
#include "replay/report_table.h"
#include "replay/units.h"

namespace weir {
namespace {

using Row = std::pair<std::uint64_t, TopCounts>;

class Rates {
 public:
  Rates(const TopNumbers& now, const TopNumbers* before, Nanoseconds interval)
      : before_(before),
        seconds_(static_cast<double>((before != nullptr ? interval : now.end - now.begin).count) /
                 1e9) {}

  // "1,234 /s"
  std::string of(std::uint64_t now, std::uint64_t before) const {
    return seconds_ <= 0 ? "-" : fmt::format("{} /s", with_commas(each_second(now, before)));
  }
  std::string of(Bytes now, Bytes before) const {
    return seconds_ <= 0 ? "-" : in_words(Bytes{each_second(now.count, before.count)}) + "/s";
  }
  const TopNumbers* before() const { return before_; }
  std::string title() const {
    return before_ == nullptr ? "since the start" : fmt::format("in the last {:.1f} s", seconds_);
  }

 private:
  std::uint64_t each_second(std::uint64_t now, std::uint64_t before) const {
    const double more = static_cast<double>(now) - static_cast<double>(std::min(before, now));
    return static_cast<std::uint64_t>(std::llround(more / seconds_));
  }

  const TopNumbers* const before_;
  const double seconds_;
};

std::string heading(const TopView& view, const TopNumbers& now) {
  std::string text = printable(view.program.empty() ? view.file : view.program);
  if (!view.device.empty()) text += " on " + printable(view.device);
  if (view.device_bytes > 0_B) text += fmt::format(" ({})", in_words(view.device_bytes));
  text +=
      fmt::format(", {} recorded{}", in_words(now.end - now.begin), view.ended ? ", ended" : "");
  return wrapped(text, 2) + "\n";
}

std::string memory(const TopNumbers& now) {
  ReportTable table("lrrrrr");
  table.add({"memory", "now", "peak", "", "", ""});
  table.add({"live", in_words(now.all.live), in_words(now.peak_live),
             counted(now.all.blocks, "block"), "requested", in_words(now.requested)});
  table.add({"reserved", in_words(now.reserved), in_words(now.peak_reserved),
             counted(now.pages, "page"), "idle", in_words(now.idle)});
  return "\n" + table.text();
}

std::string rates(const TopNumbers& now, const Rates& rates) {
  static const TopNumbers kNothing;
  const TopNumbers& before = rates.before() != nullptr ? *rates.before() : kNothing;
  const TopCounts &a = before.all, &b = now.all;
  ReportTable table("lrr");
  table.add({"events", "in all", rates.title()});
  const auto add = [&](const char* name, std::uint64_t all, std::uint64_t then) {
    table.add({name, with_commas(all), rates.of(all, then)});
  };
  add("allocations", b.allocations, a.allocations);
  table.add({"bytes allocated", in_words(b.allocated), rates.of(b.allocated, a.allocated)});
  add("fences", b.fences, a.fences);
  add("stream waits", b.waits, a.waits);
  add("host waits", now.host_waits, before.host_waits);
  add("pages created", now.created, before.created);
  add("pages released", now.released, before.released);
  if (now.out_of_memory > 0) add("out of memory", now.out_of_memory, before.out_of_memory);
  std::string text = "\n" + table.text();
  if (now.host_waits > 0) {
    text += fmt::format("  the host waited for {} in all\n", in_words(now.host_wait_time));
  }
  return text;
}

std::string counts(const char* title, const std::map<std::uint64_t, TopCounts>& all,
                   const std::map<std::uint64_t, TopCounts>* before, const Rates& rates,
                   std::string (*name)(std::uint64_t), std::size_t top) {
  if (all.empty()) return {};
  std::vector<Row> rows(all.begin(), all.end());
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return std::pair(a.second.live, a.second.leased) > std::pair(b.second.live, b.second.leased);
  });
  ReportTable table("lrrrrrr");
  table.add({title, "blocks", "live", "leased", "allocations", "fences", "waits"});
  for (std::size_t i = 0; i < std::min(top, rows.size()); ++i) {
    const auto& [id, counts] = rows[i];
    TopCounts then;
    if (before != nullptr && before->contains(id)) then = before->at(id);
    table.add({name(id), with_commas(counts.blocks), in_words(counts.live), in_words(counts.leased),
               rates.of(counts.allocations, then.allocations), rates.of(counts.fences, then.fences),
               rates.of(counts.waits, then.waits)});
  }
  std::string text = "\n" + table.text();
  if (rows.size() > top) text += fmt::format("  and {} more (--top)\n", rows.size() - top);
  return text;
}

}  // namespace

std::string top_text(const TopView& view, const TopNumbers& now, const TopNumbers* before,
                     Nanoseconds interval, std::size_t top) {
  const Rates each(now, before, interval);
  std::string text = heading(view, now);
  if (view.dropped > 0) {
    text += fmt::format("{} came too fast to be recorded: the figures are of the rest\n",
                        counted(view.dropped, "event"));
  }
  if (view.damaged_at) {
    text += fmt::format("damaged from byte {} on: the figures are of the rest\n", *view.damaged_at);
  }
  text += memory(now) + rates(now, each);
  text += counts("stream", now.streams, before == nullptr ? nullptr : &before->streams, each,
                 stream_text, top);
  return text + counts("graph pool", now.pools, before == nullptr ? nullptr : &before->pools, each,
                       pool_name, top);
}

}  // namespace weir
