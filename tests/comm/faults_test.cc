// SPDX-License-Identifier: Apache-2.0
// Each call of the device and of NCCL is made to fail in turn, in a program that uses all of the
// communication layer: somebody is told of each failure, and memory is whole at the end.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tests/comm/ranks.h"
#include "tests/temporary_folder.h"
#include "weir/comm/bucketer.h"
#include "weir/comm/registered_buffer.h"
#include "weir/log.h"

namespace weir {
namespace {

using test::Rank;
using testing::IsEmpty;

constexpr Bytes kFaultSize = 1_MiB;

// A rank that is alone. What fails is noted, and the program goes on as far as it can.
class Program {
 public:
  Program() { rank_.nccl = world_.rank(0, rank_.device); }

  SimWorld& world() { return world_; }
  SimDevice& device() { return rank_.device; }
  const std::vector<std::string>& errors() const { return errors_; }

  void connect() {
    Result<Communicator> made =
        Communicator::create(rank_.context(), *rank_.nccl->unique_id(), 1, 0,
                             {.host_timeout = Nanoseconds{2'000'000'000}, .watch_every = {}});
    if (works(made)) rank_.comm = *std::move(made);
  }
  void run() {
    if (!works(rank_.comm->prepare())) return;
    sum(rank_.side);
    group();
    reduce_buckets();
    use_registered_memory();
    capture();
    split();
    works(rank_.comm->poll());
    works(rank_.comm->close());
  }
  void end() {
    rank_.comm.reset();
    EXPECT_THAT(rank_.heap->validate(), IsEmpty());
    rank_.device.finish();
    rank_.heap.reset();
    rank_.nccl.reset();
  }
  Bytes left() const { return rank_.device.physical_bytes(); }

 private:
  template <class Outcome>
  bool works(const Outcome& outcome) {
    if (!outcome.ok()) errors_.push_back(outcome.error().message());
    return outcome.ok();
  }
  // Uses a block on the compute stream, and gives it back.
  void with_block(const std::function<void(void*)>& use) {
    Result<void*> block = rank_.heap->allocate(kFaultSize, rank_.compute);
    if (!works(block)) return;
    works(rank_.device.launch(rank_.compute, Writes(*block, kFaultSize), 10_us));
    use(*block);
    works(rank_.heap->deallocate(*block));
  }
  void sum(Stream waiting) {
    with_block([&](void* block) {
      const Result<Work> work = rank_.sum(block, kFaultSize, rank_.compute);
      if (works(work)) works(work->wait(waiting));
    });
  }
  void group() {
    with_block([&](void* block) {
      const Operation sum{OperationKind::all_reduce, block, block, 64, DataType::float32, {}};
      for (int i = 0; i < 2; ++i) {
        const Result<Work> work = rank_.comm->run(sum, rank_.compute);
        if (works(work)) works(work->wait(rank_.compute));
      }
    });
  }
  void reduce_buckets() {
    Result<Bucketer> made = Bucketer::create(*rank_.comm, std::vector<std::uint64_t>{64, 64, 64},
                                             DataType::float32, rank_.compute);
    if (!works(made)) return;
    Bucketer buckets = *std::move(made);
    for (int step = 0; step < 2; ++step) {
      for (const std::size_t tensor : {2, 1, 0}) works(buckets.ready(tensor));
      works(buckets.finish());
    }
  }
  void use_registered_memory() {
    Result<RegisteredBuffer> made = RegisteredBuffer::create(*rank_.comm, rank_.compute, 4_MiB);
    if (!works(made)) return;
    RegisteredBuffer buffer = *std::move(made);
    works(rank_.device.launch(rank_.compute, Writes(buffer.data(), 4_MiB), 10_us));
    works(buffer.close());
  }
  void capture() {
    GraphPool pool(*rank_.heap);
    Result<CaptureScope> scope = CaptureScope::begin(pool, rank_.compute);
    if (!works(scope)) return;
    sum(rank_.compute);
    Result<Graph> graph = rank_.comm->end_capture(*scope);
    if (works(graph)) works(rank_.comm->launch(*graph, rank_.side));
  }
  void split() {
    Result<std::optional<Communicator>> part = rank_.comm->split(0, 0, {.watch_every = {}});
    if (works(part) && *part) works((*part)->close());
  }

  SimWorld world_{{.ranks = 1}};
  Rank rank_;
  std::vector<std::string> errors_;
};

// Calls of one kind: how many of them the program makes at least, and of how many that fail nobody
// need hear.
struct Calls {
  std::variant<DeviceCall, NcclCall> call;
  std::uint64_t made = 1;
  std::uint64_t silent = 0;
};

class CommFaults : public testing::TestWithParam<Calls> {
 protected:
  CommFaults() { EXPECT_TRUE(configure_log(LogLevel::warn, log_).ok()); }
  ~CommFaults() override { EXPECT_TRUE(configure_log(LogLevel::warn).ok()); }

  // With the nth call failing. Nothing: the program makes fewer.
  std::optional<bool> is_told(std::uint64_t nth) {
    const std::uintmax_t logged = std::filesystem::file_size(log_);
    Program program;
    program.connect();
    EXPECT_THAT(program.errors(), IsEmpty());
    const auto* const of_device = std::get_if<DeviceCall>(&GetParam().call);
    if (of_device != nullptr) {
      program.device().fail(*of_device, nth);
    } else {
      program.world().fail(0, std::get<NcclCall>(GetParam().call), nth);
    }
    program.run();
    const bool is_told = !program.errors().empty() || std::filesystem::file_size(log_) > logged;
    const bool is_over = of_device ? program.device().forget_faults() > 0 : !is_told;
    program.end();
    EXPECT_TRUE(program.left() == 0_B || keeps_memory()) << program.left().count;
    if (is_over) return {};
    return is_told;
  }
  // Memory that the driver does not take back is the driver's.
  static bool keeps_memory() {
    const auto* const call = std::get_if<DeviceCall>(&GetParam().call);
    return call != nullptr && (*call == DeviceCall::unmap || *call == DeviceCall::free_segment);
  }

  const test::TemporaryFolder folder_;
  const std::string log_ = folder_ / "log";
};

TEST_P(CommFaults, AreTold) {
  std::uint64_t tried = 0, silent = 0;
  for (std::optional<bool> told; (told = is_told(tried + 1)).has_value(); ++tried) {
    silent += *told ? 0 : 1;
  }
  EXPECT_GE(tried, GetParam().made);
  EXPECT_EQ(silent, GetParam().silent);
}

// Silent are: a region of the device heap, which is asked for again, smaller; a segment for NCCL,
// which is asked for again once the heap gave back what it holds idle; what goes back later
// (unmap, destroy_event); events and queries of work that a graph pool settles, or that is asked
// about again; and a fence that can't be taken now, as the block takes it when it is deallocated.
INSTANTIATE_TEST_SUITE_P(
    Calls, CommFaults,
    testing::Values(Calls{DeviceCall::reserve, 2, 1}, Calls{DeviceCall::create, 1},
                    Calls{DeviceCall::map, 2}, Calls{DeviceCall::set_access, 2},
                    Calls{DeviceCall::unmap, 1, 1}, Calls{DeviceCall::allocate_segment, 2, 1},
                    Calls{DeviceCall::free_segment, 2}, Calls{DeviceCall::create_event, 22, 9},
                    Calls{DeviceCall::destroy_event, 6, 5}, Calls{DeviceCall::record, 25, 9},
                    Calls{DeviceCall::wait, 10, 2}, Calls{DeviceCall::query, 9, 3},
                    Calls{DeviceCall::synchronize, 4}, Calls{DeviceCall::capture_info, 81, 18},
                    Calls{DeviceCall::capture_tips, 1, 1}, Calls{DeviceCall::begin_capture},
                    Calls{DeviceCall::end_capture}, Calls{DeviceCall::instantiate},
                    Calls{DeviceCall::launch_graph}, Calls{NcclCall::split, 2},
                    Calls{NcclCall::destroy, 3}, Calls{NcclCall::enqueue, 16},
                    Calls{NcclCall::allocate_segment}, Calls{NcclCall::register_range}));

}  // namespace
}  // namespace weir
