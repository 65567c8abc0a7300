// SPDX-License-Identifier: Apache-2.0
#include "torch/backend.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <string_view>
#include <utility>

#include "torch/c10d/operation.h"
#include "torch/errors.h"

namespace weir::pytorch {
namespace {

std::atomic<Backend*> the_backend{nullptr};

// PyTorch compares deleters by address: there is this one.
void delete_block(void* block) { the_backend.load()->raw_delete(block); }

struct PoolState final : AllocatorState {
  c10::MempoolId_t pool;
  std::vector<PlacedBlock> blocks;
};

}  // namespace

Backend* installed() { return the_backend.load(); }

void install(weir::Allocator& allocator) {
  CUDAAllocator* const before = c10::cuda::CUDACachingAllocator::allocator.load();
  TORCH_CHECK(before == nullptr || !before->initialized(),
              "weir: PyTorch has used CUDA already, with its own allocator: call weir.enable() "
              "before anything uses CUDA, or start the program with `python -m weir run`");
  TORCH_CHECK(the_backend.load() == nullptr, "weir: it is PyTorch's allocator already");
  auto* const backend = new Backend(allocator);  // for as long as the process lives
  the_backend.store(backend);
  c10::cuda::CUDACachingAllocator::allocator.store(backend);
  c10::SetAllocator(c10::kCUDA, backend, /*priority=*/255);
}

c10::DeviceIndex Backend::current_device() {
  refuse_after_fork();  // rather than in the driver's words
  c10::DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return device;
}

DeviceMemory& Backend::open(int device) {
  note_use_of_memory();
  const std::unique_lock guard = lock();
  std::atomic<DeviceMemory*>& place = memories_.at(static_cast<std::size_t>(device));
  if (DeviceMemory* const known = place.load()) return *known;
  const auto observer = [this, device](const DeviceMemory::Refusal& refused) {
    std::unique_lock observing = lock();
    const auto observers = observers_;
    const auto rejection_observers = rejection_observers_;
    observing.unlock();
    const std::size_t asked = refused.asked.count;
    if (refused.is_rejection) {
      for (const auto& observe : rejection_observers) {
        observe(device, asked, refused.reserved.count, refused.total.count);
      }
    } else {
      for (const auto& observe : observers) {
        observe(device, static_cast<std::int64_t>(asked), refused.allowed.count,
                refused.free.count);
      }
    }
    // The heap was asked directly, and so the allocator has not seen the failure.
    allocator_.report_failure(refused.error, device);
  };
  try {
    owned_.push_back(std::make_unique<DeviceMemory>(device, allocator_.device(device),
                                                    allocator_.heap(device), observer));
  } catch (const Exception& error) {
    raise({error.code(), error.what()});
  }
  DeviceMemory& memory = *owned_.back();
  for (const auto& tracker : trackers_) memory.history().track(tracker);
  if (history_.enabled) memory.history().set(history_, false);
  memory.set_caching(enabled_.load());
  place.store(&memory);
  return memory;
}

Backend::Owned Backend::owner(const void* pointer, const char* call) {
  refuse_after_fork();
  for (std::atomic<DeviceMemory*>& place : memories_) {
    DeviceMemory* const memory = place.load();
    if (memory == nullptr) continue;
    if (std::optional<DeviceMemory::Found> found = memory->find(pointer)) {
      return {*memory, *std::move(found)};
    }
  }
  TORCH_CHECK(false, call, ": ", pointer,
              " is no memory that Weir gave out: it was freed already, "
              "or another allocator's");
}

c10::DataPtr Backend::allocate(std::size_t bytes) {
  const c10::DeviceIndex device = its_device();
  void* block = nullptr;
  if (bytes != 0) {
    block = allocate_on(device, bytes);
    if (const auto* trace = c10::impl::GPUTrace::get_trace()) {
      (*trace)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(block));
    }
  }
  return {block, block, &delete_block, c10::Device(c10::DeviceType::CUDA, device)};
}

c10::DeleterFnPtr Backend::raw_deleter() const { return &delete_block; }

void Backend::copy_data(void* to, const void* from, std::size_t bytes) const {
  C10_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice,
                                 c10::cuda::getCurrentCUDAStream()));
}

void Backend::emptyCache(c10::MempoolId_t pool) {
  if (memory_is_gone()) return;
  for_each([&](DeviceMemory& memory) { memory.empty(pool); });
}

