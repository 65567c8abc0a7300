// SPDX-License-Identifier: Apache-2.0
// A bounded queue: many threads put events in without a lock, one thread takes them out.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <optional>
#include <vector>

#include "weir/event.h"

namespace weir {

// Source: Vyukov, "Bounded MPMC queue" (1024cores.net), with a single consumer. Each cell's turn
// says whose it is: `n` for the producer of event n, `n + 1` for the consumer of event n.
class EventRing {
 public:
  // `capacity` is rounded up to a power of two.
  explicit EventRing(std::size_t capacity) : cells_(std::bit_ceil(capacity < 2 ? 2 : capacity)) {
    for (std::size_t i = 0; i < cells_.size(); ++i) cells_[i].turn.store(i);
  }

  // False, at once, when the ring is full. Any thread.
  bool push(const Event& event) {
    std::size_t n = next_.load(std::memory_order_relaxed);
    for (;;) {
      Cell& cell = cells_[n & (cells_.size() - 1)];
      const std::size_t turn = cell.turn.load(std::memory_order_acquire);
      if (turn == n) {
        if (next_.compare_exchange_weak(n, n + 1, std::memory_order_relaxed)) {
          cell.event = event;
          cell.turn.store(n + 1, std::memory_order_release);
          return true;
        }
      } else if (turn < n) {
        return false;  // the consumer has yet to free this cell of the round before
      } else {
        n = next_.load(std::memory_order_relaxed);
      }
    }
  }

  std::size_t capacity() const { return cells_.size(); }

  // The oldest event, if any. One thread at a time.
  std::optional<Event> pop() {
    Cell& cell = cells_[taken_ & (cells_.size() - 1)];
    if (cell.turn.load(std::memory_order_acquire) != taken_ + 1) return std::nullopt;
    const Event event = cell.event;
    cell.turn.store(taken_ + cells_.size(), std::memory_order_release);
    ++taken_;
    return event;
  }

 private:
  // Lines of the cache of its own, so that two threads that push meet on none but next_'s.
  struct alignas(64) Cell {
    std::atomic<std::size_t> turn{0};
    Event event;
  };
  static_assert(sizeof(Cell) == 128);

  std::vector<Cell> cells_;
  alignas(64) std::atomic<std::size_t> next_{0};
  alignas(64) std::size_t taken_ = 0;  // the consumer's own
};

}  // namespace weir
