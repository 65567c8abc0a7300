// SPDX-License-Identifier: Apache-2.0
#include "comm/watchdog.h"

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

// Marks of a queue that grows stand for one piece each, later ones for more; the last stands for
// all that finds no room.
Status Watchdog::mark(Line& line, Stream stream) {
  const std::size_t marks = line.marks.size();
  const bool is_new = marks == 0 || (marks < kMost && line.marks.back().pieces >=
                                                          kPieces[marks * kPieces.size() / kMost]);
  if (is_new && line.idle.empty()) {
    Result<EventHandle> event = device_.create_event();
    if (!event) return std::move(event).error();
    line.idle.push_back(*event);
  }
  const EventHandle event = is_new ? line.idle.back() : line.marks.back().event;
  if (Status recorded = device_.record(event, stream); !recorded) return recorded;
  if (marks == 0) line.since = device_.now();
  if (is_new) {
    line.idle.pop_back();
    line.marks.push_back({.event = event, .count = line.queued});
  } else {
    line.marks.back().count = line.queued;
    ++line.marks.back().pieces;
  }
  return {};
}

Status Watchdog::poll() {
  const std::lock_guard polling(polling_);
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

// Passes over what has ended. What the driver will not destroy stays.
Result<std::optional<Watchdog::Mark>> Watchdog::first_late(Line& line) {
  std::unique_lock lock(mutex_);
  const bool is_quiet = line.marks.empty();
  while (is_quiet && !line.idle.empty() && device_.destroy_event(line.idle.back())) {
    line.idle.pop_back();
  }
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

Status Watchdog::close() {
  const std::lock_guard polling(polling_);
  const std::lock_guard lock(mutex_);
  Status first;
  for (Line* const line : {&operations_, &launches_}) {
    for (const Mark& mark : std::exchange(line->marks, {})) line->idle.push_back(mark.event);
    for (const EventHandle event : std::exchange(line->idle, {})) {
      Status destroyed = device_.destroy_event(event);
      if (first && !destroyed) first = std::move(destroyed);
    }
  }
  return first;
}

}  // namespace weir
