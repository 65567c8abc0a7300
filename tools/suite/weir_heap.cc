// SPDX-License-Identifier: Apache-2.0
// Weir: its device heap, with default settings. Memory is measured on the simulated device, on
// which the program's blocks are written, read and used by other streams, and where races are
// found; host time on a device that does nothing.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "replay/replay_device.h"
#include "suite/allocator.h"
#include "suite/null_device.h"
#include "weir/device_heap.h"
#include "weir/graph_pool.h"

namespace weir::suite {
namespace {

// The heap, and its pools: a pool of the program is one of Weir's own, until its last block is
// freed.
class Heap {
 public:
  explicit Heap(Device& device) : heap_(device) {}

  Result<void*> allocate(const ProgramCall& call, Stream stream) {
    const Bytes bytes{call.bytes};
    if (call.pool == 0) return heap_.allocate(bytes, stream);
    Pool& pool = pools_[call.pool];
    if (pool.memory == nullptr) pool.memory = std::make_unique<GraphPool>(heap_);
    ++pool.live;
    return pool.memory->allocate(bytes, stream);
  }
  Status fence(void* block, Stream user) { return heap_.fence(block, user); }
  Status free(void* block, const ProgramCall& call) {
    Status freed = heap_.deallocate(block);
    if (call.pool == 0 || !freed) return freed;
    Pool& pool = pools_[call.pool];
    if (--pool.live == 0) pool.memory.reset();
    return freed;
  }
  Status trim() {
    const Result<Bytes> freed = heap_.trim(0_B, Trim::waits);
    return freed ? Status() : Status(freed.error());
  }
  void set_limit(Bytes limit) { heap_.set_limit(limit); }
  Statistics statistics() const { return heap_.statistics(); }
  std::vector<std::string> validate() const { return heap_.validate(); }

 private:
  struct Pool {
    std::unique_ptr<GraphPool> memory;
    std::uint64_t live = 0;  // blocks
  };
  DeviceHeap heap_;
  std::map<unsigned, Pool> pools_;
};

// As `weir replay` does it.
class SimulatedWeir final : public SuiteAllocator {
 public:
  static Result<std::unique_ptr<SuiteAllocator>> make(std::uint32_t streams, Bytes limit) {
    auto made = std::unique_ptr<SimulatedWeir>(new SimulatedWeir(limit));
    made->heap_.set_limit(limit);
    for (std::uint32_t i = 0; i < streams; ++i) {
      const Result<Stream> stream = made->device_->new_stream();
      if (!stream) return stream.error();
      made->streams_.push_back(*stream);
    }
    made->busy_until_.resize(streams);
    made->start_ = made->device_->device().now();
    return std::unique_ptr<SuiteAllocator>(std::move(made));
  }

  Result<void*> allocate(const ProgramCall& call) override {
    const Stream stream = streams_[call.stream];
    Result<void*> block = heap_.allocate(call, stream);
    if (!block) return block;
    const Status written = device_->write(stream, use_of(*block, call));
    return written ? block : Result<void*>(written.error());
  }

  Status use(void* block, const ProgramCall& call) override {
    const Stream user = streams_[call.user];
    if (Status ordered = device_->order(user, streams_[call.stream]); !ordered) return ordered;
    Nanoseconds& busy = busy_until_[call.user];
    const Nanoseconds start = std::max(at(call.time_us), busy);
    const Nanoseconds length = std::max(kShortWork, at(call.until_us) - start);
    busy = start + length;
    if (Status read = device_->read(user, use_of(block, call), length); !read) return read;
    return heap_.fence(block, user);
  }

  Status free(void* block, const ProgramCall& call) override {
    Status read = device_->read(streams_[call.stream], use_of(block, call), kShortWork);
    return read ? heap_.free(block, call) : std::move(read);
  }

  Status trim() override { return heap_.trim(); }
  void advance_to(std::int64_t time_us) override { device_->advance_to(at(time_us)); }

  Status finish() override {
    is_finished_ = true;
    if (Status finished = device_->finish(); !finished) return finished;
    if (device_->races().value_or(0) != 0) {
      return Error(ErrorCode::device, "a race: " + device_->first_race());
    }
    const std::vector<std::string> broken = heap_.validate();
    if (broken.empty()) return {};
    return Error(ErrorCode::device, "the heap is not sound: " + broken.front());
  }

  AllocatorFigures figures() const override {
    // The heap's statistics are a sum over its streams: too much for every call.
    const Result<MemoryInfo> memory = device_->memory();
    if (!is_finished_ && memory) return {.held = (memory->total - memory->free).count};
    const Statistics statistics = heap_.statistics();
    AllocatorFigures figures{.held = statistics.reserved_bytes.current,
                             .most_held = statistics.reserved_bytes.peak,
                             .driver_calls = 0};
    const MeteredDevice& device = device_->device();
    for (int call = 0; call < kDeviceCalls; ++call) {
      *figures.driver_calls += device.calls(static_cast<DeviceCall>(call));
    }
    figures.waits = statistics.stream_waits + device.host_waits();
    return figures;
  }

 private:
  // The device is never smaller than what the program may have. Of a program with a limit it is
  // asked what fits: races are looked for without one, in memory that grows with the square of the
  // streams.
  explicit SimulatedWeir(Bytes limit)
      : device_(make_sim_replay_device(std::clamp(limit, SimOptions{}.memory, kMostMemory),
                                       limit == 0_B, limit == 0_B)) {}
  static constexpr Bytes kMostMemory{std::uint64_t{16} << 40};
  Nanoseconds at(std::int64_t time_us) const { return start_ + Nanoseconds{time_us * 1000}; }
  static BlockUse use_of(void* block, const ProgramCall& call) {
    return {block, Bytes{call.bytes}, call.block + std::uint64_t{1}};
  }

  const std::unique_ptr<ReplayDevice> device_;
  Heap heap_{device_->device()};
  std::vector<Stream> streams_;
  bool is_finished_ = false;
  Nanoseconds start_;                    // of the program, on the device's clock
  std::vector<Nanoseconds> busy_until_;  // of streams_, with what `use` queued
};

class WeirOnNoDevice final : public SuiteAllocator {
 public:
  explicit WeirOnNoDevice(std::uint32_t streams) {
    for (std::uint32_t i = 0; i < streams; ++i) {
      void* const handle = bench::NullDevice::stream_handle(static_cast<int>(i));
      streams_.push_back(*device_.stream(handle));
    }
  }
  Result<void*> allocate(const ProgramCall& call) override {
    return heap_.allocate(call, streams_[call.stream]);
  }
  Status use(void* block, const ProgramCall& call) override {
    return heap_.fence(block, streams_[call.user]);
  }
  Status free(void* block, const ProgramCall& call) override { return heap_.free(block, call); }
  Status trim() override { return heap_.trim(); }
  AllocatorFigures figures() const override {
    return {.held = heap_.statistics().reserved_bytes.current};
  }

 private:
  bench::NullDevice device_;
  Heap heap_{device_};
  std::vector<Stream> streams_;
};

}  // namespace

AllocatorKind weir_heap_kind(Bytes limit) {
  return {
      .name = "weir",
      .title = "Weir, on its simulated device",
      .make = [limit](const Program& program,
                      Purpose purpose) -> Result<std::unique_ptr<SuiteAllocator>> {
        if (purpose == Purpose::memory) return SimulatedWeir::make(program.streams, limit);
        return std::unique_ptr<SuiteAllocator>(std::make_unique<WeirOnNoDevice>(program.streams));
      }};
}

}  // namespace weir::suite
