// SPDX-License-Identifier: Apache-2.0
#include "suite/null_device.h"

namespace weir::bench {
namespace {

constexpr Address kFirst{std::uint64_t{1} << 40};
constexpr Bytes kAddresses = 64_TiB;  // as many as a GPU gives
constexpr std::uintptr_t kHandleAlignment = 16;

}  // namespace

Error NullDevice::no_capture() {
  return {ErrorCode::unavailable, "the null device has no captures"};
}

// Aligned as a pointer is: PyTorch tells its own streams by the lowest bits.
void* NullDevice::stream_handle(int number) {
  return reinterpret_cast<void*>((static_cast<std::uintptr_t>(number) + 1) * kHandleAlignment);
}

Result<Stream> NullDevice::stream(void* handle) {
  return Stream{handle, reinterpret_cast<std::uintptr_t>(handle) / kHandleAlignment};
}

Result<Address> NullDevice::reserve(Bytes size, Bytes alignment) {
  const std::scoped_lock lock(mutex_);
  if (reserved_ == 0_B) next_ = kFirst;
  const Address at{round_up(Bytes{next_.value}, alignment).count};
  if (at + size > kFirst + kAddresses) {
    return Error(ErrorCode::device, "reserve: the null device has no more addresses");
  }
  next_ = at + size;
  reserved_ += size;
  return at;
}

Status NullDevice::unreserve(Address, Bytes size) {
  const std::scoped_lock lock(mutex_);
  reserved_ -= size;
  return {};
}

}  // namespace weir::bench
