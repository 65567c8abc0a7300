// SPDX-License-Identifier: Apache-2.0
#include "torch/device_memory.h"

#include <c10/util/env.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "torch/c10d/operation.h"
#include "torch/errors.h"
#include "torch/memory_fraction.h"
#include "torch/segments.h"
#include "torch/shortage.h"
#include "weir/cuda_device.h"

namespace weir::pytorch {
namespace {

Bytes total_of(Device& device) {
  const Result<MemoryInfo> memory = device.memory_info();
  return memory ? memory->total : 0_B;
}

// None: the device is a simulated one.
std::optional<c10::DeviceIndex> gpu_of(int number, Device& device) {
  if (dynamic_cast<CudaDevice*>(&device) == nullptr) return std::nullopt;
  return static_cast<c10::DeviceIndex>(number);
}

// Calls back those who registered with PyTorch to free memory when it runs short.
void call_free_memory_callbacks() {
  auto* const registry = c10::FreeCudaMemoryCallbacksRegistry();
  for (const std::string& name : registry->Keys()) (void)registry->Create(name)->Execute();
}

// As PyTorch's own allocator reads it.
bool environment_allows_caching() {
  return c10::utils::check_env("PYTORCH_NO_CUDA_MEMORY_CACHING") != true;
}

// Of what pools with a source of their own hold.
constexpr std::array kGaugesOfSources = {&Statistics::live_blocks,     &Statistics::live_bytes,
                                         &Statistics::requested_bytes, &Statistics::leased_bytes,
                                         &Statistics::reserved_bytes,  &Statistics::pages};

void change(Gauge& gauge, std::uint64_t by, bool up) { up ? gauge.add(by) : gauge.subtract(by); }

}  // namespace

// As C10_CUDA_CHECK throws what the device refused.
void raise(const Error& error) {
  TORCH_CHECK(error.code() == ErrorCode::device || error.code() == ErrorCode::capture,
              "weir: ", error.message());
  throw c10::AcceleratorError({__func__, __FILE__, __LINE__},
                              error.driver_code() != 0 ? error.driver_code() : cudaErrorUnknown,
                              "CUDA error: weir: " + error.message());
}

SegmentPool::Source source_of(std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator> of) {
  if (of == nullptr) return {};
  return {[of](Bytes bytes, Stream stream) {
            return of->raw_alloc_with_stream(bytes.count, static_cast<cudaStream_t>(stream.handle));
          },
          [of](void* memory) { of->raw_delete(memory); }};
}

DeviceMemory::DeviceMemory(int number, Device& device, DeviceHeap& heap)
    : number_(number),
      device_(device),
      heap_(heap),
      streams_(heap, device, gpu_of(number, device)),
      history_(number, streams_, [this](std::uint64_t id) { return pools_.id_of(id); }),
      total_(total_of(device)),
      configured_limit_(heap.limit()),
      caching_allowed_(environment_allows_caching()),
      caching_(caching_allowed_),
      pools_(heap, device,
             [this](PoolId id, const SegmentPool::Segment& segment, SegmentPool::Change change) {
               note_segment(id, segment, change == SegmentPool::Change::gives_back);
             }) {
  heap_.on_miss([] { call_free_memory_callbacks(); });
  heap_.on_sleep([this]() -> std::vector<HeldMemory> {
    const DeviceHeap* const uncached = uncached_.heap();
    const Bytes alone = {uncached == nullptr ? 0 : uncached->statistics().reserved_bytes.current};
    return {{kDefaultTag, alone, "allocated while torch.cuda.caching_allocator_enable(False)"},
            {kDefaultTag, held_by_sources(), "MemPools with an allocator of their own"}};
  });
  heap_.on_out_of_memory([this](Bytes) { begin_retry(); });
}

DeviceMemory::~DeviceMemory() { heap_.stop_recording(history_); }

void* DeviceMemory::allocate(Bytes bytes, Stream stream) {
  if (allocation_watched()) [[unlikely]]
    return allocate_reported(bytes, stream);
  Result<void*> block = heap_.allocate(bytes, stream);
  if (!block.ok()) [[unlikely]] {
    void* const reserve = take_from_reserve(bytes, stream, block);
    Operation::note_allocated(reserve);
    return reserve;
  }
  if (Operation::any_noted()) [[unlikely]]
    Operation::note_allocated(*block);
  return *block;
}

void* DeviceMemory::allocate_reported(Bytes bytes, Stream stream) {
  if (failed_frees_.any()) {
    if (const std::optional<Error> error = failed_frees_.take()) raise(*error);
  }
  if (deferred_frees_.any()) finish_frees(deferred_frees_.take_done());
  const std::shared_ptr<SegmentPool> source = pools_.source_for(stream);
  if (source == nullptr && !caching_.load(std::memory_order_relaxed) && !is_captured(stream)) {
    return allocate_uncached(bytes, stream);
  }
  History::Context context = history_.wants_entries() ? history_.context_of_allocation() : nullptr;
  void* const block = [&] {
    const History::Cause cause(context);
    return source != nullptr ? counted(allocate_from(*source, bytes, stream))
                             : allocate_from_heap(bytes, stream);
  }();
  Operation::note_allocated(block);
  const std::optional<Found> found = find(block);
  if (history_.wants_entries()) {
    history_.allocated(block, bytes, stream, found ? found->pool : c10::MempoolId_t{0, 0},
                       std::move(context));
  }
  const Bytes size = found ? found->bytes : round_up(bytes, kGrain);
  tell_profiler(block, static_cast<std::int64_t>(size.count));
  return block;
}

void* DeviceMemory::allocate_from_heap(Bytes bytes, Stream stream) {
  const Result<void*> block = heap_.allocate(bytes, stream);
  return block.ok() ? *block : take_from_reserve(bytes, stream, block);
}

// For a request that the heap refused. As with PyTorch's own allocator, one that a pool serves has
// no other memory.
void* DeviceMemory::take_from_reserve(Bytes bytes, Stream stream, const Result<void*>& refused) {
  const Error& error = refused.error();
  if (error.code() == ErrorCode::out_of_memory && is_of_default_pool(stream)) {
    if (void* const reserve = pools_.take_from_reserve(bytes, stream)) return counted(reserve);
  }
  fail(bytes, stream, error);
}

bool DeviceMemory::is_of_default_pool(Stream stream) {
  const Result<std::uint64_t> pool = heap_.pool_serving(stream);
  return pool && *pool == 0;
}

// The one of a request that found no memory: what may be freed for it goes first.
void DeviceMemory::begin_retry() {
  finish_frees(deferred_frees_.wait_and_take_done());
  const std::lock_guard lock(mutex_);
  ++counts_.retries;
}

// As PyTorch's own: its callbacks may free something before the source is asked, and what is idle
// elsewhere goes back to the driver before the source is asked again.
void* DeviceMemory::allocate_from(SegmentPool& source, Bytes bytes, Stream stream) {
  if (void* const block = source.take_free(bytes, stream)) return block;
  call_free_memory_callbacks();
  try {
    if (void* const block = source.allocate(bytes, stream)) return block;
  } catch (const c10::OutOfMemoryError&) {
    // The second try reports it.
  }
  begin_retry();
  (void)heap_.trim(0_B, Trim::waits);
  if (void* const block = source.allocate(bytes, stream)) return block;
  fail(bytes, stream,
       {ErrorCode::out_of_memory, "the allocator of the memory pool in use has no more"});
}

bool DeviceMemory::is_captured(Stream stream) const {
  const Result<CaptureInfo::Status> status = device_.capture_status(stream);
  return status && *status != CaptureInfo::Status::none;
}

void* DeviceMemory::allocate_uncached(Bytes bytes, Stream stream) {
  heap_.meet(stream);
  Result<void*> block = uncached_.allocate(bytes, stream);
  if (!block.ok() && block.error().code() == ErrorCode::out_of_memory) {
    (void)heap_.trim();  // idle memory of the cache is in its way
    block = uncached_.allocate(bytes, stream);
  }
  if (!block.ok()) fail(bytes, stream, block.error());
  return *block;
}

bool DeviceMemory::deallocate(void* block) {
  if (free_watched()) [[unlikely]]
    return deallocate_reported(block);
  const Status freed = heap_.deallocate(block);
  return freed.ok() || note_freed(block, freed);
}

// Is the block one of this device's? Errors of the device are the next allocation's to report.
bool DeviceMemory::note_freed(const void* block, const Status& freed) {
  if (freed.ok()) return true;
  if (freed.error().code() == ErrorCode::unknown_pointer) return false;
  failed_frees_.note(block, freed.error());
  return true;
}

std::optional<DeviceMemory::Found> DeviceMemory::find(const void* block) {
  const Address begin = Address::of(block);
  if (const std::optional<Pools::SourcedBlock> found = pools_.find(block)) {
    if (found->address != begin) return std::nullopt;
    return Found{found->block.bytes, found->block.requested, found->stream, found->pool.id,
                 found->pool.memory};
  }
  const bool is_uncached = uncached_.owns(block);
  const std::optional<BlockInfo> info = heap_of(block).find(block);
  if (!info || info->address != begin) return std::nullopt;
  return Found{.bytes = info->bytes,
               .requested = info->requested,
               .stream = {.handle = streams_.handle_of(info->stream), .id = info->stream},
               .pool = is_uncached ? c10::MempoolId_t{0, 0} : pools_.id_of(info->pool),
               .is_uncached = is_uncached};
}

std::optional<DeviceMemory::Extent> DeviceMemory::extent_of(const void* pointer) {
  if (const std::optional<Pools::SourcedBlock> found = pools_.find(pointer)) {
    return Extent{found->segment, found->segment_bytes, true};
  }
  const std::optional<BlockInfo> info = heap_of(pointer).find(pointer);
  if (!info) return std::nullopt;
  return Extent{info->address, info->bytes, false};
}

bool DeviceMemory::deallocate_reported(void* block) {
  if (deferred_frees_.any()) finish_frees(deferred_frees_.take_done());
  const std::optional<Found> found = find(block);
  if (!found || deferred_frees_.is_waiting(block)) return false;
  History::Context context;
  if (history_.wants_entries() && !found->is_uncached) {
    context = history_.free_requested(block, found->requested, found->stream, found->pool);
  }
  const Result<bool> deferred = deferred_frees_.defer(block);
  if (!deferred) return note_freed(block, Status(deferred.error()));
  return *deferred || give_back(block, *found, std::move(context));
}

// No stream uses the block any more, but those that its heap knows of.
bool DeviceMemory::give_back(void* block, const Found& found, History::Context context) {
  if (found.is_uncached) return note_freed(block, uncached_.deallocate(block));
  if (history_.wants_entries()) {
    history_.free_completed(block, found.requested, found.stream, found.pool, std::move(context));
  }
  if (found.source != nullptr) {
    count(found, /*live=*/false);
    found.source->deallocate(block);
  } else if (const Status freed = heap_.deallocate(block); !freed) {
    return note_freed(block, freed);
  }
  tell_profiler(block, -static_cast<std::int64_t>(found.bytes.count));
  return true;
}

void DeviceMemory::finish_frees(std::vector<DeferredFrees::Done> done) {
  for (const auto& [block, status] : done) {
    const std::optional<Found> found = find(block);
    if (!status) {
      failed_frees_.note(block, status.error());
    } else if (found) {
      (void)give_back(block, *found, nullptr);
    }
  }
}

// torch.profiler with profile_memory.
void DeviceMemory::tell_profiler(void* block, std::int64_t bytes) {
  if (!c10::memoryProfilingEnabled()) return;
  was_profiled_.store(true, std::memory_order_relaxed);
  const Statistics now = statistics();
  c10::reportMemoryUsageToProfiler(
      block, bytes, now.live_bytes.current, now.reserved_bytes.current,
      c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(number_)));
}

