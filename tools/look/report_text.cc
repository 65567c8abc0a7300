// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "look/report.h"
#include "look/streams.h"
#include "replay/report_table.h"
#include "replay/units.h"

namespace weir {
namespace {

constexpr double kWorthARow = 0.01;  // of what is reserved

bool is_much(Bytes part, Bytes whole) { return ratio(part, whole) >= kWorthARow; }

// One report, in one style.
class Writer {
 public:
  Writer(const Report& report, ReportStyle style) : report_(report), style_(style) {}

  std::string run() {
    verdict();
    heading();
    moments();
    if (report_.at) {
      live_at("at the moment asked for", *report_.at);
      fragmentation("at the moment asked for", *report_.at);
    }
    if (report_.failed) live_at("when the request failed", *report_.failed);
    if (!report_.failed || report_.failed->live < report_.peak_live.live) {
      live_at(when_of_peak(report_), report_.peak_live);
    }
    held();
    fragmentation(report_.events == 0 ? when_of_peak(report_) : "at the peak of reserved",
                  report_.peak_reserved);
    earlier_use();
    lent();
    growth();
    waits();
    time_dependence();
    driver();
    advice();
    return std::move(text_);
  }

 private:
  static std::string shown(const std::string& text, std::size_t indent = 0) {
    return wrapped(printable(text), indent);
  }
  std::string title(const std::string& text) const {
    if (style_ == ReportStyle::terminal) return "\x1b[1m" + shown(text) + "\x1b[0m\n";
    return shown(text) + "\n";
  }
  void say(const std::string& text) { text_ += shown(text) + "\n"; }
  void add(const ReportTable& table) { text_ += "\n" + table.text(); }
  std::string time(Nanoseconds time) const {
    if (report_.origin.has_times) return in_words(time);
    return "event " + with_commas(static_cast<std::uint64_t>(time.count));
  }

  void verdict() {
    const std::vector<std::string> sentences = verdict_of(report_);
    text_ += title(sentences.front());
    for (std::size_t i = 1; i < sentences.size(); ++i) say(sentences[i]);
    text_ += "\n";
  }

  void heading() {
    std::string text = report_.source;
    // Without a name of its own a program has the file's.
    if (!text.ends_with(report_.program)) text += ": " + report_.program;
    const std::string devices = devices_text(report_.origin);
    if (!devices.empty()) text += ", " + devices;
    if (!report_.device.empty()) text += ", on " + report_.device;
    if (report_.device_bytes > 0_B) text += fmt::format(" ({})", in_words(report_.device_bytes));
    say(text);
    text = counted(report_.totals.allocations, "allocation");
    if (report_.origin.has_times) text += " over " + in_words(report_.length);
    text += ", " + counted(report_.streams, "stream");
    if (has_pools(report_.peak_live)) text += ", " + counted(report_.pools, "graph pool");
    if (!report_.origin.has_times) text += "; the file has no times";
    say(text);
    if (report_.dropped > 0) {
      say(fmt::format("{} came too fast to be recorded: the figures are of the rest.",
                      counted(report_.dropped, "event")));
    }
    if (!report_.damage.empty()) say("Damaged: " + report_.damage);
  }

  void add_moment(ReportTable& table, const char* name, const Moment& moment) const {
    // Once most of it is freed the ratio says nothing of what the program needed.
    const bool low = moment.live * 2 < report_.peak_live.live || moment.live == 0_B;
    table.add({name, time(moment.time), with_commas(moment.blocks), in_words(moment.requested),
               in_words(moment.live), in_words(moment.reserved),
               low ? "-" : fmt::format("{:.4f}", ratio(moment.reserved, moment.live))});
  }

  static bool has_pools(const Moment& moment) {
    return std::any_of(moment.by_pool.begin(), moment.by_pool.end(),
                       [](const Share& share) { return share.id != 0; });
  }

  void moments() {
    ReportTable table("lrrrrrr");
    // Of a replay: PyTorch held something else.
    const bool is_weirs = report_.origin.is_pytorchs();
    table.add({"", "at", "blocks", "requested", "live", is_weirs ? "Weir would hold" : "reserved",
               "ratio"});
    const char* const peak = report_.shows_peak    ? "peak of live"
                             : report_.events == 0 ? "the snapshot"
                                                   : "beginning";
    add_moment(table, peak, report_.peak_live);
    if (report_.peak_reserved.events != report_.peak_live.events) {
      add_moment(table, is_weirs ? "Weir's peak" : "peak of reserved", report_.peak_reserved);
    }
    if (report_.failed) add_moment(table, "the request failed", *report_.failed);
    if (report_.at) add_moment(table, "the moment asked for", *report_.at);
    if (report_.events > 0) add_moment(table, "end", report_.end);
    add(table);
  }

  // A bar as long as the share of `all`, where there is a terminal for it.
  std::string bar(Bytes part, Bytes all) const {
    if (style_ != ReportStyle::terminal || all == 0_B) return {};
    constexpr double kLength = 12;
    std::string text;
    for (double left = kLength * ratio(part, all); left > 0.25; left -= 1) {
      text += left >= 0.75 ? "█" : "▌";
    }
    return text;
  }

