// SPDX-License-Identifier: Apache-2.0
#include "weir/device.h"

#include <string>

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
    case DeviceCall::allocate_host:
      return "allocate_host";
    case DeviceCall::free_host:
      return "free_host";
    case DeviceCall::copy_stream:
      return "copy_stream";
    case DeviceCall::copy_to_host:
      return "copy_to_host";
    case DeviceCall::copy_to_device:
      return "copy_to_device";
    case DeviceCall::fill_with_zeros:
      return "fill_with_zeros";
    case DeviceCall::open_file:
      return "open_file";
    case DeviceCall::write_file:
      return "write_file";
    case DeviceCall::read_file:
      return "read_file";
    case DeviceCall::sync_file:
      return "sync_file";
    case DeviceCall::close_file:
      return "close_file";
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

namespace {

Error no_copies(const char* call, const Device& device) {
  return {ErrorCode::unavailable,
          std::string(call) + ": " + device.name() + " has no copies to host memory"};
}

Error no_files(const char* call, const Device& device) {
  return {ErrorCode::unavailable,
          std::string(call) + ": " + device.name() + " has no files for memory that sleeps"};
}

}  // namespace

Result<void*> Device::allocate_host(Bytes) { return no_copies("allocate_host", *this); }
Status Device::free_host(void*, Bytes) { return no_copies("free_host", *this); }
Result<Stream> Device::copy_stream(Direction) { return no_copies("copy_stream", *this); }
Status Device::copy_to_host(void*, Address, Bytes, Stream) {
  return no_copies("copy_to_host", *this);
}
Status Device::copy_to_device(Address, const void*, Bytes, Stream) {
  return no_copies("copy_to_device", *this);
}
Status Device::fill_with_zeros(Address, Bytes, Stream) {
  return no_copies("fill_with_zeros", *this);
}

Result<OpenedFile> Device::open_file(const std::string&, Bytes) {
  return no_files("open_file", *this);
}
Status Device::write_file(FileHandle, Bytes, const void*, Bytes) {
  return no_files("write_file", *this);
}
Status Device::read_file(FileHandle, Bytes, void*, Bytes) { return no_files("read_file", *this); }
Status Device::sync_file(FileHandle) { return no_files("sync_file", *this); }
Status Device::close_file(FileHandle) { return no_files("close_file", *this); }

}  // namespace weir
