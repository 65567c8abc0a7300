// SPDX-License-Identifier: Apache-2.0
#include "core/memory/mappings.h"

#include <algorithm>
#include <optional>
#include <string>

#include "core/memory/layout.h"

namespace weir {
namespace {

// Addresses that a device heap reserves at a time: they cost nothing, but only some 60 TiB can be
// had. Where there are no more so many in one piece, AddressSpace reserves less.
constexpr Bytes kRegion = 256_GiB, kRegionUnit = 4_GiB;
static_assert(kRegionUnit % TileIndex::kSlot == 0_B);

// A graph pool reserves this much, and then four times what it has already, up to 32 GiB: thousands
// of small pools find room, and a large one has few regions, at whose ends memory lies idle.
constexpr Bytes kPoolRegionUnit = 1_GiB, kMostOfPool = 32_GiB;
constexpr std::uint64_t kPoolGrowth = 4;
static_assert(kPoolRegionUnit % TileIndex::kSlot == 0_B);

// How many mappings are given up at a time when there are too many.
constexpr std::size_t kMappingsShed = 256;

// So many mappings in rows are kept for each page in any case.
constexpr std::size_t kMappingsAPage = 16;
constexpr std::size_t kMappingsLeast = 256;
// A row that was not used for so many requests may go: else a program whose rounds need more would
// lose in each round what it needs in the next.
constexpr std::uint64_t kLongUnused = 8192;
// So often a few rows are looked at, where there are too many mappings; and driver calls in one
// request.
constexpr std::uint64_t kRequestsBetween = 64;
constexpr int kRowsAtATime = 16, kUnmapsAtATime = 2;

}  // namespace

Mappings::~Mappings() {
  // What the driver refuses here is lost: nobody is left to tell.
  for (const auto& [id, page] : heap_.tables.pages.all()) {
    for (const PageMapping& mapping : mapped_of(page)) {
      if (!heap_.rules.plain) (void)heap_.device.unmap(mapping.at.begin, page.size);
    }
    if (!page.sleeps()) heap_.tables.held.push_back({page.id, {page.handle, page.size}});
  }
  unmap_strays();
  heap_.tables.pages.clear();
  heap_.tables.rows.visit_all([&](const StitchedRow& row) {
    if (row.tile == nullptr) return;
    heap_.index.leave(row.tile);
    heap_.tables.tiles.give_back_record(row.tile);
  });
  for (const Region& region : regions_) {
    if (heap_.tables.tiles.at(region.begin) != nullptr)
      heap_.tables.tiles.remove_region(region.begin);
    heap_.index.remove_region(region.range());
    if (!heap_.rules.plain) (void)heap_.addresses.unreserve(region.range());
  }
}

Result<Range> Mappings::reserve(Bytes least) {
  const Bytes unit = heap_.rules.of_graph_pool ? kPoolRegionUnit : kRegionUnit;
  least = round_up(least + heap_.rules.granularity, unit);
  Bytes wanted = kRegion;
  if (heap_.rules.of_graph_pool) {
    wanted = 0_B;
    for (const Region& region : regions_) wanted += region.size * kPoolGrowth;
    wanted = std::min(wanted, kMostOfPool);
  }
  Result<Range> reserved =
      heap_.addresses.reserve(least, std::max(least, wanted), unit, heap_.rules.of_graph_pool);
  if (!reserved) return reserved;
  const Range region = *reserved;
  if (!TileIndex::covers(region)) {
    (void)heap_.addresses.unreserve(region);
    return Error(ErrorCode::device, "the device reserves addresses beyond 49 bits");
  }
  heap_.index.add_region(region);
  regions_.push_back({region, regions_in_all_++});
  return region;
}

// The latest first: it is the one that is being filled.
std::uint64_t Mappings::shift_at(Address at) const {
  const auto region = std::find_if(regions_.rbegin(), regions_.rend(), [&](const Region& each) {
    return each.begin <= at && at < each.end();
  });
  return Layout::shift(region->number, region->begin);
}

Result<Address> Mappings::room_for(Bytes bytes) {
  if (const std::optional<Address> at = heap_.placer.vacancy(bytes)) return *at;
  const Result<Range> region = reserve(bytes);
  if (!region) return region.error();
  // The end is never mapped: two regions, side by side by chance, are two rows.
  heap_.tables.tiles.add_region({region->begin, region->size - heap_.rules.granularity});
  return *heap_.placer.vacancy(bytes);
}

Status Mappings::have_room_for_row(Bytes bytes) {
  if (heap_.tables.rows.has_room(bytes)) return {};
  const Result<Range> region = reserve(heap_.tables.rows.region_for(bytes));
  if (!region) return region.error();
  heap_.tables.rows.add_region(*region);
  return {};
}

void Mappings::fill(Range home) {
  if (heap_.rules.plain) {
    heap_.index.add_region(home);
    regions_.push_back({home, regions_in_all_++});
    heap_.tables.tiles.add_region(home);
  }
  heap_.tables.tiles.fill(home);
}

void Mappings::vacate(Range home) {
  if (!heap_.rules.plain) return heap_.tables.tiles.vacate(home);
  heap_.tables.tiles.remove_region(home.begin);
  std::erase_if(regions_, [&](const Region& each) { return each.begin == home.begin; });
  heap_.index.remove_region(home);
}

void Mappings::give_back_addresses() {
  std::erase_if(regions_, [&](const Region& region) {
    // Before another heap may be given the same.
    const bool home = heap_.tables.tiles.at(region.begin) != nullptr;
    const Range tiled{region.begin, region.size - heap_.rules.granularity};
    if (home) heap_.tables.tiles.remove_region(region.begin);
    heap_.index.remove_region(region.range());
    if (!heap_.addresses.unreserve(region.range())) {
      heap_.index.add_region(region.range());
      if (home) heap_.tables.tiles.add_region(tiled);
      return false;
    }
    if (!home) heap_.tables.rows.remove_region(region.range());
    return true;
  });
}

Status Mappings::map(PhysicalHandle handle, Range at) {
  if (Status status = heap_.device.map(at.begin, at.size, handle); !status) return status;
  Status status = heap_.device.set_access(at.begin, at.size);
  if (!status && !heap_.device.unmap(at.begin, at.size)) strays_.push_back(at);
  return status;
}

Status Mappings::map(const Owner& owner, const HeldPage& page, Address at) {
  const PhysicalHandle handle = page.page.handle;
  const Bytes size = page.page.size;
  if (Status mapped = heap_.rules.plain ? Status() : map(handle, {at, size}); !mapped)
    return mapped;
  heap_.observer.emit(owner.fold, Event{.kind = EventKind::map,
                                        .plain = heap_.rules.plain,
                                        .page = page.id,
                                        .address = at,
                                        .bytes = size});
  return {};
}

Status Mappings::unmap(PageId page, const PageMapping& mapping) {
  const auto& [at, heap] = mapping;
  Event event{.kind = EventKind::unmap,
              .plain = heap_.rules.plain,
              .page = page,
              .address = at.begin,
              .bytes = at.size};
  heap_.observer.emit(event);
  Status unmapped = heap_.rules.plain ? Status() : heap_.device.unmap(at.begin, at.size);
  if (!unmapped) {
    event.kind = EventKind::map;
    event.heap = heap;
    heap_.observer.emit(event);
  }
  return unmapped;
}

void Mappings::unmap_strays() {
  std::erase_if(strays_, [&](Range stray) {
    if (!heap_.device.unmap(stray.begin, stray.size)) return false;
    StitchedRow* const row = heap_.tables.rows.around(stray.begin);
    if (row != nullptr && row->pages.empty()) heap_.tables.rows.remove(*row);
    return true;
  });
}

Status Mappings::renew_access() {
  if (heap_.rules.plain) return {};  // the driver's own business
  for (const auto& [id, page] : heap_.tables.pages.all()) {
    for (const auto& [at, heap] : mapped_of(page)) {
      if (Status status = heap_.device.set_access(at.begin, at.size); !status) return status;
    }
  }
  return {};
}

void Mappings::retire(StitchedRow& row) {
  if (row.state == StitchedRow::State::idle) heap_.tables.rows.retire(row);
  retired_.push_back(&row);
}

Status Mappings::unmap_last(StitchedRow& row) {
  Page& page = *row.pages.back();
  const Range at{row.begin + row.mapped() - page.size, page.size};
  if (page.sleeps()) {
    const auto of_row = std::find(page.rows.begin(), page.rows.end(), &row) - page.rows.begin() + 1;
    if (of_row < page.lent_mappings) {
      if (Status status = heap_.device.unmap(at.begin, at.size); !status) return status;
      --page.lent_mappings;
      --heap_.tables.lent_mappings;
    }
    --page.unmapped;
    --heap_.tables.absent_mappings;
  } else {
    if (Status status = unmap(page.id, {at, row.heap}); !status) return status;
  }
  heap_.tables.rows.drop_last(row);
  return {};
}

Status Mappings::unmap_row(StitchedRow& row) {
  if (row.state == StitchedRow::State::idle) retire(row);
  while (!row.pages.empty()) {
    if (Status status = unmap_last(row); !status) return status;
  }
  std::erase(retired_, &row);
  const auto is_in_row = [&](Range stray) { return heap_.tables.rows.around(stray.begin) == &row; };
  // Else its addresses are not free yet.
  if (std::none_of(strays_.begin(), strays_.end(), is_in_row)) heap_.tables.rows.remove(row);
  return {};
}

Status Mappings::unmap_rows(Page& page) {
  while (!page.rows.empty()) {
    if (Status status = unmap_row(*page.rows.back()); !status) return status;
  }
  return {};
}

Status Mappings::vacate_rows(Range range) {
  unmap_strays();
  std::vector<StitchedRow*> in_the_way;
  heap_.tables.rows.visit_all([&](StitchedRow& row) {
    const bool before = row.begin + row.reserved <= range.begin;
    if (!before && row.begin < range.end() + StitchedRows::kGap) in_the_way.push_back(&row);
  });
  for (StitchedRow* const row : in_the_way) {
    if (row->state == StitchedRow::State::used || row->kept()) continue;
    const Result<bool> complete = heap_.timelines.complete(row->users);
    if (!complete || !*complete) continue;
    if (Status status = unmap_row(*row); !status) return status;
  }
  return {};
}

Status Mappings::have_room(Request& request, std::size_t more) {
  unmap_strays();
  if (has_room(more)) return {};
  std::vector<StitchedRow*> idle;
  heap_.tables.rows.visit_all([&](StitchedRow& row) {
    if (row.state == StitchedRow::State::idle && !row.kept()) idle.push_back(&row);
  });
  std::size_t shed = 0;
  for (StitchedRow* const row : idle) {
    if (shed >= kMappingsShed && has_room(more)) break;
    const Result<bool> complete = heap_.timelines.complete(row->users);
    if (!complete && complete.error().code() != ErrorCode::capture) return complete.error();
    if (!complete || !*complete) continue;
    shed += row->pages.size();
    if (Status status = unmap_row(*row); !status) return status;
  }
  if (has_room(more)) return {};
  request.short_of_mappings = true;
  return Error(ErrorCode::out_of_memory,
               std::to_string(heap_.tables.mappings()) +
                   " mappings are held, of the most that HeapOptions::most_mappings allows, and " +
                   "too few can be given up");
}

// A clock hand goes round the rows: one that was not used for long is unmapped, a few mappings at a
// time, once its work is done. (So long after, it is; what the host knows of it changes nothing in
// where memory is placed.)
std::uint64_t Mappings::retire_rows() {
  const std::uint64_t now = heap_.tables.requests;
  if (heap_.tables.keeps_used) return now;  // nothing while a capture goes on
  for (int i = 0; i < kUnmapsAtATime && !retired_.empty(); ++i) {
    StitchedRow& row = *retired_.back();
    if (!row.pages.empty() && !unmap_last(row)) return now + kRequestsBetween;
    if (row.pages.empty()) (void)unmap_row(row);
  }
  if (!retired_.empty()) return now;
  const std::size_t most =
      std::max(kMappingsLeast, kMappingsAPage * heap_.tables.pages.all().size());
  for (int i = 0; i < kRowsAtATime && heap_.tables.rows.mappings() > most; ++i) {
    StitchedRow* const row = heap_.tables.rows.next_after(looked_at_);
    looked_at_ = row->begin;
    if (row->state != StitchedRow::State::idle || row->kept() ||
        now - row->used_at <= kLongUnused) {
      continue;
    }
    const Result<bool> over = heap_.timelines.over_or_wait(row->users, Timelines::Asks::looks);
    if (!over || !*over) continue;
    retire(*row);
    return now;
  }
  return now + kRequestsBetween;
}

}  // namespace weir
