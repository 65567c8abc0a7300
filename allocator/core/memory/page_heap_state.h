// SPDX-License-Identifier: Apache-2.0
// What all parts of a page heap work on: its tables, who decides by them, and what lies outside.
//
// Guarded by the page heap's lock.
#pragma once

#include "core/memory/address_space.h"
#include "core/memory/budget.h"
#include "core/memory/page_tables.h"
#include "core/memory/placer.h"
#include "core/memory/reuse.h"
#include "core/time/remote_work.h"
#include "core/time/timelines.h"
#include "observe/observer.h"
#include "weir/device.h"

namespace weir {

struct PageHeapState {
  MemoryCalls& device;
  Timelines& timelines;
  RemoteWork& remote_work;
  Observer& observer;
  TileIndex& index;
  Budget& budget;
  AddressSpace& addresses;
  const PageRules rules;
  PageTables tables{index, timelines.context(), rules.granularity};
  Reuse reuse{tables, rules, timelines, remote_work};
  Placer placer{tables, rules, reuse, budget};
};

}  // namespace weir
