// SPDX-License-Identifier: Apache-2.0
// Turns events, in order, into the blocks of a recording. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "observe/recording_format.h"
#include "observe/recording_output.h"
#include "weir/event.h"
#include "weir/recorder.h"

namespace weir {

class RecordingEncoder {
 public:
  // A block is full with `full` bytes. `stacks` may be null.
  RecordingEncoder(RecordingOutput& output, StackSource* stacks, std::size_t full)
      : output_(output), stacks_(stacks), full_(full) {}

  void header(std::string_view program, std::string_view device, Bytes device_bytes);
  void initial(std::span<const Event> events);
  // `dropped`: so far.
  void event(const Event& event, std::uint64_t dropped);
  void mark(Nanoseconds time, std::string_view text);
  // What is not in a block yet, is after this.
  void finish_block();
  bool has_unfinished() const { return !payload_.empty(); }
  void end(std::uint64_t dropped);

 private:
  void encode(Event event, std::uint64_t dropped, recording_format::BlockKind kind);
  std::uint32_t stack_number(std::uint32_t stack);
  std::uint64_t frame_number(const RecordedFrame& frame);

  RecordingOutput& output_;
  StackSource* const stacks_;
  const std::size_t full_;

  recording_format::BlockKind kind_ = recording_format::BlockKind::events;  // of payload_
  std::string payload_;
  recording_format::EventCoder coder_;
  std::uint64_t in_block_ = 0, events_ = 0;
  Nanoseconds time_;

  std::unordered_map<std::uint32_t, std::uint32_t> stack_numbers_;  // by the source's
  std::map<std::tuple<std::string, std::string, std::uint32_t>, std::uint64_t> frames_;
  // Of the next block of stacks.
  std::string new_frames_, new_stacks_;
  std::uint64_t first_frame_ = 0, first_stack_ = 1;
};

}  // namespace weir
