// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <utility>

#include "observe/recorded_state.h"
#include "observe/recording_blocks.h"
#include "observe/recording_output.h"
#include "weir/recording.h"

namespace weir {
namespace {

using recording_format::BlockKind;
using recording_format::PayloadReader;

// Takes the blocks of one recording, in order.
class Reading {
 public:
  explicit Reading(const ReadOptions& options) : options_(options) {}

  // False: no more are wanted.
  bool take(const RecordingBlocks::Block& block) {
    switch (block.kind) {
      case BlockKind::header:
        take_header(PayloadReader(block.plain));
        break;
      case BlockKind::stacks:
        take_stacks(PayloadReader(block.plain));
        break;
      case BlockKind::initial:
      case BlockKind::events:
        take_events(block);
        break;
      case BlockKind::marks:
        take_marks(PayloadReader(block.plain));
        break;
      case BlockKind::end:
        take_end(PayloadReader(block.plain));
        break;
    }
    return !ended_ && !full_;
  }

  Recording finish(const RecordingBlocks& blocks) {
    std::stable_sort(recording_.marks.begin(), recording_.marks.end(),
                     [](const RecordedMark& a, const RecordedMark& b) { return a.time < b.time; });
    recording_.damage = damage(blocks);
    return std::move(recording_);
  }

 private:
  void take_header(PayloadReader in);
  void take_stacks(PayloadReader in);
  void take_frames(PayloadReader& in);
  void take_events(const RecordingBlocks::Block& block);
  bool take_event(const Event& event, bool initial);
  void take_marks(PayloadReader in);
  void take_end(PayloadReader in);
  std::string damage(const RecordingBlocks& blocks) const;

