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
  }
  return "unknown";
}

}  // namespace weir
