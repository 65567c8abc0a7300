// Pages that go from one page heap to another, and those that a pool's graphs hold on to.
#include <utility>

#include "core/page_heap.h"

namespace weir {

std::vector<PageHeap::LoosePage> PageHeap::give_up(Bytes wanted) {
  const MutexLock lock(mutex_);
  return give_up_locked(wanted);
}

std::vector<PageHeap::LoosePage> PageHeap::try_give_up(Bytes wanted) {
  if (!mutex_.try_lock()) return {};
  std::vector<LoosePage> given = give_up_locked(wanted);
  mutex_.unlock();
  return given;
}

std::vector<PageHeap::LoosePage> PageHeap::give_up_locked(Bytes wanted) {
  std::vector<LoosePage> given;
  Bytes size;
  for (const PageId id : idle_pages()) {
    if (size >= wanted) break;
    const Result<bool> complete = timelines_.complete(held_by(id));
    if (!complete || !*complete) continue;
    Result<LoosePage> page = take_out(id);
    if (!page) continue;
    size += page->size;
    given.push_back(*page);
  }
  // What was once in use in them is no reason to grow here now.
  peak_used_ = std::max(table_.used(), peak_used_ - std::min(peak_used_, size));
  return given;
}

void PageHeap::take_in(const std::vector<LoosePage>& pages) {
  const MutexLock lock(mutex_);
  take_in_locked(pages);
  keep_to_limit_locked();
}

void PageHeap::take_in_locked(const std::vector<LoosePage>& pages) {
  for (const LoosePage page : pages) {
    (void)add(page);
    peak_used_ += page.size;
  }
}

void PageHeap::keep_what_is_used(bool keep) {
  const MutexLock lock(mutex_);
  keeps_used_ = keep;
  // What is in use now may be what the graph reads.
  for (const auto& [id, page] : table_.pages()) {
    PageUse& use = use_of(page);
    if (keep && page.lease && use.kept == PageUse::Kept::no) use.kept = PageUse::Kept::for_now;
  }
}

void PageHeap::settle_kept(bool keep) {
  const MutexLock lock(mutex_);
  keeps_used_ = false;
  for (PageUse& use : uses_) {
    if (use.kept == PageUse::Kept::for_now)
      use.kept = keep ? PageUse::Kept::yes : PageUse::Kept::no;
  }
}

void PageHeap::let_go(const FenceSet& launches) {
  const MutexLock lock(mutex_);
  let_go_locked(launches);
}

bool PageHeap::try_let_go(const FenceSet& launches) {
  if (!mutex_.try_lock()) return false;
  let_go_locked(launches);
  mutex_.unlock();
  return true;
}

void PageHeap::let_go_locked(const FenceSet& launches) {
  alone_ = alone_ && launches.empty();
  for (const auto& [id, page] : table_.pages()) {
    PageUse& use = use_of(page);
    const bool was_kept = use.kept == PageUse::Kept::yes;
    use.kept = PageUse::Kept::no;
    if (!was_kept) continue;
    if (!launches.empty()) use.fenced.add(0, page.size.count, launches);
  }
}

Bytes PageHeap::kept() const {
  const MutexLock lock(mutex_);
  Bytes kept;
  for (const auto& [id, page] : table_.pages())
    kept += use_of(page).kept != PageUse::Kept::no ? page.size : 0_B;
  return kept;
}

}  // namespace weir