DeviceMemory* Backend::looked_at(c10::DeviceIndex device) const {
  DeviceMemory* const known = device < 0 ? nullptr : opened(device);
  TORCH_CHECK(known != nullptr || (device >= 0 && device < devices_.load()),
              "Allocator not initialized for device ", static_cast<int>(device),
              ": did you call init?");
  return known;
}

native::DeviceStats Backend::getDeviceStats(c10::DeviceIndex device) {
  DeviceMemory* const memory = looked_at(device);
  return memory != nullptr ? memory->stats() : device_stats({}, {}, {});
}
void Backend::resetAccumulatedStats(c10::DeviceIndex device) {
  if (DeviceMemory* const memory = looked_at(device)) memory->statistics().reset_accumulated();
}
void Backend::resetPeakStats(c10::DeviceIndex device) {
  if (DeviceMemory* const memory = looked_at(device)) memory->statistics().reset_peaks();
}

void* Backend::raw_alloc(std::size_t bytes) {
  return bytes == 0 ? nullptr : allocate_on(its_device(), bytes);
}

void* Backend::allocate_on(c10::DeviceIndex device, std::size_t bytes) {
  DeviceMemory& mine = memory(device);
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device);
  if (const Stream* const known = mine.streams().known(stream)) [[likely]]
    return mine.allocate(Bytes{bytes}, *known);
  return mine.allocate(Bytes{bytes}, check(mine.streams().of(stream)));
}

void* Backend::raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return nullptr;
  const c10::DeviceIndex device = its_device();
  DeviceMemory& mine = memory(device);
  Streams& streams = mine.streams();
  return mine.allocate(
      Bytes{bytes}, check(stream != nullptr ? streams.of(stream)
                                            : streams.of(c10::cuda::getDefaultCUDAStream(device))));
}

void Backend::raw_delete(void* block) {
  if (block == nullptr || memory_is_gone()) return;
  if (Operation::any_noted() && Operation::holds_free(block)) [[unlikely]]
    return;
  if (const auto* trace = c10::impl::GPUTrace::get_trace()) [[unlikely]] {
    (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(block));
  }
  if (shared_.any()) [[unlikely]]
    shared_.forget(block);
  const bool is_sole = devices_.load(std::memory_order_relaxed) == 1;  // nothing to look for
  for (std::atomic<DeviceMemory*>& place : memories_) {
    DeviceMemory* const memory = place.load(std::memory_order_acquire);
    if (memory != nullptr && (is_sole || memory->owns(block)) && memory->deallocate(block)) return;
  }
  TORCH_CHECK(false, "invalid device pointer: ", block,
              " is not the beginning of memory that Weir gave out: it was freed already, or is "
              "another allocator's");
}

void Backend::init(int device_count) { devices_.store(device_count); }

double Backend::getMemoryFraction(c10::DeviceIndex device) {
  DeviceMemory* const memory = looked_at(device);
  return memory != nullptr ? memory->fraction() : 1;
}
void Backend::setMemoryFraction(double fraction, c10::DeviceIndex device) {
  memory(device).set_fraction(fraction);
}

std::vector<StreamSegmentSize> Backend::getExpandableSegmentSizes(c10::DeviceIndex device) {
  DeviceMemory* const memory = looked_at(device);
  if (memory == nullptr) return {};
  std::unordered_map<void*, std::size_t> sizes;
  for (const native::SegmentInfo& segment : memory->segments({0, 0})) {
    sizes[segment.stream] += segment.total_size;
  }
  std::vector<StreamSegmentSize> all;
  for (const auto& [stream, size] : sizes) {
    all.emplace_back(static_cast<cudaStream_t>(stream), /*small=*/false, size);
  }
  return all;
}

void Backend::enable(bool value) {
  enabled_.store(value);
  for_each([&](DeviceMemory& memory) { memory.set_caching(value); });
}

// The largest block that could be had now. Where nothing is cached, it is what the driver has, as
// native asks for it.
void Backend::cacheInfo(c10::DeviceIndex device, std::size_t* largest) {
  if (DeviceMemory* const memory = looked_at(device)) {
    const Statistics now = memory->heap().statistics();
    const Result<MemoryInfo> info = memory->device().memory_info();
    const std::uint64_t idle = now.reserved_bytes.current - now.leased_bytes.current;
    *largest = std::max<std::size_t>(*largest, idle + (info ? info->free.count : 0));
  } else if (std::size_t total = 0; *largest == 0) {
    C10_CUDA_CHECK(cudaMemGetInfo(largest, &total));
  }
}

void* Backend::getBaseAllocation(void* pointer, std::size_t* size) {
  const Owned owned = owner(pointer, "getBaseAllocation");
  if (size != nullptr) *size = owned.block.base_bytes.count;
  return owned.block.base.pointer();
}

