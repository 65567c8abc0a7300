// SPDX-License-Identifier: Apache-2.0
#include "torch/device_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "torch/c10d/operation.h"
#include "torch/errors.h"
#include "torch/memory_fraction.h"
#include "torch/shortage.h"
#include "torch/versions.h"
#include "weir/cuda_device.h"

namespace weir::pytorch {
namespace {

// Calls back those who registered with PyTorch to free memory when it runs short.
void call_free_memory_callbacks() {
  auto* const registry = c10::FreeCudaMemoryCallbacksRegistry();
  for (const std::string& name : registry->Keys()) (void)registry->Create(name)->Execute();
}

bool is_captured(Device& device, const Stream& stream) {
  const Result<CaptureInfo::Status> status = device.capture_status(stream);
  return status && *status != CaptureInfo::Status::none;
}

}  // namespace

// As C10_CUDA_CHECK throws what the device refused.
void raise(const Error& error) {
  TORCH_CHECK(error.code() == ErrorCode::device || error.code() == ErrorCode::capture,
              "weir: ", error.message());
  throw c10::AcceleratorError({__func__, __FILE__, __LINE__},
                              error.driver_code() != 0 ? error.driver_code() : cudaErrorUnknown,
                              "CUDA error: weir: " + error.message());
}

SegmentPool::Source source_of(
    const std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator>& of) {
  if (of == nullptr) return {};
  return {[of](Bytes bytes, Stream stream) {
            return of->raw_alloc_with_stream(bytes.count, static_cast<cudaStream_t>(stream.handle));
          },
          [of](void* memory, Bytes) { of->raw_delete(memory); }};
}

DeviceMemory::DeviceMemory(int number, Device& device, DeviceHeap& heap,
                           OutOfMemoryObserver observer)
    : number_(number),
      device_(device),
      heap_(heap),
      observer_(std::move(observer)),
      // A simulated device is no GPU.
      streams_(heap, device,
               dynamic_cast<CudaDevice*>(&device) == nullptr
                   ? std::nullopt
                   : std::optional(static_cast<c10::DeviceIndex>(number))),
      history_(static_cast<c10::DeviceIndex>(number), heap, streams_,
               [this](std::uint64_t id) { return pools_.id_of(id); }),
      statistics_(number, heap),
      total_([&] {
        const Result<MemoryInfo> memory = device.memory_info();
        return memory ? memory->total : 0_B;
      }()),
      configured_limit_(heap.options().limit),
      pools_(heap, device,
             [this](PoolId id, const SegmentPool::Segment& segment, SegmentPool::Change change) {
               const bool comes = change == SegmentPool::Change::gained;
               if (id == PoolId{0, 0}) {
                 uncached_bytes_ += comes ? segment.bytes.count : -segment.bytes.count;
                 return;
               }
               statistics_.count_segment(id, segment.bytes, comes);
               if (!history_.wants_entries()) return;
               using Entry = native::TraceEntry;
               history_.note(comes ? Entry::SEGMENT_ALLOC : Entry::SEGMENT_FREE, segment.address,
                             segment.bytes, segment.stream, id);
             }) {
  heap_.on_shortage(weir::Shortage::miss, [](Bytes) { call_free_memory_callbacks(); });
  heap_.tags().on_sleep([this]() -> std::vector<HeldMemory> {
    return {
        {kDefaultTag,
         {uncached_bytes_.load()},
         "allocated while torch.cuda.caching_allocator_enable(False)"},
        {kDefaultTag, statistics_.held_by_sources(), "MemPools with an allocator of their own"}};
  });
  heap_.on_shortage(weir::Shortage::out_of_memory, [this](Bytes) { begin_retry(); });
}

DeviceMemory::~DeviceMemory() { (void)heap_.stop_recording(history_); }

// --- Requests.

void* DeviceMemory::allocate(Bytes bytes, const Stream& stream) {
  // Else nobody wants to know of the block, and its memory is the heap's.
  const bool is_watched = history_.wants_entries() || pools_.has_sources() || frees_.any() ||
                          !caching_.load(std::memory_order_relaxed) || Operation::any_noted() ||
                          c10::memoryProfilingEnabled();
  if (is_watched) [[unlikely]]
    return allocate_watched(bytes, stream);
  const Result<void*> block = heap_.allocate(bytes, stream);
  if (!block.ok()) [[unlikely]]
    return allocate_refused(bytes, stream, block.error());
  return *block;
}

void* DeviceMemory::allocate_watched(Bytes bytes, const Stream& stream) {
  if (const std::optional<Error> error = frees_.take_failure()) raise(*error);
  finish_frees(frees_.take_done());
  const std::shared_ptr<SegmentPool> source = source_for(stream);
  History::Context context = history_.wants_entries() ? history_.context_of_allocation() : nullptr;
  void* const block = [&] {
    const History::Cause cause(context);
    if (source != nullptr) return allocate_from(*source, bytes, stream);
    const Result<void*> served = heap_.allocate(bytes, stream);
    return served.ok() ? *served : allocate_refused(bytes, stream, served.error());
  }();
  Operation::note_allocated(block);
  const bool is_told_of =
      pools_.has_sources() || history_.wants_entries() || c10::memoryProfilingEnabled();
  if (!is_told_of) return block;
  const std::optional<Found> found = find(block);
  if (found && found->is_uncached()) return block;
  if (found && found->source != nullptr) {
    statistics_.count_block(found->bytes, found->requested, /*comes=*/true);
  }
  if (history_.wants_entries()) {
    history_.note(native::TraceEntry::ALLOC, Address::of(block), bytes, stream,
                  found ? found->pool : c10::MempoolId_t{0, 0}, std::move(context));
  }
  const Bytes size = found ? found->bytes : round_up(bytes, kGrain);
  if (statistics_.tell_profiler(block, static_cast<std::int64_t>(size.count))) {
    was_profiled_.store(true, std::memory_order_relaxed);
  }
  return block;
}

// Null: the heap serves the stream's requests.
std::shared_ptr<SegmentPool> DeviceMemory::source_for(const Stream& stream) {
  std::shared_ptr<SegmentPool> source = pools_.source_for(stream);
  if (source != nullptr || caching_.load(std::memory_order_relaxed)) return source;
  if (is_captured(device_, stream)) return nullptr;
  (void)device_.prepare_to_synchronize();  // each free waits so
  heap_.captures().meet(stream);
  return pools_.uncached(
      {.allocate = [this](Bytes size, Stream) -> void* {
         const Result<Address> at = device_.allocate_segment(size);
         if (at) return at->pointer();
         const Result<MemoryInfo> now = device_.memory_info();
         if (at.error().code() == ErrorCode::out_of_memory || (now && now->free < size)) {
           return nullptr;
         }
         raise(at.error());
       },
       .free = [this](void* at, Bytes size) { (void)device_.free_segment(Address::of(at), size); },
       .caches = false});
}

// For a request that the heap refused. As with PyTorch's own allocator, one that a pool serves has
// no other memory.
void* DeviceMemory::allocate_refused(Bytes bytes, const Stream& stream, const Error& error) {
  if (error.code() == ErrorCode::out_of_memory) {
    const Result<std::uint64_t> pool = heap_.captures().pool_serving(stream);
    void* const reserve = pool && *pool == 0 ? pools_.take_from_reserve(bytes, stream) : nullptr;
    if (reserve != nullptr) return reserve;
  }
  fail(bytes, stream, error);
}

// As PyTorch's own: its callbacks may free something before the source is asked, and what is idle
// elsewhere goes back to the driver before the source is asked again.
void* DeviceMemory::allocate_from(SegmentPool& source, Bytes bytes, const Stream& stream) {
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

// Once for a request that found no memory: what may be freed for it goes before the last retry.
void DeviceMemory::begin_retry() {
  finish_frees(frees_.wait_and_take_done());
  statistics_.count(&Counts::retries);
}

void DeviceMemory::fail(Bytes bytes, const Stream& stream, const Error& error) {
  if (error.code() != ErrorCode::out_of_memory) raise(error);
  TORCH_CHECK_WITH(OutOfMemoryError, bytes <= kMostAsked, kAskedForTooMuch);
  const Result<MemoryInfo> memory = device_.memory_info();
  const MemoryInfo now = memory ? *memory : MemoryInfo{.free = 0_B, .total = total_};
  const Bytes limit = heap_.options().limit;
  const Bytes reserved =
      Bytes{heap_.statistics().reserved_bytes.current} + statistics_.held_by_sources();
  const bool is_rejection = is_rejected(bytes, reserved);
  if (!is_rejection) {
    // The entry's address is how much is free.
    history_.note(native::TraceEntry::OOM, Address{now.free.count}, bytes, stream, {0, 0},
                  history_.context_of_allocation());
  }
  statistics_.count(is_rejection ? &Counts::rejections : &Counts::out_of_memory);
  if (observer_) {
    observer_({.asked = bytes,
               .allowed = limit > 0_B ? limit : total_,
               .reserved = reserved,
               .free = now.free,
               .total = total_,
               .is_rejection = is_rejection,
               .error = error});
  }
  const Shortage shortage{.device = number_,
                          .asked = bytes,
                          .memory = now,
                          .limit = limit,
                          .reuse = heap_.options().reuse,
                          .held = heap_.snapshot(),
                          .pool_of = [this](std::uint64_t id) { return pools_.id_of(id); },
                          .of_other_sources = statistics_.held_by_sources(),
                          .error = error.message()};
  TORCH_CHECK_WITH(OutOfMemoryError, false, is_rejection ? kRejected : "", message_of(shortage));
}

// As PyTorch's own rejects it: what is reserved and this request are more than the device has. What
// a limit refuses is out of memory there, too.
bool DeviceMemory::is_rejected([[maybe_unused]] Bytes bytes,
                               [[maybe_unused]] Bytes reserved) const {
#if WEIR_TORCH_SINCE(12)
  return c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig::throw_on_cudamalloc_oom() &&
         heap_.options().limit == 0_B && reserved + bytes > total_;
#else
  return false;
#endif
}

// --- Frees.

bool DeviceMemory::deallocate(void* block) {
  // (Whether this thread is profiled is asked only once an allocation has been.)
  const bool is_watched =
      history_.wants_entries() || pools_.has_sources() || frees_.any() ||
      (was_profiled_.load(std::memory_order_relaxed) && c10::memoryProfilingEnabled());
  if (is_watched) [[unlikely]]
    return deallocate_watched(block);
  const Status freed = heap_.deallocate(block);
  return freed.ok() || note_freed(block, freed);
}

bool DeviceMemory::deallocate_watched(void* block) {
  finish_frees(frees_.take_done());
  std::optional<Found> found = find(block);
  if (!found || found->address != Address::of(block)) return false;
  History::Context context;
  if (history_.wants_entries() && !found->is_uncached()) {
    context = history_.context_of_release();
    history_.note(native::TraceEntry::FREE_REQUESTED, found->address, found->requested,
                  found->stream, found->pool, context);
  }
  if (!frees_.defer(block)) {
    if (!give_back(block, *found, std::move(context))) return false;
  } else if (found->is_uncached()) {
    finish_frees(frees_.wait_and_take_done());
  }
  if (found->is_uncached() && caching_.load(std::memory_order_relaxed)) {
    found.reset();  // with the last such block the pool goes: nothing need be watched for it
    pools_.empty({0, 0});
  }
  return true;
}

// No stream uses the block any more, but those that its heap knows of.
bool DeviceMemory::give_back(void* block, const Found& found, History::Context context) {
  if (found.is_uncached()) return note_freed(block, found.source->deallocate(block));
  if (history_.wants_entries()) {
    history_.note(native::TraceEntry::FREE_COMPLETED, found.address, found.requested, found.stream,
                  found.pool, std::move(context));
  }
  if (found.source != nullptr) {
    statistics_.count_block(found.bytes, found.requested, /*comes=*/false);
    (void)found.source->deallocate(block);  // it caches
  } else if (const Status freed = heap_.deallocate(block); !freed) {
    return note_freed(block, freed);
  }
  (void)statistics_.tell_profiler(block, -static_cast<std::int64_t>(found.bytes.count));
  return true;
}

// Is the block one of this device's? Errors of the device are the next allocation's to report.
bool DeviceMemory::note_freed(const void* block, const Status& freed) {
  if (freed.ok()) return true;
  if (freed.error().code() == ErrorCode::unknown_pointer) return false;
  frees_.note_failed(block, freed.error());
  return true;
}

void DeviceMemory::finish_frees(const std::vector<void*>& done) {
  for (void* const block : done) {
    const std::optional<Found> found = find(block);
    if (found) (void)give_back(block, *found, nullptr);
  }
}

std::optional<DeviceMemory::Found> DeviceMemory::find(const void* pointer) {
  Found found;
  if (const auto of_source = pools_.find(pointer)) {
    found = {of_source->first, of_source->second.first, of_source->second.second};
  } else if (const std::optional<BlockInfo> info = heap_.find(pointer)) {
    const Stream stream{.handle = streams_.handle_of(info->stream), .id = info->stream};
    found = {{info->address, info->bytes, info->requested, stream, info->address, info->bytes},
             pools_.id_of(info->pool),
             nullptr};
  } else {
    return std::nullopt;
  }
  if (frees_.any() && frees_.is_waiting(found.address.pointer())) return std::nullopt;
  return found;
}

// --- Uses on other streams.

bool DeviceMemory::record_stream(void* block, Stream user, DeviceMemory* of) {
  const bool is_own = of == nullptr || of == this;
  if (is_own && !pools_.find(block)) {
    const Status recorded = heap_.record_stream(block, user);
    if (recorded.ok()) return true;
    if (recorded.error().code() == ErrorCode::unknown_pointer) return false;
    raise(recorded.error());
  }
  const std::optional<Found> found = find(block);
  if (!found || found->address != Address::of(block)) return false;
  if (!is_own || found->stream != user)
    frees_.add_user(block, is_own ? device_ : of->device_, user);
  return true;
}

Status DeviceMemory::fence(std::span<void* const> pointers, Stream user) {
  const auto not_given = [this](const void* pointer) {
    return Error(
        ErrorCode::unknown_pointer,
        fmt::format("fence: {} is no memory of device {} that Weir gave out", pointer, number_));
  };
  std::vector<void*> of_heap, others;
  for (void* const pointer : pointers) {
    if (pointer == nullptr) continue;
    const std::optional<Found> found = find(pointer);
    if (!found) return not_given(pointer);
    (found->source == nullptr ? of_heap : others).push_back(found->address.pointer());
  }
  Status fenced = of_heap.empty() ? Status{} : heap_.fence(of_heap, user);
  for (void* const block : others) {
    if (fenced && !record_stream(block, user)) fenced = not_given(block);
  }
  return fenced;
}

Result<std::optional<Fence>> DeviceMemory::fence_around(std::span<const void* const> pointers,
                                                        Stream user) {
  bool any_of_heap = false;
  for (const void* const pointer : pointers) {
    if (heap_.owns(pointer)) {
      any_of_heap = true;
    } else if (const std::optional<Found> found = find(pointer)) {
      (void)record_stream(found->address.pointer(), user);
    }
  }
  if (!any_of_heap) return std::optional<Fence>();
  return heap_.fence_use(pointers, user, /*exact=*/true);
}

// --- All of it.

void DeviceMemory::set_fraction(double fraction) {
  TORCH_CHECK(fraction >= 0 && fraction <= 1, "invalid fraction:", fraction,
              ". Please set within [0, 1].");
  fraction_.store(fraction);
  heap_.set_limit(limit_of(fraction, total_, configured_limit_));
}

double DeviceMemory::fraction() const {
  const auto limit = static_cast<double>(configured_limit_.count);
  const double fraction = fraction_.load();
  return limit > 0 ? std::min(fraction, limit / static_cast<double>(total_.count)) : fraction;
}

void DeviceMemory::empty(c10::MempoolId_t pool) {
  const History::Context context = history_.context_of_release();
  const History::Cause cause(context);
  finish_frees(frees_.wait_and_take_done());
  if (pool != c10::MempoolId_t{0, 0}) return pools_.empty(pool);
  pools_.empty_sources();
  check(heap_.trim(0_B, Trim::waits));
}

void DeviceMemory::restore(c10::MempoolId_t pool, std::span<const PlacedBlock> blocks) {
  finish_frees(frees_.wait_and_take_done());
  const std::vector<PlacedBlock> live = check(pools_.blocks(pool));
  if (frees_.any() || history_.wants_entries()) {
    for (const PlacedBlock& block : live) {
      frees_.forget(block.address.pointer());
      history_.forget(block.address.pointer());
    }
  }
  if (const auto graphs = pools_.graphs(pool)) check(graphs->restore(blocks));
}

}  // namespace weir::pytorch
