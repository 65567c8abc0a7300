// SPDX-License-Identifier: Apache-2.0
#include "weir/event_log.h"

#include <algorithm>
#include <bit>

#include "observe/recording_format.h"

namespace weir {

using recording_format::EventFields;
using recording_format::fields_of;
using recording_format::kPlain;
using recording_format::put;
using recording_format::set_fields;
using recording_format::unzigzag;
using recording_format::zigzag;

namespace {

// An event takes no more: kind, time, which fields changed, and all of them, of which three have
// 32 bits (heap, stack and page).
constexpr std::size_t kMostEncoded = 1 + 10 + 2 + 8 * 10 + 3 * 5;

// As PayloadReader::number(), of bytes that put() wrote here.
std::uint64_t take(const char*& at) {
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(*at++);
    value |= std::uint64_t{byte & 0x7fU} << shift;
    if (byte < 0x80) return value;
  }
}

// What a block has beyond what was asked for, in place of that: it is smaller, and changes less.
// The same again undoes it.
EventFields with_slack(EventFields fields) {
  fields[2] = fields[1] - fields[2];
  return fields;
}

// Kinds that fill the same fields, with numbers near each other's.
std::size_t group_of(EventKind kind) {
  if (kind <= EventKind::fence) return static_cast<std::size_t>(kind);
  return kind >= EventKind::create && kind <= EventKind::unlease ? 3 : 4;
}

}  // namespace

void EventLog::Coder::encode(const Event& event, std::string& out) {
  const auto kind = static_cast<unsigned char>(event.kind);
  out += static_cast<char>(event.plain ? kind | kPlain : kind);
  const auto time = static_cast<std::uint64_t>(event.time.count);
  put(out, zigzag(time - time_));
  time_ = time;
  const EventFields fields = with_slack(fields_of(event));
  EventFields& last = last_[group_of(event.kind)];
  std::uint64_t changed = 0;
  for (std::size_t i = 0; i < fields.size(); ++i)
    changed |= std::uint64_t{fields[i] != last[i]} << i;
  put(out, changed);
  for (; changed != 0; changed &= changed - 1) {
    const auto i = static_cast<std::size_t>(std::countr_zero(changed));
    put(out, zigzag(fields[i] - last[i]));
  }
  last = fields;
}

const char* EventLog::Coder::decode(const char* at, Event& event) {
  const auto kind = static_cast<unsigned char>(*at++);
  event.kind = static_cast<EventKind>(kind & ~kPlain);
  event.plain = (kind & kPlain) != 0;
  time_ += unzigzag(take(at));
  EventFields& last = last_[group_of(event.kind)];
  for (std::uint64_t changed = take(at); changed != 0; changed &= changed - 1) {
    last[static_cast<std::size_t>(std::countr_zero(changed))] += unzigzag(take(at));
  }
  event.time = Nanoseconds{static_cast<std::int64_t>(time_)};
  (void)set_fields(event, with_slack(last));
  return at;
}

EventLog::EventLog(std::initializer_list<Event> events) : EventLog(std::span(events)) {}

EventLog::EventLog(std::span<const Event> events) {
  for (const Event& event : events) push_back(event);
}

void EventLog::push_back(const Event& event) {
  if (blocks_.empty() || blocks_.back().bytes.size() + kMostEncoded > kBlock) {
    Block& block = blocks_.emplace_back();
    block.bytes.reserve(kBlock);
    block.first = size_;
    block.time = event.time;
    coder_ = {};
  }
  if (size_++ == 0) front_ = event;
  back_ = event;
  coder_.encode(back_, blocks_.back().bytes);
}

Event EventLog::operator[](std::size_t index) const { return *from(index); }

EventIterator EventLog::begin() const { return {*this, 0, 0}; }

EventIterator EventLog::end() const { return {*this, blocks_.size(), size_}; }

EventIterator EventLog::from(std::size_t index) const {
  if (index >= size_) return end();
  const auto after =
      std::upper_bound(blocks_.begin(), blocks_.end(), index,
                       [](std::size_t event, const Block& block) { return event < block.first; });
  const auto block = static_cast<std::size_t>(after - blocks_.begin()) - 1;
  EventIterator at(*this, block, blocks_[block].first);
  while (at.index_ < index) ++at;
  return at;
}

std::size_t EventLog::count_before(Nanoseconds time) const {
  const auto after =
      std::lower_bound(blocks_.begin(), blocks_.end(), time,
                       [](const Block& block, Nanoseconds at) { return block.time < at; });
  if (after == blocks_.begin()) return 0;
  const auto block = static_cast<std::size_t>(after - blocks_.begin()) - 1;
  EventIterator at(*this, block, blocks_[block].first);
  const std::size_t end = after == blocks_.end() ? size_ : after->first;
  while (at.index_ < end && at->time < time) ++at;
  return at.index_;
}

EventIterator::EventIterator(const EventLog& log, std::size_t block, std::size_t index)
    : log_(&log), block_(block), index_(index) {
  if (block_ == log.blocks_.size()) return;
  at_ = log.blocks_[block_].bytes.data();
  read();
}

void EventIterator::read() { at_ = coder_.decode(at_, event_); }

EventIterator& EventIterator::operator++() {
  if (++index_ == log_->size_) return *this;
  if (block_ + 1 < log_->blocks_.size() && index_ == log_->blocks_[block_ + 1].first) {
    at_ = log_->blocks_[++block_].bytes.data();
    coder_ = {};
  }
  read();
  return *this;
}

EventIterator EventIterator::operator++(int) {
  EventIterator before = *this;
  ++*this;
  return before;
}

}  // namespace weir
