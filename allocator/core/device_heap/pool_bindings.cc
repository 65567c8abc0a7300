// SPDX-License-Identifier: Apache-2.0
#include "core/device_heap/pool_bindings.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace weir {

void PoolBindings::hold() {
  const std::unique_lock lock(mutex_);
  if (open_.fetch_add(1, std::memory_order_release) == 0) registry_.allow_fast_paths(false);
}

void PoolBindings::let_go() {
  const std::unique_lock lock(mutex_);
  let_go_locked();
}

void PoolBindings::let_go_locked() {
  if (open_.fetch_sub(1, std::memory_order_release) == 1) registry_.allow_fast_paths(true);
}

std::uint64_t PoolBindings::open(std::shared_ptr<CapturePool> pool, Takes takes, Kind kind,
                                 std::uint64_t announced) {
  const std::unique_lock lock(mutex_);
  bindings_.push_back({++last_, std::move(pool), std::move(takes), kind, {}, announced});
  return last_;
}

std::optional<PoolBindings::Closed> PoolBindings::close(std::uint64_t id) {
  const std::unique_lock lock(mutex_);
  const auto binding = std::find_if(bindings_.begin(), bindings_.end(),
                                    [&](const Binding& each) { return each.id == id; });
  if (binding == bindings_.end()) return std::nullopt;
  Closed closed{std::move(binding->pool), binding->captures()};
  if (closed.captures) captures_.ended(binding->announced);
  bindings_.erase(binding);
  let_go_locked();
  return closed;
}

std::shared_ptr<CapturePool> PoolBindings::find(Stream stream, const CaptureInfo& info) {
  const std::shared_lock lock(mutex_);
  const auto binding = std::find_if(bindings_.rbegin(), bindings_.rend(),
                                    [&](const Binding& each) { return each.takes(stream, info); });
  if (binding == bindings_.rend()) return nullptr;
  if (info.status != CaptureInfo::Status::none && binding->captures()) {
    const std::atomic_ref begun(binding->begun);
    if (!begun.load(std::memory_order_relaxed)) {
      captures_.note_begun(binding->announced);
      begun.store(true, std::memory_order_relaxed);
    }
  }
  return binding->pool;
}

bool PoolBindings::lead_to(const CapturePool& pool) const {
  const std::shared_lock lock(mutex_);
  return std::any_of(bindings_.begin(), bindings_.end(),
                     [&](const Binding& each) { return each.pool.get() == &pool; });
}

std::optional<bool> PoolBindings::attach(Stream stream, const CaptureInfo& info,
                                         CaptureAttachment attachment) {
  const std::unique_lock lock(mutex_);
  for (Binding& binding : bindings_) {
    if (!binding.captures() || !binding.takes(stream, info)) continue;
    if (binding.kind == Kind::scoped) binding.attached.push_back(std::move(attachment));
    return binding.kind == Kind::scoped;
  }
  return std::nullopt;
}

std::vector<CaptureAttachment> PoolBindings::attached(std::uint64_t id) const {
  const std::shared_lock lock(mutex_);
  for (const Binding& binding : bindings_) {
    if (binding.id == id) return binding.attached;
  }
  return {};
}

std::uint64_t PoolBindings::last() const {
  const std::shared_lock lock(mutex_);
  return last_;
}

std::uint64_t PoolBindings::oldest_capture() const {
  const std::shared_lock lock(mutex_);
  std::uint64_t oldest = ~std::uint64_t{0};
  for (const Binding& binding : bindings_) {
    if (binding.captures()) oldest = std::min(oldest, binding.id);
  }
  return oldest;
}

}  // namespace weir
