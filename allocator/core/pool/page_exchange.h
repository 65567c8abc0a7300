// SPDX-License-Identifier: Apache-2.0
// Moves idle pages between the pools of a device, and from them to the driver.
//
// Idle pages of graph pools go to the device heap's own pool, where their memory is of its kind,
// and those of any pool to the driver. A page whose work may still run goes nowhere: the host waits
// for that work first, with no lock held, where a call says so.
//
// Threads: self-synchronised.
#pragma once

#include <atomic>

#include "core/pool/pools.h"
#include "weir/result.h"

namespace weir {

class PageExchange {
 public:
  explicit PageExchange(Pools& pools) : pools_(pools) {}

  // Has graph pools give what they can spare to the device heap's own pool. Returns whether any
  // did.
  bool call_in();
  // Gives idle memory that a request of `requester` (null: of the device heap's own pool) can't
  // take itself back to the driver, until `wanted` bytes went. Error: nothing went.
  Result<Bytes> give_to_driver(Bytes wanted, const CapturePool* requester);
  // Waits for the work that still uses idle pages, then call_in(). Passes over pools that are being
  // captured into, which spare nothing, but not over `requester`. Errors: device; capture.
  Status wait_for_idle_pages(const CapturePool* requester = nullptr);
  // The host no longer waits for graphs to be destroyed (HeapCaptures::assume_graphs_leak()).
  void assume_graphs_leak() { graphs_leak_ = true; }

  Result<Bytes> trim(Bytes keep, Trim how);
  void set_limit(Bytes limit);
  // Gives back what is idle beyond a lowered limit, as far as its work is done. Waits for no lock
  // that others hold while they wait for the device.
  void keep_to_limit();

 private:
  void wait_for_released_graphs();

  Pools& pools_;
  HeapRegistry& registry_ = pools_.shared().registry;
  Budget& budget_ = pools_.shared().budget;
  std::atomic<bool> graphs_leak_{false};
};

}  // namespace weir
