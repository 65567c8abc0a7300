// SPDX-License-Identifier: Apache-2.0
#include "torch/deferred_frees.h"

#include <algorithm>
#include <utility>

namespace weir::pytorch {

class DeferredFrees::Event {
 public:
  Event(Device& device, EventHandle handle) : device_(device), handle_(handle) {}
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { (void)device_.destroy_event(handle_); }
  Result<bool> query() const { return device_.query(handle_); }
  void synchronize() const { (void)device_.synchronize(handle_); }
  Status record(Stream stream) const { return device_.record(handle_, stream); }

 private:
  Device& device_;
  const EventHandle handle_;
};

void DeferredFrees::add_user(const void* block, Device& device, Stream user) {
  const std::lock_guard lock(mutex_);
  Uses& uses = users_[block];
  const bool known = std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
    return use.device == &device && use.user == user;
  });
  if (!known) uses.push_back({&device, user, nullptr});
  count();
}

Status DeferredFrees::record(Uses& uses) {
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

Result<bool> DeferredFrees::is_done(Uses& uses) {
  if (Status recorded = record(uses); !recorded) return std::move(recorded).error();
  for (const Use& use : uses) {
    if (use.event == nullptr) return false;
    Result<bool> done = use.event->query();
    if (!done || !*done) return done;
  }
  return true;
}

Result<bool> DeferredFrees::defer(void* block) {
  const std::lock_guard lock(mutex_);
  const auto known = users_.find(block);
  if (known == users_.end()) return false;
  Uses uses = std::move(known->second);
  users_.erase(known);
  Status recorded = record(uses);
  if (recorded) waiting_[block] = std::move(uses);
  count();
  if (!recorded) return std::move(recorded).error();
  return true;
}

bool DeferredFrees::is_waiting(const void* block) const {
  const std::lock_guard lock(mutex_);
  return waiting_.contains(const_cast<void*>(block));
}

void DeferredFrees::forget(const void* block) {
  const std::lock_guard lock(mutex_);
  users_.erase(block);
  waiting_.erase(const_cast<void*>(block));
  count();
}

std::vector<DeferredFrees::Done> DeferredFrees::take_done() {
  const std::lock_guard lock(mutex_);
  std::vector<Done> all;
  for (auto each = waiting_.begin(); each != waiting_.end();) {
    Result<bool> done = is_done(each->second);
    if (done && !*done) {
      ++each;
      continue;
    }
    all.push_back({each->first, done ? Status{} : Status(std::move(done).error())});
    each = waiting_.erase(each);
  }
  count();
  return all;
}

std::vector<DeferredFrees::Done> DeferredFrees::wait_and_take_done() {
  std::vector<std::shared_ptr<Event>> events;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [block, uses] : waiting_) {
      (void)record(uses);  // take_done() reports what fails
      for (const Use& use : uses) {
        if (use.event != nullptr) events.push_back(use.event);
      }
    }
  }
  for (const std::shared_ptr<Event>& event : events) event->synchronize();
  return take_done();
}

// With mutex_ held.
void DeferredFrees::count() {
  blocks_.store(users_.size() + waiting_.size(), std::memory_order_relaxed);
}

}  // namespace weir::pytorch
