// SPDX-License-Identifier: Apache-2.0
// The hot pair while somebody records it: two events a pair. Beside it, the same without a
// recorder.
//
// The pairs come in bursts that the recorder's ring has room for, and it has drained the ring
// before the next: what is measured is the cost to the thread that allocates, and no event is
// dropped. The null device has a clock here, which each event reads.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>

#include "bench/micro/micro.h"
#include "weir/recorder.h"

namespace weir::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr benchmark::IterationCount kBurst = 10'000;

class ClockedDevice final : public NullDevice {
 public:
  Nanoseconds now() const override {
    const auto since = Clock::now() - opened_at_;
    return {std::chrono::duration_cast<std::chrono::nanoseconds>(since).count()};
  }

 private:
  const Clock::time_point opened_at_ = Clock::now();
};

void pairs(DeviceHeap& heap, Stream stream, Bytes bytes, benchmark::IterationCount count) {
  for (benchmark::IterationCount i = 0; i < count; ++i) {
    Result<void*> block = heap.allocate(bytes, stream);
    if (!block.ok()) stop(block.error());
    if (Status status = heap.deallocate(*block); !status.ok()) stop(status.error());
  }
}

// `recorder` may be null.
void bursts(benchmark::State& state, Bytes bytes, Recorder* recorder) {
  ClockedDevice device;
  DeviceHeap heap(device);
  const Stream stream = device.stream(NullDevice::stream_handle(0)).value();
  pairs(heap, stream, bytes, 100);
  if (recorder != nullptr) heap.start_recording(*recorder);
  while (state.KeepRunningBatch(kBurst)) {
    const Clock::time_point begin = Clock::now();
    pairs(heap, stream, bytes, kBurst);
    state.SetIterationTime(std::chrono::duration<double>(Clock::now() - begin).count());
    if (recorder != nullptr && !recorder->flush().ok()) fail(state, "the file can't be written");
  }
  if (recorder != nullptr) {
    (void)heap.stop_recording(*recorder);
    state.counters["dropped"] = static_cast<double>(recorder->dropped());
  }
  expect_sound(state, heap);
}

void recorded(benchmark::State& state, Bytes bytes) {
  const std::string path =
      std::filesystem::temp_directory_path() / ("weir_micro." + std::to_string(getpid()) + ".weir");
  Result<std::unique_ptr<Recorder>> recorder = Recorder::open(path);
  if (!recorder.ok()) stop(recorder.error());
  bursts(state, bytes, recorder->get());
  (void)(*recorder)->close();
  (void)std::remove(path.c_str());
}

}  // namespace

void add_recorded(const Context& context) {
  if (std::string(context.name) != "null") return;  // the device makes no difference
  for (const Bytes bytes : {512_B, 1_MiB}) {
    add_timed_by_itself(context, "recorded/null/heap/" + name_of(bytes) + "/off",
                        [=](benchmark::State& state) { bursts(state, bytes, nullptr); });
    add_timed_by_itself(context, "recorded/null/heap/" + name_of(bytes) + "/on",
                        [=](benchmark::State& state) { recorded(state, bytes); });
  }
}

}  // namespace weir::bench
