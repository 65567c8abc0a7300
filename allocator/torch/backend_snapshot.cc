// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "torch/backend.h"

namespace weir::pytorch {

Backend::SnapshotInfo Backend::snapshot(c10::MempoolId_t pool, bool include_traces) {
  SnapshotInfo all;
  const int devices = std::max(devices_.load(), 1);
  all.device_traces.resize(static_cast<std::size_t>(devices));
  for_each([&](DeviceMemory& memory) {
    for (native::SegmentInfo& segment : memory.segments(pool)) {
      all.segments.push_back(std::move(segment));
    }
    // As in PyTorch, a snapshot's own entry is the next one's.
    std::vector<native::TraceEntry> entries = memory.history().entries();
    memory.history().snapshot_taken();
    if (!include_traces) return;
    all.device_traces.at(static_cast<std::size_t>(memory.number())) = std::move(entries);
    for (native::AnnotationEntry& entry : memory.history().annotations()) {
      all.external_annotations.push_back(std::move(entry));
    }
  });
  const auto to_unix = clock_.makeConverter();
  const auto in_microseconds = [&](native::trace_time_& time) {
    time.t_ = to_unix(time.approx_t_) / 1000;
  };
  for (auto& trace : all.device_traces) {
    for (native::TraceEntry& entry : trace) in_microseconds(entry.time_);
  }
  for (native::AnnotationEntry& entry : all.external_annotations) in_microseconds(entry.time_);
  using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
  using CudaConfig = c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;
  auto& config = all.config_metadata;
  config.garbage_collection_threshold = Config::garbage_collection_threshold();
  config.max_split_size = Config::max_split_size();
  config.pinned_num_register_threads = CudaConfig::pinned_num_register_threads();
  config.expandable_segments = CudaConfig::expandable_segments();
  config.release_lock_on_malloc = CudaConfig::release_lock_on_cudamalloc();
  config.pinned_use_host_register = CudaConfig::pinned_use_cuda_host_register();
  config.graph_capture_record_stream_reuse = CudaConfig::graph_capture_record_stream_reuse();
  config.last_allocator_settings = c10::CachingAllocator::getAllocatorSettings();
  config.roundup_power2_divisions = Config::roundup_power2_divisions();
  return all;
}

}  // namespace weir::pytorch
