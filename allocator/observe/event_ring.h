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

// An event in little room: no kind has all of the fields, so some share a place.
class PackedEvent {
 public:
  void set(const Event& event) {
    time_ = event.time;
    stream_ = event.stream;
    heap_ = event.heap;
    kind_ = event.kind;
    plain_ = event.plain;
    switch (shape_of(event.kind)) {
      case Shape::block:
        set(event.address.value, event.bytes.count, event.requested.count, event.stack);
        break;
      case Shape::page:
        set(event.address.value, event.bytes.count, event.requested.count, event.page.value);
        break;
      case Shape::time:
        set(event.address.value, event.other, event.sequence.value, 0);
        break;
      case Shape::host:
        set(static_cast<std::uint64_t>(event.duration.count), event.other, event.sequence.value, 0);
        break;
      case Shape::pool:
        set(0, event.pool, 0, 0);
        break;
    }
  }

  Event get() const {
    Event event{.kind = kind_, .plain = plain_, .heap = heap_, .time = time_, .stream = stream_};
    const Shape shape = shape_of(kind_);
    if (shape == Shape::pool) return event.pool = b_, event;
    if (shape == Shape::time || shape == Shape::host) {
      event.other = b_;
      event.sequence = Sequence{c_};
    } else {
      event.bytes = Bytes{b_};
      event.requested = Bytes{c_};
    }
    if (shape == Shape::host) {
      event.duration = Nanoseconds{static_cast<std::int64_t>(a_)};
    } else {
      event.address = Address{a_};
    }
    if (shape == Shape::block) event.stack = d_;
    if (shape == Shape::page) event.page = PageId{d_};
    return event;
  }

 private:
  enum class Shape : std::uint8_t { block, page, time, host, pool };
  static Shape shape_of(EventKind kind) {
    switch (kind) {
      case EventKind::create:
      case EventKind::release:
      case EventKind::map:
      case EventKind::unmap:
      case EventKind::lease:
      case EventKind::unlease:
        return Shape::page;
      case EventKind::fence:
      case EventKind::stream_wait:
      case EventKind::context_events_lost:
        return Shape::time;
      case EventKind::host_wait:
        return Shape::host;
      case EventKind::heap_open:
      case EventKind::pool_open:
      case EventKind::pool_close:
      case EventKind::capture_begin:
      case EventKind::capture_end:
        return Shape::pool;
      default:
        return Shape::block;
    }
  }
  void set(std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint32_t d) {
    a_ = a;
    b_ = b;
    c_ = c;
    d_ = d;
  }

  Nanoseconds time_;
  std::uint64_t stream_ = 0;
  std::uint64_t a_ = 0;  // address, or duration
  std::uint64_t b_ = 0;  // bytes, other or pool
  std::uint64_t c_ = 0;  // requested, or sequence
  HeapId heap_;
  std::uint32_t d_ = 0;  // stack, or page
  EventKind kind_ = EventKind::allocate;
  bool plain_ = false;
};

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
          cell.event.set(event);
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
    const Event event = cell.event.get();
    cell.turn.store(taken_ + cells_.size(), std::memory_order_release);
    ++taken_;
    return event;
  }

 private:
  // A line of the cache each, so that two threads that push meet on none but next_'s.
  struct alignas(64) Cell {
    std::atomic<std::size_t> turn{0};
    PackedEvent event;
  };
  static_assert(sizeof(Cell) == 64);

  std::vector<Cell> cells_;
  alignas(64) std::atomic<std::size_t> next_{0};
  alignas(64) std::size_t taken_ = 0;  // the consumer's own
};

}  // namespace weir
