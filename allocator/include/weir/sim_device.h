// SPDX-License-Identifier: Apache-2.0
// A deterministic device with no GPU: a virtual clock, streams that run behind the host, events,
// pages with aliases, a cost for each call, scripted faults, and a happens-before checker.
//
// The checker stamps every access to a byte range of a page with a vector clock, and reports an
// access that is not ordered (by stream order, events, or the host having waited) after the last
// conflicting one. It also reports memory that is unmapped while work that the host does not know
// to be complete may still use it: the driver's unmap does not wait for kernels.
// Source: Mattern 1989; FastTrack (Flanagan & Freund 2009).
//
// A capture builds a graph of kernels, which end_capture() checks by itself: two kernels that touch
// the same bytes, one of them writing, and of which neither comes after the other along the graph's
// edges, are a race. A launch of a graph is then work of the stream that launches it. Captures obey
// the driver's rules, with these limits: a graph is not launched into a capture; and query() and
// synchronize() of an event that was not recorded in a capture break no capture, as if
// the thread's capture mode were relaxed: CudaDevice relaxes it for these calls.
//
// The host knows work to be complete if a query() said so, if a synchronize() or finish() that
// waited for it returned, or if it was ordered before such work. A clock past its end is not
// enough.
//
// If the peers of work do not come (SimPeers), query() says that it is not done, and synchronize()
// is an error (device), where a GPU would wait forever.
//
// A machine may have several devices (new_device()). They share the clock, the addresses, the
// physical memory and the checker; kernels of each may use all memory, and a stream of one may wait
// for an event of another. Scripted faults, counts and memory held are those of all together. Each
// device has streams of its own, and a context: record_context() and synchronize_context() stand
// for the work of its own streams, and of those of its peers (add_peer()).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "weir/device.h"

