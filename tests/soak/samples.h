// SPDX-License-Identifier: Apache-2.0
// What this process holds of the machine.
#pragma once

#include <cstdint>

namespace weir::soak {

struct ProcessSample {
  std::uint64_t resident = 0;   // bytes
  std::uint64_t allocated = 0;  // bytes of the C++ heap that are in use
  std::uint64_t maps = 0;       // lines of /proc/self/maps
  std::uint64_t threads = 0;
  std::uint64_t descriptors = 0;  // open files
};

// From now on the C library's allocator scatters little, and gives large pieces back at once: else
// resident memory says by chance more or less than what is allocated. Call it first.
void steady_allocation();

// `tidy`: gives the C library's free memory back before, so that what is left is in use.
ProcessSample sample_process(bool tidy);

// Does a sanitizer keep memory of its own, so that resident memory and mappings say little?
bool has_sanitizer();

}  // namespace weir::soak