bool DeviceMemory::record_stream(void* block, Stream user, DeviceMemory& of) {
  if (&of == this && !pools_.find(block)) {
    const Status recorded = heap_of(block).record_stream(block, user);
    if (recorded.ok()) return true;
    if (recorded.error().code() == ErrorCode::unknown_pointer) return false;
    raise(recorded.error());
  }
  const std::optional<Found> found = find(block);
  if (!found || deferred_frees_.is_waiting(block)) return false;
  if (&of != this || found->stream != user) deferred_frees_.add_user(block, of.device_, user);
  return true;
}

Status DeviceMemory::fence(std::span<void* const> pointers, Stream user) {
  const auto not_given = [this](const void* pointer) {
    return Error(
        ErrorCode::unknown_pointer,
        fmt::format("fence: {} is no memory of device {} that Weir gave out", pointer, number_));
  };
  std::vector<void*> cached, others, sourced;
  for (void* const pointer : pointers) {
    if (pointer == nullptr) continue;
    if (const std::optional<Pools::SourcedBlock> found = pools_.find(pointer)) {
      sourced.push_back(found->address.pointer());
      continue;
    }
    const std::optional<BlockInfo> info = heap_of(pointer).find(pointer);
    if (!info) return not_given(pointer);
    (uncached_.owns(pointer) ? others : cached).push_back(info->address.pointer());
  }
  Status fenced = cached.empty() ? Status{} : heap_.fence(cached, user);
  if (fenced && !others.empty()) fenced = uncached_.heap()->fence(others, user);
  for (void* const block : sourced) {
    if (fenced && !record_stream(block, user)) fenced = not_given(block);
  }
  return fenced;
}

