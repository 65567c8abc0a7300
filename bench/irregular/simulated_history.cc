// SPDX-License-Identifier: Apache-2.0
#include "bench/irregular/simulated_history.h"

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "weir/metered_device.h"
#include "weir/sim_device.h"

namespace weir::bench {
namespace {

constexpr Nanoseconds kLaunch = 5_us;  // the host, for one kernel
constexpr double kKernelNs = 6000;     // a mean one, had it the GPU for itself

void check(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.error().message());
}

template <class T>
T value_of(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.error().message());
  return *std::move(result);
}

// Kernels on all streams at once take `kKernelNs` each, on average, if a kernel takes this much a
// byte of its block. (The mean of a log-uniform size is the range over its logarithm.)
double kernel_ns_per_byte(const Family& family) {
  const auto least = static_cast<double>(family.least.count);
  const auto most = static_cast<double>(family.most.count);
  const double mean = (most - least) / std::log(most / least);
  return kKernelNs * family.all_streams() / mean;
}

SimOptions sim_options() {
  SimOptions options;
  options.costs.launch = kLaunch;
  return options;
}

Nanoseconds least_time(const History::Calls& calls) {
  double bytes = 0;
  for (const std::vector<Call>& each : calls) {
    for (const Call& call : each) {
      if (call.kind == Call::Kind::allocate) bytes += static_cast<double>(call.bytes);
    }
  }
  return Nanoseconds{static_cast<std::int64_t>(pairs_of(calls) * 60e3 + bytes * 3e6 / 0x1p30)};
}

class Simulation {
 public:
  Simulation(const Family& family, Trust trust, std::size_t slots)
      : kernel_ns_per_byte_(kernel_ns_per_byte(family)),
        sim_(sim_options()),
        metered_(sim_),
        heap_(metered_, {.trust = trust}),
        blocks_(slots, nullptr) {
    for (unsigned i = 0; i < family.all_streams(); ++i) streams_.push_back(sim_.new_stream());
    written_ = value_of(sim_.create_event());
  }

  void run(const History::Calls& calls) {
    for (const Call& call : taking_turns(calls)) run(call);
    sim_.finish();
  }

  HeapCounts counts() const {
    return counts_of(heap_.statistics(), metered_.calls(DeviceCall::record_context));
  }
  Nanoseconds driver_time() const { return metered_.total_time(); }
  std::uint64_t host_waits() const { return metered_.host_waits(); }
  std::uint64_t races() const { return sim_.race_count(); }
  double most_held() const { return static_cast<double>(heap_.statistics().reserved_bytes.peak); }

  void expect_sound() const {
    if (const std::vector<std::string> broken = heap_.validate(); !broken.empty()) {
      throw std::runtime_error("validate: " + broken.front());
    }
    if (const auto live = heap_.statistics().live_blocks.current; live != 0) {
      throw std::runtime_error(std::to_string(live) + " blocks are live at the end");
    }
  }

 private:
  void run(const Call& call) {
    void*& block = blocks_[call.slot];
    const Stream own = streams_[call.stream];
    const Bytes bytes{call.bytes};
    const Nanoseconds length{
        static_cast<std::int64_t>(kernel_ns_per_byte_ * static_cast<double>(call.bytes))};
    switch (call.kind) {
      case Call::Kind::allocate:
        block = value_of(heap_.allocate(bytes, own));
        return check(sim_.launch(own, Writes(block, bytes), length));
      case Call::Kind::use: {
        // The program orders the streams by an event of its own, of which the heap is not told.
        const Stream user = streams_[call.user];
        check(sim_.record(written_, own));
        check(sim_.wait(user, written_));
        check(sim_.launch(user, Reads(block, bytes), length));
        return check(heap_.record_stream(block, user));
      }
      case Call::Kind::free:
        return check(heap_.deallocate(block));
    }
  }

  const double kernel_ns_per_byte_;
  SimDevice sim_;
  MeteredDevice metered_;
  DeviceHeap heap_;
  std::vector<Stream> streams_;
  EventHandle written_;
  std::vector<void*> blocks_;  // by slot
};

}  // namespace

SimulatedFigures run_simulated(const Family& family, Trust trust, std::uint64_t seed,
                               HistoryLength length) {
  History history(family, seed, length);
  Simulation simulation(family, trust, history.slots());
  const auto ratio = [&] {
    return simulation.most_held() / static_cast<double>(history.peak_live().count);
  };
  SimulatedFigures figures;
  HeapCounts before;
  Nanoseconds time_before;
  for (unsigned phase = 0; phase < history.phases(); ++phase) {
    simulation.run(history.next());
    if (phase + 1 == history.first_measured()) {
      before = simulation.counts();
      time_before = simulation.driver_time();
    } else if (phase == history.first_measured()) {
      figures.first_ratio = ratio();
      figures.first_pairs = pairs_of(history.calls());
      figures.first = simulation.counts() - before;
      figures.first_driver_time = simulation.driver_time() - time_before;
      before = simulation.counts();
      time_before = simulation.driver_time();
    } else if (phase > history.first_measured()) {
      figures.later_pairs += pairs_of(history.calls());
      figures.later_least_time = figures.later_least_time + least_time(history.calls());
    }
  }
  figures.ratio = ratio();
  figures.later = simulation.counts() - before;
  figures.later_driver_time = simulation.driver_time() - time_before;
  simulation.run(history.frees());
  simulation.expect_sound();
  figures.host_waits = simulation.host_waits();
  figures.races = simulation.races();
  return figures;
}

}  // namespace weir::bench
