// SPDX-License-Identifier: Apache-2.0
// Programs that never repeat (bench/irregular), each from an empty heap through a long history.
//
// The time is that of a pair in the median phase after the first. The first phase, in which the
// heap takes its memory from the driver, has a counter of its own.
#include <atomic>
#include <string>

#include "bench/irregular/heap_counts.h"
#include "bench/irregular/timed_history.h"
#include "bench/micro/micro.h"
#include "suite/irregular_families.h"
#include "weir/interposed_device.h"

namespace weir::bench {
namespace {

class ContextEventCounter final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  Status record_context(EventHandle event) override {
    ++count_;
    return ForwardingDevice::record_context(event);
  }
  std::uint64_t count() const { return count_; }

 private:
  std::atomic<std::uint64_t> count_ = 0;
};

// A heap on the benchmark's device, as run_history() calls it.
class HeapTarget {
 public:
  HeapTarget(Target& target, unsigned streams, Trust trust)
      : device_(target.device()), heap_(device_, {.trust = trust}) {
    for (unsigned i = 0; i < streams; ++i) streams_.push_back(target.stream(static_cast<int>(i)));
  }

  void enter_thread() {}
  void* allocate(const Call& call) {
    Result<void*> block = heap_.allocate({call.bytes}, streams_[call.stream]);
    if (!block.ok()) [[unlikely]]
      stop(block.error());
    return *block;
  }
  void use(void* block, const Call& call) {
    check(heap_.record_stream(block, streams_[call.user]));
  }
  void free(void* block, const Call&) { check(heap_.deallocate(block)); }
  void settle() { check(device_.synchronize_context()); }

  const DeviceHeap& heap() const { return heap_; }
  HeapCounts counts() const { return counts_of(heap_.statistics(), device_.count()); }

 private:
  static void check(const Status& status) {
    if (!status.ok()) [[unlikely]]
      stop(status.error());
  }

  ContextEventCounter device_;
  DeviceHeap heap_;
  std::vector<Stream> streams_;
};

void irregular(benchmark::State& state, const Context& context, const Family& family, Trust trust) {
  HeapTarget target(*context.target, family.all_streams(), trust);
  History history(family, context.seed, context.history);
  HeapCounts first, all;
  double first_pairs = 0, pairs = 0;
  HistoryTimes times = run_history(target, history, [&](unsigned phase) {
    if (phase >= history.first_measured()) pairs += pairs_of(history.calls());
    if (phase == history.first_measured()) {
      first = target.counts();
      first_pairs = pairs;
    }
    all = target.counts();
  });
  for ([[maybe_unused]] auto _ : state) state.SetIterationTime(times.later_ns() / 1e9);

  const HeapCounts later = all - first;
  const auto per_pair = [&](std::uint64_t count) {
    return static_cast<double>(count) / (pairs - first_pairs);
  };
  const CallTimes calls = times.later_calls();
  state.counters["first_ns"] = times.first_ns();
  state.counters["last_ns"] = times.last_ns();
  state.counters["over_10us"] = calls.slow_share();
  state.counters["slowest_us"] = calls.slowest_ns / 1000;
  state.counters["first_slowest_us"] = times.phases.front().calls.slowest_ns / 1000;
  state.counters["preempted"] = static_cast<double>(calls.preempted);
  state.counters["ratio"] = static_cast<double>(target.heap().statistics().reserved_bytes.peak) /
                            static_cast<double>(history.peak_live().count);
  state.counters["maps"] = per_pair(later.maps);
  state.counters["unmaps"] = per_pair(later.unmaps);
  state.counters["waits"] = per_pair(later.waits);
  state.counters["context_events"] = per_pair(later.context_events);
  expect_sound(state, target.heap());
}

}  // namespace

void add_irregular(const Context& context) {
  for (const Family& family : families()) {
    for (const Trust trust : {Trust::told, Trust::context}) {
      add_rounds(
          context,
          std::string("irregular/") + context.name + "/heap/" + family.name +
              (trust == Trust::told ? "/told" : "/context"),
          1, [=, &family](benchmark::State& state) { irregular(state, context, family, trust); });
    }
  }
}

}  // namespace weir::bench