namespace weir {

// Host time that each call costs. The defaults were measured on an H200; those marked, and those of
// captures and graphs (begin, end, instantiate, launch, destroy), are estimates.
struct CostModel {
  Nanoseconds reserve = 2_us;
  Nanoseconds unreserve = 2_us;
  Nanoseconds create = 9_us;  // whatever the size
  Nanoseconds map = 400_ns;
  Nanoseconds set_access_per_mapping = 20_us;
  Nanoseconds unmap_per_mapping = 13_us;
  Nanoseconds release = 12_us;  // and, for each MiB,
  Nanoseconds release_per_mib = 200_ns;
  Nanoseconds allocate_segment = 60_us;  // estimated
  Nanoseconds free_segment = 60_us;      // estimated; plus the wait for all work
  Nanoseconds create_event = 85_ns;
  Nanoseconds destroy_event = 84_ns;
  Nanoseconds record = 141_ns;
  Nanoseconds query = 134_ns;
  Nanoseconds wait = 128_ns;
  Nanoseconds synchronize = 134_ns;   // and the wait itself
  Nanoseconds record_context = 1_us;  // 0.3 us where streams are idle, 3 us with 256 at work
  Nanoseconds synchronize_context =
      60_us;  // plus the wait; covers freeing and allocating a small block, as CudaDevice does
  Nanoseconds capture_info = 46_ns;
  Nanoseconds capture_tips = 46_ns;
  Nanoseconds add_capture_dependencies = 46_ns;
  Nanoseconds node_dependencies = 50_ns;
  Nanoseconds begin_capture = 2_us;
  Nanoseconds end_capture = 2_us;
  Nanoseconds instantiate_per_node = 1_us;
  Nanoseconds launch_graph = 5_us;
  Nanoseconds destroy_executable = 1_us;
  Nanoseconds destroy_graph = 1_us;
  Nanoseconds retain = 1_us;
  Nanoseconds allocate_host_per_mib = 42_us;  // 23.3 GiB/s, where several threads are at it
  Nanoseconds free_host = 100_us;             // estimated
  Nanoseconds queue_copy = 2_us;
  Nanoseconds copy_per_mib = 19_us;  // of the stream's time: 51.4 GiB/s
  Nanoseconds memory_info = 1_us;
  Nanoseconds launch = 0_ns;  // what launch() moves the host's clock by
};

struct SimOptions {
  Bytes memory = 141_GiB;
  Bytes granularity = 2_MiB;
  std::uint64_t mapping_ceiling = 524088;
  // Not 0: reserve() and allocate_segment() give addresses by chance, as those of a process are.
  std::uint64_t address_seed = 0;
  bool check_races = true;
  bool track_contents = false;   // for contents()
  Bytes host_memory = 1024_GiB;  // that allocate_host() has
  CostModel costs;
};

// What a kernel does to memory.
struct Access {
  enum class Kind { read, write };
  Kind kind;
  Address address;
  Bytes bytes;
};
inline Access Reads(const void* pointer, Bytes bytes) {
  return {Access::Kind::read, Address::of(pointer), bytes};
}
inline Access Writes(const void* pointer, Bytes bytes) {
  return {Access::Kind::write, Address::of(pointer), bytes};
}

// Work elsewhere that kernels of this device wait for, such as that of other ranks. A kernel with
// peers takes its own time, but neither it nor work that is ordered after it is done before the
// peers are there. Kernels with the same peers are numbered from 1, in the order of their launches.
// Self-synchronised: called from any thread.
class SimPeers {
 public:
  virtual ~SimPeers() = default;
  // Called when the next kernel is launched: returns that kernel's number. `what`: for messages.
  // Runs within calls of the device, and must make none.
  virtual std::uint64_t arrive(const std::string& what) = 0;
  // Are the peers of that kernel there? Waits for them, by the real clock, for as long as it deems
  // right, since the clocks of devices know nothing of each other. An error says who is missing.
  virtual Status await(std::uint64_t number) = 0;
  virtual bool are_there(std::uint64_t number) const = 0;  // without waiting; within calls, too
};

// Of one kernel.
struct SimRendezvous {
  std::shared_ptr<SimPeers> peers = nullptr;  // null: it waits for nobody
  std::string what = {};
};

// Two accesses that conflict and that nothing orders (`conflict`); an access, and the unmapping of
// its memory by the host (`unmapped_in_use`: `second` is the mapping); or an access, and the
// freeing of its memory of allocate_host() by the host (`host`). `second_stream` is 0 where the
// host comes second.
struct Race {
  enum class Kind { conflict, unmapped_in_use, host };
  Kind kind = Kind::conflict;
  Access first, second;
  std::uint64_t first_stream = 0, second_stream = 0;  // Stream::id
  Nanoseconds first_time, second_time;                // of the launch, on the host's clock
  std::string describe() const;
};

// A page as the device sees it: a handle that is live, or released and still mapped.
struct SimPage {
  PhysicalHandle handle;
  Bytes bytes;
  std::uint64_t mappings = 0;
};

// How much of each kind lives.
struct SimLive {
  std::uint64_t handles = 0, mappings = 0, events = 0, reservations = 0, graphs = 0,
                executables = 0;
  Bytes host_bytes;  // of allocate_host(), that were not freed
  friend bool operator==(const SimLive&, const SimLive&) = default;
};

// Bytes that one write made: `write` is the write's number, `first` the place in the write where
// they begin. Writes are numbered in the order of their launches, those of a launched graph in the
// order of capture.
struct SimContent {
  static constexpr std::uint64_t kZeros = ~std::uint64_t{0};  // the write of zeros
  Bytes offset;
  Bytes bytes;
  std::uint64_t write = 0;
  std::uint64_t first = 0;
  friend bool operator==(const SimContent&, const SimContent&) = default;
};

// Part of a page, or of a segment of plain memory.
struct Segment {
  PhysicalHandle handle;
  Bytes offset;
  Bytes bytes;
};

class SimDevice final : public Device {
 public:
  explicit SimDevice(SimOptions options = {});
  ~SimDevice() override;

  // Makes another device of the same machine, without a default stream. The devices may be
  // destroyed in any order.
  std::unique_ptr<SimDevice> new_device();
  // From now on record_context() and synchronize_context() cover work of `peer` too, a device of
  // the same machine.
  void add_peer(const SimDevice& peer);

  // Streams. A call that names a stream after its destruction is an error of the program under test
  // (uses_of_destroyed_streams()). A stream that is being captured can't be destroyed.
  Stream new_stream();
  Status destroy_stream(Stream stream);

  // Queues a kernel, or adds it to the graph if the stream is being captured. Errors:
  // invalid_argument for an access that is not wholly mapped (launch_graph() says so too); capture.
  // A kernel in a graph meets its peers anew at each launch of the graph.
  Status launch(Stream stream, std::span<const Access> accesses, Nanoseconds duration,
                const SimRendezvous& rendezvous = {});
  Status launch(Stream stream, Access access, Nanoseconds duration) {
    return launch(stream, std::span<const Access>(&access, 1), duration);
  }
  Status launch(Stream stream, Nanoseconds duration) {  // touches no memory
    return launch(stream, std::span<const Access>(), duration);
  }

  // Runs the graph's kernels once, one by one, in an order that its edges allow and that the seed
  // decides, over bytes that remember who wrote them. Returns how many reads saw another write than
  // in the order of capture: 0 in every order, if the edges are enough. Nothing else changes. The
  // handle must be a live one.
  std::uint64_t replay_in_random_order(GraphHandle graph, std::uint64_t seed);
  std::uint64_t replay_in_random_order(ExecutableHandle executable, std::uint64_t seed);

