// Where a request goes: which free addresses, or which pages to put side by side for it.
//
// Sees sizes, pages and addresses only, and changes nothing, so it is tested without a device.
// docs/decisions/001-placement.md says what was tried and what each rule gave.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/arena.h"
#include "core/page_table.h"
#include "weir/types.h"

namespace weir {

// What moving pages costs, against the least time that the program can have taken meanwhile. Both
// come from counts, not from a clock, so that the same program is placed the same way every time.
class Effort {
 public:
  void count_requests(std::uint64_t requests, Bytes bytes);
  void count_alias() { ++aliases_; }

  // May pages still be moved to save memory that growing would save too?
  bool may_improve() const { return moved_ns() < kFreeNs + worked_ns() * 0.005; }
  // Is moving pages getting dear: prefer a little more memory?
  bool must_save() const { return moved_ns() > kFreeNs + worked_ns() * 0.008; }

 private:
  static constexpr double kFreeNs = 1e6;
  // A mapping of a page that exists (facts: map 0.4 us + set access 20 us).
  static constexpr double kAliasNs = 20'400;
  // A program's least time: the host's work around a request, and the GPU's on its bytes. Recorded
  // training and serving programs take 1.1 to 5 times this.
  static constexpr double kRequestNs = 60'000;
  static constexpr double kNsPerGiB = 3e6;

  double moved_ns() const { return static_cast<double>(aliases_) * kAliasNs; }
  double worked_ns() const { return worked_ns_; }

  std::uint64_t aliases_ = 0;
  double worked_ns_ = 0;
};

// A row of pages to map side by side, for a request that fits nowhere: the free end of one page in
// use, idle pages, new pages, and the free start of another page in use.
struct Plan {
  std::optional<PageId> tail;
  std::vector<PageId> middle;
  Bytes create;  // in all
  std::optional<PageId> head;
  Bytes tail_bytes;
  Bytes activated;  // sizes of the idle and new pages
};

class Placement {
 public:
  // A place that the request should not get, for another reason than its size.
  using Avoid = std::function<bool(Range)>;
  struct Found {
    Address address;
    Bytes activated;  // sizes of the idle pages that the place makes busy
  };

  // `peak_used`: the most bytes ever in use. `room`: how much the limits let pages be created for.
  Placement(const PageTable& table, const Arena& arena, HeapId heap, const Effort& effort,
            Bytes peak_used, Bytes room, Bytes granularity)
      : table_(table),
        arena_(arena),
        heap_(heap),
        effort_(effort),
        peak_(peak_used),
        room_(room),
        granularity_(granularity) {}

  // The best place among usable addresses, if any.
  std::optional<Found> find(Bytes size, const Avoid& avoid) const;

  // Would `found` make so many idle pages busy, with memory short, that it is worth trying plan()?
  bool worth_improving(Bytes size, Bytes activated) const;

  Plan plan(Bytes size) const;

  // Is holding `more` bytes still within a hair of the most that was ever in use, and the limits?
  bool may_grow(Bytes more) const;

  // Sizes of new pages for at least `size` bytes in all.
  std::vector<Bytes> page_sizes(Bytes size) const;

 private:
  struct Cost {
    Bytes activated;
    double weight;
  };
  Cost cost(Range range) const;
  bool has_most_aliases(PageId page) const;
  void fill_middle(Bytes rest, Bytes middle, Plan& plan) const;

  const PageTable& table_;
  const Arena& arena_;
  const HeapId heap_;
  const Effort& effort_;
  const Bytes peak_;
  const Bytes room_;
  const Bytes granularity_;
};

}  // namespace weir
