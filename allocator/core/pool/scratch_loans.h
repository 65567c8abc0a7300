// SPDX-License-Identifier: Apache-2.0
// The scratch of a graph pool, lent to the device heap between launches.
//
// What a graph allocates and frees within its capture has no contents between launches. Its pages
// stay mapped where the graph knows them, and are mapped once more in the device heap's own pool,
// whose requests get them behind the launches so far. Before the next launch
//
//   a lent page that is free there is taken for the launch, as a block of the launch's stream,
//     which waits on the GPU for those who used it, and freed again after the launch;
//   one that is in use stays the device heap's, and the graph gets other memory at its addresses:
//     for that the host waits for the pool's earlier launches.
//
// So where nothing is in use the driver maps nothing. Another graph pool's captures and launches
// get pages for good once launches are done, and the graph other memory at its next launch: graphs
// that take turns hold what the largest needs.
//
// Guarded by the graph pool's lock.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/memory/page_loans.h"
#include "core/pool/pool.h"
#include "weir/result.h"

namespace weir {

class ScratchLoans {
 public:
  // As PoolScratch::pages_of_others().
  using Others =
      std::function<std::vector<UnmappedPage>(Bytes wanted, Bytes most, FenceSet& pending)>;
  // `pool`: the graph pool; `own`: the device heap's own. Both must outlive this.
  ScratchLoans(Pool& pool, Pool& own, Budget& budget, Others others)
      : pool_(pool), own_(own), budget_(budget), others_(std::move(others)) {}

  // Is any page lent, or without memory since it was?
  bool any() const { return !loans_.empty(); }
  Bytes lent() const;
  // Is there any that could be?
  bool has_scratch() const;
  // Can the borrower wait for all work so far? (Where uses are told, it waits for launches.) If
  // not, one page after another would be lent to it.
  bool can_be_waited_for();

  // Pages for the own pool, whose page lock is held: at least `wanted` bytes, or all that may go.
  std::vector<UnmappedPage> lend(Bytes wanted);

  // Under Trust::context.
  bool is_all_work_over() {
    return own_.timelines().is_seen_complete(own_.timelines().release_point(TimelineId{}));
  }
  // The host waits for it.
  Status wait_for(const FenceSet& pending) { return own_.timelines().host_wait(pending); }
  // The calls below add to `pending` the work, in the own pool's timelines, that the host has to
  // wait for before they can do more: with no lock held, and then they are called again. If they
  // add none, they have done all.
  // `waits`: also for work on lent pages that are free, and, before new memory is created, for
  // launches of other graph pools, which part with theirs then. Others may go on with both: so a
  // call that does not wait lets the own pool keep such pages, and creates memory. All that it adds
  // are earlier launches of this pool.

  // Pages that are the caller's, at least `wanted` bytes, or all that may go, and at most `most`.
  std::vector<UnmappedPage> part_with(Bytes wanted, Bytes most, FenceSet& pending);
  // A graph is about to be launched on the stream: what it uses is its own until after_launch(), if
  // nothing is pending. Errors: out_of_memory, device: the graph is not to be launched.
  Status before_launch(Stream stream, bool waits, FenceSet& pending);
  // `launched`: it was.
  void after_launch(Stream stream, bool launched);
  // Earlier work may use what was captured, and so may launches that were not told.
  void note_work_so_far();
  // Nothing is lent any more; pages that no graph needs, and that the own pool keeps, go. Errors:
  // as before_launch().
  Status take_back(bool waits, FenceSet& pending);
  // Nothing is lent any more, but what is in use stays without memory until take_back(), or the
  // next launch. Errors: device.
  Status part_with_used(bool waits, FenceSet& pending);

 private:
  struct Loan {
    PageId borrowed;        // the own pool's page
    PhysicalHandle memory;  // zero: somebody has it for good, and the page has none
    Bytes size;
  };
  using Loans = std::map<std::uint32_t, Loan>;  // by PageId of the graph pool

  bool is_over(const FenceSet& work, FenceSet& pending);
  // The page is the pool's again, and its loan goes; or its memory is the own pool's for good.
  Status settle(Loans::iterator loan, bool waits, FenceSet& pending);
  // Where the device heap would otherwise hold more than ever: a page of just this size, for good.
  // None: as much memory went to the driver, as far as others could part with it.
  PhysicalHandle memory_of_others(Bytes size, FenceSet& pending);
  // Pages without memory get other memory.
  Status renew(bool waits, FenceSet& pending);
  // Where lent pages lie that are free in the own pool, side by side as one; the others are
  // settled.
  Result<std::vector<Range>> free_ranges(bool waits, FenceSet& pending);
  Status take(const std::vector<Range>& ranges, Stream stream);

  Pool& pool_;
  Pool& own_;
  Budget& budget_;
  const Others others_;
  Loans loans_;
  // In the own pool's timelines: whom borrowers wait for, the context or the last launch's stream,
  // and what is behind launches, and what used the memory before.
  std::optional<TimelineId> user_ = own_.timelines().context();
  FenceSet launches_;
  // For a launch that is under way.
  StreamHeap* heap_ = nullptr;
  std::vector<Address> taken_;
};

}  // namespace weir
