// SPDX-License-Identifier: Apache-2.0
#include "core/pool/pool_bindings.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace weir {

std::uint64_t PoolBindings::next_id() {
  const std::unique_lock lock(mutex_);
  return ++last_;
}

void PoolBindings::open(std::uint64_t id, std::shared_ptr<CapturePool> pool, Takes takes, Kind kind,
                        const Capture& capture) {
  const std::unique_lock lock(mutex_);
  bindings_.push_back({.id = id,
                       .pool = std::move(pool),
                       .takes = std::move(takes),
                       .kind = kind,
                       .state = State::open,
                       .capture = capture,
                       .attached = {},
                       .counts = false});
  if (kind != Kind::eager) captures_on_.fetch_add(1, std::memory_order_relaxed);
}

std::shared_ptr<CapturePool> PoolBindings::close(std::uint64_t id, bool keep) {
  const std::unique_lock lock(mutex_);
  const auto binding = std::find_if(bindings_.begin(), bindings_.end(), [&](const Binding& each) {
    return each.id == id && each.state != State::paused;
  });
  if (binding == bindings_.end()) return nullptr;
  if (binding->captures()) {
    binding->takes = {};
    return pause(*binding, keep), nullptr;
  }
  std::shared_ptr<CapturePool> counts_too_many;
  if (binding->counts && !keep) counts_too_many = std::move(binding->pool);
  if (binding->takes) registry_.let_go_of_fast_paths();
  bindings_.erase(binding);
  return counts_too_many;
}

// The pool hears of it under the lock: nobody finds the capture over before its graph counts.
void PoolBindings::pause(Binding& binding, bool keep) {
  binding.state = State::paused;
  binding.pool->pause_capture(binding.id, keep, static_cast<int>(keep) - int{binding.counts});
  binding.counts = keep;
}

bool PoolBindings::is_within(std::uint64_t id) const {
  const std::shared_lock lock(mutex_);
  return std::any_of(bindings_.begin(), bindings_.end(),
                     [&](const Binding& each) { return each.id == id && each.capture.within; });
}

std::optional<Stream> PoolBindings::origin_to_ask(std::uint64_t id, bool lives) const {
  const std::shared_lock lock(mutex_);
  for (const Binding& each : bindings_) {
    if (each.id != id || each.kind != Kind::captured || each.state != State::open) continue;
    const std::optional<Stream>& origin = each.capture.origin;
    if (!origin || (origin->may_end && !lives)) continue;
    if (each.capture_id() == 0 || origin->may_end) return origin;
  }
  return std::nullopt;
}

void PoolBindings::note_goes_on(std::uint64_t id, std::uint64_t capture) {
  const std::unique_lock lock(mutex_);
  for (Binding& each : bindings_) {
    if (each.id != id) continue;
    if (each.capture.id == 0) each.capture.id = capture;
    each.capture.goes_on = true;
  }
}

void PoolBindings::resume(std::uint64_t id, Takes takes) {
  const std::unique_lock lock(mutex_);
  const auto binding = std::find_if(bindings_.begin(), bindings_.end(),
                                    [&](const Binding& each) { return each.id == id; });
  binding->takes = std::move(takes);
  binding->state = State::open;
  binding->capture.goes_on = false;
  std::rotate(binding, std::next(binding), bindings_.end());
  registry_.let_go_of_fast_paths();
}

bool PoolBindings::has_ended(const Binding& binding, std::uint64_t own,
                             const std::optional<Stream>& origin) const {
  if (!binding.captures()) return false;
  const std::uint64_t id = binding.capture_id();
  const bool is_paused = binding.state == State::paused;
  const bool is_scoped = binding.kind == Kind::scoped;
  const bool of_origin = origin && binding.capture.origin == origin;
  // The driver, asked whether the stream is captured, means the capture `own`.
  if (!is_scoped && of_origin && own != 0 && id != 0 && id != own) return true;
  if (own != 0 && (!is_paused || id == own)) return false;
  // A scope closes its binding when its capture is over, and not before.
  if (is_scoped) return is_paused;
  using Progress = OpenCaptures::Progress;
  const Result<Progress> progress = captures_.progress(binding.id);
  if (!progress || *progress == Progress::going_on) return false;
  if (*progress == Progress::over || of_origin) return true;
  return is_paused && !(*progress == Progress::unknown && binding.capture.goes_on);
}

// The pools hear of it under the lock: nobody finds a capture over before its pool does.
bool PoolBindings::end_past(std::uint64_t own, const std::optional<Stream>& origin) {
  if (captures_on_.load(std::memory_order_acquire) == 0) return false;
  const auto ended = [&](const Binding& each) { return has_ended(each, own, origin); };
  {
    const std::shared_lock lock(mutex_);
    if (std::none_of(bindings_.begin(), bindings_.end(), ended)) return false;
  }
  bool any = false;
  const std::unique_lock lock(mutex_);
  std::erase_if(bindings_, [&](Binding& each) {
    if (!ended(each)) return false;
    any = true;
    const bool closed = each.state == State::paused;
    // Whether it made a graph is not known until its binding is closed.
    if (!closed) pause(each, /*keep=*/true);
    each.state = State::over;
    captures_.ended(each.id);
    if (closed || !each.capture.within) {
      each.takes = {};
      registry_.let_go_of_fast_paths();
    }
    each.pool->end_capture(each.id);
    captures_on_.fetch_sub(1, std::memory_order_release);
    return closed;
  });
  return any;
}

std::shared_ptr<CapturePool> PoolBindings::find(Stream stream, const CaptureInfo& info) {
  const std::shared_lock lock(mutex_);
  const auto binding = std::find_if(bindings_.rbegin(), bindings_.rend(),
                                    [&](const Binding& each) { return each.serves(stream, info); });
  if (binding == bindings_.rend()) return nullptr;
  if (info.status != CaptureInfo::Status::none && binding->captures()) {
    std::atomic_ref(binding->capture.foreign).store(false, std::memory_order_relaxed);
    const std::atomic_ref id(binding->capture.id);
    if (id.load(std::memory_order_relaxed) == 0) {
      captures_.note_begun(binding->id);
      id.store(info.id, std::memory_order_relaxed);
    }
  }
  return binding->pool;
}

bool PoolBindings::lead_to(const CapturePool& pool) const {
  const std::shared_lock lock(mutex_);
  return std::any_of(bindings_.begin(), bindings_.end(),
                     [&](const Binding& each) { return each.pool.get() == &pool; });
}

std::uint64_t PoolBindings::of_capture(const CapturePool& pool, std::uint64_t capture,
                                       bool paused) const {
  const std::shared_lock lock(mutex_);
  for (const Binding& each : bindings_) {
    if (!each.captures() || (paused && each.state != State::paused)) continue;
    if (each.pool.get() == &pool && each.capture_id() == capture) return each.id;
  }
  return 0;
}

std::optional<bool> PoolBindings::attach(Stream stream, const CaptureInfo& info,
                                         CaptureAttachment attachment) {
  const std::unique_lock lock(mutex_);
  for (Binding& binding : bindings_) {
    if (!binding.captures() || !binding.serves(stream, info)) continue;
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
    if (binding.captures() && !binding.is_foreign()) oldest = std::min(oldest, binding.id);
  }
  return oldest;
}

}  // namespace weir