Result<std::optional<Fence>> DeviceMemory::fence_around(std::span<const void* const> pointers,
                                                        Stream user) {
  Result<std::optional<Fence>> fence = fence_around(heap_, pointers, user);
  if (!fence) return fence;
  if (DeviceHeap* const uncached = uncached_.heap()) {
    const Result<std::optional<Fence>> other = fence_around(*uncached, pointers, user);
    if (!other) return other;
  }
  if (!pools_.has_sources()) return fence;
  for (const void* const pointer : pointers) {
    const std::optional<Pools::SourcedBlock> found = pools_.find(pointer);
    if (found) (void)record_stream(found->address.pointer(), user);
  }
  return fence;
}

Result<std::optional<Fence>> DeviceMemory::fence_around(DeviceHeap& heap,
                                                        std::span<const void* const> pointers,
                                                        Stream user) {
  const auto is_its = [&](const void* pointer) { return heap.owns(pointer); };
  if (std::none_of(pointers.begin(), pointers.end(), is_its)) return std::optional<Fence>();
  const Result<Fence> taken = heap.take_fence_around(pointers, user);
  if (taken) return std::optional<Fence>(*taken);
  // The stream is captured: the fence is a point of the graph, or the block is the capture's. Or
  // the device refuses an event now: it is asked for another one when the block goes back.
  Status failed;
  for (const void* const pointer : pointers) {
    const std::optional<BlockInfo> found = heap.find(pointer);
    if (!found) continue;
    void* const block = found->address.pointer();
    Status fenced = heap.fence(block, user);
    if (!fenced) fenced = heap.record_stream(block, user);
    if (failed) failed = std::move(fenced);
  }
  if (!failed) return std::move(failed).error();
  return std::optional<Fence>();
}

