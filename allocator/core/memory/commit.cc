// SPDX-License-Identifier: Apache-2.0
#include "core/memory/commit.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/memory/layout.h"

namespace weir {

Tile* Commit::carry_out(Request& request, const Plan& plan) {
  switch (plan.way) {
    case Plan::Way::row:
      return claim_row(request, *plan.row);
    case Plan::Way::grow:
      return grow(request, plan);
    case Plan::Way::held:
      request.status = map_held(request);
      return nullptr;
    case Plan::Way::stitch: {
      Result<StitchedRow*> row = build(request, *plan.stitch);
      return row ? claim_row(request, **row) : request.fail(std::move(row).error());
    }
    case Plan::Way::segment:
      return claim_segment(request);
    default:
      return claim(request, plan.head, plan.home);
  }
}

// On an error what could not be mapped stays held.
Result<Range> Commit::map_home(const Owner& owner, Address at, const std::vector<HeldPage>& pages) {
  Range all{at, {}};
  for (auto next = pages.begin(); next != pages.end(); ++next) {
    const auto& [handle, size, lent] = next->page;
    const Range home{heap_.rules.plain ? Address{handle.value} : all.end(), size};
    if (Status status = mappings_.map(owner, *next, home.begin); !status) {
      for (; next != pages.end(); ++next) supply_.hold(*next);
      return std::move(status).error();
    }
    mappings_.fill(home);
    Page& page = heap_.tables.pages.add(next->id, handle, home, owner.id);
    page.shift = mappings_.shift_at(home.begin);
    if (lent) note_borrowed(page, *lent);
    all.size += size;
  }
  return all;
}

// Who gets its bytes waits for the lender's launches.
void Commit::note_borrowed(Page& page, const Lent& lent) {
  constexpr std::uint64_t kLast = std::numeric_limits<std::uint32_t>::max();
  page.lent_by = static_cast<std::uint32_t>(std::min(lent.pool, kLast));
  const std::optional<TimelineId> user = lent.user;
  if (!user) return;
  PageTables& tables = heap_.tables;
  tables.single_timeline = tables.single_timeline && user == tables.first;
  Tile* const head = tables.tiles.run_around(page.range());
  (void)tables.tiles.release(tables.tiles.take(head, page.range(), Tile::Kind::used),
                             {.by = *user,
                              .released = heap_.timelines.release_point(*user).sequence,
                              .freed_at = tables.requests});
}

Result<Range> Commit::extend(Request& request, Range home) {
  if (home.begin == Address{}) {
    const Result<Address> room = mappings_.room_for(home.size + heap_.tables.held_bytes);
    if (!room) return room.error();
    home.begin = *room;
  }
  const std::size_t most =
      heap_.placer.page_sizes(home.size, request.size).size() + heap_.tables.held.size();
  if (Status status = mappings_.have_room(request, most); !status) {
    return std::move(status).error();
  }
  const Result<std::vector<HeldPage>> pages = supply_.obtain(request, home.size);
  return pages ? map_home(request.owner, home.begin, *pages) : pages.error();
}

Status Commit::map_held(Request& request) {
  Address at;
  if (!heap_.rules.plain) {
    if (Status room = mappings_.have_room(request, heap_.tables.held.size()); !room) return room;
    const Result<Address> home = mappings_.room_for(heap_.tables.held_bytes);
    if (!home) return home.error();
    at = *home;
  }
  const std::vector<HeldPage> pages = std::exchange(heap_.tables.held, {});
  heap_.tables.held_bytes = 0_B;
  const Result<Range> mapped = map_home(request.owner, at, pages);
  return mapped ? Status() : mapped.error();
}

Result<StitchedRow*> Commit::build(Request& request, const StitchPlan& plan) {
  std::vector<Page*> pages;
  Bytes all;
  const auto add = [&](Page& page, Bytes, Bytes) {
    pages.push_back(&page);
    all += page.size;
  };
  for (const Range piece : plan.front) heap_.tables.pages.walk(piece, add);
  std::size_t mappings =
      pages.size() +
      (plan.create > 0_B ? heap_.placer.page_sizes(plan.create, request.size).size() * 2 : 0);
  if (plan.head) heap_.tables.pages.walk(*plan.head, [&](Page&, Bytes, Bytes) { ++mappings; });
  if (Status status = mappings_.have_room(request, mappings); !status) {
    return std::move(status).error();
  }
  Bytes head_size = plan.head ? plan.head->size : 0_B;
  if (plan.create > 0_B) {
    const Result<Range> created = extend(request, {Address{}, plan.create});
    if (!created) return created.error();
    heap_.tables.pages.walk(*created, add);
    // What was held may be larger than what was to be created: then less of the head is needed.
    head_size -= std::min(head_size, created->size - plan.create);
  }
  if (head_size > 0_B) heap_.tables.pages.walk({plan.head->begin, head_size}, add);

  if (Status room = mappings_.have_room_for_row(all); !room) return std::move(room).error();
  return map_row(request, heap_.tables.rows.add(all, request.owner.id), pages,
                 plan.front.empty() ? 0_B : plan.front.front().begin - pages.front()->home);
}

Result<StitchedRow*> Commit::map_row(Request& request, StitchedRow& row,
                                     const std::vector<Page*>& pages, Bytes lead) {
  row.shift = mappings_.shift_at(row.begin);
  for (Page* const page : pages) {
    const HeldPage again{page->id, {page->handle, page->size}};
    if (Status status = mappings_.map(request.owner, again, row.begin + row.size); !status) {
      mappings_.retire(row);
      (void)mappings_.unmap_row(row);
      return std::move(status).error();
    }
    heap_.tables.rows.append(row, *page);
    heap_.placer.remaps().spend(1);
  }
  heap_.tables.rows.finish(row, lead);
  return &row;
}

Result<Range> Commit::add_segment(Request& request) {
  if (Status status = mappings_.have_room(request, 1); !status) return std::move(status).error();
  const Result<HeldPage> segment = supply_.create_segment(request);
  if (!segment) return segment.error();
  return map_home(request.owner, Address{segment->page.handle.value}, {*segment});
}

Tile* Commit::grow(Request& request, const Plan& plan) {
  const Result<Range> grown = extend(request, plan.home);
  if (!grown) return request.fail(grown.error());
  const Range home{grown->begin - plan.behind, request.size};
  return claim(request, heap_.tables.tiles.run_around(home), home);
}

Tile* Commit::claim_segment(Request& request) {
  Result<Range> segment = add_segment(request);
  if (!segment && segment.error().code() == ErrorCode::out_of_memory) {
    // Idle segments, of which each is too small, go for one that is large enough: unless even all
    // of them would not do.
    if (const Result<MemoryInfo> info = heap_.device.memory_info())
      request.device_room = info->free;
    const Bytes idle = heap_.tables.total() - heap_.tables.leased;
    const bool would_do =
        round_up(request.size, heap_.rules.granularity) <= heap_.placer.room(request) + idle;
    const Result<Bytes> gone =
        would_do ? supply_.give_to_driver_for_new(PageSupply::kUnlimited) : Result<Bytes>(0_B);
    if (gone && *gone > 0_B) {
      request.device_room.reset();
      // Which went down with what has gone.
      heap_.tables.peak_used =
          std::max(heap_.tables.peak_used, heap_.tables.tiles.used() + request.size);
      segment = add_segment(request);
    }
  }
  if (!segment) return request.fail(std::move(segment).error());
  const Range home{segment->begin, request.size};
  return claim(request, heap_.tables.tiles.run_around(home), home);
}

void Commit::collect_needed(Request& request, const Tile* head, Range home, FenceSet& fences) {
  if (heap_.tables.single_timeline) return;
  (void)Tiles::visit_notes(head, home, [&](const Tile& tile) {
    heap_.reuse.collect_needed(request, tile, fences);
    return true;
  });
}

Tile* Commit::claim(Request& request, Tile* head, Range home) {
  FenceSet fences;
  collect_needed(request, head, home, fences);
  if (!fences.empty()) request.status = heap_.reuse.wait_for(request, fences);
  if (!request.status) return nullptr;
  Tile* const tile = take(request.owner, head, home, Tile::Kind::used);
  tile->item = Layout::item(heap_.tables.pages.at(home.begin).shift, home.begin, home.size);
  tile->heap.store(request.owner.heap, std::memory_order_relaxed);
  return tile;
}

Tile* Commit::claim_row(Request& request, StitchedRow& row) {
  FenceSet fences;
  (void)row.visit_parts(request.size, [&](Range home) {
    collect_needed(request, heap_.tables.tiles.run_around(home), home, fences);
    return true;
  });
  if (!fences.empty()) request.status = heap_.reuse.wait_for(request, fences);
  if (!request.status) return nullptr;
  (void)row.visit_parts(request.size, [&](Range home) {
    Tile* const part =
        take(request.owner, heap_.tables.tiles.run_around(home), home, Tile::Kind::part);
    part->row = &row;
    row.parts.push_back(part);
    return true;
  });
  heap_.tables.rows.use(row, heap_.tables.requests);
  Tile* const tile = heap_.tables.tiles.take_record();
  tile->begin = row.run();
  tile->size = request.size;
  tile->kind = Tile::Kind::used;
  tile->row = &row;
  tile->item = Layout::item(row.shift, row.run(), request.size);
  row.tile = tile;
  heap_.index.enter(tile);
  tile->heap.store(request.owner.heap, std::memory_order_relaxed);
  return tile;
}

Range Commit::idle_around(const Tile& head, Range home) const {
  if (head.run < heap_.rules.granularity) return {};
  const HomePages& pages = heap_.tables.pages;
  const Range idle = pages.whole_in(head.run_range());
  if (idle.size == 0_B || home.end() <= idle.begin || idle.end() <= home.begin) return {};
  const Address begin = std::max(idle.begin, pages.at(home.begin).home);
  const Address end = std::min(idle.end(), pages.at(home.end() - kGrain).end());
  return {begin, end - begin};
}

void Commit::note_lease(const Owner& owner, const Tile& head, Range home, bool leased) {
  const Range pages = idle_around(head, home);
  if (pages.size == 0_B) return;
  PageTables& tables = heap_.tables;
  Observer& observer = heap_.observer;
  tables.leased = leased ? tables.leased + pages.size : tables.leased - pages.size;
  Bytes counted;
  const bool recording = observer.recording(), plain = heap_.rules.plain;
  tables.pages.walk(pages, [&](Page& page, Bytes, Bytes) {
    page.lease = leased ? std::optional(owner.id) : std::nullopt;
    if (page.sleeps()) return;  // it counts as leased no more
    counted += page.size;
    if (!recording) return;
    observer.record(owner.fold, Event{.kind = leased ? EventKind::lease : EventKind::unlease,
                                      .plain = plain,
                                      .page = page.id,
                                      .bytes = page.size});
  });
  observer.fold().count_lease(counted, leased, plain);
}

Tile* Commit::take(const Owner& owner, Tile* head, Range home, Tile::Kind kind) {
  note_lease(owner, *head, home, true);
  PageTables& tables = heap_.tables;
  if (tables.keeps_used) {
    tables.keeps_any = true;
    tables.pages.walk(home, [](Page& page, Bytes, Bytes) {
      if (page.kept == Page::Kept::no) page.kept = Page::Kept::for_now;
    });
  } else if (tables.keeps_any) {
    tables.pages.walk(home, [](Page& page, Bytes, Bytes) {
      page.has_contents = page.has_contents || page.kept == Page::Kept::yes;
    });
  }
  return tables.tiles.take(head, home, kind);
}

void Commit::release(const Owner& owner, Tile* tile) {
  const Range home = tile->range();
  PageTables& tables = heap_.tables;
  const Sequence now = heap_.timelines.release_point(owner.timeline).sequence;
  const Tile* const head = tables.tiles.release(
      tile, {.by = owner.timeline, .released = now, .freed_at = tables.requests});
  note_lease(owner, *head, home, false);
}

void Commit::free(const Owner& owner, Tile* tile) {
  PageTables& tables = heap_.tables;
  tables.single_timeline = tables.single_timeline && !tile->uses && owner.timeline == tables.first;
  if (StitchedRow* const row = tile->row) {
    FenceSet users = tile->uses.fences();
    for (Tile* const part : row->parts) {
      part->uses = tile->uses.copy();
      users.join(part->late.fences());
      release(owner, part);
    }
    heap_.index.leave(tile);
    tables.tiles.give_back_record(tile);
    users.join(heap_.timelines.release_point(owner.timeline));
    tables.rows.free(*row, std::move(users), tables.requests);
  } else {
    release(owner, tile);
  }
  supply_.keep_to_limit();
}

// Pages that could be mapped there are whole.
Status Commit::fill(Request& request, Range run) {
  if (heap_.rules.plain) return {};  // the driver chooses where a segment lies
  if (heap_.tables.tiles.at(run.begin) == nullptr) return fill_row(request, run);
  std::vector<Range> vacant;
  for (const Tile* tile = heap_.tables.tiles.at(run.begin);
       tile != nullptr && tile->begin < run.end(); tile = tile->after) {
    if (tile->is_free()) continue;
    if (tile->kind != Tile::Kind::vacant) return {};  // then the rest won't do
    const Range granules = heap_.rules.granules_around(run);
    const Address from = std::max(granules.begin, tile->begin);
    vacant.push_back({from, std::min(granules.end(), tile->end()) - from});
  }
  for (const auto& [begin, size] : vacant) {
    const std::size_t most = heap_.placer.page_sizes(size, size).size();
    if (Status room = mappings_.have_room(request, most); !room) return room;
    const Result<std::vector<HeldPage>> pages = supply_.create(request, size, size);
    if (!pages) return pages.error();
    const Result<Range> mapped = map_home(request.owner, begin, *pages);
    if (!mapped) return mapped.error();
  }
  return {};
}

Status Commit::fill_row(Request& request, Range run) {
  StitchedRows& rows = heap_.tables.rows;
  const Range row = heap_.rules.granules_around(run);
  const StitchedRow* const there = rows.at(run.begin);
  if (there != nullptr && there->state != StitchedRow::State::retired) return {};
  if (Status free = mappings_.vacate_rows(row); !free) return free;
  if (!rows.has_room_at(row)) return {};
  const std::size_t most = heap_.placer.page_sizes(row.size, row.size).size() * 2;
  if (Status room = mappings_.have_room(request, most); !room) return room;
  const Result<Address> home = mappings_.room_for(row.size);
  if (!home) return home.error();
  const Result<std::vector<HeldPage>> created = supply_.create(request, row.size, row.size);
  if (!created) return created.error();
  const Result<Range> mapped = map_home(request.owner, *home, *created);
  if (!mapped) return mapped.error();
  std::vector<Page*> pages;
  heap_.tables.pages.walk(*mapped, [&](Page& page, Bytes, Bytes) { pages.push_back(&page); });
  const Result<StitchedRow*> made = map_row(
      request, rows.add_at(row.begin, row.size, request.owner.id), pages, run.begin - row.begin);
  return made ? Status() : made.error();
}

}  // namespace weir
