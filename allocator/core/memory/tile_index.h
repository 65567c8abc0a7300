// SPDX-License-Identifier: Apache-2.0
// The one index by address, shared by all page heaps of a device: the tile at an address, and the
// page under it.
//
// Each step of 256 KiB has an entry: the tile that begins in the step. Blocks and slabs are longer
// than a step, and vacant tiles begin at steps, so no two of these share an entry. Parts of
// stitched rows may be short: of several that begin in one step, one is entered. Free tiles are not
// entered; they lie between tiles that are. A slab is entered in each of its steps, so that a small
// block's pointer finds it at once.
//
// Threads: any thread calls find() and contains(), without a lock. A lock of the index guards
// regions and spare records; the lock of the page heap whose region it is guards the rest.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/base/range.h"
#include "core/memory/tile.h"
#include "weir/types.h"

namespace weir {

struct Page;

class TileIndex {
 public:
  static constexpr Bytes kStep = 256_KiB;
  // A used tile of this size is entered in each of its steps.
  static constexpr Bytes kSlab = 2_MiB;
  // A table covers so many addresses.
  static constexpr Bytes kSlot = 256_MiB;
  // Sizes of pages and regions are multiples of this.
  static constexpr Bytes kGranule = 2_MiB;
  static constexpr Address kEnd{std::uint64_t{1} << 49};

  TileIndex() : table_(make_table()) {}

  static bool covers(Range region) { return region.end() <= kEnd; }
  // `region` consists of whole granules, is covered, and overlaps no other region.
  void add_region(Range region);
  // No tile or page of the region is entered any more.
  void remove_region(Range region);
  // Does the address lie in a region?
  bool contains(Address address) const {
    const Slot* const slot = slot_of(address);
    return slot != nullptr &&
           (slot->steps[step_of(address)].load(std::memory_order_acquire) & kOutside) == 0;
  }

  // The tile that the address lies in, if that is used; otherwise any tile, or null. The caller has
  // to check that the address lies in it (tile.h says how).
  Tile* find(Address address) const {
    const Slot* const slot = slot_of(address);
    if (slot == nullptr) [[unlikely]]
      return nullptr;
    const std::uint64_t entry = slot->steps[step_of(address)].load(std::memory_order_acquire);
    if ((entry & kTile) == 0 || grain_in(entry) > grain_of(address)) [[unlikely]]
      return last(address, Address{});
    return tile_in(entry);
  }
  // The tile of the address's step, if it has one: if the address is the start of a large block, or
  // lies in a slab, then its tile; else any, or null.
  Tile* near(Address address) const {
    const Slot* const slot =
        table_[address.value / kSlot.count % kSlots].load(std::memory_order_acquire);
    if (slot == nullptr) [[unlikely]]
      return nullptr;
    return tile_in(slot->steps[step_of(address)].load(std::memory_order_acquire));
  }
  // The last entered tile that begins at or before `address`, and not before `floor`; or null.
  Tile* last(Address address, Address floor) const;

  void enter(Tile* tile);
  // Enters a part of a stitched row, if its step has no entry yet.
  void enter_part(Tile* part);
  // Does nothing if the tile is not entered.
  void leave(Tile* tile);

  // The page mapped at a home address; null: none.
  Page* page(Address address) const {
    const Slot* const slot = slot_of(address);
    return slot == nullptr ? nullptr : slot->pages[granule_of(address)];
  }
  // `mapped`, whole granules of a region, is the page's; null: no page's any more.
  void set_page(Range mapped, Page* page);

  // Some records of tiles, linked by `next`. They are freed with the index, and not before.
  Tile* take_records();
  void give_back_records(Tile* first);

 private:
  static constexpr std::uint64_t kSteps = kSlot.count / kStep.count;
  static constexpr std::uint64_t kGranules = kSlot.count / kGranule.count;
  static constexpr std::uint64_t kSlots = kEnd.value / kSlot.count;
  static constexpr std::size_t kRecords = 32;

  // An entry has a tile in its low 48 bits, then the first grain of the step that it holds for,
  // then a bit: the tile begins there. Or it says kOutside: the step lies in no region, though
  // others of the slot do.
  static constexpr int kGrainShift = 48;
  static constexpr std::uint64_t kTile = (std::uint64_t{1} << kGrainShift) - 1;
  static constexpr std::uint64_t kBegins = std::uint64_t{1} << 57;
  static constexpr std::uint64_t kOutside = std::uint64_t{1} << 58;
  static std::uint64_t grain_in(std::uint64_t entry) { return entry >> kGrainShift & 511; }
  static Tile* tile_in(std::uint64_t entry) { return reinterpret_cast<Tile*>(entry & kTile); }

  struct Slot {
    std::array<std::atomic<std::uint64_t>, kSteps> steps{};
    std::array<std::atomic<std::uint64_t>, kSteps / 64> begins{};  // a bit for each that says so
    std::array<Page*, kGranules> pages{};
  };
  using Place = std::atomic<Slot*>;
  // One place for each slot of all addresses, of which the system gives memory to those in use.
  struct Unmap {
    void operator()(Place* table) const;
  };
  using Table = std::unique_ptr<Place[], Unmap>;
  static Table make_table();

  static std::uint64_t grain_of(Address at) { return at.value % kStep.count / kGrain.count; }
  static std::uint64_t step_of(Address at) { return at.value / kStep.count % kSteps; }
  static std::uint64_t granule_of(Address at) { return at.value / kGranule.count % kGranules; }
  static_assert(kStep.count / kGrain.count == 512);

  // Null: no region is near.
  const Slot* slot_of(Address address) const {
    const std::uint64_t slot = address.value / kSlot.count;
    return slot >= kSlots ? nullptr : table_[slot].load(std::memory_order_acquire);
  }
  // Of an address in a region: a table of its own.
  Slot& own_slot(Address address) {
    Place& place = place_of(address);
    Slot* const slot = place.load(std::memory_order_acquire);
    return slot == &nothing_ ? make_slot(place) : *slot;
  }
  [[gnu::cold]] Slot& make_slot(Place& place);
  static bool is_slab(const Tile& tile) {
    return tile.size == kSlab && tile.kind == Tile::Kind::used;
  }
  Place& place_of(Address address) { return table_[address.value / kSlot.count]; }
  Slot* take_slot();
  void mark(const Tile& slab, std::uint64_t entry);
  void add_part(Range part);
  void remove_part(Range part);

  static Slot nothing_;  // of a slot that lies in one region whole, and has no tile yet
  const Table table_;
  std::mutex mutex_;  // guards what follows
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<Slot*> spare_slots_;  // of regions that are gone: they may be read yet
  std::vector<std::unique_ptr<Tile[]>> records_;
  Tile* spare_records_ = nullptr;
};

}  // namespace weir
