// SPDX-License-Identifier: Apache-2.0
#include "sim/sim_memory.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "sim/text.h"

namespace weir::sim {
namespace {

// A driver's 47 bits of addresses have room for about this much in one piece, and no more.
constexpr Address kLastAddress = Memory::kFirstAddress + 80_TiB;
// Addresses by chance lie in the first of these: a process's mappings leave large parts free.
constexpr Bytes kByChance = 15_TiB;

Error refused(std::string why) { return {ErrorCode::device, std::move(why)}; }

}  // namespace

Result<Address> Memory::reserve(Bytes size, Bytes alignment, Address wanted) {
  if (size.count == 0 || !multiple(size.count) || !multiple(alignment.count)) {
    return refused("reserve: invalid value: size " + text(size) + " and alignment " +
                   text(alignment) + " must be multiples of the granularity, " +
                   text(granularity_));
  }
  const Bytes unit = std::max(alignment, granularity_);
  if (size > kLastAddress - kFirstAddress) {
    return refused("reserve: out of addresses: no room for " + text(size));
  }
  const bool may_be_there =
      wanted >= kFirstAddress && wanted.value % unit.count == 0 && wanted + size <= kLastAddress;
  Address at = may_be_there ? room_from(wanted, size, unit) : Address{};
  if (at != wanted || at == Address{}) at = room_from(by_chance(size), size, unit);
  if (at + size > kLastAddress) at = room_from(first_gap_, size, unit);
  if (at + size > kLastAddress) {
    return refused("reserve: out of addresses: no room for " + text(size));
  }
  reservations_.emplace(at, Reservation{size});
  if (at == first_gap_) first_gap_ = at + size;
  return at;
}

Address Memory::room_from(Address from, Bytes size, Bytes unit) const {
  const auto aligned = [&](Address at) { return Address{round_up({at.value}, unit).count}; };
  auto next = reservations_.lower_bound(from);
  Address at = aligned(from);
  if (next != reservations_.begin()) {
    const auto& [begin, before] = *std::prev(next);
    at = std::max(at, aligned(begin + before.size));
  }
  for (; next != reservations_.end() && at + size > next->first; ++next) {
    at = aligned(next->first + next->second.size);
  }
  return at;
}

Address Memory::by_chance(Bytes size) {
  if (random_ == 0 || size >= kByChance) return first_gap_;
  // Source: xorshift64* (Vigna 2016).
  random_ ^= random_ >> 12;
  random_ ^= random_ << 25;
  random_ ^= random_ >> 27;
  const std::uint64_t places = (kByChance - size) / granularity_;
  return kFirstAddress + granularity_ * (random_ * 0x2545f4914f6cdd1d % places);
}

Status Memory::unreserve(Address address, Bytes size) {
  const auto it = reservations_.find(address);
  if (it == reservations_.end() || it->second.size != size || it->second.segment) {
    return refused("unreserve: invalid value: " + range_text(address, size) +
                   " is not a reservation");
  }
  if (it->second.mappings != 0) {
    return refused("unreserve: invalid value: " + range_text(address, size) + " has " +
                   std::to_string(it->second.mappings) + " mappings");
  }
  reservations_.erase(it);
  first_gap_ = std::min(first_gap_, address);
  return {};
}

Memory::Reservation* Memory::reservation_of(Address address, Bytes size) {
  auto it = reservations_.upper_bound(address);
  if (it == reservations_.begin()) return nullptr;
  --it;
  const Bytes offset = address - it->first;
  const bool inside = offset < it->second.size && size <= it->second.size - offset;
  return inside && !it->second.segment ? &it->second : nullptr;
}

// Wherever there is room, as a driver does: also right behind another segment, or a reservation.
Result<Address> Memory::allocate_segment(Bytes size) {
  constexpr Bytes kUnit = 2_MiB;
  if (size.count == 0 || !multiple(size.count) || size % kUnit != 0_B) {
    return refused("allocate_segment: invalid value: " + text(size) + " is not a multiple of " +
                   text(std::max(granularity_, kUnit)));
  }
  Result<Address> at = reserve(size, std::max(granularity_, kUnit));
  if (!at) return at;
  Result<PhysicalHandle> page = create(size);
  if (!page) {
    (void)unreserve(*at, size);
    return std::move(page).error();
  }
  Status usable = map(*at, size, *page);
  if (usable) {
    Result<std::uint64_t> access = set_access(*at, size);
    if (!access) {
      (void)unmap(*at, size);
      usable = std::move(access).error();
    }
  }
  if (!usable) {
    (void)release(*page);
    (void)unreserve(*at, size);
    return std::move(usable).error();
  }
  reservations_.at(*at).segment = *page;
  return at;
}

Status Memory::check_segment(Address address, Bytes size) const {
  const auto it = reservations_.find(address);
  if (it != reservations_.end() && it->second.size == size && it->second.segment) return {};
  return refused("free_segment: invalid value: " + range_text(address, size) + " is no segment");
}

void Memory::free_segment(Address address) {
  Reservation& reservation = reservations_.at(address);
  const Bytes size = reservation.size;
  const PhysicalHandle page = *std::exchange(reservation.segment, std::nullopt);
  (void)unmap(address, size);
  (void)release(page);
  (void)unreserve(address, size);
}

Result<PhysicalHandle> Memory::create(Bytes size) {
  if (size.count == 0 || !multiple(size.count)) {
    return refused("create: invalid value: " + text(size) +
                   " is not a multiple of the granularity, " + text(granularity_));
  }
  if (size > total_ - physical_) {
    return Error(ErrorCode::out_of_memory, "create: out of memory: asked for " + text(size) +
                                               ", free " + text(total_ - physical_) + " of " +
                                               text(total_));
  }
  const PhysicalHandle handle{next_handle_++};
  Page& page = pages_[handle.value];
  page.handle = handle;
  page.size = size;
  physical_ += size;
  physical_peak_ = std::max(physical_peak_, physical_);
  ++live_handles_;
  return handle;
}

Page* Memory::live_page(PhysicalHandle handle) {
  const auto it = pages_.find(handle.value);
  return it == pages_.end() || it->second.released ? nullptr : &it->second;
}

Result<Bytes> Memory::release(PhysicalHandle handle) {
  Page* page = live_page(handle);
  if (page == nullptr) {
    return refused("release: invalid value: no handle " + std::to_string(handle.value));
  }
  const Bytes size = page->size;
  page->released = true;
  --live_handles_;
  free_if_unused(*page);
  return size;
}

void Memory::free_if_unused(Page& page) {
  if (!page.released || page.mappings != 0) return;
  physical_ -= page.size;
  pages_.erase(page.handle.value);
}

Status Memory::map(Address address, Bytes size, PhysicalHandle handle) {
  Page* page = live_page(handle);
  if (page == nullptr) {
    return refused("map: invalid value: no handle " + std::to_string(handle.value));
  }
  if (size != page->size) {
    return refused("map: invalid value: " + text(size) + " of a handle of " + text(page->size) +
                   ": the whole of it must be mapped");
  }
  Reservation* reservation = reservation_of(address, size);
  if (reservation == nullptr || !multiple(address.value)) {
    return refused("map: invalid value: " + range_text(address, size) +
                   (reservation == nullptr ? " is not reserved" : " is not aligned"));
  }
  for (Bytes offset; offset < size; offset += granularity_) {
    if (find(address + offset) != nullptr) {
      return refused("map: invalid value: " + text(address + offset) + " is mapped already");
    }
  }
  Mapping& mapping = mappings_[address.value];
  mapping.address = address;
  mapping.page = page;
  set_slots(address, size, &mapping);
  ++page->mappings;
  ++reservation->mappings;
  ++version_;
  return {};
}

Status Memory::unmap(Address address, Bytes size) {
  const auto it = mappings_.find(address.value);
  if (it == mappings_.end() || it->second.size() != size ||
      reservation_of(address, size) == nullptr) {
    return refused("unmap: invalid value: " + range_text(address, size) +
                   " is not exactly one mapping");
  }
  Page& page = *it->second.page;
  if (it->second.accessible) --accessible_mappings_;
  set_slots(address, size, nullptr);
  mappings_.erase(it);
  --reservation_of(address, size)->mappings;
  --page.mappings;
  ++version_;
  free_if_unused(page);
  return {};
}

Result<std::uint64_t> Memory::set_access(Address address, Bytes size) {
  std::vector<Mapping*> covered;
  std::uint64_t newly = 0;
  for (Address at = address; at < address + size;) {
    Mapping* mapping = find(at);
    if (mapping == nullptr || mapping->address != at || mapping->end() > address + size) break;
    covered.push_back(mapping);
    newly += mapping->accessible ? 0 : 1;
    at = mapping->end();
  }
  if (covered.empty() || covered.back()->end() != address + size) {
    return refused("set_access: invalid value: " + range_text(address, size) +
                   " is not a row of whole mappings");
  }
  if (accessible_mappings_ + newly > mapping_ceiling_) {
    return refused("set_access: out of memory: " + std::to_string(accessible_mappings_) +
                   " mappings, and the ceiling is " + std::to_string(mapping_ceiling_));
  }
  for (Mapping* mapping : covered) mapping->accessible = true;
  accessible_mappings_ += newly;
  ++version_;
  return std::uint64_t{covered.size()};
}

std::vector<SimPage> Memory::pages() const {
  std::vector<SimPage> pages;
  for (const auto& [handle, page] : pages_) pages.push_back({{handle}, page.size, page.mappings});
  std::ranges::sort(pages, {}, &SimPage::handle);
  return pages;
}

std::vector<Segment> Memory::translate(Address address, Bytes bytes) {
  std::vector<Segment> segments;
  for_each_part(address, bytes, [&](const Mapping& mapping, Bytes offset, Bytes, Bytes part) {
    if (mapping.accessible) segments.push_back({mapping.page->handle, offset, part});
  });
  return segments;
}

Mapping* Memory::find(Address address) {
  const std::uint64_t granule = address.value / granularity_.count;
  const std::uint64_t number = granule / 512;
  if (cached_leaf_ == nullptr || cached_leaf_number_ != number) {
    const auto it = leaves_.find(number);
    if (it == leaves_.end()) return nullptr;
    cached_leaf_number_ = number;
    cached_leaf_ = &it->second;
  }
  return cached_leaf_->slots[granule % 512];
}

void Memory::set_slots(Address address, Bytes size, Mapping* mapping) {
  const std::uint64_t first = address.value / granularity_.count;
  for (std::uint64_t granule = first; granule < first + size / granularity_; ++granule) {
    Leaf& leaf = leaves_[granule / 512];
    leaf.slots[granule % 512] = mapping;
    leaf.used += mapping != nullptr ? 1 : -1;
    if (leaf.used == 0) {
      leaves_.erase(granule / 512);
      cached_leaf_ = nullptr;
    }
  }
}

}  // namespace weir::sim
