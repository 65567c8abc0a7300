// SPDX-License-Identifier: Apache-2.0
// What a heap asked of its device so far, and what a pair of calls asked on average.
#pragma once

#include <cstdint>

#include "weir/statistics.h"

namespace weir::bench {

struct HeapCounts {
  std::uint64_t maps = 0, unmaps = 0;  // of pages, whole: at their first address and at others
  std::uint64_t waits = 0;             // a stream was made to wait for others
  std::uint64_t context_events = 0;    // events of the whole context were recorded

  friend HeapCounts operator-(const HeapCounts& a, const HeapCounts& b) {
    return {a.maps - b.maps, a.unmaps - b.unmaps, a.waits - b.waits,
            a.context_events - b.context_events};
  }
};

// `context_events`: as the device counted them; the heap's statistics have no such figure.
HeapCounts counts_of(const Statistics& statistics, std::uint64_t context_events);

}  // namespace weir::bench
