// SPDX-License-Identifier: Apache-2.0
#include "weir/device.h"

namespace weir {

std::string_view name_of(DeviceCall call) {
  switch (call) {
    case DeviceCall::reserve:
      return "reserve";
    case DeviceCall::unreserve:
      return "unreserve";
    case DeviceCall::create:
      return "create";
    case DeviceCall::map:
      return "map";
    case DeviceCall::set_access:
      return "set_access";
    case DeviceCall::unmap:
      return "unmap";
    case DeviceCall::release:
      return "release";
    case DeviceCall::allocate_segment:
      return "allocate_segment";
    case DeviceCall::free_segment:
      return "free_segment";
    case DeviceCall::create_event:
      return "create_event";
    case DeviceCall::destroy_event:
      return "destroy_event";
    case DeviceCall::record:
      return "record";
    case DeviceCall::wait:
      return "wait";
    case DeviceCall::query:
      return "query";
    case DeviceCall::synchronize:
      return "synchronize";
    case DeviceCall::record_context:
      return "record_context";
    case DeviceCall::synchronize_context:
      return "synchronize_context";
    case DeviceCall::capture_info:
      return "capture_info";
    case DeviceCall::capture_tips:
      return "capture_tips";
    case DeviceCall::add_capture_dependencies:
      return "add_capture_dependencies";
    case DeviceCall::node_dependencies:
      return "node_dependencies";
    case DeviceCall::retain:
      return "retain";
    case DeviceCall::begin_capture:
      return "begin_capture";
    case DeviceCall::end_capture:
      return "end_capture";
    case DeviceCall::instantiate:
      return "instantiate";
    case DeviceCall::launch_graph:
      return "launch_graph";
    case DeviceCall::destroy_executable:
      return "destroy_executable";
    case DeviceCall::destroy_graph:
      return "destroy_graph";
    case DeviceCall::memory_info:
      return "memory_info";
  }
  return "?";
}

Result<Address> Device::allocate_segment(Bytes) {
  return Error(ErrorCode::unavailable, "allocate_segment: " + name() + " has no plain memory");
}

Status Device::free_segment(Address, Bytes) {
  return Error(ErrorCode::unavailable, "free_segment: " + name() + " has no plain memory");
}

}  // namespace weir
