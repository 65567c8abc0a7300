// SPDX-License-Identifier: Apache-2.0
// The interface between Weir and a GPU. Beside it the core knows only two stream handles of CUDA:
// null (the default stream) and 2 (each thread's own, CU_STREAM_PER_THREAD).
//
// A Device has the calls of four roles: memory, events, captures, and copies to host memory. Code
// that needs one role takes that class; code that asks which device it is takes Device.
//
// Two implementations ship: CudaDevice (the driver) and SimDevice (a deterministic model with a
// happens-before checker). Both pass tests/conformance. docs/porting.md says what a third must do.
//
// Threads: every call may be made from any thread at any time.
// Errors: a call that fails changes nothing, unless its comment says what it does. A driver's
// refusal is ErrorCode::device, with the call's name and the driver's own error in the message; a
// lack of physical memory is ErrorCode::out_of_memory.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "weir/result.h"
#include "weir/types.h"

namespace weir {

// A piece of physical memory. It can't be split or mapped in part.
struct PhysicalHandle {
  std::uint64_t value = 0;
  constexpr auto operator<=>(const PhysicalHandle&) const = default;
};

// A mark on a stream that others can wait for. May be recorded again; a wait is for the latest
// record made before the wait was issued.
struct EventHandle {
  std::uint64_t value = 0;
  constexpr auto operator<=>(const EventHandle&) const = default;
};

struct MemoryInfo {
  Bytes free;
  Bytes total;
};

struct CaptureInfo {
  enum class Status { none, active, invalidated };
  Status status = Status::none;
  std::uint64_t id = 0;  // of the capture sequence, unique in the process; 0 when none
};

// A node of the graph that a capture is building.
struct GraphNode {
  std::uint64_t value = 0;
  constexpr auto operator<=>(const GraphNode&) const = default;
};

// Whose unsafe calls break a capture: any thread's, the capturing thread's, nobody's. (CUDA:
// cudaStreamCaptureMode.)
enum class CaptureMode { global, thread_local_, relaxed };

// The graph that a capture built; and an executable made of a graph, which can be launched.
struct GraphHandle {
  std::uint64_t value = 0;
  constexpr auto operator<=>(const GraphHandle&) const = default;
};
struct ExecutableHandle {
  std::uint64_t value = 0;
  constexpr auto operator<=>(const ExecutableHandle&) const = default;
};

// The names under which calls are counted, timed and made to fail: all but stream(),
// prepare_to_synchronize(), now(), host_threads() and those that describe the device.
// (capture_status() counts as capture_info.)
enum class DeviceCall {
  reserve,
  unreserve,
  create,
  map,
  set_access,
  unmap,
  release,
  allocate_segment,
  free_segment,
  allocate_host,
  free_host,
  copy_stream,
  copy_to_host,
  copy_to_device,
  fill_with_zeros,
  create_event,
  destroy_event,
  record,
  wait,
  query,
  synchronize,
  record_context,
  synchronize_context,
  capture_info,
  capture_tips,
  add_capture_dependencies,
  node_dependencies,
  retain,
  begin_capture,
  end_capture,
  instantiate,
  launch_graph,
  destroy_executable,
  destroy_graph,
  memory_info,
};
inline constexpr int kDeviceCalls = static_cast<int>(DeviceCall::memory_info) + 1;
std::string_view name_of(DeviceCall call);

// Physical memory, addresses, and mappings of the memory at the addresses.
class MemoryCalls {
 public:
  // Sizes of pages, and addresses they are mapped at, are multiples of this.
  virtual Bytes granularity() const = 0;
  // Physical memory free and in all, as the driver sees it now (other processes included).
  virtual Result<MemoryInfo> memory_info() = 0;

  // Addresses. `size` and `alignment` are multiples of the granularity. Nothing is mapped yet.
  virtual Result<Address> reserve(Bytes size, Bytes alignment) = 0;
  // The same from `wanted` on, a multiple of `alignment`, if the device can; else anywhere. (A
  // device that can't choose: anywhere.) Counts as DeviceCall::reserve.
  virtual Result<Address> reserve_at(Address wanted, Bytes size, Bytes alignment);
  virtual Status unreserve(Address address, Bytes size) = 0;

  // Pages. A handle may be mapped at several addresses at once; each mapping is of the whole
  // handle, and is usable once set_access covered it. Physical memory is given back when the
  // handle is released and its last mapping is gone. unmap takes exactly one mapping.
  virtual Result<PhysicalHandle> create(Bytes size) = 0;
  virtual Status map(Address address, Bytes size, PhysicalHandle handle) = 0;
  virtual Status set_access(Address address, Bytes size) = 0;
  virtual Status unmap(Address address, Bytes size) = 0;
  virtual Status release(PhysicalHandle handle) = 0;

  // Plain memory (CUDA: cudaMalloc), for users that can't open pages (IPC handles, peers,
  // registration). A segment is usable at once. The device chooses its address, a multiple of 2
  // MiB, which stays the same. `size` is a multiple of 2 MiB and of the granularity. free_segment()
  // may block the calling thread until all work of the device is done, and breaks no capture.
  // Errors, beside the usual: unavailable (the device has pages only, as by default).
  virtual Result<Address> allocate_segment(Bytes size);
  virtual Status free_segment(Address address, Bytes size);

 protected:
  ~MemoryCalls() = default;
};

// Marks on the work of streams, which other streams and the host can wait for; and the clock.
class EventCalls {
 public:
  // `wait` makes work queued on `stream` from now on run after the event's latest record, and
  // returns at once. `query`: has all work before the record finished? `synchronize` blocks the
  // calling thread until it has. An event never recorded counts as finished.
  virtual Result<EventHandle> create_event() = 0;
  virtual Status destroy_event(EventHandle event) = 0;
  virtual Status record(EventHandle event, Stream stream) = 0;
  virtual Status wait(Stream stream, EventHandle event) = 0;
  virtual Result<bool> query(EventHandle event) = 0;
  virtual Status synchronize(EventHandle event) = 0;

