// SPDX-License-Identifier: Apache-2.0
#include "weir/event.h"

namespace weir {

std::string_view name_of(EventKind kind) {
  switch (kind) {
    case EventKind::allocate:
      return "allocate";
    case EventKind::deallocate:
      return "deallocate";
    case EventKind::fence:
      return "fence";
    case EventKind::stream_wait:
      return "stream_wait";
    case EventKind::host_wait:
      return "host_wait";
    case EventKind::create:
      return "create";
    case EventKind::release:
      return "release";
    case EventKind::map:
      return "map";
    case EventKind::unmap:
      return "unmap";
    case EventKind::lease:
      return "lease";
    case EventKind::unlease:
      return "unlease";
    case EventKind::trim:
      return "trim";
    case EventKind::out_of_memory:
      return "out_of_memory";
    case EventKind::heap_open:
      return "heap_open";
    case EventKind::pool_open:
      return "pool_open";
    case EventKind::pool_close:
      return "pool_close";
    case EventKind::capture_begin:
      return "capture_begin";
    case EventKind::capture_end:
      return "capture_end";
  }
  return "unknown";
}

}  // namespace weir
