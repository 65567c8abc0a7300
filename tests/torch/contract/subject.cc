// SPDX-License-Identifier: Apache-2.0
#include "tests/torch/contract/subject.h"

#include <optional>
#include <utility>

namespace weir::contract {
namespace {

// The policy's name may not exist in this Weir.
template <class Policy>
constexpr bool kHasNever = requires {
  Policy::no_wait;
};

template <class Policy>
void set_never_waits(Policy& policy) {
  if constexpr (kHasNever<Policy>) policy = Policy::no_wait;
}

// PyTorch's programs tell of few of their uses: memory moves elsewhere only behind all of the
// context's work.
template <class Options>
void trust_the_context_alone(Options& options) {
  if constexpr (requires { options.trust; }) options.trust = decltype(options.trust)::context;
}

template <class Options>
void forgo_context_events(Options& options) {
  if constexpr (requires { options.context_events; }) options.context_events = false;
}

template <class Options>
void fix_addresses(Options& options) {
  if constexpr (requires { options.addresses; }) {
    options.addresses = decltype(options.addresses)::fixed;
  }
}

HeapOptions heap_options(SubjectOptions options) {
  HeapOptions heap;
  trust_the_context_alone(heap);
  if (options.never_waits) set_never_waits(heap.reuse);
  if (options.captures_unseen) forgo_context_events(heap);
  if (options.fixed_addresses) fix_addresses(heap);
  return heap;
}

// The heap is told of streams that others serve.
template <class Heap>
void meet(Heap& heap, Stream stream) {
  if constexpr (requires { heap.captures().meet(stream); }) heap.captures().meet(stream);
}

// The backend's Python says that a capture failed.
template <class Pools>
void close_failed(Pools& pools, Stream current) {
  if constexpr (requires { pools.close_failed(current); }) (void)pools.close_failed(current);
}

// As the backend has it while caching is off.
pytorch::SegmentPool::Source uncached_memory(Device& device) {
  return {
      .allocate = [&device](Bytes size, Stream) -> void* {
        const Result<Address> at = device.allocate_segment(size);
        return at ? at->pointer() : nullptr;
      },
      .free = [&device](void* at, Bytes size) { (void)device.free_segment(Address::of(at), size); },
      .caches = false};
}

template <class Name>
void note_life(Name& stream, bool lasts) {
  if constexpr (requires { stream.may_end; }) stream.may_end = !lasts;
}

}  // namespace

bool has_policy_without_waits() { return kHasNever<ReusePolicy>; }

Subject::Subject(Device& device, SubjectOptions options)
    : device_(device),
      heap_(device, heap_options(options)),
      uncached_(uncached_memory(device), device, [](const auto&, auto) {}) {}

Result<Stream> Subject::known(StreamName name) {
  if (name.lasts && !name.bare) {
    const auto found = lasting_.find(name.stream.handle);
    if (found != lasting_.end()) return found->second;
  }
  Result<Stream> stream = heap_.stream(name.stream.handle);
  if (!stream) return stream;
  note_life(*stream, name.lasts);
  if (name.lasts) meet(heap_, *stream);  // it may have been met before, by its handle alone
  if (name.lasts && !name.bare && !stream->is_of_captured()) {
    lasting_[name.stream.handle] = *stream;
  }
  return stream;
}

bool Subject::is_captured(Stream stream) {
  const Result<CaptureInfo> info = device_.capture_info(stream);
  return info && info->status != CaptureInfo::Status::none;
}

Result<void*> Subject::allocate(Bytes bytes, StreamName name) {
  Result<Stream> stream = known(name);
  if (!stream) return std::move(stream).error();
  if (caching_ || is_captured(*stream)) return heap_.allocate(bytes, *stream);
  meet(heap_, *stream);
  if (void* const block = uncached_.allocate(bytes, *stream)) return block;
  (void)heap_.trim(0_B, Trim::waits);
  if (void* const block = uncached_.allocate(bytes, *stream)) return block;
  return Error(ErrorCode::out_of_memory, "the device has no more");
}

Status Subject::deallocate(void* block) {
  return uncached_.find(block) ? uncached_.deallocate(block) : heap_.deallocate(block);
}

Status Subject::record_stream(void* block, StreamName user) {
  Result<Stream> stream = known(user);
  if (!stream) return std::move(stream).error();
  if (uncached_.find(block)) return {};  // its free waits for all work
  return heap_.record_stream(block, *stream);
}

Status Subject::empty_cache() {
  if (const Result<Bytes> trimmed = heap_.trim(0_B, Trim::waits); !trimmed) return trimmed.error();
  uncached_.empty();
  return {};
}

Status Subject::set_limit(Bytes limit) {
  heap_.set_limit(limit);
  return {};
}

Status Subject::retain_pool(PoolId pool) {
  pools_.retain(pool);
  return {};
}

Status Subject::release_pool(PoolId pool) { return pools_.release(pool); }

Status Subject::begin_pool(PoolId pool, PoolFilter filter, StreamName current) {
  Result<Stream> stream = known(current);
  if (!stream) return std::move(stream).error();
  return pools_.begin(pool, std::move(filter), *stream);
}

Status Subject::end_pool(PoolId pool, StreamName current) {
  Result<Stream> stream = known(current);
  if (!stream) return std::move(stream).error();
  return pools_.end(pool, *stream);
}

void Subject::capture_failed(StreamName current) {
  if (const Result<Stream> stream = known(current)) close_failed(pools_, *stream);
}

Status Subject::save_pool(PoolId pool) {
  Result<std::vector<PlacedBlock>> blocks = pools_.blocks(pool);
  if (!blocks) return std::move(blocks).error();
  saved_[pool] = *std::move(blocks);
  return {};
}

Status Subject::restore_pool(PoolId pool) { return pools_.restore(pool, saved_[pool]); }

PoolId Subject::pool_of(void* block) const {
  const std::optional<BlockInfo> info = heap_.find(block);
  return info ? pools_.id_of(info->pool) : PoolId{0, 0};
}

}  // namespace weir::contract
