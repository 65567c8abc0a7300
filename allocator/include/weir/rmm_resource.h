// SPDX-License-Identifier: Apache-2.0
// Weir as RMM's device resource: a MemoryResource that reports a lack of memory as RMM's users
// expect it, by rmm::out_of_memory.
//
//   weir::Allocator allocator(weir::Config{.trust = weir::Trust::context});
//   rmm::mr::set_current_device_resource(weir::RmmResource(allocator));
//
// The allocator must outlive all that RMM keeps. The example is for RMM 26.02 and newer; before,
// call set_current_device_resource_ref(). This header needs RMM's, and no other header of Weir's
// includes it.
//
// Threads, errors: as MemoryResource's, but for rmm::out_of_memory.
#pragma once

#include <cstddef>
#include <rmm/error.hpp>

#include "weir/memory_resource.h"

namespace weir {

class RmmResource {
 public:
  // The allocator has to have Config::trust == Trust::context, as RMM and its callers destroy
  // streams without retire(). Else Exception (invalid_argument).
  explicit RmmResource(Allocator& allocator, int device = Allocator::kCurrentDevice)
      : resource_(allocator, device) {
    if (allocator.config().trust.value_or(Trust::told) == Trust::context) return;
    throw Exception(ErrorCode::invalid_argument,
                    "RmmResource: RMM destroys streams without telling the allocator: make it with "
                    "Config{.trust = Trust::context}, or set WEIR_TRUST=context");
  }

  static constexpr std::size_t kAlignment = MemoryResource::kAlignment;

  void* allocate(::cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = kAlignment) {
    return or_rmms_error([&] { return resource_.allocate(stream, bytes, alignment); });
  }
  void deallocate(::cuda::stream_ref stream, void* block, std::size_t bytes,
                  std::size_t alignment = kAlignment) noexcept {
    resource_.deallocate(stream, block, bytes, alignment);
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment = kAlignment) {
    return or_rmms_error([&] { return resource_.allocate_sync(bytes, alignment); });
  }
  void deallocate_sync(void* block, std::size_t bytes,
                       std::size_t alignment = kAlignment) noexcept {
    resource_.deallocate_sync(block, bytes, alignment);
  }

  // As CCCL called them before 3.1.
  void* allocate_async(std::size_t bytes, std::size_t alignment, ::cuda::stream_ref stream) {
    return allocate(stream, bytes, alignment);
  }
  void deallocate_async(void* block, std::size_t bytes, std::size_t alignment,
                        ::cuda::stream_ref stream) noexcept {
    deallocate(stream, block, bytes, alignment);
  }
  void* allocate(std::size_t bytes, std::size_t alignment = kAlignment) {
    return allocate_sync(bytes, alignment);
  }
  void deallocate(void* block, std::size_t bytes, std::size_t alignment = kAlignment) noexcept {
    deallocate_sync(block, bytes, alignment);
  }

  friend bool operator==(const RmmResource& one, const RmmResource& other) noexcept {
    return one.resource_ == other.resource_;
  }
  friend bool operator!=(const RmmResource& one, const RmmResource& other) noexcept {
    return !(one == other);
  }
  friend void get_property(const RmmResource&, ::cuda::mr::device_accessible) noexcept {}

 private:
  template <class Allocate>
  static void* or_rmms_error(Allocate&& allocate) {
    try {
      return allocate();
    } catch (const OutOfMemory& lack) {
      throw rmm::out_of_memory(lack.what());
    }
  }

  MemoryResource resource_;
};

}  // namespace weir
