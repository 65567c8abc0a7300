// SPDX-License-Identifier: Apache-2.0
// Statistics: each number lies between what was certain and what was possible.
#include <algorithm>
#include <array>

#include "tests/property/levels.h"
#include "tests/property/linearizable.h"

namespace weir::test {
namespace {

// The bounds of one gauge over a whole history.
struct Bounds {
  Levels certain, possible;
  // The certain level without the blocks that a reset_peaks() may have hidden from the peak: the
  // changes made during it count for the new peak or not at all.
  Levels surely_peaked;
  Levels certain_total, possible_total;

  void add(const BlockLifetime& lifetime, std::uint64_t amount, bool during_reset) {
    const auto by = static_cast<std::int64_t>(amount);
    possible.move(lifetime.allocate_begin, by);
    possible.move(lifetime.free_end, -by);
    possible_total.move(lifetime.allocate_begin, by);
    certain_total.move(lifetime.allocate_end, by);
    for (Levels* const levels : {&certain, &surely_peaked}) {
      if (levels == &surely_peaked && during_reset) continue;
      levels->move(lifetime.allocate_end, by);
      levels->move(lifetime.free_begin, -by);
    }
  }
  void settle() {
    for (Levels* const levels :
         {&certain, &possible, &surely_peaked, &certain_total, &possible_total}) {
      levels->settle();
    }
  }

  // Was there a moment of `call` at which the level may have been `level`?
  bool allow(std::int64_t level, const Call& call) const {
    std::vector<Stamp> moments = {call.begin};
    certain.add_changes(call.begin, call.end - 1, moments);
    possible.add_changes(call.begin, call.end - 1, moments);
    return std::any_of(moments.begin(), moments.end(), [&](Stamp moment) {
      return certain.at(moment) <= level && level <= possible.at(moment);
    });
  }
};

// live_blocks, live_bytes and requested_bytes of one heap, or of all.
struct BoundsOfHeap {
  std::array<Bounds, 3> gauges;
  void add(const BlockLifetime& lifetime, bool during_reset) {
    gauges[0].add(lifetime, 1, during_reset);
    gauges[1].add(lifetime, lifetime.bytes.count, during_reset);
    gauges[2].add(lifetime, lifetime.requested.count, during_reset);
  }
  void settle() {
    for (Bounds& bounds : gauges) bounds.settle();
  }
};
constexpr std::array kGauges = {"live_blocks", "live_bytes", "requested_bytes"};

template <class Of>
std::array<Gauge, 3> gauges_of(const Of& statistics) {
  return {statistics.live_blocks, statistics.live_bytes, statistics.requested_bytes};
}

class Checker {
 public:
  Checker(const History& history, const BlockLifetimes& lifetimes, const HeapOfStream& heaps,
          Complaints& complaints)
      : complaints_(complaints) {
    for (const Call& call : history) {
      if (call.kind == Call::Kind::reset_peaks) resets_.push_back(&call);
      const bool refused = call.kind == Call::Kind::allocate && call.error.has_value();
      if (refused) refused_.push_back(&call);
    }
    for (const BlockLifetime& lifetime : lifetimes.all()) {
      const bool during_reset = std::any_of(resets_.begin(), resets_.end(), [&](const Call* reset) {
        return lifetime.allocate_begin < reset->end && reset->begin < lifetime.allocate_end;
      });
      all_.add(lifetime, during_reset);
      const auto heap = heaps.find(lifetime.stream);
      if (heap == heaps.end()) {
        complaints.push_back("nothing shows which heap serves stream " +
                             std::to_string(lifetime.stream));
        continue;
      }
      by_heap_[heap->second].add(lifetime, during_reset);
    }
    all_.settle();
    for (auto& [heap, bounds] : by_heap_) bounds.settle();
  }