  void shares(const char* title, const std::vector<Share>& shares, Bytes all) {
    ReportTable table("lrrrl");
    table.add({title, "blocks", "bytes", "share", ""});
    for (const Share& share : shares) {
      table.add({share.name, with_commas(share.blocks), in_words(share.bytes),
                 percent(share.bytes, all), bar(share.bytes, all)});
    }
    add(table);
  }

  void live_at(std::string_view when, const Moment& moment) {
    if (moment.blocks == 0) return;
    text_ += "\n" + title(fmt::format("Live {}: {} in {}", when, in_words(moment.live),
                                      counted(moment.blocks, "block")));
    if (!moment.by_purpose.empty()) shares("used for", moment.by_purpose, moment.live);
    if (report_.stacks.size() > 1) shares("allocated in", moment.by_stack, moment.live);
    if (report_.streams > 1) shares("stream", moment.by_stream, moment.live);
    if (has_pools(moment)) shares("graph pool", moment.by_pool, moment.live);
    shares("size", moment.by_size, moment.live);
  }

  // What the allocator that ran held for nothing.
  void held() {
    if (!report_.origin.held) return;
    const Held& held = *report_.origin.held;
    const Bytes unused = held.reserved - std::min(held.reserved, held.live);
    if (!is_much(unused, held.reserved)) return;
    text_ +=
        "\n" + title(fmt::format("What PyTorch held and did not use {}: {} of {}",
                                 report_.failed ? "when the request failed" : when_of_peak(report_),
                                 in_words(unused), in_words(held.reserved)));
    add(parts<Inactive>(held.inactive, held.reserved));
  }

  // A row for each part that is worth one.
  template <class Part, std::size_t kParts>
  static ReportTable parts(const std::array<Bytes, kParts>& bytes, Bytes reserved) {
    ReportTable table("lrrl");
    table.add({"part", "bytes", "of reserved", ""});
    for (std::size_t i = 0; i < kParts; ++i) {
      if (!is_much(bytes[i], reserved)) continue;
      const auto part = static_cast<Part>(i);
      std::string name(name_of(part));
      std::replace(name.begin(), name.end(), '_', ' ');
      table.add(
          {name, in_words(bytes[i]), percent(bytes[i], reserved), std::string(meaning_of(part))});
    }
    return table;
  }

  void fragmentation(std::string_view when, const Moment& moment) {
    // What Weir would waste tells a user of PyTorch nothing.
    if (moment.reserved == 0_B || report_.pytorch_peak_reserved) return;
    const Bytes unused = moment.reserved - std::min(moment.reserved, moment.requested);
    const std::string sum = fmt::format("Reserved but not requested {}: {} of {}", when,
                                        in_words(unused), in_words(moment.reserved));
    if (!is_much(unused, moment.reserved)) {
      text_ += "\n";
      if (unused == 0_B) return say(sum + ". There is nothing to gain.");
      return say(sum + " (" + percent(unused, moment.reserved) + "). There is nothing to gain.");
    }
    text_ += "\n" + title(sum);
    ReportTable table = parts<Cause>(moment.causes, moment.reserved);
    if (moment.unplaced > 0_B) {
      table.add({"less: unplaced", in_words(moment.unplaced),
                 percent(moment.unplaced, moment.reserved),
                 "live blocks on pages the recording lacks"});
    }
    add(table);
    const Moment::Plain& plain = moment.plain;
    if (plain.segments == 0) return;
    text_ += "\n";
    say(fmt::format(
        "Of it plain memory: {} in {}: {} live, {} free within segments in use, {} "
        "idle. Only requests for plain memory use what is free there.",
        in_words(plain.reserved), counted(plain.segments, "segment"), in_words(plain.live),
        in_words(plain.leased - std::min(plain.leased, plain.live)),
        in_words(plain.reserved - plain.leased)));
  }

  // A peak of reserved that came after that of live is mostly what had been in use then.
  void earlier_use() {
    const Bytes before = report_.peak_live.live, now = report_.peak_reserved.live;
    if (report_.peak_live.events >= report_.peak_reserved.events ||
        before.count / 100 * 99 <= now.count) {
      return;
    }
    say(fmt::format("{} more was live at {}, at the peak of live.", in_words(before - now),
                    time(report_.peak_live.time)));
  }

  void lent() {
    if (!report_.lent.empty()) text_ += "\n";
    for (const LentScratch& lent : report_.lent) {
      std::string text = fmt::format("Graph pool {} lent {} of its scratch at most", lent.pool,
                                     in_words(lent.most));
      if (lent.to) {
        text += ", most of it to blocks of " + stream_title(lent.to->stream);
        if (report_.stacks.size() > 1) text += " allocated in " + lent.to->place;
      }
      say(text + ".");
    }
  }

