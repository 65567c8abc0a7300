// SPDX-License-Identifier: Apache-2.0
#include "tests/soak/ledger_device.h"

#include <string>
#include <utility>

namespace weir::soak {
namespace {

constinit thread_local std::uint64_t calls_to_go = 0;  // 0: none fails
constinit thread_local bool was_hit = false;

bool fails() { return calls_to_go != 0 && --calls_to_go == 0 && (was_hit = true); }

Error fault(DeviceCall call) {
  return {ErrorCode::device, std::string(name_of(call)) + ": failed by the soak"};
}

}  // namespace

LedgerDevice::Fault::Fault(std::uint64_t nth) {
  calls_to_go = nth;
  was_hit = false;
}
LedgerDevice::Fault::~Fault() { calls_to_go = 0; }
bool LedgerDevice::Fault::hit() const { return was_hit; }

template <class Body>
auto LedgerDevice::plain(DeviceCall call, Body&& body) -> decltype(body()) {
  if (fails()) return fault(call);
  return body();
}

template <class Body>
auto LedgerDevice::counted(DeviceCall call, Count& count, std::int64_t by, Body&& body)
    -> decltype(body()) {
  if (fails()) return fault(call);
  auto done = body();
  if (done.ok()) count.fetch_add(by, std::memory_order_relaxed);
  return done;
}

Ledger LedgerDevice::ledger() const {
  return {.events = events_.load(),
          .pages = pages_.load(),
          .mappings = mappings_.load(),
          .reservations = reservations_.load(),
          .segments = segments_.load(),
          .graphs = graphs_.load(),
          .executables = executables_.load(),
          .host_blocks = host_blocks_.load()};
}

using Call = DeviceCall;

Result<MemoryInfo> LedgerDevice::memory_info() {
  return plain(Call::memory_info, [&] { return inner_.memory_info(); });
}
Result<Address> LedgerDevice::reserve(Bytes size, Bytes alignment) {
  return counted(Call::reserve, reservations_, 1, [&] { return inner_.reserve(size, alignment); });
}
Status LedgerDevice::unreserve(Address at, Bytes size) {
  return counted(Call::unreserve, reservations_, -1, [&] { return inner_.unreserve(at, size); });
}
Result<PhysicalHandle> LedgerDevice::create(Bytes size) {
  return counted(Call::create, pages_, 1, [&] { return inner_.create(size); });
}
Status LedgerDevice::map(Address at, Bytes size, PhysicalHandle page) {
  return counted(Call::map, mappings_, 1, [&] { return inner_.map(at, size, page); });
}
Status LedgerDevice::set_access(Address at, Bytes size) {
  return plain(Call::set_access, [&] { return inner_.set_access(at, size); });
}
Status LedgerDevice::unmap(Address at, Bytes size) {
  return counted(Call::unmap, mappings_, -1, [&] { return inner_.unmap(at, size); });
}
Status LedgerDevice::release(PhysicalHandle page) {
  return counted(Call::release, pages_, -1, [&] { return inner_.release(page); });
}
Result<Address> LedgerDevice::allocate_segment(Bytes size) {
  return counted(Call::allocate_segment, segments_, 1,
                 [&] { return inner_.allocate_segment(size); });
}
Status LedgerDevice::free_segment(Address at, Bytes size) {
  return counted(Call::free_segment, segments_, -1, [&] { return inner_.free_segment(at, size); });
}
Result<void*> LedgerDevice::allocate_host(Bytes size) {
  return counted(Call::allocate_host, host_blocks_, 1, [&] { return inner_.allocate_host(size); });
}
Status LedgerDevice::free_host(void* memory, Bytes size) {
  return counted(Call::free_host, host_blocks_, -1, [&] { return inner_.free_host(memory, size); });
}
Result<Stream> LedgerDevice::copy_stream(Direction direction) {
  return plain(Call::copy_stream, [&] { return inner_.copy_stream(direction); });
}
Status LedgerDevice::copy_to_host(void* to, Address from, Bytes size, Stream stream) {
  return plain(Call::copy_to_host, [&] { return inner_.copy_to_host(to, from, size, stream); });
}
Status LedgerDevice::copy_to_device(Address to, const void* from, Bytes size, Stream stream) {
  return plain(Call::copy_to_device, [&] { return inner_.copy_to_device(to, from, size, stream); });
}
Status LedgerDevice::fill_with_zeros(Address at, Bytes size, Stream stream) {
  return plain(Call::fill_with_zeros, [&] { return inner_.fill_with_zeros(at, size, stream); });
}
Result<EventHandle> LedgerDevice::create_event() {
  return counted(Call::create_event, events_, 1, [&] { return inner_.create_event(); });
}
Status LedgerDevice::destroy_event(EventHandle event) {
  return counted(Call::destroy_event, events_, -1, [&] { return inner_.destroy_event(event); });
}
Status LedgerDevice::record(EventHandle event, Stream stream) {
  return plain(Call::record, [&] { return inner_.record(event, stream); });
}
Status LedgerDevice::wait(Stream stream, EventHandle event) {
  return plain(Call::wait, [&] { return inner_.wait(stream, event); });
}
Result<bool> LedgerDevice::query(EventHandle event) {
  return plain(Call::query, [&] { return inner_.query(event); });
}
Status LedgerDevice::synchronize(EventHandle event) {
  return plain(Call::synchronize, [&] { return inner_.synchronize(event); });
}
Status LedgerDevice::record_context(EventHandle event) {
  return plain(Call::record_context, [&] { return inner_.record_context(event); });
}
Status LedgerDevice::synchronize_context() {
  return plain(Call::synchronize_context, [&] { return inner_.synchronize_context(); });
}
Result<CaptureInfo> LedgerDevice::capture_info(Stream stream) {
  return plain(Call::capture_info, [&] { return inner_.capture_info(stream); });
}
Result<CaptureInfo::Status> LedgerDevice::capture_status(Stream stream) {
  return plain(Call::capture_info, [&] { return inner_.capture_status(stream); });
}
Result<std::vector<GraphNode>> LedgerDevice::capture_tips(Stream stream) {
  return plain(Call::capture_tips, [&] { return inner_.capture_tips(stream); });
}
Status LedgerDevice::add_capture_dependencies(Stream stream, std::span<const GraphNode> nodes) {
  return plain(Call::add_capture_dependencies,
               [&] { return inner_.add_capture_dependencies(stream, nodes); });
}
Result<std::vector<GraphNode>> LedgerDevice::node_dependencies(GraphNode node) {
  return plain(Call::node_dependencies, [&] { return inner_.node_dependencies(node); });
}
Status LedgerDevice::retain(Stream stream, std::shared_ptr<void> object) {
  return plain(Call::retain, [&] { return inner_.retain(stream, std::move(object)); });
}
Status LedgerDevice::begin_capture(Stream stream, CaptureMode mode) {
  return plain(Call::begin_capture, [&] { return inner_.begin_capture(stream, mode); });
}
Result<GraphHandle> LedgerDevice::end_capture(Stream stream) {
  Result<GraphHandle> graph = inner_.end_capture(stream);
  if (graph.ok()) graphs_.fetch_add(1, std::memory_order_relaxed);
  return graph;
}
Result<ExecutableHandle> LedgerDevice::instantiate(GraphHandle graph) {
  return counted(Call::instantiate, executables_, 1, [&] { return inner_.instantiate(graph); });
}
Status LedgerDevice::launch_graph(ExecutableHandle graph, Stream stream) {
  return plain(Call::launch_graph, [&] { return inner_.launch_graph(graph, stream); });
}
Status LedgerDevice::destroy_executable(ExecutableHandle graph) {
  return counted(Call::destroy_executable, executables_, -1,
                 [&] { return inner_.destroy_executable(graph); });
}
Status LedgerDevice::destroy_graph(GraphHandle graph) {
  return counted(Call::destroy_graph, graphs_, -1, [&] { return inner_.destroy_graph(graph); });
}

}  // namespace weir::soak
