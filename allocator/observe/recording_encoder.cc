// SPDX-License-Identifier: Apache-2.0
#include "observe/recording_encoder.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace weir {

using recording_format::BlockKind;
using recording_format::put;

void RecordingEncoder::header(std::string_view program, std::string_view device,
                              Bytes device_bytes) {
  std::string payload;
  const auto pair = [&](std::string_view name, std::string_view value) {
    put(payload, name);
    put(payload, value);
  };
  pair("program", program);
  pair("device", device);
  pair("device_bytes", std::to_string(device_bytes.count));
  output_.put(seal(BlockKind::header, payload));
}

void RecordingEncoder::initial(std::span<const Event> events) {
  for (const Event& event : events) encode(event, 0, BlockKind::initial);
  finish_block();
}

void RecordingEncoder::event(const Event& event, std::uint64_t dropped) {
  ++events_;
  encode(event, dropped, BlockKind::events);
}

void RecordingEncoder::encode(Event event, std::uint64_t dropped, BlockKind kind) {
  if (payload_.empty()) {
    kind_ = kind;
    coder_ = {};
    put(payload_, dropped);
  }
  // Threads read the clock before they reach the ring: keep the file's time from going back.
  event.time = time_ = std::max(time_, event.time);
  if (event.stack != 0) event.stack = stack_number(event.stack);
  coder_.encode(event, payload_);
  ++in_block_;
  if (payload_.size() >= full_) finish_block();
}

void RecordingEncoder::mark(Nanoseconds time, std::string_view text) {
  finish_block();
  std::string payload;
  put(payload, static_cast<std::uint64_t>(std::max(time, Nanoseconds{}).count));
  put(payload, text.substr(0, recording_format::kFullBlock));
  output_.put(seal(BlockKind::marks, payload));
}

void RecordingEncoder::finish_block() {
  if (!new_stacks_.empty()) {
    std::string stacks;
    put(stacks, first_frame_);
    put(stacks, std::uint64_t{frames_.size()} - first_frame_);
    stacks += std::exchange(new_frames_, {});
    put(stacks, first_stack_);
    put(stacks, std::uint64_t{stack_numbers_.size()} + 1 - first_stack_);
    stacks += std::exchange(new_stacks_, {});
    first_frame_ = frames_.size();
    first_stack_ = stack_numbers_.size() + 1;
    output_.put(seal(BlockKind::stacks, stacks));
  }
  if (payload_.empty()) return;
  output_.put(seal(kind_, payload_, std::exchange(in_block_, 0)));
  payload_.clear();
}

void RecordingEncoder::end(std::uint64_t dropped) {
  finish_block();
  std::string payload;
  put(payload, events_);
  put(payload, dropped);
  output_.put(seal(BlockKind::end, payload));
}

// In the file, from 1.
std::uint32_t RecordingEncoder::stack_number(std::uint32_t stack) {
  if (stacks_ == nullptr) return 0;
  const auto known = stack_numbers_.find(stack);
  if (known != stack_numbers_.end()) return known->second;
  const auto number = static_cast<std::uint32_t>(stack_numbers_.size() + 1);
  const std::vector<RecordedFrame> frames = stacks_->frames(stack);
  std::string numbers;
  for (const RecordedFrame& frame : frames) put(numbers, frame_number(frame));
  put(new_stacks_, std::uint64_t{frames.size()});
  new_stacks_ += numbers;
  stack_numbers_[stack] = number;
  return number;
}

std::uint64_t RecordingEncoder::frame_number(const RecordedFrame& frame) {
  const auto [known, is_new] =
      frames_.try_emplace({frame.function, frame.file, frame.line}, frames_.size());
  if (is_new) {
    put(new_frames_, std::string_view(frame.function));
    put(new_frames_, std::string_view(frame.file));
    put(new_frames_, std::uint64_t{frame.line});
  }
  return known->second;
}

}  // namespace weir
