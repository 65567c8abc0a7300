// SPDX-License-Identifier: Apache-2.0
// What PyTorch's CUDAPluggableAllocator calls, on a simulated device and without PyTorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>

#include "api/c_status.h"
#include "tests/temporary_folder.h"
#include "weir/log.h"
#include "weir/sim_device.h"
#include "weir/weir.h"

struct CUstream_st;
using CudaStream = CUstream_st*;
using PoolId = std::pair<unsigned long long, unsigned long long>;

extern "C" {
weir_allocator_t* weir_torch_allocator();
void* weir_torch_malloc(std::size_t bytes, int device, CudaStream stream);
void weir_torch_free(void* block, std::size_t bytes, int device, CudaStream stream);
void weir_torch_memory_fraction(double fraction, int device);
void* weir_torch_base_allocation(void* pointer, std::size_t* bytes);
void weir_torch_record_stream(void* block, CudaStream stream);
void weir_torch_begin_allocate_to_pool(int device, PoolId pool,
                                       std::function<bool(CudaStream)> filter);
void weir_torch_end_allocate_to_pool(int device, PoolId pool);
void weir_torch_release_pool(int device, PoolId pool);
weir_status_t weir_torch_make_plain(int32_t device, uint64_t first, uint64_t second);
}

namespace weir {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class PluggableFunctions : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ::setenv("WEIR_DEVICE", "sim", 1);
    ::setenv("WEIR_LIMIT", "90%", 1);
  }
  PluggableFunctions() { EXPECT_TRUE(configure_log(LogLevel::warn, log_).ok()); }
  ~PluggableFunctions() override {
    EXPECT_TRUE(configure_log(LogLevel::warn).ok());
    EXPECT_EQ(allocator_.heap(0).statistics().live_blocks.current, 0u);
    EXPECT_THAT(allocator_.validate(), IsEmpty());
    EXPECT_EQ(sim_.race_count(), 0u);
  }

  static CudaStream handle_of(Stream stream) { return static_cast<CudaStream>(stream.handle); }
  void* take(Bytes bytes) const { return weir_torch_malloc(bytes.count, 0, handle_of(stream_)); }
  void give(void* block) const { weir_torch_free(block, 0, 0, handle_of(stream_)); }
  // As use_mem_pool() does: whatever this thread asks for comes from the pool.
  static void begin(PoolId pool, int device = 0) {
    weir_torch_begin_allocate_to_pool(device, pool, [](CudaStream) { return true; });
  }
  static void end(PoolId pool) { weir_torch_end_allocate_to_pool(0, pool); }
  std::string logged() const {
    std::ifstream file(log_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const test::TemporaryFolder folder_;
  const std::string log_ = folder_ / "log";
  Allocator& allocator_ = weir_torch_allocator()->allocator;
  SimDevice& sim_ = dynamic_cast<SimDevice&>(allocator_.device(0));
  const Stream stream_ = sim_.new_stream(), other_ = sim_.new_stream();
};

TEST_F(PluggableFunctions, APoolServesRequestsUntilItsEndAndKeepsItsMemory) {
  constexpr PoolId kPool{0, 7};
  begin(kPool);
  void* const of_pool = take(8_MiB);
  end(kPool);
  give(of_pool);
  void* const elsewhere = take(8_MiB);
  EXPECT_NE(elsewhere, of_pool);
  begin(kPool);
  EXPECT_EQ(take(8_MiB), of_pool);
  end(kPool);
  give(of_pool);
  give(elsewhere);
  for (int users = 2; users > 0; --users) weir_torch_release_pool(0, kPool);
  EXPECT_EQ(logged(), "");
  end(kPool);
  EXPECT_THAT(logged(), HasSubstr("weir_torch_end_allocate_to_pool: "));
  EXPECT_THAT(logged(), HasSubstr("there is no memory pool (0, 7)"));
  weir_torch_release_pool(0, kPool);
  EXPECT_THAT(logged(), HasSubstr("weir_torch_release_pool: "));
}

TEST_F(PluggableFunctions, APoolThatCanNotBeBegunIsLogged) {
  constexpr PoolId kPool{0, 8};
  sim_.fail(DeviceCall::capture_info, 1);
  begin(kPool);
  EXPECT_EQ(sim_.forget_faults(), 0u);
  EXPECT_THAT(logged(), HasSubstr("weir_torch_begin_allocate_to_pool: capture_info: scripted"));
  give(take(8_MiB));
  begin(kPool, 1);
  EXPECT_THAT(logged(), HasSubstr("device 1"));
}

TEST_F(PluggableFunctions, APoolThatIsMadePlainServesPlainMemory) {
  constexpr PoolId kPool{0, 9};
  const std::uint64_t before = sim_.calls(DeviceCall::allocate_segment);
  ASSERT_EQ(weir_torch_make_plain(0, kPool.first, kPool.second), WEIR_OK);
  begin(kPool);
  void* const block = take(40_MiB);
  EXPECT_EQ(weir_torch_make_plain(0, kPool.first, kPool.second), WEIR_OK) << "it is already";
  end(kPool);
  EXPECT_EQ(sim_.calls(DeviceCall::allocate_segment), before + 1);
  give(block);
  weir_torch_release_pool(0, kPool);

  begin({0, 10});
  EXPECT_EQ(weir_torch_make_plain(0, 0, 10), WEIR_INVALID_ARGUMENT) << "requests go to it";
  end({0, 10});
  weir_torch_release_pool(0, {0, 10});
}

TEST_F(PluggableFunctions, AFractionOfTheDevicesMemoryIsTheLimitWhereTheConfiguredOneIsMore) {
  const Bytes total = sim_.memory_info()->total, configured = allocator_.heap(0).options().limit;
  ASSERT_GT(configured, Bytes{total.count / 2});
  weir_torch_memory_fraction(0.5, 0);
  EXPECT_EQ(allocator_.heap(0).options().limit, Bytes{total.count / 2});
  try {
    (void)take(Bytes{total.count / 2 + 1});
    ADD_FAILURE() << "that is over the limit";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), testing::StartsWith("CUDA out of memory. Weir: "));
  }
  weir_torch_memory_fraction(0, 0);
  EXPECT_EQ(allocator_.heap(0).options().limit, 1_B) << "zero would be no limit";
  for (const double none : {0.95, 1.0, 2.0}) {
    weir_torch_memory_fraction(0.5, 0);
    weir_torch_memory_fraction(none, 0);
    EXPECT_EQ(allocator_.heap(0).options().limit, configured);
  }
}

