// SPDX-License-Identifier: Apache-2.0
// SimDevice's insides, for the files that make it up: sim_device.cc has memory and time,
// sim_device_graphs.cc captures and graphs.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/race_checker.h"
#include "sim/sim_captures.h"
#include "sim/sim_graphs.h"
#include "sim/sim_memory.h"
#include "sim/sim_streams.h"
#include "weir/sim_device.h"

namespace weir {
namespace sim {

inline Error refused(DeviceCall call, const std::string& why) {
  return {ErrorCode::device, std::string(name_of(call)) + ": " + why};
}
inline Error no_stream(DeviceCall call, Stream stream) {
  return refused(call, "invalid handle: no stream " + std::to_string(stream.id));
}

inline Nanoseconds time_for(Bytes size, Nanoseconds per_mib) {
  return {static_cast<std::int64_t>(size.count) * per_mib.count /
          static_cast<std::int64_t>((1_MiB).count)};
}

}  // namespace sim

// All state, behind one mutex. `now_` alone is also read without it.
class SimDevice::Impl {
 public:
  explicit Impl(SimOptions options)
      : options_(options),
        memory_(options.memory, options.granularity, options.mapping_ceiling),
        streams_(checker_) {
    add_context();
  }

  // Counts the call and its cost; an error if it was scripted to fail.
  Status begin(DeviceCall call, Nanoseconds cost) {
    Tally& tally = tallies_[static_cast<std::size_t>(call)];
    ++tally.calls;
    charge(call, cost);
    std::optional<ErrorCode> fault;
    std::erase_if(tally.faults, [&](Fault& scripted) {
      if (--scripted.calls_to_go != 0) return false;
      fault = scripted.code;
      return true;
    });
    if (!fault) return {};
    return Error(*fault, std::string(name_of(call)) + ": scripted fault in call " +
                             std::to_string(tally.calls));
  }

  // One call of Device: under the lock, counted, charged and perhaps failed by script; then `body`.
  template <class Body>
  auto call(DeviceCall call, Nanoseconds cost, Body body) -> decltype(body()) {
    const std::scoped_lock lock(mutex_);
    if (Status begun = begin(call, cost); !begun) return std::move(begun).error();
    return body();
  }

  void charge(DeviceCall call, Nanoseconds cost) {
    tallies_[static_cast<std::size_t>(call)].time += cost;
    advance(cost);
  }

  Nanoseconds now() const { return {now_.load(std::memory_order_relaxed)}; }
  void advance(Nanoseconds duration) { set_now(now() + duration); }
  void set_now(Nanoseconds time) {
    now_.store(time.count, std::memory_order_relaxed);
    let_go_of_finished();
  }
  // What destroyed executables retained. Whoever looks whether it is gone knows the work to be
  // done.
  void let_go_of_finished() {
    graphs_.forget_finished(now(), [&](const sim::EventState& launch) { host_saw(launch); });
  }

  void host_saw(const sim::EventState& event) {
    if (options_.check_races) checker_.host_saw(event.mark);
  }

  void note_seen(const sim::EventState& event, sim::EventState& seen) {
    if (event.peers.empty()) {
      host_saw(event);
    } else {
      seen = event;
    }
  }

  Status launch(Stream stream, std::span<const Access> accesses, Nanoseconds duration,
                const SimRendezvous& rendezvous);
  Status record(EventHandle event, Stream stream);
  Status wait(Stream stream, EventHandle event);
  // Of an event that is done by the clock and has peers, `seen` is what it stood for: they are to
  // be met.
  Result<bool> query(EventHandle event, sim::EventState& seen);
  Status synchronize(EventHandle event, sim::EventState& seen);
  Status record_context(std::size_t device, EventHandle event);
  sim::EventState synchronize_context(std::size_t device);
  Status meet_peers(const sim::EventState& seen);
  // A driver may crash where a call names a stream that was destroyed.
  void note_use(Stream stream) { uses_of_destroyed_ += streams_.is_destroyed(stream) ? 1 : 0; }
  Status set_access(Address address, Bytes size);
  Status unmap(Address address, Bytes size);
  Status release(PhysicalHandle handle);
  Status free_segment(std::size_t device, Address address, Bytes size);

  // Host memory and copies: sim_device_copies.cc.
  Result<void*> allocate_host(Bytes size);
  Status free_host(void* memory, Bytes size);
  Stream copy_stream(std::size_t device, Direction direction);
  Status copy_to_host(void* to, Address from, Bytes size, Stream stream);
  Status copy_to_device(Address to, const void* from, Bytes size, Stream stream);
  Status fill_with_zeros(Address at, Bytes size, Stream stream);
  std::vector<SimContent> contents(Address address, Bytes bytes);

  // sim_device_files.cc.
  class File;
  struct Files final : SleepFiles {
    explicit Files(Impl& of) : impl(of) {}
    Result<std::unique_ptr<SleepFile>> open(const std::string& folder, Bytes size) override;
    Impl& impl;
  };

  // Captures and graphs: sim_device_graphs.cc.
  Status begin_capture(Stream stream, CaptureMode mode);
  Result<GraphHandle> end_capture(Stream stream);
  Result<std::vector<GraphNode>> node_dependencies(GraphNode node) const;
  Result<ExecutableHandle> instantiate(GraphHandle graph);
  Status launch_graph(ExecutableHandle executable, Stream stream);
  Status destroy_stream(Stream stream);
  std::uint64_t replay_in_random_order(sim::Graph* graph, std::uint64_t seed);
  // Brings what the graph knows of its memory up to date, and checks it for races if that changed.
  void check_graph(sim::Graph& graph);

  struct Context {
    std::vector<sim::ContextIndex> covers;                   // its own number, and its peers'
    std::array<std::optional<Stream>, 2> copy_streams = {};  // by Direction
  };
  void add_context() { contexts_.push_back({.covers = {sim::ContextIndex(contexts_.size())}}); }

  struct Fault {
    std::uint64_t calls_to_go;
    ErrorCode code;
  };
  struct Tally {
    std::uint64_t calls = 0;
    Nanoseconds time;
    std::vector<Fault> faults;
  };

  mutable std::mutex mutex_;
  const SimOptions options_;
  std::atomic<std::int64_t> now_ = 0;
  sim::RaceChecker checker_;
  sim::Memory memory_;
  sim::Streams streams_;
  sim::Captures captures_;
  sim::Graphs graphs_;
  std::deque<Context> contexts_;  // by number of their device; each stays where it is
  std::array<Tally, kDeviceCalls> tallies_;
  std::uint64_t host_waits_ = 0;
  std::uint64_t uses_of_destroyed_ = 0;
  std::map<Address, Bytes> host_;  // memory of allocate_host()
  Bytes host_bytes_;
  Bytes file_bytes_;
  Files files_{*this};

 private:
  Status check_host(DeviceCall call, const void* memory, Bytes size) const;
  // Work that reads or writes the device's bytes, and writes or reads those at `host` (may be
  // null); then calls move(contents of a page, offset in it, offset in the copy, size) for each
  // part.
  template <class Move>
  Status copy(DeviceCall call, Access access, const void* host, Stream stream, Move&& move);
  void note_write(const Access& access);
  Status check_mapped(std::string_view call, const Access& access);
  void stamp(const sim::StreamState& stream, const Access& access);

  // The host reads or writes memory of allocate_host(), now.
  void host_uses(const Access& access);

  sim::Contents host_contents_;  // by host address
  sim::PageStamps host_stamps_;  // of the device's copies, by host address
  std::uint64_t last_write_ = 0;
};

}  // namespace weir
