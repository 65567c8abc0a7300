// SPDX-License-Identifier: Apache-2.0
// What torch.OutOfMemoryError says, on a simulated device.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "torch/device_memory.h"
#include "torch/pool_table.h"
#include "weir/sim_device.h"

namespace weir::pytorch {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// A device, and Weir on it; `others` stands for whoever else has memory of it.
class Gpu {
 public:
  explicit Gpu(Bytes memory, HeapOptions options = {})
      : device({.memory = memory}), stream(device.new_stream()), heap(device, options) {}

  // The message; empty: there was memory.
  std::string message(Bytes bytes) {
    try {
      EXPECT_TRUE(memory.deallocate(memory.allocate(bytes, stream)));
      return "";
    } catch (const c10::OutOfMemoryError& error) {
      return error.what_without_backtrace();
    }
  }

  // A graph of the pool's that writes so many bytes of it.
  GraphHandle captured(c10::MempoolId_t pool, Bytes bytes) {
    std::uint64_t capture = 0;
    memory.pools().begin(
        pool,
        [&](cudaStream_t asking) {
          const CaptureInfo info = *device.capture_info(Stream::of_captured(asking));
          return info.status == CaptureInfo::Status::active && info.id == capture;
        },
        stream);
    EXPECT_TRUE(device.begin_capture(stream, CaptureMode::global).ok());
    capture = device.capture_info(stream)->id;
    void* const scratch = memory.allocate(bytes, stream);
    EXPECT_TRUE(device.launch(stream, Writes(scratch, bytes), 10_us).ok());
    EXPECT_TRUE(memory.deallocate(scratch));
    const GraphHandle graph = *device.end_capture(stream);
    memory.pools().end(pool);
    return graph;
  }

