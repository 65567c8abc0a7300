// SPDX-License-Identifier: Apache-2.0
#include "look/call_difference_words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "look/streams.h"
#include "replay/report_table.h"
#include "replay/units.h"

namespace weir {
namespace {

std::string bytes_text(Bytes bytes) { return counted(bytes.count, "byte"); }

std::string pool_text(const RecordedCall& call) {
  return call.pool_id == 0 ? std::string() : fmt::format(" in graph pool {}", call.pool_id);
}

std::string place_text(const RecordedCall& call) {
  return fmt::format("at {:#x} (row {} + {:#x})", call.event.address.value, call.place.row,
                     call.place.offset.count);
}

std::string origin_text(const RecordedCall& call) {
  if (call.allocated_in == 0) return "that were live before the first call";
  return fmt::format("that call {} allocated", with_commas(call.allocated_in));
}

std::string work_text(const Event& event) {
  switch (event.kind) {
    case EventKind::stream_wait:
      return fmt::format("made {} wait for {}", stream_title(event.stream),
                         stream_title(event.other));
    case EventKind::host_wait:
      return fmt::format("waited on the host for {}", stream_title(event.other));
    case EventKind::create:
      return fmt::format("created a page of {}", in_words(event.bytes));
    case EventKind::release:
      return fmt::format("released a page of {}", in_words(event.bytes));
    case EventKind::map:
      return fmt::format("mapped {}", in_words(event.bytes));
    case EventKind::unmap:
      return fmt::format("unmapped {}", in_words(event.bytes));
    case EventKind::trim:
      return fmt::format("gave {} back to the driver", in_words(event.bytes));
    default:
      return "lost its events of the whole context";
  }
}

// "nothing"; "created a page of 2 MiB, mapped 2 MiB twice": equal ones in a row are one.
std::string work_text(const std::vector<Event>& work) {
  constexpr std::size_t kMost = 6;
  std::vector<std::pair<std::string, std::size_t>> parts;
  for (const Event& event : work) {
    std::string text = work_text(event);
    if (!parts.empty() && parts.back().first == text) {
      ++parts.back().second;
    } else {
      parts.emplace_back(std::move(text), 1);
    }
  }
  std::string all;
  for (std::size_t i = 0; i < std::min(parts.size(), kMost); ++i) {
    all += (i > 0 ? ", " : "") + parts[i].first;
    if (parts[i].second > 1) all += fmt::format(" ({} times)", parts[i].second);
  }
  if (parts.size() > kMost) all += fmt::format(", and {} more", parts.size() - kMost);
  return all;
}

std::string shown(const std::string& text, std::size_t indent) {
  return std::string(indent, ' ') + wrapped(printable(text), indent + 2, report_width() - indent) +
         "\n";
}

std::string side_text(const CallSide& side) {
  std::string text = "\n" + shown(side.source + ":", 0);
  text += shown(side.call ? call_text(*side.call) : "no call: the recording ends", 2);
  const bool frees = side.call && side.call->event.kind != EventKind::allocate;
  if (!side.stack.empty()) {
    const char* const how = frees ? "allocated in" : "in";
    text += shown(fmt::format("{} {}", how, fmt::join(side.stack, " < ")), 2);
  }
  if (!side.weir_did.empty()) text += shown("just before, Weir " + work_text(side.weir_did), 2);
  if (!side.mark.empty()) text += shown("after the mark \"" + side.mark + "\"", 2);
  return text;
}

std::string not_exact(const CallSide& side) {
  std::string text;
  if (side.dropped > 0) {
    text += shown(fmt::format("{} lacks {}, which came too fast: later numbers of calls are wrong.",
                              side.source, counted(side.dropped, "event")),
                  0);
  }
  if (side.damaged) {
    text +=
        shown(side.source + " is damaged or ends early: what differs may be what is missing.", 0);
  }
  return text;
}

// Why no call of this recording is in the other one, too.
std::string no_call(const CallSide& side, std::uint64_t first) {
  if (side.calls == 0) {
    return side.source +
           " has no calls: recordings have them (WEIR_RECORD, WEIR_RECORD_RING), and PyTorch's "
           "snapshots after torch.cuda.memory._record_memory_history().";
  }
  if (side.last >= first) return {};
  return fmt::format("{} ends with call {}, and the other begins with call {}.", side.source,
                     with_commas(side.last), with_commas(first));
}

std::string summary(const CallDifference& difference) {
  const std::uint64_t last = difference.first + difference.same;
  std::string text =
      difference.first == 1
          ? fmt::format("The same {}", counted(difference.same, "call"))
          : fmt::format("The same {} from call {} on, the first that both have",
                        counted(difference.same, "call"), with_commas(difference.first));
  if (difference.same == 0 && (difference.differs.empty() || difference.differs.front() == "end")) {
    const std::string before = no_call(difference.before, difference.first);
    const std::string after = no_call(difference.after, difference.first);
    return "No call is in both. " + before + (before.empty() || after.empty() ? "" : " ") + after;
  }
  if (difference.differs.empty()) {
    return text + (difference.moved == 0 ? ", at the same addresses." : ", at the same places.");
  }
  return fmt::format("{}. Call {} differs ({}).", text, with_commas(last),
                     fmt::join(difference.differs, ", "));
}

Json call_json(const RecordedCall& call) {
  const Event& event = call.event;
  Json json = {{"number", call.number},
               {"call", name_of(event.kind)},
               {"requested_bytes", event.requested.count},
               {"stream", event.stream},
               {"stream_nth", call.stream}};
  if (event.kind == EventKind::fence) json["user"] = event.other, json["user_nth"] = call.user;
  if (event.kind == EventKind::out_of_memory) return json;
  json["bytes"] = event.bytes.count;
  json["pool"] = call.pool_id;
  json["pool_nth"] = call.pool;
  json["address"] = event.address.value;
  json["row"] = call.place.row;
  json["offset"] = call.place.offset.count;
  if (event.kind != EventKind::allocate) json["allocated_in"] = call.allocated_in;
  return json;
}

Json side_json(const CallSide& side) {
  Json did = Json::array();
  for (const Event& event : side.weir_did) did.push_back(work_text(event));
  return {{"calls", side.calls},
          {"dropped", side.dropped},
          {"call", side.call ? call_json(*side.call) : Json(nullptr)},
          {"stack", side.stack},
          {"weir_did", std::move(did)},
          {"mark", side.mark}};
}

Json number_or_null(std::uint64_t number) { return number == 0 ? Json(nullptr) : Json(number); }

}  // namespace

std::string call_text(const RecordedCall& call) {
  const std::string on = stream_title(call.event.stream);
  const std::string block = fmt::format("{} {} on {}{}, {}", bytes_text(call.event.requested),
                                        origin_text(call), on, pool_text(call), place_text(call));
  switch (call.event.kind) {
    case EventKind::allocate:
      return fmt::format("allocation of {} on {}{}, {}", bytes_text(call.event.requested), on,
                         pool_text(call), place_text(call));
    case EventKind::deallocate:
      return "free of " + block;
    case EventKind::fence:
      return fmt::format("fence: {} uses {}", stream_title(call.event.other), block);
    default:
      return fmt::format("request of {} on {} that failed", bytes_text(call.event.requested), on);
  }
}

std::string difference_text(const CallDifference& difference) {
  std::string text = shown(summary(difference), 0);
  text += not_exact(difference.before) + not_exact(difference.after);
  if (difference.lived_otherwise) {
    text += shown(fmt::format("What was live before call {} differs already: the first difference "
                              "is earlier, where a larger ring (WEIR_RECORD_RING; PyTorch's "
                              "max_entries) would show it.",
                              with_commas(difference.first)),
                  0);
  }
  const bool differs = !difference.differs.empty();
  if (const std::uint64_t moved = difference.moved; moved > 0) {
    text += shown(fmt::format("Addresses differ from call {} on.", with_commas(moved)), 0);
  }
  const std::uint64_t work = difference.worked_otherwise;
  if (work > 0 && (!differs || work < difference.first + difference.same)) {
    text += shown(fmt::format("Weir itself worked otherwise (pages, mappings, waits) first before "
                              "call {}.",
                              with_commas(work)),
                  0);
  }
  if (!differs) return text;
  text += side_text(difference.before) + side_text(difference.after);
  if (difference.previous.empty()) return text;
  text += "\n" + shown("The calls before, the same in both:", 0);
  for (const RecordedCall& call : difference.previous) {
    text += shown(with_commas(call.number) + ": " + call_text(call), 2);
  }
  return text;
}

Json difference_json(const CallDifference& difference) {
  Json previous = Json::array();
  for (const RecordedCall& call : difference.previous) previous.push_back(call_json(call));
  return {{"first", difference.first},
          {"same", difference.same},
          {"differs", difference.differs},
          {"before", side_json(difference.before)},
          {"after", side_json(difference.after)},
          {"previous", std::move(previous)},
          {"lived_otherwise", difference.lived_otherwise},
          {"moved", number_or_null(difference.moved)},
          {"worked_otherwise", number_or_null(difference.worked_otherwise)}};
}

}  // namespace weir
