// SPDX-License-Identifier: Apache-2.0
// Weir as a memory resource of CCCL (cuda::mr), and so of whatever takes one: RMM and what is built
// on it, CUB, Thrust's and cuda::experimental's containers.
//
//   weir::Allocator allocator;
//   weir::MemoryResource resource(allocator);
//   rmm::mr::set_current_device_resource_ref(resource);   // RMM; set_current_device_resource() of
//                                                         // versions from 26.02 on
//
// It has the functions of CCCL since 3.1, allocate(stream, bytes) and allocate_sync(), and those of
// before, allocate_async(bytes, stream) and allocate(bytes).
//
// A block may be deallocated on any stream: its memory serves the next request at once, and the GPU
// waits for work queued so far on that stream. Before the call, make that stream wait for what
// further streams do with the block, as RMM asks, or name their work with Allocator::fence().
//
// This header needs CCCL (the CUDA toolkit's, or a newer one) and the toolkit's runtime. Of Weir's
// headers only rmm_resource.h includes it.
//
// Threads: every call may be made from any thread. Errors: OutOfMemory (a std::bad_alloc);
// Exception. Deallocation reports none: a block that the device refuses to take back is logged, and
// stays the allocator's.
#pragma once

#include <cstddef>
#include <cuda/stream_ref>
#include <exception>
#include <string>

#include "weir/allocator.h"
#include "weir/log.h"

// Before CCCL 3.1 memory resources are an experiment: this macro must be set before a program first
// includes <cuda/memory_resource>.
#ifndef LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#endif
#include <cuda/memory_resource>

namespace weir {

// A reference to an allocator, for one device, or for the device that is current at each call.
// Cheap to copy; the allocator must outlive the copies and the blocks.
class MemoryResource {
 public:
  // The alignment of blocks; a larger one is an error.
  static constexpr std::size_t kAlignment = 512;

  explicit MemoryResource(Allocator& allocator, int device = Allocator::kCurrentDevice) noexcept
      : allocator_(&allocator), device_(device) {}

  Allocator& allocator() const noexcept { return *allocator_; }
  int device() const noexcept { return device_; }

  // For work on `stream`. Zero bytes: null.
  void* allocate(::cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = kAlignment) {
    check_alignment(alignment);
    return allocator_->allocate(Bytes{bytes}, stream.get(), device_);
  }
  void deallocate(::cuda::stream_ref stream, void* block, std::size_t bytes,
                  std::size_t /*alignment*/ = kAlignment) noexcept {
    Buffer buffer(*allocator_, block, Bytes{bytes});
    try {
      buffer.fence(stream.get());
    } catch (const std::exception& error) {
      log(LogLevel::error, error.what());
      (void)buffer.release();  // without the fence its memory must serve nothing else
    }
  }

  // For work on any stream: waits, on the host, until nothing uses the memory any more.
  void* allocate_sync(std::size_t bytes, std::size_t alignment = kAlignment) {
    check_alignment(alignment);
    Buffer buffer = allocator_->make_buffer(Bytes{bytes}, nullptr, {.device = device_});
    if (buffer) wait_for_default_stream();
    return buffer.release();
  }
  // All work that uses the block must be done.
  void deallocate_sync(void* block, std::size_t bytes,
                       std::size_t /*alignment*/ = kAlignment) noexcept {
    const Buffer buffer(*allocator_, block, Bytes{bytes});
  }

  // The same, as CCCL called them before 3.1.
  void* allocate_async(std::size_t bytes, std::size_t alignment, ::cuda::stream_ref stream) {
    return allocate(stream, bytes, alignment);
  }
  void* allocate_async(std::size_t bytes, ::cuda::stream_ref stream) {
    return allocate(stream, bytes);
  }
  void deallocate_async(void* block, std::size_t bytes, std::size_t alignment,
                        ::cuda::stream_ref stream) noexcept {
    deallocate(stream, block, bytes, alignment);
  }
  void deallocate_async(void* block, std::size_t bytes, ::cuda::stream_ref stream) noexcept {
    deallocate(stream, block, bytes);
  }
  void* allocate(std::size_t bytes, std::size_t alignment = kAlignment) {
    return allocate_sync(bytes, alignment);
  }
  void deallocate(void* block, std::size_t bytes, std::size_t alignment = kAlignment) noexcept {
    deallocate_sync(block, bytes, alignment);
  }

  // Whether both have one allocator and one device, so that one can give back what the other gave
  // out.
  friend bool operator==(const MemoryResource& one, const MemoryResource& other) noexcept {
    return one.allocator_ == other.allocator_ && one.device_ == other.device_;
  }
  friend bool operator!=(const MemoryResource& one, const MemoryResource& other) noexcept {
    return !(one == other);
  }

  friend void get_property(const MemoryResource&, ::cuda::mr::device_accessible) noexcept {}

 private:
  static void check_alignment(std::size_t alignment) {
    const bool is_power_of_two = alignment != 0 && (alignment & (alignment - 1)) == 0;
    if (is_power_of_two && alignment <= kAlignment) return;
    throw Exception(ErrorCode::invalid_argument,
                    "alignment " + std::to_string(alignment) +
                        ": Weir's blocks are aligned to 512 bytes; ask for a power of two up to "
                        "that");
  }

  void wait_for_default_stream() {
    Device& device = allocator_->device(device_);
    const Stream stream = value_of(device.stream(nullptr));
    const EventHandle event = value_of(device.create_event());
    Status done = device.record(event, stream);
    if (done) done = device.synchronize(event);
    const Status destroyed = device.destroy_event(event);
    check(done);
    check(destroyed);
  }

  static void check(const Status& status) {
    if (!status) throw Exception(status.error().code(), status.error().message());
  }

  template <class Value>
  static Value value_of(Result<Value> result) {
    if (!result) throw Exception(result.error().code(), result.error().message());
    return *result;
  }

  Allocator* allocator_;
  int device_;
};

}  // namespace weir
