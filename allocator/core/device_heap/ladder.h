// SPDX-License-Identifier: Apache-2.0
// What is tried for a request that found no memory, in order, and what is said if nothing helped.
//
// Threads: self-synchronised. No lock is held while the host waits, or calls the program.
#pragma once

#include <functional>

#include "core/base/callbacks.h"
#include "core/device_heap/entrance.h"
#include "core/pool/page_exchange.h"
#include "core/pool/pools.h"
#include "weir/device_heap.h"

namespace weir {

struct BlockRequest {
  Bytes bytes;
  Stream stream;
  Route route;
};

class Ladder {
 public:
  Ladder(Pools& pools, PageExchange& exchange) : pools_(pools), exchange_(exchange) {}

  using ShortageCallbacks = Callbacks<DeviceHeap::ShortageCallback>;
  ShortageCallbacks& callbacks(Shortage when) {
    return when == Shortage::miss ? at_miss_ : when_out_;
  }

  // May a request to the device heap's own pool have new memory before it climbs?
  PageHeap::Create at_first() const {
    return at_miss_.any() ? PageHeap::Create::not_yet : PageHeap::Create::may;
  }
  // Tries the request again; null: its status says why.
  using Retry = std::function<Address(Status& status)>;
  // Takes one rung after the other, and tries the request again after each that may have helped.
  // `status`: why there was no memory. Errors: out_of_memory; asleep; device; capture.
  Result<void*> climb(const BlockRequest& request, Status status, const Retry& retry);
  Error out_of_memory(const BlockRequest& request) const;

 private:
  // The rungs. Each returns whether it may have helped. Errors: capture (this rung could not,
  // others may); any other: nothing else will.
  Result<bool> call_at_miss(const BlockRequest& request);
  Result<bool> free_what_is_due(const BlockRequest& request);
  Result<bool> take_idle_pages_of_pools(const BlockRequest& request);
  Result<bool> wait_for_other_work(const BlockRequest& request);
  Result<bool> make_room_for_mappings(const BlockRequest& request);
  Result<bool> ask_the_program(const BlockRequest& request);
  static bool call(const ShortageCallbacks& callbacks, const BlockRequest& request);

  Pools& pools_;
  PageExchange& exchange_;
  const Pool::Shared& shared_ = pools_.shared();
  ShortageCallbacks at_miss_, when_out_;
};

}  // namespace weir
