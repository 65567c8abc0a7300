// SPDX-License-Identifier: Apache-2.0
#include "look/snapshot_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "look/pickle_reader.h"
#include "look/whole_file.h"
#include "observe/recorded_state.h"

namespace weir {
namespace {

using nlohmann::json;
constexpr std::uint64_t kVersion = 1;

// A member that is missing, or is something else, is nothing: a snapshot may have fewer of them.
std::uint64_t number(const json& of, const char* name) {
  const auto found = of.is_object() ? of.find(name) : of.end();
  return found != of.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}

std::uint32_t small_number(const json& of, const char* name) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(number(of, name), UINT32_MAX));
}

const json& list(const json& of, const char* name) {
  static const json kEmpty = json::array();
  const auto found = of.is_object() ? of.find(name) : of.end();
  return found != of.end() && found->is_array() ? *found : kEmpty;
}

// Which number of bytes, or time, counts nothing: "pages[3].bytes is -1"; "": none.
std::string bad_number(const json& root) {
  const auto check = [](const std::string& path, const json& of, const char* name) -> std::string {
    const auto found = of.is_object() ? of.find(name) : of.end();
    if (found == of.end() || !found->is_number() || found->is_number_unsigned()) return {};
    return fmt::format("{}{} is {}", path, name, found->dump());
  };
  std::string bad = check("", root, "time_ns");
  if (bad.empty() && root.contains("device")) bad = check("device.", root["device"], "bytes");
  for (const char* const part : {"pages", "blocks"}) {
    for (std::size_t i = 0; bad.empty() && i < list(root, part).size(); ++i) {
      const json& each = list(root, part)[i];
      const std::string path = fmt::format("{}[{}].", part, i);
      bad = check(path, each, "bytes");
      if (bad.empty()) bad = check(path, each, "requested");
    }
  }
  return bad;
}

class Snapshot {
 public:
  Snapshot(const json& root, Recording& recording) : root_(root), recording_(recording) {
    time_.count = static_cast<std::int64_t>(number(root, "time_ns"));
  }

  void read() {
    heaps();
    pages();
    blocks();
    recording_.initial = recording_.events.size();
  }

 private:
  void add(Event event) {
    event.time = time_;
    state_.accept(event, [this](const Event& each) { recording_.events.push_back(each); });
  }

  void heaps() {
    std::set<std::uint64_t> pools;
    for (const json& heap : list(root_, "heaps")) {
      const std::uint64_t pool = number(heap, "pool");
      if (pool != 0 && pools.insert(pool).second) add({.kind = EventKind::pool_open, .pool = pool});
      add({.kind = EventKind::heap_open,
           .heap = {small_number(heap, "heap")},
           .stream = number(heap, "stream"),
           .pool = pool});
    }
  }

  void pages() {
    for (const json& page : list(root_, "pages")) {
      const PageId id{small_number(page, "page")};
      const Bytes bytes{number(page, "bytes")};
      add({.kind = EventKind::create, .page = id, .bytes = bytes, .pool = number(page, "lent_by")});
      for (const json& mapping : list(page, "mappings")) {
        add({.kind = EventKind::map,
             .heap = {small_number(mapping, "heap")},
             .page = id,
             .address = {number(mapping, "address")},
             .bytes = bytes});
      }
      const auto lease = page.is_object() ? page.find("lease") : page.end();
      if (lease == page.end() || !lease->is_number_unsigned()) continue;
      add({.kind = EventKind::lease,
           .heap = {small_number(page, "lease")},
           .page = id,
           .bytes = bytes});
    }
  }

  void blocks() {
    for (const json& block : list(root_, "blocks")) {
      const Address address{number(block, "address")};
      add({.kind = EventKind::allocate,
           .heap = {small_number(block, "heap")},
           .stream = number(block, "stream"),
           .address = address,
           .bytes = {number(block, "bytes")},
           .requested = {number(block, "requested")},
           .pool = number(block, "pool")});
      for (const json& stream : list(block, "waits_for")) {
        if (!stream.is_number_unsigned()) continue;
        add({.kind = EventKind::fence,
             .stream = number(block, "stream"),
             .other = stream.get<std::uint64_t>(),
             .address = address});
      }
    }
  }

  const json& root_;
  Recording& recording_;
  RecordedState state_;  // as of a recording: what contradicts itself is made to fit
  Nanoseconds time_;
};

}  // namespace

Result<Recording> parse_snapshot(std::string_view text, const std::string& name) {
  const auto bad = [&name](std::string_view what) {
    return Error(ErrorCode::invalid_input, fmt::format("{}: {}", name, what));
  };
  json root;
  try {
    root = json::parse(text);
  } catch (const json::parse_error& error) {
    return bad(damaged_json(error.what(), error.byte, text.size()));
  }
  const std::uint64_t version = number(root, "weir_snapshot");
  if (version == 0 && root.contains("traceEvents")) {
    return bad(
        "a trace of PyTorch's profiler, which has no blocks; "
        "torch.cuda.memory._record_memory_history() and _dump_snapshot() write what has");
  }
  if (version == 0) {
    return bad(
        "JSON, but no snapshot of Weir's (it has no weir_snapshot) nor of PyTorch's (no "
        "device_traces)");
  }
  if (version > kVersion) {
    return bad(fmt::format("a snapshot of version {}, and this weir reads {}: take a newer weir",
                           version, kVersion));
  }
  if (const std::string wrong = bad_number(root); !wrong.empty()) {
    return bad(wrong + ", where a whole number from 0 on must be: write the snapshot again");
  }
  Recording recording;
  recording.source = name;
  recording.program = "snapshot";
  if (const auto device = root.find("device"); device != root.end() && device->is_object()) {
    const auto called = device->find("name");
    if (called != device->end() && called->is_string()) recording.device = *called;
    recording.device_bytes = {number(*device, "bytes")};
  }
  Snapshot(root, recording).read();
  return recording;
}

Result<Recording> read_snapshot(const std::string& path) {
  const Result<std::string> text = read_whole_file(path);
  return text ? parse_snapshot(*text, path) : Result<Recording>(text.error());
}

}  // namespace weir