  // The host does something else for a while / until `time` (no effect if that is past).
  void advance(Nanoseconds duration);
  void advance_to(Nanoseconds time);

  // The host waits for all work queued so far on every stream, and knows it complete: for the end
  // of a program. Nothing is counted.
  void finish();
  // What query() would say, without the call: no cost, no count, no fault, and the host knows no
  // more than before. False for an unknown event.
  bool finished(EventHandle event) const;

  // Makes the `nth` call of this kind from now on (1: the next) fail once, with `code`.
  void fail(DeviceCall call, std::uint64_t nth, ErrorCode code = ErrorCode::device);
  // Drops faults that have not come yet. Returns how many there were.
  std::uint64_t forget_faults();

  std::vector<Race> races() const;  // the first 100
  std::uint64_t race_count() const;
  std::uint64_t host_waits() const;  // synchronize() calls that had to wait
  // Calls of record(), wait() and capture_info() that named a stream after destroy_stream(): there
  // a driver may crash.
  std::uint64_t uses_of_destroyed_streams() const;
  std::uint64_t calls(DeviceCall call) const;
  Nanoseconds time_in(DeviceCall call) const;      // host time that those calls cost
  Nanoseconds stream_waited(Stream stream) const;  // time the stream stood waiting for events

  // What is held now; all zero after everything was given back.
  Bytes physical_bytes() const;
  Bytes physical_peak() const;
  SimLive live() const;

  // The page table, for checks from outside: what is held, by handle; and what is mapped, usably,
  // at a range of addresses, in order (less than `bytes` in all where some of it is not).
  std::vector<SimPage> pages() const;
  std::vector<Segment> translate(Address address, Bytes bytes) const;

  // Which writes made the bytes there, as far as they are mapped and were written (needs
  // SimOptions::track_contents). A copy keeps what is known of its source.
  std::vector<SimContent> contents(Address address, Bytes bytes) const;

  std::string name() const override;
  const void* context() const override;
  std::vector<const void*> peer_contexts() const override;
  Bytes granularity() const override;
  Result<MemoryInfo> memory_info() override;
  Result<Stream> stream(void* handle) override;
  Result<Address> reserve(Bytes size, Bytes alignment) override;
  Result<Address> reserve_at(Address wanted, Bytes size, Bytes alignment) override;
  Status unreserve(Address address, Bytes size) override;
  Result<PhysicalHandle> create(Bytes size) override;
  Status map(Address address, Bytes size, PhysicalHandle handle) override;
  Status set_access(Address address, Bytes size) override;
  Status unmap(Address address, Bytes size) override;
  Status release(PhysicalHandle handle) override;
  Result<Address> allocate_segment(Bytes size) override;
  Status free_segment(Address address, Bytes size) override;
  Result<void*> allocate_host(Bytes size) override;
  Status free_host(void* memory, Bytes size) override;
  Result<Stream> copy_stream(Direction direction) override;
  Status copy_to_host(void* to, Address from, Bytes size, Stream stream) override;
  Status copy_to_device(Address to, const void* from, Bytes size, Stream stream) override;
  Status fill_with_zeros(Address at, Bytes size, Stream stream) override;
  Result<EventHandle> create_event() override;
  Status destroy_event(EventHandle event) override;
  Status record(EventHandle event, Stream stream) override;
  Status wait(Stream stream, EventHandle event) override;
  Result<bool> query(EventHandle event) override;
  Status synchronize(EventHandle event) override;
  Status record_context(EventHandle event) override;
  Status synchronize_context() override;
  Result<CaptureInfo> capture_info(Stream stream) override;
  Result<CaptureInfo::Status> capture_status(Stream stream) override;
  Result<std::vector<GraphNode>> capture_tips(Stream stream) override;
  Status add_capture_dependencies(Stream stream, std::span<const GraphNode> nodes) override;
  Result<std::vector<GraphNode>> node_dependencies(GraphNode node) override;
  Status retain(Stream stream, std::shared_ptr<void> object) override;
  Status begin_capture(Stream stream, CaptureMode mode) override;
  Result<GraphHandle> end_capture(Stream stream) override;
  Result<ExecutableHandle> instantiate(GraphHandle graph) override;
  Status launch_graph(ExecutableHandle executable, Stream stream) override;
  Status destroy_executable(ExecutableHandle executable) override;
  Status destroy_graph(GraphHandle graph) override;
  Nanoseconds now() const override;

 private:
  struct Impl;
  SimDevice(std::shared_ptr<Impl> impl, std::size_t number)
      : impl_(std::move(impl)), number_(number) {}

  std::shared_ptr<Impl> impl_;
  std::size_t number_ = 0;  // of the device, in its machine
};

}  // namespace weir
