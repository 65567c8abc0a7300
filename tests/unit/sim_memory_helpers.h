// SPDX-License-Identifier: Apache-2.0
// Memory of a device for tests that are about something else. A refusal fails the test.
#pragma once

#include <gtest/gtest.h>

#include "weir/device.h"

namespace weir::test {

// A page and where it is mapped.
struct MappedPage {
  PhysicalHandle handle;
  Address address;
  Bytes size;

  void* at(Bytes offset = 0_B) const { return (address + offset).pointer(); }
};

inline Address map_at_new_address(Device& device, PhysicalHandle handle, Bytes size) {
  Result<Address> address = device.reserve(size, device.granularity());
  EXPECT_TRUE(address.ok());
  EXPECT_TRUE(device.map(*address, size, handle).ok());
  EXPECT_TRUE(device.set_access(*address, size).ok());
  return *address;
}

inline MappedPage new_page(Device& device, Bytes size = 2_MiB) {
  Result<PhysicalHandle> handle = device.create(size);
  EXPECT_TRUE(handle.ok());
  return {*handle, map_at_new_address(device, *handle, size), size};
}

}  // namespace weir::test
