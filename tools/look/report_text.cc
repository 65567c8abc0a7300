// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "look/report.h"
#include "replay/report_table.h"
#include "replay/units.h"

namespace weir {
namespace {

double number(Bytes bytes) { return static_cast<double>(bytes.count); }

// The first thing that a user of PyTorch wants to know of a snapshot.
std::string beside_pytorch(const Report& report) {
  if (!report.pytorch_peak_reserved) return {};
  const double weir = number(report.peak_reserved.reserved);
  const double pytorch = number(*report.pytorch_peak_reserved);
  std::string text =
      fmt::format("Weir would have held {} at most", in_words(report.peak_reserved.reserved));
  if (pytorch > 0) {
    text += fmt::format("; PyTorch held {}", in_words(*report.pytorch_peak_reserved));
    if (weir < 10 * pytorch) {  // of a program that needs less than a page it says nothing
      text += fmt::format(" ({:+.1f} % with Weir)", 100 * (weir / pytorch - 1));
    }
  }
  return wrapped(text + fmt::format("; at most {} was live.", in_words(report.peak_live.live)), 2) +
         "\n";
}

std::string heading(const Report& report) {
  std::string text = printable(report.source);
  if (!report.program.empty()) text += ": " + printable(report.program);
  if (!report.device.empty()) text += " on " + printable(report.device);
  if (report.device_bytes > 0_B) text += fmt::format(" ({})", in_words(report.device_bytes));
  text = wrapped(text, 0) + "\n";
  text += fmt::format("{} over {}: {}, {}", counted(report.events, "event"),
                      in_words(report.length), counted(report.totals.allocations, "allocation"),
                      counted(report.streams, "stream"));
  if (report.pools > 0) text += ", " + counted(report.pools, "graph pool");
  text += '\n';
  if (report.dropped > 0) {
    text += fmt::format("{} came too fast to be recorded: the figures are of the rest.\n",
                        counted(report.dropped, "event"));
  }
  if (!report.damage.empty()) text += wrapped("Damaged: " + printable(report.damage), 2) + "\n";
  return text;
}

void add_moment(ReportTable& table, const char* name, const Moment& moment) {
  const double ratio = moment.live == 0_B ? 0 : number(moment.reserved) / number(moment.live);
  table.add({name, in_words(moment.time), with_commas(moment.blocks), in_words(moment.requested),
             in_words(moment.live), in_words(moment.reserved),
             ratio == 0 ? "-" : fmt::format("{:.{}f}", ratio, ratio < 10 ? 4 : 1)});
}

std::string moments(const Report& report) {
  ReportTable table("lrrrrrr");
  table.add({"", "at", "blocks", "requested", "live", "reserved", "ratio"});
  add_moment(table, "peak of live", report.peak_live);
  add_moment(table, "peak of reserved", report.peak_reserved);
  if (report.at) add_moment(table, "the moment asked for", *report.at);
  add_moment(table, "end", report.end);
  return "\n" + table.text();
}

std::string shares(const char* title, const std::vector<Share>& shares, Bytes all) {
  ReportTable table("lrrr");
  table.add({title, "blocks", "bytes", "share"});
  for (const Share& share : shares) {
    table.add({share.name, with_commas(share.blocks), in_words(share.bytes),
               percent(number(share.bytes), number(all))});
  }
  return "\n" + table.text();
}

std::string live_at(const char* when, const Moment& moment, const Report& report) {
  if (moment.blocks == 0) return {};
  std::string text = fmt::format("\nLive {}: {} in {}\n", when, in_words(moment.live),
                                 counted(moment.blocks, "block"));
  if (report.streams > 1) text += shares("stream", moment.by_stream, moment.live);
  if (report.pools > 0) text += shares("graph pool", moment.by_pool, moment.live);
  text += shares("size", moment.by_size, moment.live);
  if (report.stacks.size() > 1) text += shares("allocated in", moment.by_stack, moment.live);
  return text;
}

const char* explained(Cause cause) {
  switch (cause) {
    case Cause::rounding:
      return "blocks are multiples of 512 bytes";
    case Cause::page_tails:
      return "free at the ends of pages in use";
    case Cause::placement:
      return "free between two blocks of a page";
    case Cause::stream_partition:
      return "pages held by a stream with no block on them";
    case Cause::pool_partition:
      return "idle pages that graph pools keep";
    case Cause::idle_pages:
      return "idle pages, free for every stream";
  }
  return "";
}

const char* title_of(Cause cause) {
  switch (cause) {
    case Cause::rounding:
      return "rounding";
    case Cause::page_tails:
      return "page tails";
    case Cause::placement:
      return "placement";
    case Cause::stream_partition:
      return "stream partition";
    case Cause::pool_partition:
      return "pool partition";
    case Cause::idle_pages:
      return "idle pages";
  }
  return "";
}

std::string fragmentation(const char* when, const Moment& moment) {
  if (moment.reserved == 0_B) return {};
  const Bytes unused = moment.reserved - std::min(moment.reserved, moment.requested);
  std::string text = fmt::format("\nReserved but not requested {}: {} of {}\n\n", when,
                                 in_words(unused), in_words(moment.reserved));
  ReportTable table("lrrl");
  table.add({"part", "bytes", "of reserved", ""});
  for (int i = 0; i < kCauses; ++i) {
    const auto cause = static_cast<Cause>(i);
    table.add({title_of(cause), in_words(moment.causes[i]),
               percent(number(moment.causes[i]), number(moment.reserved)), explained(cause)});
  }
  if (moment.unplaced > 0_B) {
    table.add({"less: unplaced", in_words(moment.unplaced),
               percent(number(moment.unplaced), number(moment.reserved)),
               "live blocks on pages the recording lacks"});
  }
  text += table.text();
  const Moment::Plain& plain = moment.plain;
  if (plain.segments == 0) return text;
  return text + "\n" +
         wrapped(fmt::format("Of it plain memory: {} in {}: {} live, {} free within segments in "
                             "use, {} idle. Only requests for plain memory use what is free there.",
                             in_words(plain.reserved), counted(plain.segments, "segment"),
                             in_words(plain.live),
                             in_words(plain.leased - std::min(plain.leased, plain.live)),
                             in_words(plain.reserved - plain.leased)),
                 0) +
         "\n";
}

// A peak of reserved that came after that of live is mostly what had been in use then.
std::string earlier_use(const Report& report) {
  const Bytes before = report.peak_live.live, now = report.peak_reserved.live;
  if (report.peak_live.events >= report.peak_reserved.events ||
      before.count / 100 * 99 <= now.count) {
    return {};
  }
  return fmt::format("  {} more was live at {}, at the peak of live.\n", in_words(before - now),
                     in_words(report.peak_live.time));
}

std::string holds(const Moment& moment, std::size_t top) {
  if (moment.holds.size() < 2) return {};
  ReportTable table("lrrrrrr");
  table.add({"stream", "pages", "leased", "live", "page tails", "placement", "no block"});
  for (std::size_t i = 0; i < std::min(top, moment.holds.size()); ++i) {
    const StreamHold& hold = moment.holds[i];
    const auto free = [&](Cause cause) { return in_words(hold.free[static_cast<int>(cause)]); };
    table.add({hold.name, with_commas(hold.pages), in_words(hold.leased), in_words(hold.live),
               free(Cause::page_tails), free(Cause::placement), free(Cause::stream_partition)});
  }
  return "\n" + table.text();
}

std::string waits(const Report& report) {
  const Totals& totals = report.totals;
  std::string text =
      fmt::format("\nWaits: {} of a stream for another, {} taken; the host waited {}",
                  with_commas(totals.stream_waits), counted(totals.fences, "fence"),
                  counted(totals.host_waits.count, "time"));
  if (totals.host_waits.count > 0) text += ", " + in_words(totals.host_waits.time) + " in all";
  text += '\n';
  if (totals.context_waits > 0) {
    text += fmt::format(
        "{} of them for the work of all streams: uses of other streams need not be told. What "
        "depends on time: {} left their heap when their work was seen to be over.\n",
        with_commas(totals.context_waits), counted(totals.pages_released, "page"));
  }
  for (const ContextEventsLost why : totals.context_events_lost) {
    text += fmt::format(
        "Events of the whole context were given up, so streams and pools share memory only where "
        "the "
        "host waits: {}. To keep them: {}.\n",
        reason_of(why), remedy_of(why));
  }
  if (report.waits.empty()) return text;
  ReportTable table("llrr");
  table.add({"stream", "waits for", "waits", "its fences"});
  for (const WaitPair& pair : report.waits) {
    table.add(
        {pair.waiter_name, pair.awaited_name, with_commas(pair.waits), with_commas(pair.fences)});
  }
  text += "\n" + table.text();
  if (report.costly.empty()) return text;
  ReportTable blocks("rlrl");
  blocks.add({"blocks of", "stream", "waits", "allocated in"});
  for (const CostlyBlocks& costly : report.costly) {
    blocks.add(
        {in_words(costly.requested), costly.stream, with_commas(costly.waits), costly.place});
  }
  return text + "\nBlocks whose memory another had to wait for\n\n" + blocks.text();
}

std::string growth(const Report& report) {
  if (report.growth.empty()) return {};
  ReportTable table("rrrlrrrl");
  table.add({"blocks", "of", "in all", "stream", "grew in", "first", "last", "allocated in"});
  for (const Growth& growth : report.growth) {
    table.add({with_commas(growth.blocks), in_words(growth.requested), in_words(growth.bytes),
               growth.stream_name, fmt::format("{} of {}", growth.grew, growth.parts),
               in_words(growth.first), in_words(growth.last), growth.place});
  }
  return "\nStill live at the end, and more all the time\n\n" + table.text();
}

std::string churn(const Report& report) {
  if (report.churn.empty()) return {};
  ReportTable table("rlrrr");
  table.add({"blocks of", "stream", "came and went", "most at once", "lived (mean)"});
  for (const Churn& churn : report.churn) {
    table.add({in_words(churn.requested), churn.stream_name, with_commas(churn.blocks),
               with_commas(churn.at_once), in_words(churn.mean_life)});
  }
  return "\nAllocated and freed again and again\n\n" + table.text();
}

std::string driver(const Report& report) {
  const Totals& totals = report.totals;
  std::string text =
      "\n" +
      wrapped(fmt::format("Driver: {} created ({}), {} released ({}); {} made, "
                          "{} removed, at most {} at once",
                          counted(totals.pages_created, "page"), in_words(totals.created),
                          with_commas(totals.pages_released), in_words(totals.released),
                          counted(totals.maps, "mapping"), with_commas(totals.unmaps),
                          with_commas(totals.mappings_peak)),
              2) +
      "\n";
  if (totals.out_of_memory > 0) {
    text += fmt::format("Out of memory: {}\n", counted(totals.out_of_memory, "time"));
  }
  return text;
}

std::string advice(const Report& report) {
  if (report.advice.empty()) return {};
  std::string text = "\nAdvice\n\n";
  for (const Advice& advice : report.advice) {
    text += "  - " + wrapped(printable(advice.evidence + " " + advice.remedy), 4) + "\n";
  }
  return text;
}

}  // namespace

std::string report_text(const Report& report, const ReportOptions& options) {
  std::string text = beside_pytorch(report) + heading(report) + moments(report);
  if (report.at) {
    text += live_at("at the moment asked for", *report.at, report);
    text += fragmentation("at the moment asked for", *report.at);
    text += holds(*report.at, options.top);
  }
  text += live_at("at its peak", report.peak_live, report);
  text += fragmentation("at the peak of reserved", report.peak_reserved) + earlier_use(report);
  text += holds(report.peak_reserved, options.top);
  return text + growth(report) + churn(report) + waits(report) + driver(report) + advice(report);
}

}  // namespace weir
