// SPDX-License-Identifier: Apache-2.0
// A queue whose slots are used again and again, so that it asks for no memory once it has grown.
// Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace weir {

// A popped element stays in its slot as it was, and push_slot() gives it out again: what it holds
// (the capacity of a vector, say) serves the next.
template <class T>
class Ring {
 public:
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return slots_[slot(i)]; }
  const T& operator[](std::size_t i) const { return slots_[slot(i)]; }
  T& front() { return (*this)[0]; }
  const T& front() const { return (*this)[0]; }
  T& back() { return (*this)[size_ - 1]; }
  const T& back() const { return (*this)[size_ - 1]; }

  // The new last element, to be assigned.
  T& push_slot() {
    if (size_ == capacity_) [[unlikely]]
      grow();
    return slots_[slot(size_++)];
  }
  void pop() {
    first_ = slot(1);
    --size_;
  }
  // Gives back the slots that hold nothing now.
  void shrink() {
    Ring smaller;
    for (std::size_t i = 0; i < size_; ++i) smaller.push_slot() = std::move((*this)[i]);
    *this = std::move(smaller);
  }

 private:
  std::size_t slot(std::size_t i) const { return (first_ + i) & (capacity_ - 1); }
  [[gnu::cold, gnu::noinline]] void grow() {
    std::rotate(slots_.begin(), slots_.begin() + static_cast<std::ptrdiff_t>(first_), slots_.end());
    first_ = 0;
    capacity_ = std::max<std::size_t>(4, 2 * capacity_);
    slots_.resize(capacity_);
  }

  std::vector<T> slots_;
  std::size_t capacity_ = 0;  // their number, a power of two
  std::size_t first_ = 0;
  std::size_t size_ = 0;
};

}  // namespace weir
