// SPDX-License-Identifier: Apache-2.0
#include "core/sleep/host_store.h"

#include <algorithm>
#include <utility>

namespace weir {

// Threads that make slabs, until there are as many as were asked for, or one can't be made. end()
// is called before it is destroyed.
class HostStore::Makers {
 public:
  Makers(CopyCalls& device, std::uint64_t slabs, unsigned threads)
      : device_(device), to_make_(slabs) {
    threads = static_cast<unsigned>(std::min<std::uint64_t>(threads, slabs));
    at_work_ = threads;
    for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { make(); });
  }
  Makers(const Makers&) = delete;
  Makers& operator=(const Makers&) = delete;

  // The next; null: there will be no more. An error is told once, after what was made before it.
  Result<void*> next() {
    std::unique_lock lock(mutex_);
    made_one_.wait(lock, [&] { return !made_.empty() || at_work_ == 0; });
    if (!made_.empty()) {
      void* const memory = made_.back();
      made_.pop_back();
      return memory;
    }
    if (!failed_) return std::exchange(failed_, Status{}).error();
    return nullptr;
  }
  // Makes no more than it has begun, and returns what nobody took.
  std::vector<void*> end() {
    stop_.store(true);
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    return std::exchange(made_, {});
  }

 private:
  void make() {
    while (!stop_.load()) {
      if (begun_.fetch_add(1) >= to_make_) break;
      Result<void*> memory = device_.allocate_host(kSlab);
      const std::lock_guard lock(mutex_);
      if (memory) {
        made_.push_back(*memory);
      } else {
        if (failed_) failed_ = std::move(memory).error();
        stop_.store(true);
      }
      made_one_.notify_one();
    }
    const std::lock_guard lock(mutex_);
    --at_work_;
    made_one_.notify_one();
  }

  CopyCalls& device_;
  const std::uint64_t to_make_;
  std::atomic<std::uint64_t> begun_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable made_one_;
  std::vector<void*> made_;  // guarded by mutex_, as what follows is
  Status failed_;
  unsigned at_work_ = 0;
  std::vector<std::thread> threads_;
};

HostStore::HostStore(CopyCalls& device) : device_(device) {}

HostStore::~HostStore() {
  settle();
  // What the device refuses here is lost: nobody is left to tell.
  for (const Slab& slab : slabs_) {
    if (slab.memory != nullptr) (void)device_.free_host(slab.memory, kSlab);
  }
}

Bytes HostStore::empty_bytes() const {
  Bytes bytes;
  for (std::size_t i = 0; i < slabs_.size(); ++i) {
    if (slabs_[i].memory == nullptr) continue;
    if (slabs_[i].filled == 0_B || i == current_) bytes += kSlab - slabs_[i].filled;
  }
  return bytes;
}

std::size_t HostStore::add(void* memory) {
  ++held_;
  const auto gap = std::find_if(slabs_.begin(), slabs_.end(),
                                [](const Slab& slab) { return slab.memory == nullptr; });
  const auto at = static_cast<std::size_t>(gap - slabs_.begin());
  if (gap == slabs_.end()) slabs_.emplace_back();
  slabs_[at] = {.memory = memory, .filled = {}, .taken = {}};
  return at;
}

Status HostStore::expect(Bytes bytes) {
  settle();
  Bytes room;
  {
    const std::lock_guard lock(mutex_);
    room = empty_bytes();
  }
  const std::uint64_t slabs = round_up(bytes - std::min(bytes, room), kSlab) / kSlab;
  if (const unsigned threads = device_.host_threads(); threads > 0 && slabs > 1) {
    makers_ = std::make_unique<Makers>(device_, slabs, threads);
    return {};
  }
  for (std::uint64_t i = 0; i < slabs; ++i) {
    Result<void*> memory = device_.allocate_host(kSlab);
    if (!memory) return std::move(memory).error();
    const std::lock_guard lock(mutex_);
    (void)add(*memory);
  }
  return {};
}

HostStore::Slab* HostStore::with_room() {
  if (current_ && slabs_[*current_].filled < kSlab) return &slabs_[*current_];
  current_.reset();
  for (std::size_t i = 0; i < slabs_.size() && !current_; ++i) {
    if (slabs_[i].memory != nullptr && slabs_[i].filled == 0_B) current_ = i;
  }
  return current_ ? &slabs_[*current_] : nullptr;
}

HostStore::Piece HostStore::cut(Slab& slab, Bytes most) {
  const Bytes size = std::min(most, kSlab - slab.filled);
  const Piece piece{(Address::of(slab.memory) + slab.filled).pointer(), size, *current_};
  slab.filled += size;
  slab.taken += size;
  return piece;
}

// No lock is held while memory is made.
Result<HostStore::Piece> HostStore::take(Bytes most) {
  {
    const std::lock_guard lock(mutex_);
    if (Slab* const slab = with_room()) return cut(*slab, most);
  }
  Result<void*> memory =
      makers_ != nullptr ? makers_->next() : Result<void*>(static_cast<void*>(nullptr));
  if (memory && *memory == nullptr) memory = device_.allocate_host(kSlab);
  if (!memory) return std::move(memory).error();
  const std::lock_guard lock(mutex_);
  current_ = add(*memory);
  return cut(slabs_[*current_], most);
}

void HostStore::give(const Piece& piece) {
  const std::lock_guard lock(mutex_);
  Slab& slab = slabs_[piece.slab];
  slab.taken -= piece.size;
  if (slab.taken == 0_B) slab.filled = 0_B;
}

void HostStore::settle() {
  if (makers_ == nullptr) return;
  const std::vector<void*> made = makers_->end();
  makers_.reset();
  const std::lock_guard lock(mutex_);
  for (void* const memory : made) (void)add(memory);
}

Status HostStore::shrink(Bytes keep) {
  std::vector<void*> going;
  {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < slabs_.size() && kSlab * held_ > keep; ++i) {
      if (slabs_[i].memory == nullptr || slabs_[i].taken > 0_B) continue;
      going.push_back(std::exchange(slabs_[i], {}).memory);
      --held_;
      if (current_ == i) current_.reset();
    }
  }
  std::atomic<std::size_t> next{0};
  std::vector<Status> freed(going.size());
  const auto free_some = [&] {
    for (std::size_t i = next.fetch_add(1); i < going.size(); i = next.fetch_add(1)) {
      freed[i] = device_.free_host(going[i], kSlab);
    }
  };
  std::vector<std::thread> helpers;
  const std::size_t most = going.size() / 2;
  for (unsigned i = 0; i < std::min<std::size_t>(device_.host_threads(), most); ++i) {
    helpers.emplace_back(free_some);
  }
  free_some();
  for (std::thread& helper : helpers) helper.join();
  Status failed;
  for (std::size_t i = 0; i < going.size(); ++i) {
    if (freed[i]) continue;
    if (failed) failed = std::move(freed[i]);
    const std::lock_guard lock(mutex_);
    (void)add(going[i]);
  }
  return failed;
}

}  // namespace weir
