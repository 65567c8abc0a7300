// SPDX-License-Identifier: Apache-2.0
// SimDevice's memory: reserved addresses, physical pages, and the mappings between them. Refuses
// what the driver would refuse. Costs, faults and races are its owner's business.
//
// Errors: ErrorCode::device; out_of_memory where physical memory is lacking. Not thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>

#include "sim/race_checker.h"
#include "sim/sim_contents.h"
#include "weir/device.h"

namespace weir::sim {

struct Page {
  PhysicalHandle handle;
  Bytes size;
  std::uint64_t mappings = 0;
  bool released = false;  // by its owner; the page stays while it is mapped
  PageStamps stamps;
  Contents contents;
};

struct Mapping {
  Address address;
  Page* page = nullptr;
  bool accessible = false;
  LastUses uses;

  Bytes size() const { return page->size; }
  Address end() const { return address + page->size; }
};

class Memory {
 public:
  static constexpr Address kFirstAddress{std::uint64_t{1} << 40};

  // `address_seed`: SimOptions::address_seed.
  Memory(Bytes total, Bytes granularity, std::uint64_t mapping_ceiling, std::uint64_t address_seed)
      : total_(total),
        granularity_(granularity),
        mapping_ceiling_(mapping_ceiling),
        random_(address_seed) {}

  // At `wanted`, if there is room.
  Result<Address> reserve(Bytes size, Bytes alignment, Address wanted = {});
  Status unreserve(Address address, Bytes size);

  Result<PhysicalHandle> create(Bytes size);
  Result<Bytes> release(PhysicalHandle handle);  // the page's size
  Status map(Address address, Bytes size, PhysicalHandle handle);
  Status unmap(Address address, Bytes size);
  // The number of mappings that it covered.
  Result<std::uint64_t> set_access(Address address, Bytes size);

  // A segment is a page with a reservation of its own, that is mapped there for as long as it
  // lives.
  Result<Address> allocate_segment(Bytes size);
  Status check_segment(Address address, Bytes size) const;  // is it one?
  void free_segment(Address address);

  // The mapping that `address` is in; null if none. Valid until it is unmapped.
  Mapping* find(Address address);

  // Calls visit(mapping, offset in it, offset in the range, size) for each part of the range that
  // is mapped, in order.
  template <class Visit>
  void for_each_part(Address address, Bytes bytes, Visit&& visit) {
    const Address end = address + bytes;
    for (Address at = address; at < end;) {
      Mapping* const mapping = find(at);
      if (mapping == nullptr) {
        at = Address{round_down({at.value}, granularity_).count} + granularity_;
        continue;
      }
      const Bytes part = std::min(end, mapping->end()) - at;
      visit(*mapping, at - mapping->address, at - address, part);
      at = at + part;
    }
  }

  std::vector<SimPage> pages() const;
  std::vector<Segment> translate(Address address, Bytes bytes);

  // Changes whenever what an address leads to may have changed.
  std::uint64_t version() const { return version_; }

  Bytes total() const { return total_; }
  Bytes physical() const { return physical_; }
  Bytes physical_peak() const { return physical_peak_; }
  std::uint64_t handles() const { return live_handles_; }
  std::uint64_t mappings() const { return mappings_.size(); }
  std::uint64_t reservations() const { return reservations_.size(); }

 private:
  struct Reservation {
    Bytes size;
    std::uint64_t mappings = 0;
    std::optional<PhysicalHandle> segment{};
  };
  // A page table: for each granule of a stretch of addresses, its mapping.
  struct Leaf {
    std::array<Mapping*, 512> slots{};
    std::uint32_t used = 0;
  };

  // The first addresses from `from` on that have room.
  Address room_from(Address from, Bytes size, Bytes unit) const;
  Address by_chance(Bytes size);
  Reservation* reservation_of(Address address, Bytes size);
  Page* live_page(PhysicalHandle handle);
  void set_slots(Address address, Bytes size, Mapping* mapping);
  void free_if_unused(Page& page);
  bool multiple(std::uint64_t value) const { return value % granularity_.count == 0; }

  const Bytes total_;
  const Bytes granularity_;
  const std::uint64_t mapping_ceiling_;
  std::uint64_t random_;  // 0: nothing is by chance
  std::map<Address, Reservation> reservations_;
  Address first_gap_ = kFirstAddress;                    // all before it is reserved
  std::unordered_map<std::uint64_t, Page> pages_;        // by handle
  std::unordered_map<std::uint64_t, Mapping> mappings_;  // by address
  std::unordered_map<std::uint64_t, Leaf> leaves_;       // by address / granularity / 512
  std::uint64_t cached_leaf_number_ = 0;
  Leaf* cached_leaf_ = nullptr;
  std::uint64_t next_handle_ = 1;
  std::uint64_t live_handles_ = 0;
  std::uint64_t accessible_mappings_ = 0;
  std::uint64_t version_ = 0;
  Bytes physical_;
  Bytes physical_peak_;
};

}  // namespace weir::sim
