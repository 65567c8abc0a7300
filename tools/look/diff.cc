// SPDX-License-Identifier: Apache-2.0
#include "look/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <utility>

#include "look/call_difference_words.h"
#include "replay/json.h"
#include "replay/report_table.h"
#include "replay/units.h"

namespace weir {
namespace {

// Changes by name, from two lists of things.
class Matching {
 public:
  // `numbered`: the two may number the same thing differently; its name then has both numbers.
  explicit Matching(Unit unit, bool numbered = false) : unit_(unit), numbered_(numbered) {}
  void add(bool first, const std::string& key, const std::string& name, std::uint64_t value) {
    Change& change = at(key, name);
    std::optional<std::uint64_t>& side = first ? change.before : change.after;
    side = side.value_or(0) + value;
  }
  void add(const std::string& name, std::uint64_t before, std::uint64_t after) {
    add(true, name, name, before);
    add(false, name, name, after);
  }
  // Those that changed, the largest change first.
  ChangeGroup group(std::string name, std::string title) && {
    ChangeGroup group{std::move(name), std::move(title), {}};
    for (auto& [key, change] : changes_) {
      if (change.changed()) group.changes.push_back(std::move(change));
    }
    std::stable_sort(group.changes.begin(), group.changes.end(),
                     [](const Change& a, const Change& b) { return a.size() > b.size(); });
    return group;
  }

 private:
  Change& at(const std::string& key, const std::string& name) {
    Change& change = changes_[key];
    change.unit = unit_;
    if (change.name.empty()) {
      change.name = name;
    } else if (numbered_ && change.name != name && !change.after) {
      change.name += " / " + name;
    }
    return change;
  }