Status DeviceMemory::renew_access() {
  Status renewed = heap_.renew_access();
  DeviceHeap* const uncached = uncached_.heap();
  if (renewed && uncached != nullptr) renewed = uncached->renew_access();
  return renewed;
}

void DeviceMemory::fail(Bytes bytes, Stream stream, const Error& error) {
  if (error.code() != ErrorCode::out_of_memory) raise(error);
  TORCH_CHECK_WITH(OutOfMemoryError, bytes <= kMostAsked, kAskedForTooMuch);
  const Result<MemoryInfo> memory = device_.memory_info();
  const MemoryInfo now = memory ? *memory : MemoryInfo{.free = 0_B, .total = total_};
  History::Context context = history_.context_of_allocation();
  history_.out_of_memory(bytes, now.free, stream, std::move(context));
  const Bytes limit = heap_.limit();
  std::vector<c10::cuda::CUDACachingAllocator::OutOfMemoryObserver> observers;
  FailureObserver failure_observer;
  {
    const std::lock_guard lock(mutex_);
    ++counts_.out_of_memory;
    observers = observers_;
    failure_observer = failure_observer_;
  }
  for (const auto& observe : observers) {
    observe(number_, static_cast<std::int64_t>(bytes.count), (limit > 0_B ? limit : total_).count,
            now.free.count);
  }
  if (failure_observer) failure_observer(error);
  const Shortage shortage{.device = number_,
                          .asked = bytes,
                          .memory = now,
                          .limit = limit,
                          .reuse = heap_.reuse(),
                          .held = heap_.snapshot(),
                          .pool_of = [this](std::uint64_t id) { return pools_.id_of(id); },
                          .of_other_sources = held_by_sources(),
                          .error = error.message()};
  TORCH_CHECK_WITH(OutOfMemoryError, false, message_of(shortage));
}

