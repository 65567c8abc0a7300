// SPDX-License-Identifier: Apache-2.0
#include "weir/metered_device.h"

#include "weir/sim_device.h"

namespace weir {

// Counts a call when made, and its time when it goes.
class MeteredDevice::Timed {
 public:
  Timed(MeteredDevice& device, DeviceCall call)
      : meter_(device.meters_[static_cast<std::size_t>(call)]),
        inner_(device.inner_),
        start_(inner_.now()) {
    meter_.calls.fetch_add(1, std::memory_order_relaxed);
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;
  ~Timed() {
    meter_.nanoseconds.fetch_add((inner_.now() - start_).count, std::memory_order_relaxed);
  }

 private:
  Meter& meter_;
  const Device& inner_;
  const Nanoseconds start_;
};

MeteredDevice::MeteredDevice(Device& inner)
    : inner_(inner), sim_(dynamic_cast<SimDevice*>(&inner)) {}

std::uint64_t MeteredDevice::calls(DeviceCall call) const {
  return meter(call).calls.load(std::memory_order_relaxed);
}

Nanoseconds MeteredDevice::time_in(DeviceCall call) const {
  return {meter(call).nanoseconds.load(std::memory_order_relaxed)};
}

Nanoseconds MeteredDevice::total_time() const {
  Nanoseconds total;
  for (int call = 0; call < kDeviceCalls; ++call) total += time_in(static_cast<DeviceCall>(call));
  return total;
}

std::uint64_t MeteredDevice::host_waits() const {
  return host_waits_.load(std::memory_order_relaxed);
}

void MeteredDevice::reset() {
  for (Meter& each : meters_) {
    each.calls.store(0, std::memory_order_relaxed);
    each.nanoseconds.store(0, std::memory_order_relaxed);
  }
  host_waits_.store(0, std::memory_order_relaxed);
}

bool MeteredDevice::finished(EventHandle event) {
  if (sim_ != nullptr) return sim_->finished(event);
  const Result<bool> answer = inner_.query(event);
  return !answer.ok() || *answer;
}

Status MeteredDevice::synchronize(EventHandle event) {
  const bool must_wait = !finished(event);
  const Timed timed(*this, DeviceCall::synchronize);
  Status done = inner_.synchronize(event);
  if (must_wait && done.ok()) host_waits_.fetch_add(1, std::memory_order_relaxed);
  return done;
}

Result<MemoryInfo> MeteredDevice::memory_info() {
  const Timed timed(*this, DeviceCall::memory_info);
  return inner_.memory_info();
}

Result<Address> MeteredDevice::reserve(Bytes size, Bytes alignment) {
  const Timed timed(*this, DeviceCall::reserve);
  return inner_.reserve(size, alignment);
}

Status MeteredDevice::unreserve(Address address, Bytes size) {
  const Timed timed(*this, DeviceCall::unreserve);
  return inner_.unreserve(address, size);
}

Result<PhysicalHandle> MeteredDevice::create(Bytes size) {
  const Timed timed(*this, DeviceCall::create);
  return inner_.create(size);
}

Status MeteredDevice::map(Address address, Bytes size, PhysicalHandle handle) {
  const Timed timed(*this, DeviceCall::map);
  return inner_.map(address, size, handle);
}

Status MeteredDevice::set_access(Address address, Bytes size) {
  const Timed timed(*this, DeviceCall::set_access);
  return inner_.set_access(address, size);
}

Status MeteredDevice::unmap(Address address, Bytes size) {
  const Timed timed(*this, DeviceCall::unmap);
  return inner_.unmap(address, size);
}

Status MeteredDevice::release(PhysicalHandle handle) {
  const Timed timed(*this, DeviceCall::release);
  return inner_.release(handle);
}

Result<Address> MeteredDevice::allocate_segment(Bytes size) {
  const Timed timed(*this, DeviceCall::allocate_segment);
  return inner_.allocate_segment(size);
}

Status MeteredDevice::free_segment(Address address, Bytes size) {
  const Timed timed(*this, DeviceCall::free_segment);
  return inner_.free_segment(address, size);
}

Result<void*> MeteredDevice::allocate_host(Bytes size) {
  const Timed timed(*this, DeviceCall::allocate_host);
  return inner_.allocate_host(size);
}

Status MeteredDevice::free_host(void* memory, Bytes size) {
  const Timed timed(*this, DeviceCall::free_host);
  return inner_.free_host(memory, size);
}

Result<Stream> MeteredDevice::copy_stream(Direction direction) {
  const Timed timed(*this, DeviceCall::copy_stream);
  return inner_.copy_stream(direction);
}

Status MeteredDevice::copy_to_host(void* to, Address from, Bytes size, Stream stream) {
  const Timed timed(*this, DeviceCall::copy_to_host);
  return inner_.copy_to_host(to, from, size, stream);
}

Status MeteredDevice::copy_to_device(Address to, const void* from, Bytes size, Stream stream) {
  const Timed timed(*this, DeviceCall::copy_to_device);
  return inner_.copy_to_device(to, from, size, stream);
}

Status MeteredDevice::fill_with_zeros(Address at, Bytes size, Stream stream) {
  const Timed timed(*this, DeviceCall::fill_with_zeros);
  return inner_.fill_with_zeros(at, size, stream);
}

Result<OpenedFile> MeteredDevice::open_file(const std::string& folder, Bytes size) {
  const Timed timed(*this, DeviceCall::open_file);
  return inner_.open_file(folder, size);
}

Status MeteredDevice::write_file(FileHandle file, Bytes offset, const void* from, Bytes size) {
  const Timed timed(*this, DeviceCall::write_file);
  return inner_.write_file(file, offset, from, size);
}

Status MeteredDevice::read_file(FileHandle file, Bytes offset, void* to, Bytes size) {
  const Timed timed(*this, DeviceCall::read_file);
  return inner_.read_file(file, offset, to, size);
}

Status MeteredDevice::sync_file(FileHandle file) {
  const Timed timed(*this, DeviceCall::sync_file);
  return inner_.sync_file(file);
}

Status MeteredDevice::close_file(FileHandle file) {
  const Timed timed(*this, DeviceCall::close_file);
  return inner_.close_file(file);
}

Result<EventHandle> MeteredDevice::create_event() {
  const Timed timed(*this, DeviceCall::create_event);
  return inner_.create_event();
}

Status MeteredDevice::destroy_event(EventHandle event) {
  const Timed timed(*this, DeviceCall::destroy_event);
  return inner_.destroy_event(event);
}

Status MeteredDevice::record(EventHandle event, Stream stream) {
  const Timed timed(*this, DeviceCall::record);
  return inner_.record(event, stream);
}

Status MeteredDevice::wait(Stream stream, EventHandle event) {
  const Timed timed(*this, DeviceCall::wait);
  return inner_.wait(stream, event);
}

Result<bool> MeteredDevice::query(EventHandle event) {
  const Timed timed(*this, DeviceCall::query);
  return inner_.query(event);
}

Status MeteredDevice::record_context(EventHandle event) {
  const Timed timed(*this, DeviceCall::record_context);
  return inner_.record_context(event);
}

Status MeteredDevice::prepare_to_synchronize() { return inner_.prepare_to_synchronize(); }

Status MeteredDevice::synchronize_context() {
  const Timed timed(*this, DeviceCall::synchronize_context);
  Status done = inner_.synchronize_context();
  if (done.ok()) host_waits_.fetch_add(1, std::memory_order_relaxed);
  return done;
}

Result<CaptureInfo> MeteredDevice::capture_info(Stream stream) {
  const Timed timed(*this, DeviceCall::capture_info);
  return inner_.capture_info(stream);
}

Result<CaptureInfo::Status> MeteredDevice::capture_status(Stream stream) {
  const Timed timed(*this, DeviceCall::capture_info);
  return inner_.capture_status(stream);
}

Result<std::vector<GraphNode>> MeteredDevice::capture_tips(Stream stream) {
  const Timed timed(*this, DeviceCall::capture_tips);
  return inner_.capture_tips(stream);
}

Status MeteredDevice::add_capture_dependencies(Stream stream, std::span<const GraphNode> nodes) {
  const Timed timed(*this, DeviceCall::add_capture_dependencies);
  return inner_.add_capture_dependencies(stream, nodes);
}

Result<std::vector<GraphNode>> MeteredDevice::node_dependencies(GraphNode node) {
  const Timed timed(*this, DeviceCall::node_dependencies);
  return inner_.node_dependencies(node);
}

Status MeteredDevice::retain(Stream stream, std::shared_ptr<void> object) {
  const Timed timed(*this, DeviceCall::retain);
  return inner_.retain(stream, std::move(object));
}

Status MeteredDevice::begin_capture(Stream stream, CaptureMode mode) {
  const Timed timed(*this, DeviceCall::begin_capture);
  return inner_.begin_capture(stream, mode);
}

Result<GraphHandle> MeteredDevice::end_capture(Stream stream) {
  const Timed timed(*this, DeviceCall::end_capture);
  return inner_.end_capture(stream);
}

Result<ExecutableHandle> MeteredDevice::instantiate(GraphHandle graph) {
  const Timed timed(*this, DeviceCall::instantiate);
  return inner_.instantiate(graph);
}

Status MeteredDevice::launch_graph(ExecutableHandle executable, Stream stream) {
  const Timed timed(*this, DeviceCall::launch_graph);
  return inner_.launch_graph(executable, stream);
}

Status MeteredDevice::destroy_executable(ExecutableHandle executable) {
  const Timed timed(*this, DeviceCall::destroy_executable);
  return inner_.destroy_executable(executable);
}

Status MeteredDevice::destroy_graph(GraphHandle graph) {
  const Timed timed(*this, DeviceCall::destroy_graph);
  return inner_.destroy_graph(graph);
}

}  // namespace weir
