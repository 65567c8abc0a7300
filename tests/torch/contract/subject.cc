// SPDX-License-Identifier: Apache-2.0
#include "tests/torch/contract/subject.h"

#include <optional>
#include <utility>

namespace weir::contract {
namespace {

// PyTorch's programs tell of few of their uses: memory moves elsewhere only behind all of the
// context's work.
HeapOptions heap_options(SubjectOptions options) {
  HeapOptions heap{.trust = Trust::context};
  if (options.never_waits) heap.reuse = ReusePolicy::no_wait;
  if (options.captures_unseen) heap.context_events = false;
  if (options.fixed_addresses) heap.addresses = Addresses::fixed;
  return heap;
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

}  // namespace

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
  stream->may_end = !name.lasts;
  if (name.lasts)
    heap_.captures().meet(*stream);  // it may have been met before, by its handle alone
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
  heap_.captures().meet(*stream);
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
  if (const Result<Stream> stream = known(current)) pools_.close_failed(*stream);
}

Status Subject::save_pool(PoolId pool) {
  Result<std::vector<PlacedBlock>> blocks = pools_.blocks(pool);
  if (!blocks) return std::move(blocks).error();
  saved_[pool] = *std::move(blocks);
  return {};
}

Status Subject::restore_pool(PoolId pool) { return pools_.graphs(pool)->restore(saved_[pool]); }

PoolId Subject::pool_of(void* block) const {
  const std::optional<BlockInfo> info = heap_.find(block);
  return info ? pools_.id_of(info->pool) : PoolId{0, 0};
}

}  // namespace weir::contract
