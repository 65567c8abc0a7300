// SPDX-License-Identifier: Apache-2.0
// What torch.OutOfMemoryError says, on a simulated device.
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "torch/device_memory.h"
#include "torch/errors.h"
#include "torch/pools.h"
#include "torch/shortage.h"
#include "weir/sim_device.h"

namespace weir::pytorch {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// A device, and Weir on it.
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
    check(memory.pools().begin(
        pool,
        [&](cudaStream_t asking) {
          const CaptureInfo info = *device.capture_info(Stream::of_captured(asking));
          return info.status == CaptureInfo::Status::active && info.id == capture;
        },
        stream));
    EXPECT_TRUE(device.begin_capture(stream, CaptureMode::global).ok());
    capture = device.capture_info(stream)->id;
    void* const scratch = memory.allocate(bytes, stream);
    EXPECT_TRUE(device.launch(stream, Writes(scratch, bytes), 10_us).ok());
    EXPECT_TRUE(memory.deallocate(scratch));
    const GraphHandle graph = *device.end_capture(stream);
    check(memory.pools().end(pool));
    return graph;
  }

  SimDevice device;
  const Stream stream;
  DeviceHeap heap;
  DeviceMemory::OutOfMemoryObserver observer;
  DeviceMemory memory{3, device, heap, [this](const DeviceMemory::Refusal& refused) {
                        if (observer) observer(refused);
                      }};
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
  EXPECT_EQ(gpu.memory.statistics().stats().num_ooms, 1);
}

// As in the debug mode of PyTorch's graphs.
TEST(OutOfMemory, GraphsThatAreNeverDestroyedKeepNoMemoryOnceTheyAreReleased) {
  Pools::assume_graphs_leak();
  Gpu gpu(64_MiB);
  const c10::MempoolId_t pool{1, 0};
  const GraphHandle leaked = gpu.captured(pool, 32_MiB);
  const ExecutableHandle executable = *gpu.device.instantiate(leaked);
  ASSERT_TRUE(gpu.device.launch_graph(executable, gpu.stream).ok());
  ASSERT_TRUE(gpu.device.destroy_executable(executable).ok());
  check(gpu.memory.pools().release(pool));
  EXPECT_EQ(gpu.message(60_MiB), "");
  gpu.memory.empty({0, 0});
  EXPECT_EQ(gpu.heap.statistics().reserved_bytes.current, 0u);
  EXPECT_EQ(gpu.device.race_count(), 0u);
  ASSERT_TRUE(gpu.device.destroy_graph(leaked).ok());
}

// --- The text alone.

// A GPU of 1600 MiB, of which Weir holds `reserved` and nobody else has any.
Shortage shortage(Bytes asked, Bytes reserved) {
  Shortage found{.asked = asked,
                 .memory = {.free = 1600_MiB - reserved, .total = 1600_MiB},
                 .limit = 0_B,
                 .held = {},
                 .pool_of =
                     [](std::uint64_t id) {
                       return id == 3 ? PoolId{0, 0} : PoolId{0, id};
                     },
                 .of_other_sources = 0_B,
                 .error = "no room."};
  found.held.statistics.reserved_bytes.current = reserved.count;
  return found;
}
void add_page(Shortage& shortage, std::uint64_t pool, Bytes bytes, Bytes used, bool leased) {
  HeapSnapshot& held = shortage.held;
  const HeapId heap{static_cast<std::uint32_t>(held.heaps.size()) + 1};
  held.heaps.push_back({.heap = heap, .pool = pool});
  held.pages.push_back({.bytes = bytes, .used = used});
  if (leased) held.pages.back().lease = heap;
  if (!leased && pool != 0) held.pages.back().mapped_at.push_back({.heap = heap});
}

TEST(OutOfMemory, SizesAreWrittenAsPyTorchWritesThem) {
  const std::pair<Bytes, const char*> sizes[] = {{0_B, "0 bytes"},          {1_KiB, "1024 bytes"},
                                                 {1_KiB + 1_B, "1.00 KiB"}, {1_MiB, "1024.00 KiB"},
                                                 {1_MiB + 1_B, "1.00 MiB"}, {1_GiB, "1024.00 MiB"},
                                                 {1_GiB + 1_B, "1.00 GiB"}, {2560_MiB, "2.50 GiB"}};
  for (const auto& [bytes, text] : sizes) {
    EXPECT_THAT(message_of(shortage(bytes, 0_B)),
                HasSubstr(std::string("Tried to allocate ") + text + ". GPU 0"));
  }
}

