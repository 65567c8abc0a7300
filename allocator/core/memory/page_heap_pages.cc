// SPDX-License-Identifier: Apache-2.0
// Pages that come to a page heap and go, those that a pool's graphs hold on to, and what is said of
// all of them.
#include <algorithm>
#include <cassert>
#include <utility>

#include "core/memory/page_heap.h"

namespace weir {

void PageHeap::forget_if_empty() {
  if (!tables_.is_empty()) return;
  placer_.forget_places();
  timelines_.drop_old_events();
}

void PageHeap::tidy() {
  const QueuedLock lock(mutex_);
  if (!tables_.is_empty()) return;
  placer_.forget_places();
  timelines_.drop_complete_events();
  if (tables_.held.empty()) tables_.held = {};
}

void PageHeap::give_back_addresses() {
  tidy();
  const QueuedLock lock(mutex_);
  driver_.give_back_addresses();
}

Result<Bytes> PageHeap::trim_locked(Bytes wanted) {
  const Bytes total = tables_.total();
  Result<Bytes> gone = driver_.trim(total - std::min(total, wanted));
  if (gone && *gone > 0_B) forget_if_empty();
  return gone;
}

Result<Bytes> PageHeap::give_to_device(Bytes wanted) {
  const QueuedLock lock(mutex_);
  return is_asleep() ? Result<Bytes>(0_B) : trim_locked(wanted);
}

Result<Bytes> PageHeap::try_give_to_device(Bytes wanted) {
  if (is_asleep() || !mutex_.try_lock()) return 0_B;
  Result<Bytes> gone = is_asleep() ? Result<Bytes>(0_B) : trim_locked(wanted);
  mutex_.unlock();
  return gone;
}

void PageHeap::keep_to_limit() {
  const QueuedLock lock(mutex_);
  keep_to_limit_locked();
}

void PageHeap::keep_to_limit_locked() {
  const Bytes excess = budget_.excess();
  if (excess > 0_B && !is_asleep()) (void)trim_locked(excess);
}

std::vector<UnmappedPage> PageHeap::give_up(Bytes wanted, Bytes most) {
  const QueuedLock lock(mutex_);
  return give_up_locked(wanted, most);
}

std::vector<UnmappedPage> PageHeap::try_give_up(Bytes wanted, bool& more) {
  more = true;
  if (!mutex_.try_lock()) return {};
  std::vector<UnmappedPage> given = give_up_locked(wanted, kUnlimited);
  more = !tables_.held.empty() || !driver_.idle_pages().empty();
  mutex_.unlock();
  return given;
}

std::vector<UnmappedPage> PageHeap::give_up_locked(Bytes wanted, Bytes most) {
  std::vector<UnmappedPage> given;
  if (is_asleep()) return given;
  Bytes size;
  Status unasked;
  (void)driver_.take_idle(wanted, most, unasked, [&](UnmappedPage page) {
    given.push_back(page);
    size += page.size;
    return true;
  });
  // What was once in use in them is no reason to grow here now.
  const Bytes peak = tables_.peak_used;
  tables_.peak_used = std::max(tables_.tiles.used(), peak - std::min(peak, size));
  if (!given.empty()) forget_if_empty();
  return given;
}

void PageHeap::take_in(const std::vector<UnmappedPage>& pages) {
  const QueuedLock lock(mutex_);
  for (const UnmappedPage page : pages) {
    driver_.hold(page);
    tables_.peak_used += page.size;
  }
  if (is_asleep()) (void)trim_locked(tables_.held_bytes);
  keep_to_limit_locked();
}

void PageHeap::keep_what_is_used(bool keep) {
  const QueuedLock lock(mutex_);
  tables_.keeps_used = keep;
  // What is in use now may be what the graph reads.
  for (auto& [id, page] : tables_.pages.all()) {
    if (!keep || page.kept != Page::Kept::no || page.idle()) continue;
    page.kept = Page::Kept::for_now;
    tables_.keeps_any = true;
  }
}

void PageHeap::settle_kept(bool keep) {
  const QueuedLock lock(mutex_);
  tables_.keeps_used = tables_.keeps_any = false;
  for (auto& [id, page] : tables_.pages.all()) {
    if (page.kept == Page::Kept::for_now) page.kept = keep ? Page::Kept::yes : Page::Kept::no;
    tables_.keeps_any = tables_.keeps_any || page.kept != Page::Kept::no;
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
  tables_.single_timeline = tables_.single_timeline && launches.empty();
  tables_.keeps_any = false;
  for (auto& [id, page] : tables_.pages.all()) {
    const bool was_kept = page.kept == Page::Kept::yes;
    page.kept = Page::Kept::no;
    if (was_kept && !launches.empty()) tables_.tiles.add_fences(page.range(), launches);
  }
}

Bytes PageHeap::kept() const {
  const QueuedLock lock(mutex_);
  Bytes kept;
  for (const auto& [id, page] : tables_.pages.all()) {
    kept += page.kept != Page::Kept::no ? page.size : 0_B;
  }
  return kept;
}

Status PageHeap::wait_for_idle_pages() {
  FenceSet fences;
  {
    const QueuedLock lock(mutex_);
    for (const Page* const page : driver_.idle_pages()) fences.join(tables_.users_of(*page));
  }
  for (const Fence fence : fences) {
    FenceSet one;
    one.join(fence);
    // What is captured just now can't be waited for, nor anything that takes memory of the device
    // where there is none: those pages stay as they are.
    Status waited = timelines_.host_wait(one);
    const bool stays = !waited && (waited.error().code() == ErrorCode::capture ||
                                   waited.error().code() == ErrorCode::out_of_memory);
    if (!waited && !stays) return waited;
  }
  return {};
}

Status PageHeap::renew_access() {
  const QueuedLock lock(mutex_);
  if (rules_.plain) return {};  // the driver's own business
  for (const auto& [id, page] : tables_.pages.all()) {
    for (std::size_t i = 0; PageDriver::is_mapped(page, i); ++i) {
      const Address at = PageDriver::mapping(page, i).range.begin;
      if (Status status = device_.set_access(at, page.size); !status) return status;
    }
  }
  return {};
}

void PageHeap::set_limit(Bytes limit) {
  const QueuedLock lock(mutex_);
  assert(tables_.total() == 0_B);
  placer_.set_limit(limit);
  peak_total_ = 0_B;
}

// The block may lie anywhere in its run: small ones share one.
std::vector<PagePart> PageHeap::parts(Range block) const {
  const QueuedLock lock(mutex_);
  std::vector<PagePart> parts;
  if (is_asleep()) return parts;
  const auto add = [&](const Page& page, Bytes offset, Bytes size) {
    parts.push_back({page.handle, page.size, offset, size, memory()});
  };
  if (const StitchedRow* const row = tables_.rows.around(block.begin)) {
    row->visit_pages(block, add);
  } else if (tables_.pages.is_mapped(block)) {  // it may have been freed since it was found
    tables_.pages.walk(block, add);
  }
  return parts;
}

bool PageHeap::has_addresses(Range run) const {
  const QueuedLock lock(mutex_);
  const Tile* tile = tables_.tiles.at(run.begin);
  if (tile == nullptr) {
    const StitchedRow* const row = tables_.rows.at(run.begin);
    return row != nullptr && row->size >= run.size;
  }
  while (tile->end() < run.end() && tile->after != nullptr) tile = tile->after;
  return run.end() <= tile->end() && (!rules_.plain || tables_.pages.is_mapped(run));
}

std::vector<PageHeap::FreeInUse> PageHeap::free_in_use_by(
    const std::vector<TimelineId>& users) const {
  const QueuedLock lock(mutex_);
  std::vector<FreeInUse> free;
  for (const Tile* tile = tables_.tiles.first(); tile != nullptr;
       tile = tables_.tiles.after(tile)) {
    if (!tile->is_free() || !tile->uses) continue;
    FenceSet uses;
    for (const Fence fence : tile->uses->fences) {
      if (std::find(users.begin(), users.end(), fence.timeline) != users.end()) uses.join(fence);
    }
    if (!uses.empty()) free.push_back({tile->size, std::move(uses)});
  }
  return free;
}

PageHeap::Totals PageHeap::totals() const {
  const QueuedLock lock(mutex_);
  return totals_locked();
}

PageHeap::Totals PageHeap::totals_locked() const {
  Bytes leased = tables_.leased, used = tables_.tiles.used();
  if (tables_.absent_bytes > 0_B) {
    for (const auto& [id, page] : tables_.pages.all()) {
      if (!page.sleeps()) continue;
      leased -= page.idle() ? 0_B : page.size;
      used -= tables_.used_in(page);
    }
  }
  return {.total = tables_.total(),
          .leased = leased,
          .used = used,
          .limit = placer_.limit(),
          .peak_total = std::max(peak_total_, tables_.total()),
          .mappings = tables_.mappings(),
          .short_of_mappings = short_of_mappings_};
}

std::vector<PageInfo> PageHeap::pages() const {
  const QueuedLock lock(mutex_);
  return pages_locked();
}

std::vector<PageInfo> PageHeap::pages_locked() const {
  std::vector<PageInfo> pages;
  for (const auto& [id, page] : tables_.pages.all()) {
    if (page.sleeps()) continue;
    PageInfo info{page.id, page.size, tables_.used_in(page), page.lease, 0, {}, memory()};
    for (std::size_t i = 0; PageDriver::is_mapped(page, i); ++i) {
      const auto [range, mapped_for] = PageDriver::mapping(page, i);
      info.mapped_at.push_back({range.begin, mapped_for});
    }
    info.mappings = static_cast<std::uint32_t>(info.mapped_at.size());
    pages.push_back(std::move(info));
  }
  for (const auto& [id, page] : tables_.held) {
    pages.push_back({id, page.size, 0_B, std::nullopt, 0, {}, memory()});
  }
  std::sort(pages.begin(), pages.end(),
            [](const PageInfo& a, const PageInfo& b) { return a.page < b.page; });
  return pages;
}

}  // namespace weir
