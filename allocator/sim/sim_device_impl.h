// SPDX-License-Identifier: Apache-2.0
// What the devices of one simulated machine share: its parts, and what takes several of them.
//
// SimDevice's calls are in sim_device.cc, but for its copies (sim_device_copies.cc), files
// (sim_device_files.cc), and captures and graphs (sim_device_graphs.cc).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/race_checker.h"
#include "sim/sim_calls.h"
#include "sim/sim_captures.h"
#include "sim/sim_graphs.h"
#include "sim/sim_host_memory.h"
#include "sim/sim_memory.h"
#include "sim/sim_streams.h"
#include "sim/text.h"
#include "weir/sim_device.h"

namespace weir {

// All behind one mutex; the clock alone is also read without it.
struct SimDevice::Impl {
  explicit Impl(SimOptions of)
      : options(of),
        memory(of.memory, of.granularity, of.mapping_ceiling, of.address_seed),
        streams(checker),
        host(of.host_memory) {
    add_context();
  }

  // One call of Device: under the lock, counted, charged and perhaps failed by script; then
  // body(*this).
  template <class Body>
  auto call(DeviceCall call, Nanoseconds cost, Body body) -> decltype(body(*this)) {
    const std::scoped_lock lock(mutex);
    Status counted = calls.count(call);
    charge(call, cost);
    if (!counted) return std::move(counted).error();
    return body(*this);
  }
  // The same; what it costs is charged as that is known.
  template <class Body>
  auto call(DeviceCall which, Body body) -> decltype(body(*this)) {
    return call(which, 0_ns, body);
  }
  template <class Body>
  auto call(DeviceCall which, Nanoseconds CostModel::*cost, Body body) -> decltype(body(*this)) {
    return call(which, options.costs.*cost, body);
  }

  void charge(DeviceCall call, Nanoseconds cost) {
    calls.charge(call, cost);
    advance(cost);
  }
  void charge(DeviceCall call, Bytes size, Nanoseconds per_mib) {
    charge(call, time_for(size, per_mib));
  }
  static Nanoseconds time_for(Bytes size, Nanoseconds per_mib) {
    return {static_cast<std::int64_t>(size.count) * per_mib.count /
            static_cast<std::int64_t>((1_MiB).count)};
  }
  Nanoseconds now() const { return {clock.load(std::memory_order_relaxed)}; }
  void advance(Nanoseconds duration) { set_now(now() + duration); }
  void set_now(Nanoseconds time) {
    clock.store(time.count, std::memory_order_relaxed);
    let_go_of_finished();
  }
  // What destroyed executables retained. Whoever looks whether it is gone knows the work to be
  // done.
  void let_go_of_finished() {
    graphs.forget_finished(now(), [&](const sim::EventState& launch) { host_saw(launch); });
  }

  // Work on memory. `call`: for messages.
  Status check_mapped(std::string_view call, const Access& access);
  // Queues accesses that are mapped.
  void queue(const sim::StreamState& stream, std::span<const Access> accesses);
  Status launch(Stream stream, std::span<const Access> accesses, Nanoseconds duration,
                const SimRendezvous& rendezvous = {});

  // The host knows what the event stands for to be complete. Where that has peers, they are to be
  // met first, without the lock since they may take a while to come, and `seen` is the event.
  void host_saw(const sim::EventState& event) {
    if (options.check_races) checker.host_saw(event.mark);
  }
  void note_seen(const sim::EventState& event, sim::EventState& seen) {
    if (event.peers.empty()) {
      host_saw(event);
    } else {
      seen = event;
    }
  }
  Status meet_peers(DeviceCall call, const sim::EventState& seen);
  sim::EventState synchronize_context(std::size_t device);
  // A driver may crash where a call names a stream that was destroyed.
  void note_use(Stream stream) { uses_of_destroyed += streams.is_destroyed(stream) ? 1 : 0; }

  // The host reads or writes memory of allocate_host(), now: by freeing it.
  void host_uses(const Access& access);
  // Work that reads or writes the device's bytes, and writes or reads those at `at_host` (null:
  // none); then calls move(contents of a page, offset in it, offset in the copy, size) for each
  // part.
  template <class Move>
  Status copy(DeviceCall call, Access access, const void* at_host, Stream stream, Move&& move);

  // Brings what the graph knows of its memory up to date, and checks it for races if that changed.
  void check_graph(sim::Graph& graph);
  std::uint64_t replay_in_random_order(sim::Graph* graph, std::uint64_t seed);

  struct Context {
    std::vector<sim::ContextIndex> covers;                   // its own number, and its peers'
    std::array<std::optional<Stream>, 2> copy_streams = {};  // by Direction
  };
  void add_context() { contexts.push_back({.covers = {sim::ContextIndex(contexts.size())}}); }

  mutable std::mutex mutex;
  const SimOptions options;
  std::atomic<std::int64_t> clock = 0;
  sim::Calls calls;
  sim::RaceChecker checker{options.check_races};
  sim::Memory memory;
  sim::Streams streams;
  sim::Captures captures;
  sim::Graphs graphs;
  sim::HostMemory host;
  std::deque<Context> contexts;  // by number of their device; each stays where it is
  std::uint64_t host_waits = 0;
  std::uint64_t uses_of_destroyed = 0;
  std::uint64_t last_write = 0;
};

}  // namespace weir
