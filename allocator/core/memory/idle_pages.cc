// SPDX-License-Identifier: Apache-2.0
#include "core/memory/idle_pages.h"

#include <algorithm>
#include <utility>

namespace weir {

std::vector<Page*> IdlePages::may_go() const {
  std::vector<Page*> idle;
  if (heap_.tables.absent_mappings > 0) return idle;  // a row that goes with a page may lack some
  for (auto& [id, page] : heap_.tables.pages.all()) {
    if (page.kept == Page::Kept::no && page.idle()) idle.push_back(&page);
  }
  std::stable_sort(idle.begin(), idle.end(),
                   [](const Page* a, const Page* b) { return a->size > b->size; });
  return idle;
}

FenceSet IdlePages::users() const {
  FenceSet users;
  for (const Page* const page : may_go()) users.join(heap_.tables.users_of(*page));
  return users;
}

// Pages that lie side by side often wait for the same: the device is asked once.
Result<bool> IdlePages::is_over(const Page& page, FenceSet& pending) {
  FenceSet users = heap_.tables.users_of(page);
  if (users.empty()) return true;
  if (users == pending) return false;
  Result<bool> complete = heap_.timelines.complete(users);
  if (complete && !*complete) pending = std::move(users);
  return complete;
}

Result<UnmappedPage> IdlePages::unmap_and_part_with(Page& page) {
  const Range home = page.range();
  const HeldPage taken{page.id, {page.handle, page.size}};
  Status unmapped = mappings_.unmap_rows(page);
  if (unmapped) unmapped = mappings_.unmap(page.id, {home, page.heap});
  if (!unmapped) return std::move(unmapped).error();
  heap_.tables.pages.remove(page);
  mappings_.vacate(home);
  return supply_.part_with(taken);
}

template <class Go>
IdlePages::Taken IdlePages::take(Bytes wanted, Bytes most, Go&& go) {
  Taken taken;
  for (std::size_t i = heap_.tables.held.size(); i-- > 0 && taken.bytes < wanted;) {
    const Bytes size = heap_.tables.held[i].page.size;
    if (size > most - taken.bytes) continue;
    if (go(supply_.part_with(supply_.take_held(i)))) taken.bytes += size;
  }
  if (taken.bytes >= wanted) return taken;
  FenceSet pending;
  for (Page* const idle : may_go()) {
    if (taken.bytes >= wanted) break;
    if (idle->size > most - taken.bytes) continue;
    // A page whose stream is no more (destroyed, and never retired) must not keep the others.
    Result<bool> complete = is_over(*idle, pending);
    if (!complete) {
      if (taken.asked) taken.asked = std::move(complete).error();
      continue;
    }
    if (!*complete) continue;
    Result<UnmappedPage> page = unmap_and_part_with(*idle);
    if (!page) {
      if (taken.unmapped) taken.unmapped = std::move(page).error();
    } else if (go(*page)) {
      taken.bytes += page->size;
    }
  }
  return taken;
}

Result<Bytes> IdlePages::give_to_driver_for_new(Bytes wanted) {
  mappings_.unmap_strays();
  Status released;
  std::vector<UnmappedPage> refused;  // by the driver
  Taken taken = take(wanted, kUnlimited, [&](UnmappedPage page) {
    Status now = supply_.release(page);
    if (now) return true;
    refused.push_back(page);
    if (released) released = std::move(now);
    return false;
  });
  for (const UnmappedPage page : refused) supply_.receive(page);
  if (taken.bytes > 0_B) {
    heap_.tables.shrink_peak();
    heap_.observer.emit(Event{.kind = EventKind::trim, .bytes = taken.bytes});
  }
  if (!taken.unmapped) return std::move(taken.unmapped).error();
  if (!released) return std::move(released).error();
  if (taken.bytes == 0_B && !taken.asked) return std::move(taken.asked).error();
  return taken.bytes;
}

Result<Bytes> IdlePages::give_to_driver_though_asleep(Bytes wanted) {
  Result<Bytes> gone = give_to_driver_for_new(wanted);
  if (gone && *gone > 0_B) forget_if_empty();
  return gone;
}

std::vector<UnmappedPage> IdlePages::give_to_pool(Bytes wanted, Bytes most) {
  std::vector<UnmappedPage> given;
  if (heap_.tables.asleep) return given;
  const Taken taken = take(wanted, most, [&](UnmappedPage page) {
    given.push_back(page);
    return true;
  });
  // What was once in use in them is no reason to grow here now.
  const Bytes peak = heap_.tables.peak_used;
  heap_.tables.peak_used = std::max(heap_.tables.tiles.used(), peak - std::min(peak, taken.bytes));
  if (!given.empty()) forget_if_empty();
  return given;
}

void IdlePages::hold_from_pool(const std::vector<UnmappedPage>& pages) {
  for (const UnmappedPage page : pages) {
    supply_.receive(page);
    heap_.tables.peak_used += page.size;
  }
}

void IdlePages::take_from_pool(const std::vector<UnmappedPage>& pages) {
  hold_from_pool(pages);
  if (heap_.tables.asleep) (void)give_to_driver_though_asleep(heap_.tables.held_bytes);
  keep_to_limit();
}

Status IdlePages::forget(Page& page) {
  if (Status unmapped = mappings_.unmap_rows(page); !unmapped) return unmapped;
  heap_.tables.tiles.vacate(page.range());
  heap_.tables.absent_bytes -= page.size;
  heap_.tables.absent_mappings -= page.unmapped;
  heap_.tables.pages.remove(page);
  heap_.tables.shrink_peak();
  return {};
}

void IdlePages::forget_if_empty(bool complete) {
  if (!heap_.tables.is_empty()) return;
  heap_.placer.forget_places();
  heap_.tables.tiles.give_back_spare();
  heap_.timelines.drop_events(complete);
  if (complete) heap_.tables.held = {};
}

void IdlePages::give_back_addresses() {
  forget_if_empty(/*complete=*/true);
  if (heap_.tables.is_empty() && heap_.tables.rows.count() == 0 && mappings_.strays().empty()) {
    mappings_.give_back_addresses();
  }
}

void IdlePages::keep_what_is_used() {
  heap_.tables.keeps_used = true;
  // What is in use now may be what the graph reads.
  for (auto& [id, page] : heap_.tables.pages.all()) {
    if (page.kept != Page::Kept::no || page.idle()) continue;
    page.kept = Page::Kept::for_now;
    heap_.tables.keeps_any = true;
  }
}

void IdlePages::settle_kept(bool keep) {
  heap_.tables.keeps_used = heap_.tables.keeps_any = false;
  for (auto& [id, page] : heap_.tables.pages.all()) {
    if (page.kept == Page::Kept::for_now) page.kept = keep ? Page::Kept::yes : Page::Kept::no;
    heap_.tables.keeps_any = heap_.tables.keeps_any || page.kept != Page::Kept::no;
  }
}

void IdlePages::let_go(const FenceSet& launches) {
  heap_.tables.single_timeline = heap_.tables.single_timeline && launches.empty();
  heap_.tables.keeps_any = false;
  for (auto& [id, page] : heap_.tables.pages.all()) {
    const bool was_kept = page.kept == Page::Kept::yes;
    page.kept = Page::Kept::no;
    if (!was_kept || launches.empty()) continue;
    heap_.tables.tiles.add_fences(page.range(), launches);
    for (StitchedRow* const row : page.rows) row->users.join(launches);
  }
}

}  // namespace weir