  // Work of the whole context: of every stream of the process on this device and on those of
  // peer_contexts(), known to Weir or not, destroyed streams and graphs included. `record_context`
  // marks all work queued so far; the event is then as one that was recorded on a stream. Errors:
  // capture (a stream is being captured; CUDA says so only once the call has broken every capture
  // of the process, so ask about the streams first); unavailable (the driver lacks the call, which
  // came with CUDA 12.5). `synchronize_context` blocks the calling thread until all of it has
  // finished, and breaks no capture. Errors: out_of_memory (it may need a little memory of the
  // device; Device::prepare_to_synchronize() takes that beforehand).
  virtual Status record_context(EventHandle event) = 0;
  virtual Status synchronize_context() = 0;

  // Time since the device was opened, by the host's clock; on SimDevice by the virtual clock.
  virtual Nanoseconds now() const = 0;

 protected:
  ~EventCalls() = default;
};

// Captures, and the graphs that they build.
class CaptureCalls {
 public:
  // `capture_info`: is `stream` being captured? `capture_tips`: the nodes that its next node would
  // depend on; `add_capture_dependencies`: more of them. `node_dependencies`: the nodes that a node
  // of a graph being captured depends on directly. A stream's handle alone counts here, not its id.
  // If another thread may end the capture meanwhile, call only capture_status(): what CUDA answers
  // to the other calls would be read from freed memory.
  virtual Result<CaptureInfo> capture_info(Stream stream) = 0;
  virtual Result<CaptureInfo::Status> capture_status(Stream stream) = 0;
  virtual Result<std::vector<GraphNode>> capture_tips(Stream stream) = 0;
  virtual Status add_capture_dependencies(Stream stream, std::span<const GraphNode> nodes) = 0;
  virtual Result<std::vector<GraphNode>> node_dependencies(GraphNode node) = 0;

  // Makes the graph that the stream's capture is building hold `object`, and so do executables made
  // of the graph, and their launches until they are done. (CUDA: a user object.) Once the last of
  // them is gone the object is released, at once or some tenths of a millisecond later, in any
  // thread: its destructor must not call the device. Errors: capture (the stream is not being
  // captured).
  virtual Status retain(Stream stream, std::shared_ptr<void> object) = 0;

  // Begins and ends the capture of `stream`, by the same thread (unless relaxed). end_capture gives
  // no graph, and an error of ErrorCode::capture, where something broke the capture or a stream
  // that it forked to has not joined again; the stream is captured no more in either case.
  virtual Status begin_capture(Stream stream, CaptureMode mode) = 0;
  virtual Result<GraphHandle> end_capture(Stream stream) = 0;
  // A graph may be destroyed once it is instantiated. Launches of one executable run one after the
  // other, as work of `stream`.
  virtual Result<ExecutableHandle> instantiate(GraphHandle graph) = 0;
  virtual Status launch_graph(ExecutableHandle executable, Stream stream) = 0;
  virtual Status destroy_executable(ExecutableHandle executable) = 0;
  virtual Status destroy_graph(GraphHandle graph) = 0;

 protected:
  ~CaptureCalls() = default;
};

// Host memory, and copies between it and the device. By default a device has none of this: the
// calls return `unavailable`.
class CopyCalls {
 public:
  // Host memory that the device copies from and to at full speed (CUDA: pinned). `size` is a
  // multiple of 2 MiB. May take long; several threads, each with a part, are faster. host_threads()
  // says how many threads beside the caller's are worth while (0: none). No work of the device may
  // use memory that is freed. Errors: out_of_memory (of the host), beside the usual.
  virtual Result<void*> allocate_host(Bytes size);
  virtual Status free_host(void* memory, Bytes size);
  virtual unsigned host_threads() const { return 0; }

  // Copies and writes of zeros are queued on `stream`, which is the copy_stream() of their
  // direction (of zeros: `to_device`). The device makes that stream when it is first asked for; the
  // stream is never captured, and not ordered after other streams' work. Host memory is that of
  // allocate_host().
  enum class Direction { to_host, to_device };
  virtual Result<Stream> copy_stream(Direction direction);
  virtual Status copy_to_host(void* to, Address from, Bytes size, Stream stream);
  virtual Status copy_to_device(Address to, const void* from, Bytes size, Stream stream);
  virtual Status fill_with_zeros(Address at, Bytes size, Stream stream);

 protected:
  ~CopyCalls() = default;
};

class Device : public EventCalls, public CaptureCalls, public MemoryCalls, public CopyCalls {
 public:
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  virtual std::string name() const = 0;
  // Equal for devices of one context: record_context() on one of them breaks captures of all
  // streams of that context, through whichever of its devices the streams were made known.
  virtual const void* context() const { return this; }
  // The context()s of other devices whose work may use this one's memory (CUDA: peer access, once
  // CudaDevice::add_peer() was told of it). The list only grows.
  virtual std::vector<const void*> peer_contexts() const { return {}; }

  // The identity of a stream that the caller owns (CUDA: cuStreamGetId). Handles may be the
  // driver's special ones (null: the legacy default stream). Errors: device; capture (the stream is
  // being captured, and asking has broken that: ask before, or use DeviceHeap::stream()).
  virtual Result<Stream> stream(void* handle) = 0;

  // Takes whatever memory of the device synchronize_context() needs, without a wait.
  virtual Status prepare_to_synchronize() { return {}; }
};

}  // namespace weir