TEST_F(PluggableFunctions, ThePlaceOfABlockIsFoundFromAnyOfItsBytes) {
  void* const block = take(4_MiB);
  for (const Bytes offset : {0_B, 1_B, 4_MiB - 1_B}) {
    std::size_t bytes = 0;
    void* const inside = (Address::of(block) + offset).pointer();
    EXPECT_EQ(weir_torch_base_allocation(inside, &bytes), block);
    EXPECT_EQ(bytes, (4_MiB).count);
    EXPECT_EQ(weir_torch_base_allocation(inside, nullptr), block);
  }
  give(block);
  std::size_t bytes = 7;
  EXPECT_EQ(weir_torch_base_allocation(block, &bytes), block) << "there is none";
  EXPECT_EQ(bytes, 7u);
}

TEST_F(PluggableFunctions, AFreedBlockIsWaitedForByWhoHasItsBytesNext) {
  void* const block = take(8_MiB);
  ASSERT_TRUE(sim_.launch(other_, Writes(block, 8_MiB), 5_ms).ok());
  weir_torch_record_stream(block, handle_of(other_));
  give(block);
  void* const next = take(8_MiB);
  ASSERT_TRUE(sim_.launch(stream_, Writes(next, 8_MiB), 1_ms).ok());
  give(next);
  sim_.finish();
}

TEST_F(PluggableFunctions, WhatIsNoBlockIsLogged) {
  int none = 0;
  give(&none);
  EXPECT_THAT(logged(), HasSubstr("weir_torch_free: "));
  void* const block = take(8_MiB);
  weir_torch_record_stream(&none, handle_of(other_));
  EXPECT_THAT(logged(), HasSubstr("weir_torch_record_stream: "));
  give(block);
}

}  // namespace
}  // namespace weir
