// SPDX-License-Identifier: Apache-2.0
// A recording, read back: every event of a device heap, in order, with what was there before.
//
// allocator/observe/README.md describes the file. A recording that was cut off (the process was
// killed) or damaged is read as far as it makes sense, and says what is missing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "weir/event.h"
#include "weir/event_log.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir {

// A place in a program. Unknown parts are empty, or zero.
struct RecordedFrame {
  std::string function;
  std::string file;  // of the source, or of the binary where only that is known
  std::uint32_t line = 0;
  friend bool operator==(const RecordedFrame&, const RecordedFrame&) = default;
};

struct RecordedMark {
  Nanoseconds time;
  std::string text;
  friend bool operator==(const RecordedMark&, const RecordedMark&) = default;
};

// Bytes that an allocator had reserved from `time` on.
struct RecordedReserved {
  Nanoseconds time;
  Bytes bytes;
  friend bool operator==(const RecordedReserved&, const RecordedReserved&) = default;
};

struct Recording {
  std::string source;   // the file, as it was named
  std::string program;  // what was recorded
  std::string device;   // Device::name()
  Bytes device_bytes;   // memory of the device in all; zero: unknown
  // In order of time. The first `initial` say what was there when the recording began (pages,
  // mappings, heaps, leases, live blocks); their time is the beginning's.
  EventLog events;
  std::size_t initial = 0;
  // Calls (is_call()) that a flight recorder gave up before the first event.
  std::uint64_t calls_before = 0;
  std::vector<RecordedFrame> frames;
  // By Event::stack: indices into `frames`, innermost first. The first stack is the unknown one.
  std::vector<std::vector<std::uint32_t>> stacks{{}};
  std::vector<RecordedMark> marks;  // by time
  // Of a program that was recorded under another allocator (PyTorch's) and replayed: what that
  // allocator had reserved at its peak (zero: unknown), and at each change where the file says so.
  Bytes other_peak_reserved;
  std::vector<RecordedReserved> other_reserved;
  std::uint64_t dropped = 0;  // events that came faster than they could be written
  std::string damage;         // what is missing from the file, and why; empty: nothing

  Nanoseconds begin() const { return events.empty() ? Nanoseconds{} : events.front().time; }
  Nanoseconds end() const { return events.empty() ? Nanoseconds{} : events.back().time; }
};

struct ReadOptions {
  // Most events to read; of a longer recording the rest is missing, as `damage` says.
  std::uint64_t most_events = 50'000'000;
  // Three limits, above what any sound recording has. Frames and stacks beyond them are left out;
  // marks beyond them are damage.
  std::size_t most_frames = std::size_t{1} << 22;
  std::size_t most_stack_entries = std::size_t{1} << 26;  // frames of all stacks, and stacks
  std::size_t most_text = std::size_t{1} << 28;           // bytes, of frames and marks
};

// Errors: invalid_input (no recording, or one of a newer version; names the file and the remedy).
Result<Recording> read_recording(const std::string& path, const ReadOptions& options = {});

}  // namespace weir
