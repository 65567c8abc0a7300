// SPDX-License-Identifier: Apache-2.0
#include "comm/watchdog.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace weir {
namespace {

constexpr const char* kRemedy =
    ". Another rank has not come to it, asks for something else, or is gone: look at their logs. "
    "If it is only slow, raise CommunicatorOptions::timeout";

}  // namespace

std::string seconds(Nanoseconds time) {
  return fmt::format("{}.{} s", time.count / 1'000'000'000, time.count / 100'000'000 % 10);
}

// Marks of a queue that grows stand for one piece each, later ones for more; the last stands for
// all that finds no room.
Status Watchdog::queued(std::span<const Operation> group, Stream stream) {
  const std::lock_guard lock(mutex_);
  queued_ += std::max<std::size_t>(group.size(), 1);
  const std::size_t marks = marks_.size();
  const bool is_new = marks == 0 || (marks < kMost && marks_.back().pieces >=
                                                          kPieces[marks * kPieces.size() / kMost]);
  if (is_new && idle_.empty()) {
    Result<EventHandle> event = device_.create_event();
    if (!event) return std::move(event).error();
    idle_.push_back(*event);
  }
  const EventHandle event = is_new ? idle_.back() : marks_.back().event;
  if (Status recorded = device_.record(event, stream); !recorded) return recorded;
  if (marks == 0) since_ = device_.now();
  if (is_new) {
    idle_.pop_back();
    marks_.push_back({event, group.empty() ? std::nullopt : std::optional(group.front()), queued_});
  } else {
    marks_.back().count = queued_;
    ++marks_.back().pieces;
  }
  return {};
}

// Passes over what has ended. What the driver will not destroy stays.
Status Watchdog::poll() {
  const std::lock_guard polling(polling_);
  std::unique_lock lock(mutex_);
  const bool is_quiet = marks_.empty();
  while (is_quiet && !idle_.empty() && device_.destroy_event(idle_.back())) idle_.pop_back();
  while (!marks_.empty()) {
    const Mark first = marks_.front();  // only polls take it away
    lock.unlock();
    const Result<bool> ended = device_.query(first.event);
    lock.lock();
    if (!ended) return ended.error();
    if (!*ended) {
      const bool is_late = timeout_ > Nanoseconds{} &&
                           (device_.now() - since_).count / first.pieces > timeout_.count;
      if (!is_late) return {};
      // It, or one of those that the mark stands for.
      const std::uint64_t after = first.count - done_ - 1;
      const std::string others = after == 0 ? "" : fmt::format(" or one of the {} after it", after);
      return Error(ErrorCode::device,
                   fmt::format("{},{} has not ended in {}{}", first_open_locked(), others,
                               seconds(device_.now() - since_), kRemedy));
    }
    done_ = first.count;
    since_ = device_.now();
    idle_.push_back(first.event);
    marks_.pop_front();
  }
  return {};
}

// An event that is recorded again meanwhile stands for later work too.
Status Watchdog::synchronize() {
  const std::lock_guard polling(polling_);  // nobody takes marks away
  std::vector<EventHandle> events;
  {
    const std::lock_guard lock(mutex_);
    for (const Mark& mark : marks_) events.push_back(mark.event);
  }
  for (const EventHandle event : events) {
    if (Status ended = device_.synchronize(event); !ended) return ended;
  }
  return {};
}

std::string Watchdog::first_open() {
  const std::lock_guard lock(mutex_);
  return marks_.empty() ? "" : first_open_locked();
}

std::string Watchdog::first_open_locked() const {
  const std::optional<Operation>& first = marks_.front().first;
  return fmt::format("operation {}, {}", done_ + 1,
                     first ? first->describe(ranks_) : "the launch of a graph");
}

Status Watchdog::close() {
  const std::lock_guard polling(polling_);
  const std::lock_guard lock(mutex_);
  for (const Mark& mark : std::exchange(marks_, {})) idle_.push_back(mark.event);
  Status first;
  for (const EventHandle event : std::exchange(idle_, {})) {
    Status destroyed = device_.destroy_event(event);
    if (first && !destroyed) first = std::move(destroyed);
  }
  return first;
}

}  // namespace weir