  const ReadOptions options_;
  Recording recording_;
  RecordedState state_;
  // By their numbers in the file: places in recording_.
  std::unordered_map<std::uint64_t, std::uint32_t> frames_, stacks_;
  std::size_t stack_entries_ = 0, text_ = 0;
  Nanoseconds time_;
  std::optional<EventKind> unknown_;  // of a later version: the last that was left out
  std::uint64_t unreadable_ = 0;      // blocks whose payload makes no sense, from some place on
  bool has_header_ = false, ended_ = false, full_ = false, has_events_ = false;
};

void take_value(std::string_view text, std::uint64_t& value) {
  (void)std::from_chars(text.data(), text.data() + text.size(), value);
}

void Reading::take_header(PayloadReader in) {
  has_header_ = true;
  while (!in.at_end()) {
    const std::string_view name = in.text(), value = in.text();
    if (name == "program") recording_.program = value;
    if (name == "device") recording_.device = value;
    if (name == "device_bytes") take_value(value, recording_.device_bytes.count);
    if (name == "calls_before") take_value(value, recording_.calls_before);
  }
  unreadable_ += in.failed() ? 1 : 0;
}

void Reading::take_frames(PayloadReader& in) {
  const std::uint64_t first = in.number(), count = in.number();
  for (std::uint64_t i = 0; i < count && !in.failed(); ++i) {
    RecordedFrame frame;
    frame.function = in.text();
    frame.file = in.text();
    frame.line = static_cast<std::uint32_t>(in.number());
    text_ += frame.function.size() + frame.file.size();
    if (in.failed()) return;
    if (recording_.frames.size() >= options_.most_frames || text_ > options_.most_text) continue;
    frames_[first + i] = static_cast<std::uint32_t>(recording_.frames.size());
    recording_.frames.push_back(std::move(frame));
  }
}

void Reading::take_stacks(PayloadReader in) {
  take_frames(in);
  const std::uint64_t first = in.number(), count = in.number();
  for (std::uint64_t i = 0; i < count && !in.failed(); ++i) {
    std::vector<std::uint32_t> stack;
    const std::uint64_t size = in.number();
    for (std::uint64_t j = 0; j < size && !in.failed(); ++j) {
      const auto frame = frames_.find(in.number());
      if (frame != frames_.end()) stack.push_back(frame->second);
    }
    stack_entries_ += stack.size() + 1;
    if (in.failed() || stack_entries_ > options_.most_stack_entries) break;
    stacks_[first + i] = static_cast<std::uint32_t>(recording_.stacks.size());
    recording_.stacks.push_back(std::move(stack));
  }
  unreadable_ += in.failed() ? 1 : 0;
}

void Reading::take_events(const RecordingBlocks::Block& block) {
  const bool initial = block.kind == BlockKind::initial;
  if (initial && has_events_) return void(++unreadable_);
  has_events_ = has_events_ || !initial;
  const bool whole = decode_events(block.plain, recording_.dropped,
                                   [&](const Event& event) { return take_event(event, initial); });
  unreadable_ += whole ? 0 : 1;
}

// False: there is no room for more.
bool Reading::take_event(const Event& event, bool initial) {
  if (recording_.events.size() >= options_.most_events) return full_ = true, false;
  if (static_cast<int>(event.kind) >= kEventKinds) return unknown_ = event.kind, true;
  Event mine = event;
  mine.time = time_ = std::max(time_, event.time);
  const auto stack = stacks_.find(event.stack);
  mine.stack = event.stack == 0 || stack == stacks_.end() ? 0 : stack->second;
  state_.accept(mine, [&](const Event& each) {
    if (recording_.events.size() >= options_.most_events) return void(full_ = true);
    recording_.events.push_back(each);
    recording_.initial += initial ? 1 : 0;
  });
  return !full_;
}

void Reading::take_marks(PayloadReader in) {
  while (!in.at_end()) {
    const std::uint64_t time = in.number();
    const std::string_view text = in.text();
    text_ += text.size() + sizeof(RecordedMark);
    if (in.failed() || time >> 63 != 0 || text_ > options_.most_text) return void(++unreadable_);
    recording_.marks.push_back({Nanoseconds{static_cast<std::int64_t>(time)}, std::string(text)});
  }
}

void Reading::take_end(PayloadReader in) {
  (void)in.number();
  const std::uint64_t dropped = in.number();
  if (in.failed()) return void(++unreadable_);
  recording_.dropped = dropped;
  ended_ = true;
}

// The format's blocks: those of a program are others.
std::string parts_of_it(std::uint64_t count) {
  return count == 1 ? "1 part of it is" : fmt::format("{} parts of it are", count);
}

std::string Reading::damage(const RecordingBlocks& blocks) const {
  std::string damage;
  const auto add = [&](const std::string& what) { damage += (damage.empty() ? "" : "; ") + what; };
  if (full_) {
    add(
        fmt::format("there are more than {} events, the most that are read at once: the rest is "
                    "missing",
                    options_.most_events));
  }
  // A bad last stretch is what was being written when the program was killed.
  const bool cut = !ended_ && !full_;
  if (blocks.missing() > 0 || (blocks.bad_stretches() > 0 && !cut) || blocks.bad_stretches() > 1) {
    add(fmt::format("the file is damaged from byte {} on: {} missing", blocks.first_bad(),
                    parts_of_it(std::max<std::uint64_t>(blocks.missing(), 1))));
  }
  if (unreadable_ > 0) {
    add(fmt::format("{} not decodable, and read as far as possible", parts_of_it(unreadable_)));
  }
  if (unknown_) {
    add(
        fmt::format("events of kind {}, which this version of Weir does not know, were left out: "
                    "read it with the version that wrote it",
                    static_cast<int>(*unknown_)));
  }
  if (!has_header_) add("the header is missing: program and device are unknown");
  if (cut) {
    add("the end is missing: the file was cut off, or the program was killed or still records");
  }
  if (damage.empty() && recording_.dropped == 0 && state_.repaired() > 0) {
    add(fmt::format("{} events contradict others, and were left out or made to fit",
                    state_.repaired()));
  }
  return damage;
}

}  // namespace

Result<Recording> read_recording(const std::string& path, const ReadOptions& options) {
  Result<RecordingBlocks> blocks = RecordingBlocks::open(path);
  if (!blocks) return std::move(blocks).error();
  Reading reading(options);
  while (std::optional<RecordingBlocks::Block> block = blocks->next()) {
    if (!reading.take(*block)) break;
  }
  Recording recording = reading.finish(*blocks);
  recording.source = path;
  return recording;
}

}  // namespace weir
