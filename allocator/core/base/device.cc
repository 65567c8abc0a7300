// SPDX-License-Identifier: Apache-2.0
#include "weir/device.h"

#include <array>
#include <cstddef>
#include <string>

namespace weir {
namespace {

// In the order of DeviceCall.
constexpr std::array kNames{
    "reserve",
    "unreserve",
    "create",
    "map",
    "set_access",
    "unmap",
    "release",
    "allocate_segment",
    "free_segment",
    "allocate_host",
    "free_host",
    "copy_stream",
    "copy_to_host",
    "copy_to_device",
    "fill_with_zeros",
    "create_event",
    "destroy_event",
    "record",
    "wait",
    "query",
    "synchronize",
    "record_context",
    "synchronize_context",
    "capture_info",
    "capture_tips",
    "add_capture_dependencies",
    "node_dependencies",
    "retain",
    "begin_capture",
    "end_capture",
    "instantiate",
    "launch_graph",
    "destroy_executable",
    "destroy_graph",
    "memory_info",
};
static_assert(kNames.size() == kDeviceCalls);

Error has_none(DeviceCall call, const char* what) {
  return {ErrorCode::unavailable, std::string(name_of(call)) + ": the device has no " + what};
}
Error no_segments(DeviceCall call) { return has_none(call, "plain memory"); }
Error no_copies(DeviceCall call) { return has_none(call, "copies to host memory"); }

}  // namespace

std::string_view name_of(DeviceCall call) { return kNames[static_cast<std::size_t>(call)]; }

Result<Address> MemoryCalls::reserve_at(Address, Bytes size, Bytes alignment) {
  return reserve(size, alignment);
}
Result<Address> MemoryCalls::allocate_segment(Bytes) {
  return no_segments(DeviceCall::allocate_segment);
}
Status MemoryCalls::free_segment(Address, Bytes) { return no_segments(DeviceCall::free_segment); }

Result<void*> CopyCalls::allocate_host(Bytes) { return no_copies(DeviceCall::allocate_host); }
Status CopyCalls::free_host(void*, Bytes) { return no_copies(DeviceCall::free_host); }
Result<Stream> CopyCalls::copy_stream(Direction) { return no_copies(DeviceCall::copy_stream); }
Status CopyCalls::copy_to_host(void*, Address, Bytes, Stream) {
  return no_copies(DeviceCall::copy_to_host);
}
Status CopyCalls::copy_to_device(Address, const void*, Bytes, Stream) {
  return no_copies(DeviceCall::copy_to_device);
}
Status CopyCalls::fill_with_zeros(Address, Bytes, Stream) {
  return no_copies(DeviceCall::fill_with_zeros);
}

}  // namespace weir