void DeviceMemory::set_fraction(double fraction) {
  TORCH_CHECK(fraction >= 0 && fraction <= 1, "invalid fraction:", fraction,
              ". Please set within [0, 1].");
  {
    const std::lock_guard lock(mutex_);
    fraction_ = fraction;
  }
  heap_.set_limit(limit_of(fraction, total_, configured_limit_));
}

double DeviceMemory::fraction() const {
  const auto limit = static_cast<double>(configured_limit_.count);
  const std::lock_guard lock(mutex_);
  return limit > 0 ? std::min(fraction_, limit / static_cast<double>(total_.count)) : fraction_;
}

void DeviceMemory::on_out_of_memory(c10::cuda::CUDACachingAllocator::OutOfMemoryObserver observer) {
  const std::lock_guard lock(mutex_);
  observers_.push_back(std::move(observer));
}

void DeviceMemory::on_failure(FailureObserver observer) {
  const std::lock_guard lock(mutex_);
  failure_observer_ = std::move(observer);
}

void DeviceMemory::empty(c10::MempoolId_t pool) {
  const History::Context context = history_.context_of_release();
  const History::Cause cause(context);
  finish_frees(deferred_frees_.wait_and_take_done());
  if (pool != c10::MempoolId_t{0, 0}) return pools_.empty(pool);
  pools_.empty_sources();
  check(heap_.trim(0_B, Trim::waits));
  check(uncached_.empty());
}

void DeviceMemory::restore(c10::MempoolId_t pool, std::span<const PlacedBlock> blocks) {
  if (deferred_frees_.any()) finish_frees(deferred_frees_.wait_and_take_done());
  if (deferred_frees_.any() || history_.wants_entries()) {
    for (const PlacedBlock& block : check(pools_.blocks(pool))) {
      deferred_frees_.forget(block.address.pointer());
      history_.forget(block.address.pointer());
    }
  }
  check(pools_.restore(pool, blocks));
}

void DeviceMemory::note_segment(PoolId id, const SegmentPool::Segment& segment, bool gone) {
  {
    const std::lock_guard lock(mutex_);
    change(of_sources_.reserved_bytes, segment.bytes.count, !gone);
    change(of_sources_.pages, 1, !gone);
  }
  if (!history_.wants_entries()) return;
  history_.segment(segment.address, segment.bytes, segment.stream, id, gone);
}