  void waits() {
    const Totals& totals = report_.totals;
    if (totals.stream_waits + totals.fences + totals.host_waits.count +
            totals.context_events_lost.size() ==
        0) {
      return;
    }
    std::string text =
        fmt::format("Waits: {} of a stream for another, {} taken; the host waited {}",
                    with_commas(totals.stream_waits), counted(totals.fences, "fence"),
                    counted(totals.host_waits.count, "time"));
    if (totals.host_waits.count > 0) text += ", " + in_words(totals.host_waits.time) + " in all";
    text_ += "\n" + title(text);
    if (totals.context_waits > 0) {
      say(
          fmt::format("{} of them for the work of all streams: uses of other streams need not be "
                      "told. What depends on time: {} left their heap when their work was seen to "
                      "be over.",
                      with_commas(totals.context_waits), counted(totals.pages_released, "page")));
    }
    for (const ContextEventsLost why : totals.context_events_lost) {
      text_ += fmt::format(
          "Events of the whole context were given up, so streams and pools share memory only where "
          "the host waits: {}. To keep them: {}.\n",
          reason_of(why), remedy_of(why));
    }
    if (report_.waits.empty()) return;
    ReportTable table("llrr");
    table.add({"stream", "waits for", "waits", "its fences"});
    for (const WaitPair& pair : report_.waits) {
      table.add(
          {pair.waiter_name, pair.awaited_name, with_commas(pair.waits), with_commas(pair.fences)});
    }
    add(table);
    if (report_.costly.empty()) return;
    ReportTable blocks("rlrl");
    blocks.add({"blocks of", "stream", "waits", "allocated in"});
    for (const CostlyBlocks& costly : report_.costly) {
      blocks.add(
          {in_words(costly.requested), costly.stream, with_commas(costly.waits), costly.place});
    }
    text_ += "\n" + title("Blocks whose memory another had to wait for");
    add(blocks);
  }

  void growth() {
    if (report_.growth.empty()) return;
    ReportTable table("rrrlrrrl");
    table.add({"blocks", "of", "in all", "stream", "grew in", "first", "last", "allocated in"});
    for (const Growth& growth : report_.growth) {
      table.add({with_commas(growth.blocks), in_words(growth.requested), in_words(growth.bytes),
                 growth.stream_name, fmt::format("{} of {}", growth.grew, growth.parts),
                 time(growth.first), time(growth.last), growth.place});
    }
    text_ += "\n" + title("Still live at the end, and more all the time");
    add(table);
  }

  void time_dependence() {
    if (!report_.time_dependence || report_.pytorch_peak_reserved) return;
    struct Said {
      std::string_view before, after;  // the call
    };
    constexpr std::array<Said, 4> kSaid = {
        {{"Places depend on time from ",
          " on: it got memory that another stream had freed, and no recorded wait orders the two "
          "streams."},
         {"Places depend on time after ",
          ": a page went back to the driver once its work was seen to be over."},
         {"Places depend on time after ", ": events of the whole context were given up."},
         {"Addresses depend on the process after ",
          ": the driver refused those that were meant."}}};
    const TimeDependence& first = *report_.time_dependence;
    const auto& [before, after] = kSaid[static_cast<std::size_t>(first.why)];
    text_ += "\n";
    say(fmt::format("{}call {}, at {}{}", before, with_commas(first.call), time(first.time),
                    after));
  }

  void driver() {
    const Totals& totals = report_.totals;
    if (report_.pytorch_peak_reserved) return;  // of a replay it tells a user of PyTorch nothing
    text_ += "\n";
    say(
        fmt::format("Driver: {} created ({}), {} released ({}); {} made, {} removed, at most {} at "
                    "once",
                    counted(totals.pages_created, "page"), in_words(totals.created),
                    with_commas(totals.pages_released), in_words(totals.released),
                    counted(totals.maps, "mapping"), with_commas(totals.unmaps),
                    with_commas(totals.mappings_peak)));
    driver_calls();
  }

  // Those that took most of the host's time first; without times, those made most often.
  void driver_calls() {
    std::vector<DeviceCallCount> calls = report_.driver_calls;
    if (calls.empty()) return;
    std::ranges::stable_sort(calls, std::greater{}, [](const DeviceCallCount& each) {
      return std::pair(each.time, each.calls);
    });
    Nanoseconds all;
    std::string text;
    for (const DeviceCallCount& each : calls) {
      all += each.time;
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", with_commas(each.calls), each.call);
      if (each.time.count > 0) text += " in " + in_words(each.time);
    }
    if (all.count > 0) text += "; in all " + in_words(all) + " of the host's time";
    say("Calls to it: " + text);
  }

  void advice() {
    const std::vector<Advice> further = further_advice(report_);
    if (!further.empty()) text_ += "\n" + title("Advice") + "\n";
    for (const Advice& advice : further) {
      text_ += "  - " + shown(advice.evidence + " " + advice.remedy, 4) + "\n";
    }
  }

  const Report& report_;
  const ReportStyle style_;
  std::string text_;
};

}  // namespace

std::string report_text(const Report& report, ReportStyle style) {
  return Writer(report, style).run();
}

}  // namespace weir