  void check(const Call& call) {
    const Statistics& all = *call.statistics;
    std::map<HeapId, HeapStatistics> listed;
    for (const HeapStatistics& heap : all.heaps) listed[heap.heap] = heap;
    for (const auto& [heap, bounds] : by_heap_) {
      // One that is not listed yet must have had nothing.
      const std::array gauges = gauges_of(listed[heap]);
      for (std::size_t i = 0; i < gauges.size(); ++i) {
        const std::string what = std::string(kGauges[i]) + " of heap " + std::to_string(heap.value);
        if (!bounds.gauges[i].allow(static_cast<std::int64_t>(gauges[i].current), call)) {
          complain(call, what, "current", gauges[i].current);
        }
        check_rest(call, what, gauges[i], bounds.gauges[i], {&bounds.gauges[i]});
      }
    }
    const std::array gauges = gauges_of(all);
    for (std::size_t i = 0; i < gauges.size(); ++i) {
      if (!all_.gauges[i].allow(static_cast<std::int64_t>(gauges[i].current), call)) {
        complain(call, kGauges[i], "current", gauges[i].current);
      }
      check_rest(call, kGauges[i], gauges[i], all_.gauges[i], of_each_heap(i));
    }
    check_refused(call);
  }

 private:
  void complain(const Call& call, const std::string& what, const char* number, std::uint64_t value,
                const std::string& but = {}) {
    complaints_.push_back("statistics: " + what + ", " + number + " = " + std::to_string(value) +
                          " can't be" + but + ": " + describe(call));
  }

  // Whose certain levels the device's peak must have come to.
  std::vector<const Bounds*> of_each_heap(std::size_t gauge) const {
    std::vector<const Bounds*> each;
    for (const auto& [heap, bounds] : by_heap_) each.push_back(&bounds.gauges[gauge]);
    return each;
  }

  // The total lies between that of what had ended and that of what had begun; the peak is at least
  // every certain level since the last reset that can have been, and at most the highest possible
  // one since the last that must have been.
  void check_rest(const Call& call, const std::string& what, const Gauge& gauge,
                  const Bounds& bounds, const std::vector<const Bounds*>& reached) {
    const Stamp last = call.end - 1;
    const auto total = static_cast<std::int64_t>(gauge.total);
    if (total < bounds.certain_total.at(call.begin) || total > bounds.possible_total.at(last)) {
      complain(call, what, "total", gauge.total);
    }
    Stamp since_any = 0, since_certain = 0;
    for (const Call* const reset : resets_) {
      if (reset->begin < call.end) since_any = std::max(since_any, reset->end);
      if (reset->end < call.begin) since_certain = std::max(since_certain, reset->begin);
    }
    const auto peak = static_cast<std::int64_t>(gauge.peak);
    auto least = static_cast<std::int64_t>(gauge.current);
    for (const Bounds* const level : reached) {
      if (since_any > call.begin) break;
      least = std::max(least, level->surely_peaked.most(since_any, call.begin));
    }
    const std::int64_t most = bounds.possible.most(since_certain, last);
    if (peak < least || peak > most) {
      complain(call, what, "peak", gauge.peak,
               ", but " + std::to_string(least) + " to " + std::to_string(most));
    }
  }

  void check_refused(const Call& call) {
    const auto count = [&](auto counts) {
      return static_cast<std::uint64_t>(std::count_if(refused_.begin(), refused_.end(), counts));
    };
    const std::uint64_t is = call.statistics->out_of_memory;
    if (is < count([&](const Call* refused) { return refused->end < call.begin; }) ||
        is > count([&](const Call* refused) { return refused->begin < call.end; })) {
      complain(call, "out_of_memory", "it", is);
    }
  }

  Complaints& complaints_;
  std::vector<const Call*> resets_, refused_;
  BoundsOfHeap all_;
  std::map<HeapId, BoundsOfHeap> by_heap_;
};

}  // namespace

void check_statistics(const History& history, const BlockLifetimes& lifetimes,
                      const HeapOfStream& heaps, Complaints& complaints) {
  const auto taken = [](const Call& call) { return call.kind == Call::Kind::statistics; };
  if (std::none_of(history.begin(), history.end(), taken)) return;
  Checker checker(history, lifetimes, heaps, complaints);
  for (const Call& call : history) {
    if (taken(call)) checker.check(call);
  }
}

}  // namespace weir::test
