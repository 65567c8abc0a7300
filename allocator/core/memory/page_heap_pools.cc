// SPDX-License-Identifier: Apache-2.0
// Pages that go from one page heap to another, and those that a pool's graphs hold on to.
#include <utility>

#include "core/memory/page_heap.h"

namespace weir {

std::vector<PageHeap::UnmappedPage> PageHeap::give_up(Bytes wanted, Bytes most) {
  const QueuedLock lock(mutex_);
  return give_up_locked(wanted, most);
}

std::vector<PageHeap::UnmappedPage> PageHeap::try_give_up(Bytes wanted) {
  if (!mutex_.try_lock()) return {};
  std::vector<UnmappedPage> given = give_up_locked(wanted, kUnlimited);
  mutex_.unlock();
  return given;
}

std::vector<PageHeap::UnmappedPage> PageHeap::give_up_locked(Bytes wanted, Bytes most) {
  std::vector<UnmappedPage> given;
  if (is_asleep()) return given;
  Bytes size;
  Status unasked;
  (void)take_idle(wanted, most, unasked, [&](UnmappedPage page) {
    given.push_back(page);
    size += page.size;
    return true;
  });
  // What was once in use in them is no reason to grow here now.
  peak_used_ = std::max(pages_.used(), peak_used_ - std::min(peak_used_, size));
  if (!given.empty()) forget_if_empty();
  return given;
}

void PageHeap::take_in(const std::vector<UnmappedPage>& pages) {
  const QueuedLock lock(mutex_);
  take_in_locked(pages);
  if (is_asleep()) (void)trim_locked(total() - std::min(total(), held_bytes_));
  keep_to_limit_locked();
}

void PageHeap::take_in_locked(const std::vector<UnmappedPage>& pages) {
  for (const UnmappedPage page : pages) {
    hold(add(page));
    peak_used_ += page.size;
  }
}

void PageHeap::keep_what_is_used(bool keep) {
  const QueuedLock lock(mutex_);
  keeps_used_ = keep;
  // What is in use now may be what the graph reads.
  for (auto& [id, page] : pages_.all()) {
    if (!keep || !page.lease || page.kept != Page::Kept::no) continue;
    page.kept = Page::Kept::for_now;
    keeps_any_ = true;
  }
}

void PageHeap::settle_kept(bool keep) {
  const QueuedLock lock(mutex_);
  keeps_used_ = keeps_any_ = false;
  for (auto& [id, page] : pages_.all()) {
    if (page.kept == Page::Kept::for_now) page.kept = keep ? Page::Kept::yes : Page::Kept::no;
    keeps_any_ = keeps_any_ || page.kept != Page::Kept::no;
  }
}

void PageHeap::let_go(const FenceSet& launches) {
  const QueuedLock lock(mutex_);
  let_go_locked(launches);
}

bool PageHeap::try_let_go(const FenceSet& launches) {
  if (!mutex_.try_lock()) return false;
  let_go_locked(launches);
  mutex_.unlock();
  return true;
}

void PageHeap::let_go_locked(const FenceSet& launches) {
  single_timeline_ = single_timeline_ && launches.empty();
  keeps_any_ = false;
  for (auto& [id, page] : pages_.all()) {
    const bool was_kept = page.kept == Page::Kept::yes;
    page.kept = Page::Kept::no;
    if (was_kept && !launches.empty()) chunks_.add_fences(page.range(), launches);
  }
}

Bytes PageHeap::kept() const {
  const QueuedLock lock(mutex_);
  Bytes kept;
  for (const auto& [id, page] : pages_.all()) {
    kept += page.kept != Page::Kept::no ? page.size : 0_B;
  }
  return kept;
}

}  // namespace weir