  SimDevice device;
  const Stream stream;
  DeviceHeap others{device};
  DeviceHeap heap;
  DeviceMemory memory{3, device, heap};
};

TEST(OutOfMemory, BeginsWithTheWordsThatProgramsLookFor) {
  Gpu gpu(64_MiB);
  void* const block = gpu.memory.allocate(60_MiB, gpu.stream);
  EXPECT_THAT(gpu.message(10_MiB),
              StartsWith("CUDA out of memory. Tried to allocate 10.00 MiB. GPU 3 has a total "
                         "capacity of 64.00 MiB of which 4.00 MiB is free. Of the allocated memory "
                         "60.00 MiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch "
                         "but unallocated. Weir: "));
  EXPECT_TRUE(gpu.memory.deallocate(block));
  EXPECT_EQ(gpu.message(10_MiB), "");
}

TEST(OutOfMemory, RequestsBeyondAllReasonAreRefusedInPyTorchsWords) {
  Gpu gpu(64_MiB);
  EXPECT_THAT(gpu.message(1_GiB * 800'000'000),
              AllOf(HasSubstr("Tried to allocate 800000000.00 GiB. GPU 3 has a total capacity of"),
                    HasSubstr("none: this is more than the whole GPU has")));
  EXPECT_EQ(gpu.message(1_GiB * 8'000'000'000),
            "CUDA out of memory. Tried to allocate more than 1EB memory.");
  EXPECT_EQ(gpu.memory.stats().num_ooms, 1);
}

TEST(OutOfMemory, ALimitIsNamedAndBlamedOnlyWhereItIsInTheWay) {
  Gpu gpu(64_MiB, {.limit = 32_MiB});
  void* const block = gpu.memory.allocate(30_MiB, gpu.stream);
  const char* const remedy = "the limit of 32.00 MiB stands in the way: raise WEIR_LIMIT";
  EXPECT_THAT(gpu.message(10_MiB),
              AllOf(HasSubstr("of which 34.00 MiB is free. 32.00 MiB allowed; Of the allocated"),
                    HasSubstr(remedy)));
  EXPECT_THAT(gpu.message(60_MiB), AllOf(HasSubstr("32.00 MiB allowed; "), Not(HasSubstr(remedy))));
  EXPECT_TRUE(gpu.memory.deallocate(block));
}

TEST(OutOfMemory, WhatOthersHoldIsSaidWhereItWouldHelp) {
  Gpu gpu(64_MiB);
  void* const theirs = *gpu.others.allocate(40_MiB, gpu.stream);
  EXPECT_THAT(gpu.message(30_MiB),
              HasSubstr("40.00 MiB of the GPU are neither free nor Weir's: other processes"));
  ASSERT_TRUE(gpu.others.deallocate(theirs).ok());

  Gpu another(64_MiB);
  void* const little = *another.others.allocate(2_MiB, another.stream);
  EXPECT_THAT(another.message(63_MiB), Not(HasSubstr("neither free nor")));
  ASSERT_TRUE(another.others.deallocate(little).ok());
}

TEST(OutOfMemory, PoolsAreNamedAsPyTorchNamesThem) {
  Gpu gpu(64_MiB);
  const c10::MempoolId_t pool{0, 7};
  gpu.memory.pools().begin(
      pool, [&](cudaStream_t asking) { return asking == gpu.stream.handle; }, gpu.stream);
  void* const kept = gpu.memory.allocate(32_MiB, gpu.stream);
  gpu.memory.pools().end(pool);
  const std::string message = gpu.message(50_MiB);
  EXPECT_THAT(message, HasSubstr("Memory pools: (0, 7) holds 32.00 MiB, 32.00 MiB of it live."));
  EXPECT_THAT(message, HasSubstr("PyTorch, with 32.00 MiB allocated in private pools (e.g., CUDA "
                                 "Graphs), and "));
  EXPECT_THAT(message, Not(HasSubstr("drop CUDA graphs")));
  EXPECT_TRUE(gpu.memory.deallocate(kept));
  gpu.memory.pools().release(pool);
}

TEST(OutOfMemory, PoolsThatKeepWhatIsNotLiveCanBeDropped) {
  Gpu gpu(64_MiB);
  const c10::MempoolId_t pool{1, 0};
  const GraphHandle graph = gpu.captured(pool, 32_MiB);
  EXPECT_THAT(gpu.message(60_MiB), Not(HasSubstr("memory pools keep")));
  EXPECT_THAT(gpu.message(40_MiB), HasSubstr("(1, 0) holds 32.00 MiB, 0 bytes of it live."));
  void* const block = gpu.memory.allocate(24_MiB, gpu.stream);
  EXPECT_THAT(gpu.message(20_MiB),
              HasSubstr("memory pools keep 32.00 MiB that is not live: drop CUDA graphs"));
  EXPECT_TRUE(gpu.memory.deallocate(block));
  ASSERT_TRUE(gpu.device.destroy_graph(graph).ok());
  gpu.memory.pools().release(pool);
}

// As in the debug mode of PyTorch's graphs.
TEST(OutOfMemory, GraphsThatAreNeverDestroyedKeepNoMemoryOnceTheyAreReleased) {
  PoolTable::assume_graphs_leak();
  Gpu gpu(64_MiB);
  const c10::MempoolId_t pool{1, 0};
  const GraphHandle leaked = gpu.captured(pool, 32_MiB);
  const ExecutableHandle executable = *gpu.device.instantiate(leaked);
  ASSERT_TRUE(gpu.device.launch_graph(executable, gpu.stream).ok());
  ASSERT_TRUE(gpu.device.destroy_executable(executable).ok());
  gpu.memory.pools().release(pool);
  EXPECT_EQ(gpu.message(60_MiB), "");
  gpu.memory.empty({0, 0});
  EXPECT_EQ(gpu.heap.statistics().reserved_bytes.current, 0u);
  EXPECT_EQ(gpu.device.race_count(), 0u);
  ASSERT_TRUE(gpu.device.destroy_graph(leaked).ok());
}

// Blocks that leave much of their pages free, in pieces that cannot be joined.
void expect_free_ends(ReusePolicy policy, bool helps) {
  Gpu gpu(64_MiB, {.reuse = policy});
  const Stream other = gpu.device.new_stream();
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) {
    blocks.push_back(gpu.memory.allocate(1_MiB + 4_KiB, other));
    blocks.push_back(gpu.memory.allocate(1_MiB, other));
  }
  for (std::size_t i = 1; i < blocks.size(); i += 2) {
    EXPECT_TRUE(gpu.memory.deallocate(blocks[i]));
  }
  const std::string message = gpu.message(50_MiB);
  EXPECT_THAT(message,
              HasSubstr(" is free within pages in use, in pieces that this request cannot use."));
  EXPECT_THAT(message, Not(HasSubstr("WEIR_REUSE=wait")));
  void* const rest = gpu.memory.allocate(44_MiB, gpu.stream);
  const std::string near = gpu.message(6_MiB);
  EXPECT_EQ(near.find("WEIR_REUSE=wait") != std::string::npos, helps) << near;
  EXPECT_TRUE(gpu.memory.deallocate(rest));
  for (std::size_t i = 0; i < blocks.size(); i += 2) {
    EXPECT_TRUE(gpu.memory.deallocate(blocks[i]));
  }
}

TEST(OutOfMemory, FreePiecesOfPagesInUseAreNamed) { expect_free_ends(ReusePolicy::balanced, true); }

TEST(OutOfMemory, APolicyThatIsSetAlreadyIsNotRecommended) {
  expect_free_ends(ReusePolicy::wait, false);
}

TEST(OutOfMemory, WhoeverWantsToKnowHasTheHeapsOwnError) {
  Gpu gpu(64_MiB);
  std::vector<std::string> errors;
  gpu.memory.on_failure([&](const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
    errors.push_back(error.message());
  });
  const std::string message = gpu.message(100_MiB);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_THAT(message, HasSubstr(errors[0]));
}

}  // namespace
}  // namespace weir::pytorch