  const Unit unit_;
  const bool numbered_;
  std::map<std::string, Change> changes_;
};

std::string stream_key(std::uint32_t nth) { return fmt::format("{:010}", nth); }

// "f (model.py:42)" as "f (model.py)": lines move when a file is edited elsewhere.
std::string without_line(const std::string& frame) {
  const std::size_t end = frame.size() - (frame.ends_with(')') ? 1 : 0);
  std::size_t digits = end;
  while (digits > 0 && std::isdigit(static_cast<unsigned char>(frame[digits - 1])) != 0) --digits;
  if (digits == end || digits == 0 || frame[digits - 1] != ':') return frame;
  return frame.substr(0, digits - 1) + frame.substr(end);
}

std::string stack_key(const Report& report, const Share& share) {
  if (share.id >= report.stacks.size()) return {};
  std::string key;
  for (const std::string& frame : report.stacks[share.id]) key += without_line(frame) + "\n";
  return key;
}

template <class Key>
ChangeGroup shares(std::string name, std::string title, const std::vector<Share>& before,
                   const std::vector<Share>& after, Key key) {
  Matching matching(Unit::bytes, name == "by_stream" || name == "by_pool");
  for (const bool first : {true, false}) {
    for (const Share& share : first ? before : after) {
      matching.add(first, key(share, first), share.name, share.bytes.count);
    }
  }
  return std::move(matching).group(std::move(name), std::move(title));
}

ChangeGroup peaks(const Report& a, const Report& b) {
  const bool is_weirs = a.origin.is_pytorchs() || b.origin.is_pytorchs();
  ChangeGroup group{"peaks", is_weirs ? "peaks; reserved by Weir, replayed" : "peaks", {}};
  const auto add = [&](const char* name, Unit unit, auto value) {
    group.changes.push_back(
        {name, unit, static_cast<std::uint64_t>(value(a)), static_cast<std::uint64_t>(value(b))});
  };
  add("peak live", Unit::bytes, [](const Report& r) { return r.peak_live.live.count; });
  add("peak reserved", Unit::bytes, [](const Report& r) { return r.peak_reserved.reserved.count; });
  add("reserved, not requested", Unit::bytes, [](const Report& r) {
    return (r.peak_reserved.reserved -
            std::min(r.peak_reserved.reserved, r.peak_reserved.requested))
        .count;
  });
  add("reserved at the end", Unit::bytes, [](const Report& r) { return r.end.reserved.count; });
  add("live at the end", Unit::bytes, [](const Report& r) { return r.end.live.count; });
  add("length", Unit::time, [](const Report& r) { return r.length.count; });
  return group;
}

ChangeGroup fragmentation(const Report& before, const Report& after) {
  Matching matching(Unit::bytes);
  for (int i = 0; i < kCauses; ++i) {
    std::string name(name_of(static_cast<Cause>(i)));
    std::replace(name.begin(), name.end(), '_', ' ');
    matching.add(name, before.peak_reserved.causes[i].count, after.peak_reserved.causes[i].count);
  }
  return std::move(matching).group("fragmentation", "not requested, at the peak of reserved");
}

ChangeGroup counts(const Report& before, const Report& after) {
  Matching matching(Unit::count);
  const Totals &a = before.totals, &b = after.totals;
  matching.add("allocations", a.allocations, b.allocations);
  matching.add("fences", a.fences, b.fences);
  matching.add("stream waits", a.stream_waits, b.stream_waits);
  matching.add("host waits", a.host_waits.count, b.host_waits.count);
  matching.add("pages created", a.pages_created, b.pages_created);
  matching.add("pages released", a.pages_released, b.pages_released);
  matching.add("mappings made", a.maps, b.maps);
  matching.add("mappings removed", a.unmaps, b.unmaps);
  matching.add("captures", a.captures, b.captures);
  matching.add("out of memory", a.out_of_memory, b.out_of_memory);
  return std::move(matching).group("counts", "counts");
}

ChangeGroup waits(const Report& before, const Report& after) {
  Matching matching(Unit::count, true);
  for (const bool first : {true, false}) {
    for (const WaitPair& pair : (first ? before : after).waits) {
      matching.add(first, stream_key(pair.waiter_nth) + stream_key(pair.awaited_nth),
                   fmt::format("{} for {}", pair.waiter_name, pair.awaited_name), pair.waits);
    }
  }
  return std::move(matching).group("waits", "waits of a stream for another");
}

std::string in_words(std::uint64_t value, Unit unit) {
  if (unit == Unit::bytes) return weir::in_words(Bytes{value});
  if (unit == Unit::count) return with_commas(value);
  return weir::in_words(Nanoseconds{static_cast<std::int64_t>(value)});
}

}  // namespace

std::uint64_t Change::size() const {
  const std::uint64_t a = before.value_or(0), b = after.value_or(0);
  return a > b ? a - b : b - a;
}

bool Diff::changed() const {
  return std::ranges::any_of(groups, [](const ChangeGroup& group) {
    return std::ranges::any_of(group.changes, &Change::changed);
  });
}

Diff diff_of(const Report& before, const Report& after) {
  const Moment &a = before.peak_live, &b = after.peak_live;
  const auto nth = [](const Share& share, bool) { return stream_key(share.nth); };
  Diff diff{before.source, after.source, {}, {}};
  diff.groups.push_back(peaks(before, after));
  diff.groups.push_back(fragmentation(before, after));
  diff.groups.push_back(shares("by_stream", "most live, by stream", a.by_stream, b.by_stream, nth));
  diff.groups.push_back(shares("by_pool", "most live, by graph pool", a.by_pool, b.by_pool, nth));
  diff.groups.push_back(shares("by_size", "most live, by size", a.by_size, b.by_size,
                               [](const Share& share, bool) { return share.name; }));
  diff.groups.push_back(shares(
      "by_stack", "most live, by where it was allocated", a.by_stack, b.by_stack,
      [&](const Share& share, bool first) { return stack_key(first ? before : after, share); }));
  diff.groups.push_back(waits(before, after));
  diff.groups.push_back(counts(before, after));
  return diff;
}

namespace {

// Where there is one stream, say, it has all that changed.
bool says_the_peak_again(const Diff& diff, const ChangeGroup& group) {
  const Change &peak = diff.groups.front().changes.front(), &only = group.changes.front();
  return group.changes.size() == 1 && only.unit == peak.unit && only.before == peak.before &&
         only.after == peak.after;
}

std::vector<std::string> row(const Change& change) {
  const auto shown = [&](std::optional<std::uint64_t> value) {
    return value ? in_words(*value, change.unit) : "-";
  };
  std::vector<std::string> row = {change.name, shown(change.before), shown(change.after)};
  if (!change.changed()) return row;
  const std::uint64_t before = change.before.value_or(0), after = change.after.value_or(0);
  const char* sign = after > before ? "+" : "-";
  row.push_back(sign + in_words(change.size(), change.unit));
  if (before > 0) {
    row.push_back(sign + percent(static_cast<double>(change.size()), static_cast<double>(before)));
  }
  return row;
}

const char* suffix(Unit unit) {
  return unit == Unit::bytes ? "bytes" : unit == Unit::time ? "ns" : "count";
}

}  // namespace

std::string diff_text(const Diff& diff, std::size_t top) {
  std::string text =
      fmt::format("before  {}\nafter   {}\n", printable(diff.before), printable(diff.after));
  if (diff.calls) text += "\n" + difference_text(*diff.calls);
  if (diff.groups.empty()) return text;
  if (!diff.changed()) return text + "\nNothing that a report counts has changed.\n";
  for (const ChangeGroup& group : diff.groups) {
    const bool whole = &group == &diff.groups.front();
    if (group.changes.empty() || (!whole && says_the_peak_again(diff, group))) continue;
    const std::size_t rows = whole ? group.changes.size() : std::min(top, group.changes.size());
    ReportTable table("lrrrr");
    table.add({group.title, "before", "after", "change", ""});
    for (std::size_t i = 0; i < rows; ++i) {
      table.add(row(group.changes[i]));
    }
    text += "\n" + table.text();
    if (rows < group.changes.size()) {
      text += fmt::format("  and {} more (--top)\n", group.changes.size() - rows);
    }
  }
  return text;
}

std::string diff_json(const Diff& diff) {
  Json json = {{"before", diff.before}, {"after", diff.after}};
  if (diff.calls) json["calls"] = difference_json(*diff.calls);
  if (!diff.groups.empty()) json["changed"] = diff.changed();
  for (const ChangeGroup& group : diff.groups) {
    Json list = Json::array();
    for (const Change& change : group.changes) {
      const auto a = static_cast<std::int64_t>(change.before.value_or(0));
      const auto b = static_cast<std::int64_t>(change.after.value_or(0));
      list.push_back({{"name", change.name},
                      {"unit", suffix(change.unit)},
                      {"before", or_null(change.before)},
                      {"after", or_null(change.after)},
                      {"change", b - a}});
    }
    json[group.name] = std::move(list);
  }
  return json_text(json);
}

}  // namespace weir
