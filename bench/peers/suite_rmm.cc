// SPDX-License-Identifier: Apache-2.0
// RMM's resources, for `weir bench`.
#include <string_view>

#include "bench/peers/rmm_peer.h"
#include "bench/peers/suite_peer.h"

extern "C" __attribute__((visibility("default"))) const weir_suite_functions*
weir_suite_allocator_called(const char* name) {
  using namespace weir::peers;
  const std::string_view which = name;
  if (which == "rmm-arena") return suite_functions<RmmArena>(name);
  if (which == "rmm-async") return suite_functions<RmmAsync>(name);
  return suite_functions<RmmPool>(name);
}
