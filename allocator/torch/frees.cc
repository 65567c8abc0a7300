// SPDX-License-Identifier: Apache-2.0
#include "torch/frees.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>

namespace weir::pytorch {

void Frees::add_user(const void* block, Device& device, Stream user) {
  const std::lock_guard lock(mutex_);
  std::vector<Use>& uses = blocks_[block].uses;
  const bool known = std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
    return use.device == &device && use.user == user;
  });
  if (!known) uses.push_back({&device, user, nullptr});
  note_any();
}

// An event on each stream that has none yet and is not being captured.
Status Frees::record(Block& block) {
  for (Use& use : block.uses) {
    if (use.event != nullptr) continue;
    const Result<CaptureInfo::Status> status = use.device->capture_status(use.user);
    if (!status) return status.error();
    if (*status != CaptureInfo::Status::none) continue;
    Result<EventHandle> made = use.device->create_event();
    if (!made) return std::move(made).error();
    std::shared_ptr<const EventHandle> event(new EventHandle(*made),
                                             [device = use.device](const EventHandle* handle) {
                                               (void)device->destroy_event(*handle);
                                               delete handle;
                                             });
    if (Status recorded = use.device->record(*event, use.user); !recorded) return recorded;
    use.event = std::move(event);
  }
  return {};
}

Result<bool> Frees::is_done(Block& block) {
  if (Status recorded = record(block); !recorded) return std::move(recorded).error();
  for (const Use& use : block.uses) {
    if (use.event == nullptr) return false;
    Result<bool> done = use.device->query(*use.event);
    if (!done || !*done) return done;
  }
  return true;
}

bool Frees::defer(void* block) {
  const std::lock_guard lock(mutex_);
  const auto known = blocks_.find(block);
  if (known == blocks_.end()) return false;
  known->second.is_freed = true;
  if (const Status recorded = record(known->second); !recorded) {
    note_failure(block, recorded.error());
    blocks_.erase(known);
  }
  note_any();
  return true;
}

bool Frees::is_waiting(const void* block) const {
  const std::lock_guard lock(mutex_);
  const auto known = blocks_.find(block);
  return known != blocks_.end() && known->second.is_freed;
}

void Frees::forget(const void* block) {
  const std::lock_guard lock(mutex_);
  blocks_.erase(block);
  note_any();
}

std::vector<void*> Frees::take_done() {
  if (!any()) return {};
  return polls_ ? take_seen() : wait_and_take_done();
}

std::vector<void*> Frees::take_seen() {
  std::vector<void*> all;
  const std::lock_guard lock(mutex_);
  for (auto each = blocks_.begin(); each != blocks_.end();) {
    auto& [block, waiting] = *each;
    const Result<bool> done = waiting.is_freed ? is_done(waiting) : Result<bool>(false);
    if (!done) note_failure(block, done.error());
    if (done && *done) all.push_back(const_cast<void*>(block));
    each = done && !*done ? std::next(each) : blocks_.erase(each);
  }
  note_any();
  return all;
}

std::vector<void*> Frees::wait_and_take_done() {
  std::vector<Use> recorded;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [block, waiting] : blocks_) {
      if (!waiting.is_freed) continue;
      (void)record(waiting);  // take_seen() notes what fails
      recorded.insert(recorded.end(), waiting.uses.begin(), waiting.uses.end());
    }
  }
  for (const Use& use : recorded) {
    if (use.event != nullptr) (void)use.device->synchronize(*use.event);
  }
  return take_seen();
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
void Frees::note_any() { any_.store(!blocks_.empty() || failure_, std::memory_order_relaxed); }

}  // namespace weir::pytorch