void Backend::recordStream(const c10::DataPtr& block, c10::cuda::CUDAStream stream) {
  // Empty tensors have no memory; that of other allocators is not Weir's to keep.
  if (block.get() == nullptr || block.get_deleter() != &delete_block) return;
  if (Operation::any_noted() && Operation::leaves_to_fence(block.get(), stream)) return;
  record_stream(block.get(), stream);
}

void Backend::record_stream(void* block, c10::cuda::CUDAStream stream) {
  DeviceMemory& of = memory(stream.device_index());
  const Stream user = check(of.streams().of(stream));
  bool known = false;
  for_each([&](DeviceMemory& memory) {
    known = known || (memory.owns(block) && memory.record_stream(block, user, &of));
  });
  TORCH_CHECK(known, "recordStream: ", block, " was freed already");
}

void Backend::fence(std::span<void* const> pointers, c10::DeviceIndex device, cudaStream_t stream) {
  DeviceMemory& memory = this->memory(device);
  check(memory.fence(pointers, check(memory.streams().of(stream))));
}

void Backend::beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                                  std::function<bool(cudaStream_t)> filter) {
  DeviceMemory& mine = memory(device);
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device);
  check(mine.pools().begin(pool, std::move(filter), check(mine.streams().of(stream))));
}
void Backend::endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) {
  if (memory_is_gone()) return;
  DeviceMemory& mine = memory(device);
  const Result<Stream> current = mine.streams().of(c10::cuda::getCurrentCUDAStream(device));
  check(mine.pools().end(pool, current ? std::optional(*current) : std::nullopt));
}
void Backend::close_failed_captures() {
  if (memory_is_gone()) return;
  for_each([](DeviceMemory& memory) {
    const auto device = static_cast<c10::DeviceIndex>(memory.number());
    const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device);
    if (const Result<Stream> current = memory.streams().of(stream)) {
      memory.pools().close_failed(*current);
    }
  });
}
void Backend::releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) {
  if (memory_is_gone()) return;
  DeviceMemory& mine = memory(device);
  const History::Context context = mine.history().context_of_release();
  const History::Cause cause(context);
  check(mine.pools().release(pool));
}
int Backend::getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) {
  DeviceMemory* const memory = looked_at(device);
  return memory != nullptr ? memory->pools().uses(pool) : 0;
}
void Backend::createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                                 std::shared_ptr<CUDAAllocator> source) {
  memory(device).pools().retain(pool, source_of(source));
}
void Backend::setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool, bool use) {
  memory(device).pools().set_use_on_oom(pool, use);
}
void Backend::setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool) {
  memory(device).pools().set_no_split(pool);
}

bool Backend::checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t pool,
                                       const std::unordered_set<void*>& expected) {
  DeviceMemory* const memory = looked_at(device);
  if (memory == nullptr) return expected.empty();
  const std::vector<PlacedBlock> live = check(memory->pools().blocks(pool));
  return live.size() == expected.size() &&
         std::all_of(live.begin(), live.end(), [&](const PlacedBlock& block) {
           return expected.contains(block.address.pointer());
         });
}

ShareableHandle Backend::shareIpcHandle(void* pointer) {
  const auto& [memory, block] = owner(pointer, "shareIpcHandle");
  if (block.source != nullptr) {
    return check(share_segment(memory.device(), block.base, Address::of(pointer) - block.base));
  }
  return check(shared_.share(memory.heap(), memory.device(), pointer));
}

std::shared_ptr<void> Backend::getIpcDevPtr(std::string handle) {
  note_use_of_memory();
  return check(opened_.open(allocator_.device(current_device()), handle));
}

bool Backend::isHistoryEnabled() {
  const std::unique_lock guard = lock();
  return history_.enabled;
}

void Backend::recordHistory(bool enabled, native::CreateContextFn context, std::size_t most_entries,
                            native::RecordContext when, bool clear,
                            const std::vector<std::string>& skip_actions) {
  const History::Options options{enabled, context, most_entries, when, skip_actions};
  std::unique_lock guard = lock();
  history_ = options;
  guard.unlock();
  for_each([&](DeviceMemory& memory) { memory.history().set(options, clear); });
}

void Backend::recordAnnotation(const std::vector<std::pair<std::string, std::string>>& metadata) {
  memory(current_device()).history().annotate(metadata);
  // A range that begins is a mark in Weir's own recordings, as in traces made of PyTorch's
  // snapshots.
  std::string_view name, stage;
  for (const auto& [key, value] : metadata) {
    if (key == "name") name = value;
    if (key == "stage") stage = value;
  }
  if (isHistoryEnabled() && stage == "START" && !name.empty()) allocator_.mark(name);
}

