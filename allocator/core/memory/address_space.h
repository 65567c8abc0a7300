// SPDX-License-Identifier: Apache-2.0
// Where the pools of one device have their addresses: reserves them, and knows where each of them
// is to lie where addresses are fixed.
//
// A window is the heap's part of the process's addresses. In it, regions of the device heap's own
// memory and those of graph pools lie apart; each at the lowest addresses that are free, in the
// order of the calls. The windows lie where neither a program's code nor its heap, libraries or
// stack come to lie on Linux, however these are randomised.
//
// Threads: self-synchronised by one lock, taken after the page heaps'; the device is called under
// it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

#include "core/base/mutex.h"
#include "core/base/range.h"
#include "observe/observer.h"
#include "weir/device.h"
#include "weir/heap_types.h"
#include "weir/result.h"

namespace weir {

class AddressSpace {
 public:
  // `device` and `observer` must outlive this.
  AddressSpace(Device& device, Observer& observer, const HeapOptions& options)
      : device_(device),
        observer_(observer),
        mode_(options.addresses),
        window_{kWindows + kWindow * std::min(options.address_window, kAddressWindows)} {}

  // A region of at most `most`, and of at least `least` where there is no more room in one piece.
  // Sizes are multiples of `unit`. Errors: device.
  Result<Range> reserve(Bytes least, Bytes most, Bytes unit, bool of_graph_pool);
  // The region goes back whole.
  Status unreserve(Range region);

  static constexpr Address kWindows{std::uint64_t{16} << 40};
  // (Stitched rows map a page up to 16 times: 2.2 TiB on a device of 141 GiB.)
  static constexpr Bytes kWindow = 8_TiB, kOwn = 4_TiB;

 private:
  Result<Address> reserve_in_window(Bytes size, Address wanted, Bytes unit) WEIR_REQUIRES(mutex_);
  void count_elsewhere(Range region);
  // The lowest addresses that are free; zero: there are none.
  Address vacancy(Bytes size, bool of_graph_pool) const WEIR_REQUIRES(mutex_);

  Device& device_;
  Observer& observer_;
  const Addresses mode_;
  const Address window_;
  Mutex mutex_;
  std::map<Address, Bytes> reserved_ WEIR_GUARDED_BY(mutex_);  // where they were to be
};

}  // namespace weir
