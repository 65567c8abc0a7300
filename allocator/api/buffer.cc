// SPDX-License-Identifier: Apache-2.0
#include <exception>
#include <utility>

#include "weir/allocator.h"
#include "weir/log.h"

namespace weir {

Buffer::Buffer(Buffer&& other) noexcept
    : allocator_(other.allocator_),
      block_(std::exchange(other.block_, nullptr)),
      bytes_(std::exchange(other.bytes_, {})) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  Buffer taken(std::move(other));
  std::swap(allocator_, taken.allocator_);
  std::swap(block_, taken.block_);
  std::swap(bytes_, taken.bytes_);
  return *this;
}

Buffer::~Buffer() {
  try {
    reset();
  } catch (const std::exception& error) {
    log(LogLevel::error, error.what());
  }
}

void Buffer::fence(void* stream) {
  if (block_ != nullptr) allocator_->fence(block_, stream);
}

void Buffer::record_stream(void* stream) {
  if (block_ != nullptr) allocator_->record_stream(block_, stream);
}

void Buffer::reset() {
  if (void* const block = release()) allocator_->deallocate(block);
}

void* Buffer::release() {
  bytes_ = {};
  return std::exchange(block_, nullptr);
}

}  // namespace weir
