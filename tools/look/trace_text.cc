// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "look/exporters.h"
#include "look/streams.h"

namespace weir {
namespace {

constexpr std::string_view kCapture = "capture";  // begins the markers of captured phases

// Captures during which all that is allocated and freed is of their pool, by the event that begins
// them. A trace has no way to say of others which of the work is captured.
std::unordered_set<std::size_t> whole_captures(const Recording& recording) {
  std::unordered_set<std::size_t> whole;
  std::unordered_map<std::uint32_t, std::uint64_t> pool_of_heap;
  std::unordered_map<std::uint64_t, std::uint64_t> pool_of_block;  // by address
  std::size_t begun = 0;
  std::uint64_t pool = 0;
  bool captures = false, mixed = false;
  for (auto each = recording.events.begin(); each != recording.events.end(); ++each) {
    const Event& event = *each;
    const std::size_t i = each.index();
    switch (event.kind) {
      case EventKind::heap_open:
        pool_of_heap[event.heap.value] = event.pool;
        break;
      case EventKind::capture_begin:
        if (captures) break;
        captures = true, mixed = false;
        begun = i, pool = event.pool;
        break;
      case EventKind::capture_end:
        if (captures && event.pool == pool) {
          if (!mixed) whole.insert(begun);
          captures = false;
        }
        break;
      case EventKind::allocate:
        pool_of_block[event.address.value] = pool_of_heap[event.heap.value];
        mixed = mixed || pool_of_heap[event.heap.value] != pool;
        break;
      case EventKind::deallocate:
        mixed = mixed || pool_of_block[event.address.value] != pool;
        break;
      default:
        break;
    }
  }
  return whole;
}

// Turns events, in order, into lines.
class TraceText {
 public:
  TraceText(const Recording& recording, std::string& out)
      : recording_(recording), out_(out), whole_captures_(whole_captures(recording)) {}

  // Calls `relieve` after each event.
  template <class Relieve>
  void run(const Relieve& relieve) {
    header();
    at_ = 0;
    for (const Event& event : recording_.events) {
      // An event comes after what it did, a mark before what it marks.
      if (at_ >= recording_.initial) marks_before(event.time, event.kind);
      time_us_ = std::max(time_us_, (event.time - recording_.begin()).count / 1000);
      add(event);
      ++at_;
      relieve();
    }
    marks_before({INT64_MAX}, EventKind::trim);
    if (recording_.dropped != 0)
      line("# {} events of the recording were dropped\n", recording_.dropped);
    if (!recording_.damage.empty()) line("# missing: {}\n", one_line(recording_.damage));
  }

 private:
  struct Block {
    std::uint64_t id, bytes, stream;
  };

  template <class... Args>
  void line(fmt::format_string<Args...> text, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), text, std::forward<Args>(args)...);
  }

  static std::string one_line(std::string text) {
    std::replace_if(
        text.begin(), text.end(), [](unsigned char c) { return c < 0x20; }, ' ');
    return text;
  }

  void header() {
    nlohmann::ordered_json header;
    header["workload"] = recording_.program;
    header["recorder"] = "weir";
    if (!recording_.device.empty()) header["gpu"] = recording_.device;
    header["columns"] =
        "op id bytes stream time_us; m = phase marker; u = fence: id stream time_us; w = wait: "
        "stream stream time_us";
    out_ += "# " + header.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }

  void marks_before(Nanoseconds time, EventKind kind) {
    const auto& marks = recording_.marks;
    const auto is_due = [&](const RecordedMark& mark) {
      return kind == EventKind::capture_begin ? mark.time <= time : mark.time < time;
    };
    for (; next_mark_ < marks.size() && is_due(marks[next_mark_]); ++next_mark_) {
      std::string text = one_line(marks[next_mark_].text);
      if (capture_ == Capture::by_event) {
        line("# {}\n", text);
        continue;
      }
      // Only of the last mark before a capture can this be the name.
      const bool names_capture = text.starts_with(kCapture) && is_before_capture() &&
                                 (next_mark_ + 1 == marks.size() || !is_due(marks[next_mark_ + 1]));
      if ((text.starts_with(kCapture) && !names_capture) || text.empty()) text = "mark: " + text;
      marker(text);
      capture_ = names_capture ? Capture::by_mark : Capture::none;
    }
  }

  void marker(const std::string& text);

  // Does a captured phase begin before the next block is allocated or freed?
  bool is_before_capture() const {
    for (auto event = recording_.events.from(at_); event != recording_.events.end(); ++event) {
      const EventKind kind = event->kind;
      if (kind == EventKind::capture_begin) return whole_captures_.contains(event.index());
      if (kind == EventKind::allocate || kind == EventKind::deallocate) return false;
    }
    return false;
  }

  void add(const Event& event) {
    switch (event.kind) {
      case EventKind::allocate:
        return allocate(event);
      case EventKind::deallocate:
        return deallocate(event.address);
      case EventKind::fence:
        return fence(event);
      case EventKind::stream_wait:
        return line("w {} {} {}\n", eager_stream(event.stream), eager_stream(event.other),
                    time_us_);
      case EventKind::capture_begin:
        return capture_begin(event);
      case EventKind::capture_end:
        return capture_end();
      case EventKind::out_of_memory:
        return line("{} out of memory: {} bytes on stream {}\n",
                    capture_ == Capture::none ? 'm' : '#', event.requested.count,
                    eager_stream(event.stream));
      default:
        return;
    }
  }

  void allocate(const Event& event) {
    const Block block{next_id_++, event.requested.count, eager_stream(event.stream)};
    live_.emplace(event.address.value, block);
    line("a {} {} {} {}\n", block.id, block.bytes, block.stream, time_us_);
  }

  void deallocate(Address address) {
    const auto found = live_.find(address.value);
    if (found == live_.end()) return;
    const Block block = found->second;
    live_.erase(found);
    for (const char kind : {'r', 'f'}) {
      line("{} {} {} {} {}\n", kind, block.id, block.bytes, block.stream, time_us_);
    }
  }

  void fence(const Event& event) {
    const auto found = live_.find(event.address.value);
    if (found == live_.end()) return;
    line("u {} {} {}\n", found->second.id, eager_stream(event.other), time_us_);
  }

  void capture_begin(const Event& event) {
    if (capture_ != Capture::none) return;
    if (!whole_captures_.contains(at_)) {
      return line("# a capture into pool {}, with work outside it meanwhile: replayed eagerly\n",
                  event.pool);
    }
    marker(fmt::format("{} into pool {}", kCapture, event.pool));
    capture_ = Capture::by_event;
  }

  void capture_end() {
    if (capture_ != Capture::by_event) return;
    marker("after the capture");
    capture_ = Capture::none;
  }

  const Recording& recording_;
  std::string& out_;
  std::unordered_map<std::uint64_t, Block> live_;  // by address
  std::uint64_t next_id_ = 0;
  std::int64_t time_us_ = 0;
  std::size_t next_mark_ = 0;
  const std::unordered_set<std::size_t> whole_captures_;
  std::size_t at_ = 0;  // the current event
  // A captured phase lasts until the next marker: no other marker may come within it.
  enum class Capture { none, by_mark, by_event } capture_ = Capture::none;
};

void TraceText::marker(const std::string& text) { line("m {}\n", text); }

}  // namespace

void write_trace(const Recording& recording, OutputFile& file) {
  TraceText(recording, file.text()).run([&file] { file.relieve(); });
}

std::string trace_text(const Recording& recording) {
  std::string text;
  TraceText(recording, text).run([] {});
  return text;
}

}  // namespace weir
