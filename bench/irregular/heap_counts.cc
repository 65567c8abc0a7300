// SPDX-License-Identifier: Apache-2.0
#include "bench/irregular/heap_counts.h"

namespace weir::bench {

HeapCounts counts_of(const Statistics& statistics, std::uint64_t context_events) {
  const Gauge& mappings = statistics.mappings;
  return {.maps = mappings.total,
          .unmaps = mappings.total - mappings.current,
          .waits = statistics.stream_waits,
          .context_events = context_events};
}

}  // namespace weir::bench
