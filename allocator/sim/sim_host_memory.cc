// SPDX-License-Identifier: Apache-2.0
#include "sim/sim_host_memory.h"

#include <iterator>

#include "sim/text.h"

namespace weir::sim {
namespace {

constexpr Bytes kHostUnit = 2_MiB;
constexpr Address kFirstHostAddress{std::uint64_t{1} << 50};

}  // namespace

Result<void*> HostMemory::allocate(Bytes size) {
  if (size == 0_B || size % kHostUnit != 0_B) {
    return refused(DeviceCall::allocate_host, "invalid value: not a multiple of 2 MiB");
  }
  if (total_ - held_ < size) {
    return Error(ErrorCode::out_of_memory, "allocate_host: the host has no more memory");
  }
  Address at = kFirstHostAddress;
  for (const auto& [begin, bytes] : blocks_) {
    if (at + size <= begin) break;
    at = begin + bytes;
  }
  blocks_[at] = size;
  held_ += size;
  return at.pointer();
}

Status HostMemory::free(void* memory, Bytes size) {
  const auto known = blocks_.find(Address::of(memory));
  if (known == blocks_.end() || known->second != size) {
    return refused(DeviceCall::free_host, "invalid value: no host memory of that size is there");
  }
  contents.clear(known->first.value, (known->first + size).value);
  held_ -= size;
  blocks_.erase(known);
  return {};
}

Status HostMemory::check(DeviceCall call, const void* memory, Bytes size) const {
  const Address at = Address::of(memory);
  const auto after = blocks_.upper_bound(at);
  if (after != blocks_.begin()) {
    const auto& [begin, bytes] = *std::prev(after);
    if (at + size <= begin + bytes) return {};
  }
  return refused(call, "invalid value: the host memory is not of allocate_host()");
}

}  // namespace weir::sim
