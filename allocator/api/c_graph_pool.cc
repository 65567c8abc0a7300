// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>

#include "api/c_status.h"
#include "weir/graph_pool.h"
#include "weir/weir.h"

struct weir_graph_pool_t {
  weir_graph_pool_t(weir::Allocator& owner, weir::Bytes limit, int device)
      : allocator(owner), device(device), pool(owner.heap(device), {.limit = limit}) {}
  weir::Allocator& allocator;
  const int device;
  weir::GraphPool pool;
};
struct weir_route_t {
  weir::PoolBinding binding;
};
struct weir_capture_t {
  weir::CaptureScope scope;
};
struct weir_graph_t {
  weir::Allocator& allocator;
  const int device;
  weir::Graph graph;
};

namespace {

using weir::c::check;
using weir::c::given;
using weir::c::guarded;
using weir::c::guarded_on;
using weir::c::invalid;
using weir::c::value_of;

weir::Stream stream_of(weir::Allocator& allocator, int device, void* handle) {
  return value_of(allocator.heap(device).stream(handle));
}

}  // namespace

weir_status_t weir_graph_pool_open(weir_allocator_t* allocator, uint64_t limit, int32_t device,
                                   weir_graph_pool_t** pool) {
  return guarded_on(allocator, [&](weir::Allocator& weir) {
    given(pool, "pool") = nullptr;
    *pool = new weir_graph_pool_t(weir, weir::Bytes{limit}, device);
  });
}

void weir_graph_pool_close(weir_graph_pool_t* pool) { delete pool; }

weir_status_t weir_graph_pool_warm_up(weir_graph_pool_t* pool, void* stream,
                                      weir_route_t** binding) {
  return guarded([&] {
    weir_graph_pool_t& mine = given(pool, "pool");
    given(binding, "binding") = nullptr;
    const weir::Stream asking = stream_of(mine.allocator, mine.device, stream);
    *binding = new weir_route_t{value_of(mine.pool.warm_up(asking))};
  });
}

weir_status_t weir_graph_pool_capture(weir_graph_pool_t* pool, weir_stream_filter_t filter,
                                      void* context, weir_route_t** binding) {
  return guarded([&] {
    weir_graph_pool_t& mine = given(pool, "pool");
    given(binding, "binding") = nullptr;
    if (filter == nullptr) invalid("filter is null");
    *binding = new weir_route_t{value_of(mine.pool.capture(
        [filter, context](weir::Stream stream) { return filter(stream.handle, context) != 0; }))};
  });
}

void weir_route_close(weir_route_t* binding, int32_t keep) {
  if (binding == nullptr) return;
  binding->binding.close(keep != 0);
  delete binding;
}

void weir_graph_pool_release_graph(weir_graph_pool_t* pool) {
  if (pool != nullptr) pool->pool.release_graph();
}

weir_status_t weir_graph_pool_statistics(weir_graph_pool_t* pool,
                                         weir_graph_pool_statistics_t* statistics) {
  return guarded([&] {
    const weir::GraphPoolStatistics now = given(pool, "pool").pool.statistics();
    const std::size_t size = given(statistics, "statistics").size;
    if (size < sizeof(size)) {
      invalid("statistics->size: set it to sizeof(weir_graph_pool_statistics_t) before the call");
    }
    const weir_graph_pool_statistics_t all{.size = size,
                                           .live_blocks = now.live_blocks,
                                           .live_bytes = now.live_bytes.count,
                                           .reserved_bytes = now.reserved_bytes.count,
                                           .peak_reserved_bytes = now.peak_reserved_bytes.count,
                                           .kept_bytes = now.kept_bytes.count,
                                           .graphs = now.graphs,
                                           .deferred = now.deferred,
                                           .lent_bytes = now.lent_bytes.count};
    std::memcpy(statistics, &all, std::min(size, sizeof(all)));
  });
}

weir_status_t weir_capture_begin(weir_graph_pool_t* pool, void* stream, weir_capture_mode_t mode,
                                 weir_capture_t** capture) {
  return guarded([&] {
    weir_graph_pool_t& mine = given(pool, "pool");
    given(capture, "capture") = nullptr;
    if (mode < WEIR_CAPTURE_GLOBAL || mode > WEIR_CAPTURE_RELAXED) {
      invalid("mode is none of weir_capture_mode_t");
    }
    *capture = new weir_capture_t{value_of(
        weir::CaptureScope::begin(mine.pool, stream_of(mine.allocator, mine.device, stream),
                                  static_cast<weir::CaptureMode>(mode)))};
  });
}

weir_status_t weir_capture_end(weir_graph_pool_t* pool, weir_capture_t* capture,
                               weir_graph_t** graph) {
  return guarded([&] {
    const std::unique_ptr<weir_capture_t> ended(&given(capture, "capture"));
    weir_graph_pool_t& mine = given(pool, "pool");
    given(graph, "graph") = nullptr;
    *graph = new weir_graph_t{mine.allocator, mine.device, value_of(ended->scope.end())};
  });
}

void weir_capture_abandon(weir_capture_t* capture) { delete capture; }

weir_status_t weir_graph_launch(weir_graph_t* graph, void* stream) {
  return guarded([&] {
    weir_graph_t& mine = given(graph, "graph");
    check(mine.graph.launch(stream_of(mine.allocator, mine.device, stream)));
  });
}

void weir_graph_destroy(weir_graph_t* graph) { delete graph; }