// A new block.
void* DeviceMemory::counted(void* block) {
  const std::optional<Found> found = find(block);
  if (found && found->source != nullptr) count(*found, /*live=*/true);
  return block;
}

// Of a block of a pool with a source of its own.
void DeviceMemory::count(const Found& block, bool live) {
  const std::lock_guard lock(mutex_);
  change(of_sources_.live_blocks, 1, live);
  change(of_sources_.live_bytes, block.bytes.count, live);
  change(of_sources_.leased_bytes, block.bytes.count, live);
  change(of_sources_.requested_bytes, block.requested.count, live);
}

Bytes DeviceMemory::held_by_sources() const {
  const std::lock_guard lock(mutex_);
  return {of_sources_.reserved_bytes.current};
}

Statistics DeviceMemory::statistics() const {
  Statistics all = heap_.statistics();
  const std::lock_guard lock(mutex_);
  for (const auto gauge : kGaugesOfSources) {
    (all.*gauge).current += (of_sources_.*gauge).current;
    (all.*gauge).peak += (of_sources_.*gauge).peak;
    (all.*gauge).total += (of_sources_.*gauge).total;
  }
  return all;
}

c10::CachingDeviceAllocator::DeviceStats DeviceMemory::stats() const {
  const Statistics now = statistics();
  const std::lock_guard lock(mutex_);
  return device_stats(now, before_, counts_);
}

void DeviceMemory::reset_accumulated() {
  Statistics now = statistics();
  const std::lock_guard lock(mutex_);
  before_ = std::move(now);
  counts_ = {};
}

void DeviceMemory::reset_peaks() {
  heap_.reset_peaks();
  const std::lock_guard lock(mutex_);
  for (const auto gauge : kGaugesOfSources) {
    (of_sources_.*gauge).peak = (of_sources_.*gauge).current;
  }
}

std::vector<c10::CachingDeviceAllocator::SegmentInfo> DeviceMemory::segments(
    c10::MempoolId_t pool) {
  SegmentNames names;
  names.device = number_;
  names.stream = [this](std::uint64_t id) { return streams_.handle_of(id); };
  names.pool = [this](std::uint64_t id) { return pools_.id_of(id); };
  names.context = [this](const void* block) { return history_.context_of(block); };
  names.segment_context = [this](Address at) { return history_.context_of_segment(at); };
  std::vector<c10::CachingDeviceAllocator::SegmentInfo> segments =
      segments_of(heap_.snapshot(), names);
  for (const Pools::Sourced& each : pools_.sources()) {
    add_segments_of(*each.memory, each.id, names, segments);
  }
  if (pool != c10::MempoolId_t{0, 0}) {
    std::erase_if(segments, [&](const auto& each) { return each.owner_private_pool_id != pool; });
  }
  return segments;
}

void DeviceMemory::set_history(const History::Options& options, bool clear) {
  history_.set(options, clear);
  listen();
}

void DeviceMemory::track(native::AllocatorTraceTracker tracker) {
  history_.track(std::move(tracker));
  listen();
}

// Events of mappings are had from the heap only while somebody wants them: they cost time.
void DeviceMemory::listen() {
  const std::lock_guard lock(mutex_);
  const bool wanted = history_.wants_entries();
  if (wanted == listening_) return;
  listening_ = wanted;
  if (wanted) {
    heap_.start_recording(history_);
  } else {
    (void)heap_.stop_recording(history_);
  }
}

Bytes DeviceMemory::largest() const {
  const Statistics now = heap_.statistics();
  const Result<MemoryInfo> memory = device_.memory_info();
  const Bytes idle{now.reserved_bytes.current - now.leased_bytes.current};
  return idle + (memory ? memory->free : 0_B);
}

}  // namespace weir::pytorch
