// SPDX-License-Identifier: Apache-2.0
// Launches of a graph pool's graphs, and whether the pool lends its scratch between them
// (scratch_loans.h).
//
// While anything is lent, launches of the pool go one after the other, from begin_launch() to
// end_launch(). Nothing is lent while one goes on, nor during a capture.
//
// Threads: self-synchronised by the graph pool's lock, but for the calls that want it held.
#pragma once

#include <chrono>
#include <condition_variable>
#include <optional>
#include <thread>
#include <vector>

#include "core/pool/scratch_loans.h"
#include "weir/heap_types.h"

namespace weir {

class CapturePool;

class PoolScratch {
 public:
  using Pages = std::vector<UnmappedPage>;

  // Part of `pool`. `own`: the device heap's own. `scratch`: as GraphPoolOptions has it.
  PoolScratch(CapturePool& pool, Pool& own, const HeapOptions& options,
              std::optional<GraphScratch> scratch);

  // --- Launches.

  // A graph of the pool is about to be launched on the stream, after eager work on the pool's
  // memory: what is lent is its own until end_launch(). Errors: out_of_memory, device: it is not to
  // be launched.
  Status begin_launch(Stream stream);
  // `launched`: it was.
  void end_launch(Stream stream, bool launched);
  // As GraphPool::keep_scratch().
  Status keep(bool keep);
  // Are all launches told, those of graphs that the program captures, too?
  bool launches_told() const { return launches_told_; }

  // --- What others get. Nothing, if another thread is at work in the pool.

  // For the device heap, whose page lock is held.
  Pages try_lend(Bytes wanted);
  // What is lent of graphs that are gone comes back, as far as nobody uses it.
  void try_take_back();
  // Before anything sleeps: nothing is lent any more. Errors: device.
  Status part_with_lent();

  // --- With the graph pool's lock held.

  // Is any page lent, or without memory since it was?
  bool any() const { return loans_.any(); }
  Bytes lent() const { return loans_.lent(); }
  // The device is idle as a capture begins, within which it can't be asked: other pools may part
  // with what launches used so far.
  void look_at_launches();
  // A capture has ended that made a graph. `untold`: it is launched without a word.
  void note_graph(bool untold);
  // Nothing is lent any more. The host waits for work on it, with the lock released. Errors:
  // out_of_memory; device.
  Status take_back();
  void take_back_if_graphs_gone();
  // Idle pages of the device heap, and, if that would otherwise hold more than ever, pages that
  // other graph pools part with: about `wanted` bytes, and at most `most`. `pending`: as
  // ScratchLoans has it. (What is returned counts in the budget again once it is taken.)
  Pages pages_of_others(Bytes wanted, Bytes most, FenceSet& pending);

 private:
  friend struct TestAccess;
  struct Unlocked;
  bool may_lend();
  // Until no launch goes on, and no other thread waits for the device. The lock is released
  // meanwhile. Errors: invalid_argument (a launch is this thread's own; or the others take too
  // long: they may need what this thread holds, or is to queue).
  Status wait_for_launches();
  Error none_left(const Error& error) const;
  // Makes the call, and waits with the lock released for what it says is pending, until it has done
  // all, while no launch goes on. That takes three calls at most: nothing of the pool is lent or
  // launched meanwhile, so the second adds no more than launches so far, and the third nothing.
  template <class Call>
  Status waiting(Call&& call);
  Pages try_part_with(Bytes wanted, Bytes most, FenceSet& pending);

  CapturePool& pool_;
  const bool lends_, launches_told_;
  // Guarded by the graph pool's lock.
  ScratchLoans loans_;
  int keeps_ = 0;                           // reasons to lend nothing
  bool gate_closed_ = false;                // and what launches used until then is known
  std::vector<std::thread::id> launching_;  // who is between begin_launch() and end_launch()
  bool waits_ = false;                      // somebody waits for the device, without the lock
  std::condition_variable_any launched_;    // nobody does either any more
  std::chrono::seconds patience_{10};       // with both; a launch takes microseconds
};

}  // namespace weir
