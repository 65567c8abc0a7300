// SPDX-License-Identifier: Apache-2.0
// How much of the host's memory this process holds.
#pragma once

#include <malloc.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace weir::bench {

struct HostMemory {
  // In blocks of malloc's, their headers included: that is new, malloc, calloc and the like, in
  // every thread's arena.
  std::int64_t allocated = 0;
  // In RAM, whatever asked for it: a mapping made past malloc counts as far as it was touched.
  std::int64_t resident = 0;

  static HostMemory now() {
    const struct mallinfo2 info = mallinfo2();
    std::ifstream statm("/proc/self/statm");
    std::int64_t pages = 0, resident_pages = 0;
    statm >> pages >> resident_pages;
    return {static_cast<std::int64_t>(info.uordblks + info.hblkhd),
            resident_pages * sysconf(_SC_PAGESIZE)};
  }

  friend HostMemory operator-(const HostMemory& a, const HostMemory& b) {
    return {a.allocated - b.allocated, a.resident - b.resident};
  }
};

}  // namespace weir::bench
