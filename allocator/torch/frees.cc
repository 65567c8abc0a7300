// SPDX-License-Identifier: Apache-2.0
#include "torch/frees.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>

namespace weir::pytorch {

class Frees::Event {
 public:
  Event(EventCalls& device, EventHandle handle) : device_(device), handle_(handle) {}
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { (void)device_.destroy_event(handle_); }
  Result<bool> query() const { return device_.query(handle_); }
  void synchronize() const { (void)device_.synchronize(handle_); }
  Status record(Stream stream) const { return device_.record(handle_, stream); }

 private:
  EventCalls& device_;
  const EventHandle handle_;
};

void Frees::add_user(const void* block, Device& device, Stream user) {
  const std::lock_guard lock(mutex_);
  Uses& uses = users_[block];
  const bool known = std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
    return use.device == &device && use.user == user;
  });
  if (!known) uses.push_back({&device, user, nullptr});
  note_any();
}

Status Frees::record(Uses& uses) {
  for (Use& use : uses) {
    if (use.event != nullptr) continue;
    const Result<CaptureInfo::Status> status = use.device->capture_status(use.user);
    if (!status) return status.error();
    if (*status != CaptureInfo::Status::none) continue;
    Result<EventHandle> handle = use.device->create_event();
    if (!handle) return std::move(handle).error();
    auto event = std::make_shared<Event>(*use.device, *handle);
    if (Status recorded = event->record(use.user); !recorded) return recorded;
    use.event = std::move(event);
  }
  return {};
}

Result<bool> Frees::is_done(Uses& uses) {
  if (Status recorded = record(uses); !recorded) return std::move(recorded).error();
  for (const Use& use : uses) {
    if (use.event == nullptr) return false;
    Result<bool> done = use.event->query();
    if (!done || !*done) return done;
  }
  return true;
}

bool Frees::defer(void* block) {
  const std::lock_guard lock(mutex_);
  const auto known = users_.find(block);
  if (known == users_.end()) return false;
  Uses uses = std::move(known->second);
  users_.erase(known);
  if (const Status recorded = record(uses); !recorded) {
    note_failure(block, recorded.error());
  } else {
    waiting_[block] = std::move(uses);
  }
  note_any();
  return true;
}

bool Frees::is_waiting(const void* block) const {
  const std::lock_guard lock(mutex_);
  return waiting_.contains(const_cast<void*>(block));
}

void Frees::forget(const void* block) {
  const std::lock_guard lock(mutex_);
  users_.erase(block);
  waiting_.erase(const_cast<void*>(block));
  note_any();
}

std::vector<void*> Frees::take_done() {
  std::vector<void*> all;
  if (!any()) return all;
  const std::lock_guard lock(mutex_);
  for (auto each = waiting_.begin(); each != waiting_.end();) {
    const Result<bool> done = is_done(each->second);
    if (done && !*done) {
      ++each;
      continue;
    }
    if (done) {
      all.push_back(each->first);
    } else {
      note_failure(each->first, done.error());
    }
    each = waiting_.erase(each);
  }
  note_any();
  return all;
}

std::vector<void*> Frees::wait_and_take_done() {
  std::vector<std::shared_ptr<Event>> events;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [block, uses] : waiting_) {
      (void)record(uses);  // take_done() notes what fails
      for (const Use& use : uses) {
        if (use.event != nullptr) events.push_back(use.event);
      }
    }
  }
  for (const std::shared_ptr<Event>& event : events) event->synchronize();
  return take_done();
}

void Frees::note_failed(const void* block, const Error& error) {
  const std::lock_guard lock(mutex_);
  note_failure(block, error);
  note_any();
}

// With mutex_ held.
void Frees::note_failure(const void* block, const Error& error) {
  if (failure_) {
    ++later_failures_;
    return;
  }
  std::ostringstream message;
  message << "an earlier free of the block at " << block
          << " failed, and its memory stays in use: " << error.message();
  failure_ = Error(error.code(), message.str(), error.driver_code());
}

std::optional<Error> Frees::take_failure() {
  if (!any()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  std::optional<Error> first = std::exchange(failure_, std::nullopt);
  const std::size_t later = std::exchange(later_failures_, 0);
  note_any();
  if (later == 0) return first;
  return Error(first->code(),
               first->message() + " (and " + std::to_string(later) + " later frees failed)",
               first->driver_code());
}

// With mutex_ held.
void Frees::note_any() {
  any_.store(!users_.empty() || !waiting_.empty() || failure_, std::memory_order_relaxed);
}

}  // namespace weir::pytorch
