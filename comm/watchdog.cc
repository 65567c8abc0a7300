// SPDX-License-Identifier: Apache-2.0
#include "comm/watchdog.h"

#include <algorithm>
#include <utility>

namespace weir {
namespace {

constexpr const char* kRemedy =
    ". Another rank has not come to it, asks for something else, or is gone: look at their logs. "
    "If "
    "it is only slow, raise CommunicatorOptions::timeout";

}  // namespace

std::string seconds(Nanoseconds time) {
  const std::int64_t tenths = time.count / 100'000'000;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

Watchdog::~Watchdog() {
  for (Line* const line : {&operations_, &launches_}) {
    for (const Mark& mark : line->marks) line->idle.push_back(mark.event);
    for (const EventHandle event : line->idle) (void)device_.destroy_event(event);
  }
}

Status Watchdog::queued(std::span<const Operation> group, Stream stream) {
  const std::lock_guard lock(mutex_);
  for (const Operation& operation : group) latest_[operations_.queued++ % kNamed] = operation;
  return mark(operations_, stream);
}

Status Watchdog::launched(Stream stream) {
  const std::lock_guard lock(mutex_);
  ++launches_.queued;
  return mark(launches_, stream);
}

Status Watchdog::mark(Line& line, Stream stream) {
  if (line.marks.empty()) line.stride = 1;
  const auto last_is_whole = [&] {
    return line.marks.size() < 2 || line.marks.back().pieces >= line.stride;
  };
  if (line.marks.size() == kMost && last_is_whole()) thin(line);
  const bool is_new = last_is_whole();
  if (is_new && line.idle.empty()) {
    Result<EventHandle> event = device_.create_event();
    if (!event) return std::move(event).error();
    line.idle.push_back(*event);
  }
  const EventHandle event = is_new ? line.idle.back() : line.marks.back().event;
  if (Status recorded = device_.record(event, stream); !recorded) return recorded;
  if (line.marks.empty()) line.since = device_.now();
  if (is_new) {
    line.idle.pop_back();
    line.marks.push_back({.event = event, .count = line.queued});
    line.most = std::max(line.most, line.marks.size());
  } else {
    line.marks.back().count = line.queued;
    ++line.marks.back().pieces;
  }
  return {};
}

// Every second mark goes, and the one behind it stands for both.
void Watchdog::thin(Line& line) {
  const std::deque<Mark> all = std::exchange(line.marks, {});
  line.marks.push_back(all.front());
  for (std::size_t i = 1; i < all.size(); i += 2) {
    line.marks.push_back(all[i]);
    if (i + 1 == all.size()) break;
    line.idle.push_back(all[i].event);
    line.marks.back() = all[i + 1];
    line.marks.back().pieces += all[i].pieces;
  }
  line.stride *= 2;
}

Status Watchdog::poll() {
  const std::lock_guard polling(polling_);
  for (Line* const line : {&operations_, &launches_}) destroy_idle(*line);
  Result<std::optional<Mark>> late = first_late(operations_);
  if (!late) return std::move(late).error();
  if (*late) {
    const std::lock_guard lock(mutex_);
    // It, or one of those that the mark stands for.
    const std::uint64_t after = (*late)->count - operations_.done - 1;
    std::string what = first_open_locked() + ",";
    if (after == 1) what += " or the one after it";
    if (after > 1) what += " or one of the " + std::to_string(after) + " after it";
    return Error(ErrorCode::device, what + " has not ended in " +
                                        seconds(device_.now() - operations_.since) + kRemedy);
  }
  late = first_late(launches_);
  if (!late) return std::move(late).error();
  if (!*late) return {};
  const std::lock_guard lock(mutex_);
  return Error(ErrorCode::device, "launch " + std::to_string(launches_.done + 1) +
                                      " of a graph has not ended in " +
                                      seconds(device_.now() - launches_.since) + kRemedy);
}

// After a burst the events go little by little. What the driver will not destroy stays.
void Watchdog::destroy_idle(Line& line) {
  const std::lock_guard lock(mutex_);
  const std::size_t wanted = std::exchange(line.most, line.marks.size()) + kIdle;
  for (std::size_t i = 0; i < kDestroyed && !line.idle.empty(); ++i) {
    if (line.idle.size() + line.marks.size() <= wanted) return;
    if (!device_.destroy_event(line.idle.back())) return;
    line.idle.pop_back();
  }
}

// Passes over what has ended.
Result<std::optional<Watchdog::Mark>> Watchdog::first_late(Line& line) {
  std::unique_lock lock(mutex_);
  while (!line.marks.empty()) {
    const Mark first = line.marks.front();  // only polls take it away
    lock.unlock();
    const Result<bool> ended = device_.query(first.event);
    lock.lock();
    if (!ended) return ended.error();
    if (!*ended) {
      const bool late = timeout_ > Nanoseconds{} &&
                        (device_.now() - line.since).count / first.pieces > timeout_.count;
      return late ? std::optional(first) : std::nullopt;
    }
    line.done = first.count;
    line.since = device_.now();
    line.idle.push_back(first.event);
    line.marks.pop_front();
  }
  return std::optional<Mark>();
}

Status Watchdog::synchronize() {
  const std::lock_guard polling(polling_);  // nobody takes marks away
  std::vector<EventHandle> events;
  {
    const std::lock_guard lock(mutex_);
    for (const Mark& mark : operations_.marks) events.push_back(mark.event);
  }
  for (const EventHandle event : events) {
    if (Status ended = device_.synchronize(event); !ended) return ended;
  }
  return {};
}

std::string Watchdog::first_open() {
  const std::lock_guard lock(mutex_);
  return operations_.queued == operations_.done ? "" : first_open_locked();
}

std::string Watchdog::first_open_locked() const {
  const std::uint64_t done = operations_.done;
  std::string what = "operation " + std::to_string(done + 1);
  if (operations_.queued - done <= kNamed) what += ", " + latest_[done % kNamed].describe(ranks_);
  return what;
}

}  // namespace weir
