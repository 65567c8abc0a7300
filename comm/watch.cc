#include "comm/watch.h"

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

Watch::~Watch() {
  for (const Mark* const mark : {&operations_, &first_launch_, &last_launch_}) {
    if (mark->event.value != 0) (void)device_.destroy_event(mark->event);
  }
}

void Watch::queued(const Operation& operation) {
  const std::lock_guard lock(mutex_);
  latest_[queued_++ % kNamed] = operation;
}

Status Watch::launched(Stream stream) {
  const std::lock_guard lock(mutex_);
  ++launches_;
  return set(first_launch_.set ? last_launch_ : first_launch_, stream, launches_);
}

Status Watch::set(Mark& mark, Stream stream, std::uint64_t count) {
  if (mark.event.value == 0) {
    Result<EventHandle> event = device_.create_event();
    if (!event) return std::move(event).error();
    mark.event = *event;
  }
  if (Status recorded = device_.record(mark.event, stream); !recorded) return recorded;
  mark.count = count;
  mark.since = device_.now();
  mark.set = true;
  return {};
}

bool Watch::is_late(const Mark& mark) const {
  return timeout_ > Nanoseconds{} && device_.now() - mark.since > timeout_;
}

Status Watch::poll(std::optional<Stream> eager) {
  const std::lock_guard polling(polling_);
  if (eager) {
    if (Status status = poll_operations(*eager); !status) return status;
  }
  return poll_launches();
}

std::string Watch::first_open() {
  const std::lock_guard lock(mutex_);
  return queued_ == done_ ? "" : first_open_locked();
}

std::string Watch::first_open_locked() const {
  std::string what = "operation " + std::to_string(done_ + 1);
  if (queued_ - done_ <= kNamed) what += ", " + latest_[done_ % kNamed].describe(ranks_);
  return what;
}

Status Watch::poll_operations(Stream eager) {
  std::unique_lock lock(mutex_);
  if (operations_.set) {
    lock.unlock();  // only this sets it
    const Result<bool> done = device_.query(operations_.event);
    lock.lock();
    if (!done) return done.error();
    if (!*done && is_late(operations_)) {
      // It, or one of those that were queued before the mark.
      const std::uint64_t after = operations_.count - done_ - 1;
      std::string what = first_open_locked() + ",";
      if (after == 1) what += " or the one after it";
      if (after > 1) what += " or one of the " + std::to_string(after) + " after it";
      return Error(ErrorCode::device, what + " has not ended in " +
                                          seconds(device_.now() - operations_.since) + kRemedy);
    }
    if (!*done) return {};
    done_ = operations_.count;
    operations_.set = false;
  }
  return queued_ == done_ ? Status{} : set(operations_, eager, queued_);
}

Status Watch::poll_launches() {
  std::unique_lock lock(mutex_);
  if (!first_launch_.set) return {};
  lock.unlock();  // while it is set, launched() leaves it alone
  const Result<bool> done = device_.query(first_launch_.event);
  lock.lock();
  if (!done) return done.error();
  if (!*done && is_late(first_launch_)) {
    return Error(ErrorCode::device, "launch " + std::to_string(first_launch_.count) +
                                        " of a graph has not ended in " +
                                        seconds(device_.now() - first_launch_.since) + kRemedy);
  }
  if (!*done) return {};
  first_launch_.set = false;
  std::swap(first_launch_, last_launch_);  // none: not set
  return {};
}

}  // namespace weir