// Each remedy stands where it would help this request, and not where one byte more is missing.
TEST(OutOfMemory, ARemedyIsNamedOnlyWhereItIsEnough) {
  const auto says = [](const Shortage& found, const char* remedy) {
    return message_of(found).find(remedy) != std::string::npos;
  };
  const char *const limit = "stands in the way", *const others = "neither free nor Weir's",
                    *const pools = "memory pools keep", *const reuse = "WEIR_REUSE=wait",
                    *const none = "none: this is more than the whole GPU has";
  EXPECT_FALSE(says(shortage(1600_MiB, 0_B), none));
  EXPECT_TRUE(says(shortage(1600_MiB + 1_B, 0_B), none));

  const auto limited = [&](Bytes asked, Bytes most) {
    Shortage found = shortage(asked, 100_MiB);
    found.limit = most;
    return says(found, limit);
  };
  EXPECT_TRUE(limited(50_MiB, 150_MiB - 1_B));
  EXPECT_FALSE(limited(50_MiB, 150_MiB));
  EXPECT_FALSE(limited(50_MiB, 0_B));
  EXPECT_TRUE(limited(1500_MiB, 200_MiB));
  EXPECT_FALSE(limited(1500_MiB + 1_B, 200_MiB));  // the GPU has no room for it

  const auto of_others = [&](Bytes asked, Bytes theirs, Bytes of_sources = 0_B) {
    Shortage found = shortage(asked, 100_MiB);
    found.memory.free = found.memory.free - theirs;
    found.of_other_sources = of_sources;
    return says(found, others);
  };
  EXPECT_TRUE(of_others(300_MiB, 300_MiB));
  EXPECT_FALSE(of_others(300_MiB + 1_B, 300_MiB));
  EXPECT_TRUE(of_others(1_MiB, 100_MiB));  // a sixteenth of the GPU
  EXPECT_FALSE(of_others(1_MiB, 100_MiB - 1_B));
  EXPECT_FALSE(of_others(300_MiB, 300_MiB, 1_B));

  const auto of_pages = [&](Bytes asked, std::uint64_t pool, Bytes used, ReusePolicy policy,
                            const char* remedy) {
    Shortage found = shortage(asked, 500_MiB);
    found.reuse = policy;
    add_page(found, 0, 200_MiB, 0_B, /*leased=*/false);  // idle
    add_page(found, pool, 300_MiB, used, /*leased=*/true);
    if (pool != 0) found.held.blocks.push_back({.bytes = used, .pool = pool});
    EXPECT_EQ(says(found, "is free within pages in use"), pool == 0 && used < 300_MiB);
    return says(found, remedy);
  };
  EXPECT_TRUE(of_pages(450_MiB, 1, 50_MiB, ReusePolicy::wait, pools));
  EXPECT_FALSE(of_pages(450_MiB + 1_B, 1, 50_MiB, ReusePolicy::wait, pools));
  EXPECT_FALSE(of_pages(200_MiB, 1, 300_MiB, ReusePolicy::wait, pools));
  EXPECT_TRUE(of_pages(450_MiB, 0, 50_MiB, ReusePolicy::balanced, reuse));
  EXPECT_FALSE(of_pages(450_MiB + 1_B, 0, 50_MiB, ReusePolicy::balanced, reuse));
  EXPECT_FALSE(of_pages(450_MiB, 0, 50_MiB, ReusePolicy::wait, reuse));
  EXPECT_FALSE(of_pages(200_MiB, 0, 300_MiB, ReusePolicy::balanced, reuse));
}

TEST(OutOfMemory, WhoeverWantsToKnowHasTheHeapsOwnError) {
  Gpu gpu(64_MiB);
  std::vector<std::string> errors;
  gpu.observer = [&](const DeviceMemory::Refusal& refused) {
    EXPECT_EQ(refused.error.code(), ErrorCode::out_of_memory);
    errors.push_back(refused.error.message());
  };
  const std::string message = gpu.message(100_MiB);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_THAT(message, HasSubstr(errors[0]));
}

}  // namespace
}  // namespace weir::pytorch
