// SPDX-License-Identifier: Apache-2.0
#include "core/pool/pool_scratch.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "core/pool/capture_pool.h"
#include "core/pool/launch_gate.h"

namespace weir {

PoolScratch::PoolScratch(CapturePool& pool, Pool& own, const HeapOptions& options,
                         std::optional<GraphScratch> scratch)
    : pool_(pool),
      lends_(scratch.value_or(options.graph_scratch) == GraphScratch::lend && pool.shares_pages()),
      launches_told_(scratch.has_value()),
      loans_(pool, own, pool.shared_.budget, [this](Bytes wanted, Bytes most, FenceSet& pending) {
        return pages_of_others(wanted, most, pending);
      }) {}

// The lock is released, and the pool's launches wait, while it lives.
struct PoolScratch::Unlocked {
  explicit Unlocked(PoolScratch& pool) WEIR_NO_THREAD_ANALYSIS : of(pool) {
    of.waits_ = true;
    of.pool_.mutex_.unlock();
  }
  ~Unlocked() WEIR_NO_THREAD_ANALYSIS {
    of.pool_.mutex_.lock();
    of.waits_ = false;
    of.launched_.notify_all();
  }
  PoolScratch& of;
};

Status PoolScratch::wait_for_launches() WEIR_NO_THREAD_ANALYSIS {
  const bool own = std::count(launching_.begin(), launching_.end(), std::this_thread::get_id()) > 0;
  const auto is_free = [this] { return !waits_ && launching_.empty(); };
  if (!own && launched_.wait_for(pool_.mutex_, patience_, is_free)) return {};
  return Error(ErrorCode::invalid_argument,
               "graph pool " + std::to_string(pool_.id()) + ": " +
                   (own      ? "this thread launches a graph of it, and has not ended the launch: "
                    : waits_ ? "another thread waits for work on its memory, and may wait for this "
                               "one: "
                             : "another thread launches a graph of it, and has not ended the "
                               "launch: ") +
                   "do so first");
}

Error PoolScratch::none_left(const Error& error) const {
  return {ErrorCode::out_of_memory,
          "scratch of graph pool " + std::to_string(pool_.id()) +
              " was lent to blocks that are live still, or went to other graph pools, and there is "
              "no other memory for it (" +
              error.message() +
              "): free blocks, raise the limit, or keep scratch (WEIR_GRAPH_SCRATCH=keep)"};
}

template <class Call>
Status PoolScratch::waiting(Call&& call) WEIR_NO_THREAD_ANALYSIS {
  for (bool waits = true; any(); waits = false) {
    if (Status ended = wait_for_launches(); !ended) return ended;
    FenceSet pending;
    Status done = call(waits, pending);
    if (!done && done.error().code() == ErrorCode::out_of_memory) return none_left(done.error());
    if (!done || pending.empty()) return done;
    const Unlocked meanwhile(*this);
    if (Status waited = loans_.wait_for(pending); !waited) return waited;
  }
  return {};
}

Status PoolScratch::begin_launch(Stream stream) {
  const MutexLock lock(pool_.mutex_);
  Status had = waiting(
      [&](bool waits, FenceSet& pending) { return loans_.before_launch(stream, waits, pending); });
  if (!had) return had;
  Timelines& timelines = pool_.timelines();
  Status waited = timelines.wait(timelines.of(stream), pool_.graphs_.eager_work());
  if (waited) {
    launching_.push_back(std::this_thread::get_id());
  } else {
    loans_.after_launch(stream, /*launched=*/false);
  }
  return waited;
}

void PoolScratch::end_launch(Stream stream, bool launched) {
  const MutexLock lock(pool_.mutex_);
  const auto own = std::find(launching_.begin(), launching_.end(), std::this_thread::get_id());
  launching_.erase(own != launching_.end() ? own : launching_.begin());
  if (launching_.empty()) launched_.notify_all();
  if (lends_) loans_.after_launch(stream, launched);
  // Under Trust::context GraphOrder::begin_to_linger() covers it.
  if (!launched || !pool_.is_told()) return;
  pool_.note_touched();
  pool_.graphs_.note_launch(stream);
}

Status PoolScratch::keep(bool keep) {
  const MutexLock lock(pool_.mutex_);
  if (!keep) return keeps_ -= keeps_ > 0 ? 1 : 0, Status();
  ++keeps_;
  Status back = take_back();
  if (!back) --keeps_;
  return back;
}

bool PoolScratch::may_lend() WEIR_NO_THREAD_ANALYSIS {
  if (pool_.capture_ || !launching_.empty() || waits_ || keeps_ > 0) return false;
  if (!LaunchGate::close()) return false;
  if (!std::exchange(gate_closed_, true)) loans_.note_work_so_far();  // what did not tell
  return true;
}

PoolScratch::Pages PoolScratch::try_lend(Bytes wanted) {
  Pages lent;
  if (!pool_.mutex_.try_lock()) return lent;
  if (loans_.has_scratch() && loans_.can_be_waited_for() && may_lend()) lent = loans_.lend(wanted);
  pool_.mutex_.unlock();
  return lent;
}

PoolScratch::Pages PoolScratch::try_part_with(Bytes wanted, Bytes most, FenceSet& pending) {
  Pages gone;
  if (!pool_.mutex_.try_lock()) return gone;
  if (loans_.has_scratch() && may_lend()) gone = loans_.part_with(wanted, most, pending);
  pool_.mutex_.unlock();
  return gone;
}

PoolScratch::Pages PoolScratch::pages_of_others(Bytes wanted, Bytes most, FenceSet& pending) {
  if (!pool_.shares_pages()) return {};
  Pool& own = *pool_.eager_;
  HeapMemory::give_back_all(own.caching_heaps());
  Pages pages = own.pages().idle()->give_to_pool(wanted, most);
  Bytes size;
  for (const UnmappedPage& page : pages) size += page.size;
  if (!lends_ || size >= wanted || !pool_.shared_.budget.is_most(wanted)) return pages;
  for (const std::shared_ptr<CapturePool>& other : pool_.shared_.lending.take()) {
    pool_.shared_.lending.enter(other->id(), other);
    if (other.get() == &pool_ || size >= wanted) continue;
    for (const UnmappedPage& page :
         other->scratch().try_part_with(wanted - size, most - std::min(most, size), pending)) {
      size += page.size;
      pages.push_back(page);
    }
  }
  return pages;
}

void PoolScratch::look_at_launches() WEIR_NO_THREAD_ANALYSIS {
  if (!lends_) return;
  std::vector<std::shared_ptr<CapturePool>> others = pool_.shared_.lending.take();
  for (const auto& pool : others) pool_.shared_.lending.enter(pool->id(), pool);
  std::erase_if(others, [&](const auto& pool) {
    return pool.get() == &pool_ || !pool->scratch_.loans_.has_scratch();
  });
  if (others.empty() || !LaunchGate::close() || !loans_.is_all_work_over()) return;
  for (const auto& pool : others) {
    if (!pool->mutex_.try_lock()) continue;
    pool->scratch_.gate_closed_ = true;
    pool->mutex_.unlock();
  }
}

void PoolScratch::note_graph(bool untold) {
  if (untold && !launches_told_) ++keeps_;
  loans_.note_work_so_far();
  if (lends_) pool_.shared_.lending.enter(pool_.id(), pool_.weak_from_this());
}

Status PoolScratch::take_back() {
  return waiting([&](bool waits, FenceSet& pending) { return loans_.take_back(waits, pending); });
}

// What fails is tried again.
void PoolScratch::take_back_if_graphs_gone() WEIR_NO_THREAD_ANALYSIS {
  if (!any() || pool_.graphs_.count() > 0 || pool_.graphs_.lingers() || !launching_.empty()) return;
  FenceSet pending;
  (void)loans_.take_back(/*waits=*/false, pending);
  pool_.enter_as_sparing();
}

void PoolScratch::try_take_back() {
  if (!pool_.mutex_.try_lock()) return;
  pool_.graphs_.let_go(/*waits_for_lock=*/false);
  if (!pool_.capture_) take_back_if_graphs_gone();
  pool_.mutex_.unlock();
}

Status PoolScratch::part_with_lent() {
  const MutexLock lock(pool_.mutex_);
  return waiting(
      [&](bool waits, FenceSet& pending) { return loans_.part_with_used(waits, pending); });
}

}  // namespace weir
