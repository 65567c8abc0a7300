// SPDX-License-Identifier: Apache-2.0
// A vector whose elements never move: whoever was told an index reads the element without a lock,
// while others are added. Source: Dechev, Pirkelbauer & Stroustrup 2006 (the layout only).
//
// Threads: push_back() by one at a time. operator[] by anyone who got the index from a thread that
// saw it pushed; what the elements need beyond that is their affair.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <memory>
#include <utility>

namespace weir {

template <class T>
class StableVector {
 public:
  StableVector() = default;
  StableVector(const StableVector&) = delete;
  StableVector& operator=(const StableVector&) = delete;
  ~StableVector() {
    for (std::size_t i = size(); i > 0; --i) std::destroy_at(&(*this)[i - 1]);
    for (std::size_t c = 0; c < kChunks; ++c) {
      if (T* const chunk = chunks_[c].load()) std::allocator<T>().deallocate(chunk, kFirst << c);
    }
  }

  std::size_t size() const { return size_.load(std::memory_order_acquire); }
  T& operator[](std::size_t i) { return *find(i); }
  const T& operator[](std::size_t i) const { return *find(i); }

  void push_back(T element) {
    const std::size_t i = size();
    const std::size_t c = chunk_of(i);
    if (chunks_[c].load(std::memory_order_relaxed) == nullptr) {
      chunks_[c].store(std::allocator<T>().allocate(kFirst << c), std::memory_order_release);
    }
    std::construct_at(find(i), std::move(element));
    size_.store(i + 1, std::memory_order_release);
  }

 private:
  // Chunk c has the kFirst << c elements from kFirst * (2^c - 1) on.
  static constexpr std::size_t kFirst = 16;
  static constexpr std::size_t kChunks = 29;
  static std::size_t chunk_of(std::size_t i) {
    return static_cast<std::size_t>(std::bit_width(i / kFirst + 1)) - 1;
  }
  T* find(std::size_t i) const {
    if (i < kFirst) [[likely]]
      return chunks_[0].load(std::memory_order_acquire) + i;
    const std::size_t c = chunk_of(i);
    return chunks_[c].load(std::memory_order_acquire) + (i - kFirst * ((std::size_t{1} << c) - 1));
  }

  std::array<std::atomic<T*>, kChunks> chunks_{};
  std::atomic<std::size_t> size_{0};
};

}  // namespace weir
