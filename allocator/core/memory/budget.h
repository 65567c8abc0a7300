// SPDX-License-Identifier: Apache-2.0
// What the page heaps of one device share: how much they may hold together, and numbers for pages.
//
// Threads: self-synchronised.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "weir/types.h"

namespace weir {

class Budget {
 public:
  explicit Budget(Bytes limit) : limit_(limit.count) {}

  // Zero: none.
  void set_limit(Bytes limit) { limit_.store(limit.count, std::memory_order_relaxed); }
  Bytes limit() const { return {limit_.load(std::memory_order_relaxed)}; }
  Bytes held() const { return {held_.load(std::memory_order_relaxed)}; }
  void take(Bytes bytes) {
    const std::uint64_t held =
        held_.fetch_add(bytes.count, std::memory_order_relaxed) + bytes.count;
    std::uint64_t most = most_.load(std::memory_order_relaxed);
    while (most < held && !most_.compare_exchange_weak(most, held, std::memory_order_relaxed)) {
    }
  }
  // Would the page heaps with so much more hold more than ever, or than they may?
  bool is_most(Bytes more) const {
    return held() + more > Bytes{most_.load(std::memory_order_relaxed)} || more > room();
  }
  void give_back(Bytes bytes) { held_.fetch_sub(bytes.count, std::memory_order_relaxed); }

  // Two that ask at once may both be told of the same room.
  Bytes room() const {
    const Bytes limit = this->limit();
    return limit == 0_B ? Bytes{~std::uint64_t{0}} : limit - std::min(limit, held());
  }
  // Held beyond the limit: it was lowered, or two asked at once.
  Bytes excess() const {
    const Bytes limit = this->limit();
    if (limit == 0_B) return 0_B;
    const Bytes held = this->held();
    return held - std::min(held, limit);
  }

  // Is there more than one page heap, or was there ever?
  bool shared() const { return shared_.load(std::memory_order_relaxed); }
  void share() { shared_.store(true, std::memory_order_relaxed); }

  PageId next_page() { return PageId{pages_.fetch_add(1, std::memory_order_relaxed)}; }

 private:
  std::atomic<std::uint64_t> limit_, held_{0}, most_{0};
  std::atomic<std::uint32_t> pages_{0};
  std::atomic<bool> shared_{false};
};

}  // namespace weir
