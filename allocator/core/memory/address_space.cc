// SPDX-License-Identifier: Apache-2.0
#include "core/memory/address_space.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/format.h"

namespace weir {

Result<Range> AddressSpace::reserve(Bytes least, Bytes most, Bytes unit, bool of_graph_pool) {
  if (mode_ != Addresses::any && window_ >= kWindows + kWindow * kAddressWindows) {
    return Error(ErrorCode::invalid_argument,
                 "HeapOptions::address_window is not below " + std::to_string(kAddressWindows));
  }
  const MutexLock lock(mutex_);
  Result<Address> at = Error(ErrorCode::device, "");
  for (Bytes size = most;; size = std::max(least, round_up(size / 4, unit))) {
    const Address wanted = mode_ == Addresses::any ? Address{} : vacancy(size, of_graph_pool);
    if (wanted != Address{}) {
      at = reserve_in_window(size, wanted, unit);
      // What comes later must not depend on how much the driver happened to have there.
      if (!at && mode_ == Addresses::fixed) return std::move(at).error();
    } else if (mode_ == Addresses::fixed) {
      at = Error(ErrorCode::device,
                 "WEIR_ADDRESSES=fixed: of the " + format(of_graph_pool ? kWindow - kOwn : kOwn) +
                     " of addresses of " +
                     (of_graph_pool ? "graph pools" : "the device's own memory") + " no " +
                     format(size) + " are free in one piece: set WEIR_ADDRESSES=prefer, which " +
                     "takes others and counts them");
    } else {
      at = device_.reserve(size, unit);
      if (at && mode_ == Addresses::prefer) count_elsewhere({*at, size});
    }
    if (at) return Range{*at, size};
    if (size == least) return std::move(at).error();
  }
}

Result<Address> AddressSpace::reserve_in_window(Bytes size, Address wanted, Bytes unit) {
  Result<Address> at = device_.reserve_at(wanted, size, unit);
  if (at && *at == wanted) {
    reserved_.emplace(wanted, size);
  } else if (mode_ == Addresses::fixed) {
    const std::string why = at ? "the driver gives " + format(*at) : at.error().message();
    if (at) (void)device_.unreserve(*at, size);
    return Error(ErrorCode::device,
                 "WEIR_ADDRESSES=fixed: " + device_.name() + " refuses the " + format(size) +
                     " of addresses from " + format(wanted) + " on (" + why +
                     "). Something else of this process lies there, such as a second heap or a "
                     "sanitizer: move that, or set WEIR_ADDRESSES=prefer, which takes what the "
                     "driver gives and counts it");
  } else if (at) {
    count_elsewhere({*at, size});
  }
  return at;
}

void AddressSpace::count_elsewhere(Range region) {
  observer_.emit({.kind = EventKind::region_elsewhere,
                  .heap = kNoHeap,
                  .address = region.begin,
                  .bytes = region.size});
}

Address AddressSpace::vacancy(Bytes size, bool of_graph_pool) const {
  Address at = of_graph_pool ? window_ + kOwn : window_;
  const Address end = window_ + (of_graph_pool ? kWindow : kOwn);
  for (auto next = reserved_.lower_bound(at); next != reserved_.end(); ++next) {
    if (at + size <= next->first) break;
    at = std::max(at, next->first + next->second);
  }
  return size <= kWindow && at + size <= end ? at : Address{};
}

Status AddressSpace::unreserve(Range region) {
  const MutexLock lock(mutex_);
  Status gone = device_.unreserve(region.begin, region.size);
  if (gone) reserved_.erase(region.begin);
  return gone;
}

}  // namespace weir