void Backend::pushCompileContext(std::string& context) {
  thread_notes().compile_contexts.push_back(context);
}
void Backend::popCompileContext() {
  if (!thread_notes().compile_contexts.empty()) thread_notes().compile_contexts.pop_back();
}
void Backend::setUserMetadata(const std::string& metadata) {
  thread_notes().user_metadata = metadata;
}
std::string Backend::getUserMetadata() { return thread_notes().user_metadata; }

void Backend::attachOutOfMemoryObserver(OutOfMemoryObserver observer) {
  const std::unique_lock guard = lock();
  observers_.push_back(std::move(observer));
}

#if WEIR_TORCH_SINCE(12)
std::shared_ptr<c10::GatheredContext> Backend::getContextForPointer(const void* pointer) {
  std::shared_ptr<c10::GatheredContext> context;
  for_each([&](DeviceMemory& memory) {
    const std::optional<DeviceMemory::Found> block = memory.find(pointer);
    if (block) context = memory.history().context_of(block->address.pointer());
  });
  return context;
}
void Backend::attachOomRejectionObserver(OomRejectionObserver observer) {
  const std::unique_lock guard = lock();
  rejection_observers_.push_back(std::move(observer));
}
#endif

#if WEIR_TORCH_SINCE(14)
void Backend::annotateMemory(const void* pointer, const std::string& metadata) {
  const auto& [memory, block] = owner(pointer, "annotateMemory");
  TORCH_CHECK(block.address == Address::of(pointer), "annotateMemory: ", pointer,
              " is not where a block begins: that is at ", block.address.pointer());
  History& history = memory.history();
  history.note(native::TraceEntry::ANNOTATE, block.address, block.requested, block.stream,
               block.pool, history.context_of_allocation(), &metadata);
}
#endif

void Backend::attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) {
  std::unique_lock guard = lock();
  trackers_.push_back(tracker);
  guard.unlock();
  for_each([&](DeviceMemory& memory) { memory.history().track(tracker); });
}

void Backend::enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex reaches) {
  // As PyTorch: `device` shall reach the memory of `reaches`.
  const c10::cuda::CUDAGuard guard(device);
  const cudaError_t enabled = cudaDeviceEnablePeerAccess(reaches, 0);
  if (enabled == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();
  } else {
    C10_CUDA_CHECK(enabled);
  }
  DeviceMemory& other = memory(reaches);
  auto* const cuda = dynamic_cast<CudaDevice*>(&other.device());
  if (cuda == nullptr) return;
  check(cuda->add_peer(device));
  check(other.heap().renew_access());
  check(opened_.renew_access(other.device()));
}

cudaError_t Backend::memcpyAsync(void* to, int to_device, const void* from, int from_device,
                                 std::size_t bytes, cudaStream_t stream, bool p2p_enabled) {
  if (p2p_enabled || to_device == from_device) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  }
  return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
}

std::shared_ptr<AllocatorState> Backend::getCheckpointState(c10::DeviceIndex device,
                                                            c10::MempoolId_t pool) {
  auto state = std::make_shared<PoolState>();
  state->pool = pool;
  if (DeviceMemory* const memory = looked_at(device))
    state->blocks = check(memory->pools().blocks(pool));
  return state;
}

// All that is live counts as freed, and all of the state as allocated anew: what is in both stays
// where it is, and has another owner afterwards.
CheckpointDelta Backend::setCheckpointPoolState(c10::DeviceIndex device,
                                                std::shared_ptr<AllocatorState> state) {
  const auto* const wanted = dynamic_cast<const PoolState*>(state.get());
  TORCH_CHECK(wanted != nullptr, "setCheckpointPoolState: the state is another allocator's");
  DeviceMemory& mine = memory(device);
  CheckpointDelta delta;
  for (const PlacedBlock& block : check(mine.pools().blocks(wanted->pool))) {
    delta.ptrs_freed.push_back(block.address.pointer());
  }
  mine.restore(wanted->pool, wanted->blocks);
  for (const PlacedBlock& block : wanted->blocks) {
    void* const address = block.address.pointer();
    delta.dataptrs_allocd.emplace_back(address, address, &delete_block,
                                       c10::Device(c10::DeviceType::CUDA, device));
  }
  return delta;
}

}  // namespace weir::pytorch
