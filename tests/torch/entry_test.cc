// SPDX-License-Identifier: Apache-2.0
// What the Python package calls of the backend, on the simulated device. Where Weir becomes
// PyTorch's allocator, which it stays, that is in a process of the test's own.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "api/c_status.h"
#include "tests/torch/fake_runtime.h"
#include "tests/torch/fake_source.h"
#include "tests/torch/own_process.h"
#include "torch/backend.h"
#include "torch/c10d/collective_fences.h"
#include "torch/process_end.h"

extern "C" {
const char* weir_torch_built_for();
weir_allocator_t* weir_torch_allocator();
weir_status_t weir_torch_enable();
void weir_torch_tag_new_pools(const char* tag);
weir_status_t weir_torch_idle_memory_begin(int32_t device, void** scope);
void weir_torch_idle_memory_end(void* scope);
weir_status_t weir_torch_fence(void* const* pointers, std::size_t count, int32_t device,
                               void* stream);
weir_status_t weir_torch_make_plain(int32_t device, uint64_t first, uint64_t second);
weir_status_t weir_torch_close_failed_captures();
void* weir_torch_collective_memory();
uint64_t weir_torch_fenced_operations();
}

namespace weir::pytorch {
namespace {

using testing::HasSubstr;

TEST(Entry, BeforeWeirIsPyTorchsAllocatorItsCallsSaySo) {
  EXPECT_STREQ(weir_torch_built_for(), "2.11.0+test");
  EXPECT_EQ(weir_torch_allocator(), nullptr);
  EXPECT_EQ(weir_torch_collective_memory(), nullptr);
  void* scope = nullptr;
  EXPECT_EQ(weir_torch_idle_memory_begin(0, &scope), WEIR_INVALID_ARGUMENT);
  EXPECT_THAT(c::last_error(), HasSubstr("idle memory: Weir is not PyTorch's allocator"));
  EXPECT_EQ(weir_torch_fence(nullptr, 0, 0, nullptr), WEIR_INVALID_ARGUMENT);
  EXPECT_THAT(c::last_error(), HasSubstr("weir.fence: Weir is not PyTorch's allocator"));
  EXPECT_EQ(weir_torch_make_plain(0, 0, 1), WEIR_INVALID_ARGUMENT);
  EXPECT_THAT(c::last_error(), HasSubstr("plain memory: Weir is not PyTorch's allocator"));
  EXPECT_EQ(weir_torch_close_failed_captures(), WEIR_OK) << "there is none";
  EXPECT_EQ(weir_torch_fenced_operations(), 0u);
}

TEST(Entry, EnablingMakesWeirTheAllocatorThatPyTorchAsks) {
  in_a_fresh_process([] {
    ASSERT_EQ(weir_torch_enable(), WEIR_OK) << c::last_error();
    ASSERT_NE(installed(), nullptr);
    EXPECT_EQ(c10::cuda::CUDACachingAllocator::get(), installed());
    EXPECT_EQ(c10::GetAllocator(c10::kCUDA), installed());
    EXPECT_EQ(weir_torch_enable(), WEIR_INTERNAL_ERROR);
    EXPECT_THAT(c::last_error(), HasSubstr("it is PyTorch's allocator already"));

    installed()->init(1);
    ASSERT_NE(weir_torch_allocator(), nullptr);
    const auto held = [] {
      return weir_torch_allocator()->allocator.heap(0).statistics().live_blocks.current;
    };
    {
      const c10::DataPtr data = c10::GetAllocator(c10::kCUDA)->allocate((4_MiB).count);
      EXPECT_EQ(held(), 1u);
      EXPECT_EQ(data.device(), c10::Device(c10::kCUDA, 0));
      EXPECT_EQ(data.get_deleter(), c10::GetAllocator(c10::kCUDA)->raw_deleter());
      const c10::DataPtr none = c10::GetAllocator(c10::kCUDA)->allocate(0);
      EXPECT_EQ(none.get(), nullptr);
      EXPECT_EQ(none.device(), c10::Device(c10::kCUDA, 0));
      EXPECT_EQ(held(), 1u);
    }
    EXPECT_EQ(held(), 0u);
  });
}

TEST(Entry, WhereCudaWasUsedAlreadyWeirDoesNotBecomeItsAllocator) {
  in_a_fresh_process([] {
    using c10::cuda::CUDACachingAllocator::allocator;
    SimDevice device;
    FakeSource used(device);  // is initialised
    allocator.store(&used);
    EXPECT_EQ(weir_torch_enable(), WEIR_INTERNAL_ERROR);
    EXPECT_THAT(c::last_error(), HasSubstr("call weir.enable() before anything uses CUDA"));
    EXPECT_EQ(allocator.load(), &used);
    EXPECT_EQ(installed(), nullptr);
    EXPECT_EQ(weir_torch_allocator(), nullptr);
    allocator.store(nullptr);
    EXPECT_EQ(weir_torch_enable(), WEIR_OK) << c::last_error();
    EXPECT_EQ(allocator.load(), installed());
  });
}

TEST(Entry, SettingsAreTheEnvironments) {
  in_a_fresh_process([] {
    ::setenv("WEIR_LIMIT", "a lot", 1);
    EXPECT_EQ(weir_torch_enable(), WEIR_INVALID_ARGUMENT);
    EXPECT_THAT(c::last_error(), HasSubstr("WEIR_LIMIT"));
    EXPECT_EQ(installed(), nullptr);
    ::setenv("WEIR_LIMIT", "64MiB", 1);
    ::setenv("WEIR_C10D", "0", 1);
    ASSERT_EQ(weir_torch_enable(), WEIR_OK) << c::last_error();
    Allocator& allocator = weir_torch_allocator()->allocator;
    EXPECT_EQ(allocator.heap(0).options().limit, 64_MiB);
    EXPECT_EQ(allocator.config().trust, Trust::context);  // unless they say otherwise
    EXPECT_EQ(weir_torch_collective_memory(), nullptr);
  });
  in_a_fresh_process([] {
    ::setenv("WEIR_TRUST", "told", 1);
    ASSERT_EQ(weir_torch_enable(), WEIR_OK) << c::last_error();
    EXPECT_EQ(weir_torch_allocator()->allocator.config().trust, Trust::told);
    EXPECT_NE(weir_torch_collective_memory(), nullptr);
  });
}

// Whoever has asked for memory, or opened another process's, can't use it in a child of fork().
TEST(Entry, OnceMemoryIsUsedAChildOfForkHasNoneAndNeitherHasAProcessThatExits) {
  const auto is_refused_in_a_child = [] {
    return in_a_child([] { return is_forked_child() && memory_is_gone() ? 0 : 1; }) == 0;
  };
  in_a_fresh_process([&] {
    ASSERT_EQ(weir_torch_enable(), WEIR_OK) << c::last_error();
    EXPECT_FALSE(is_refused_in_a_child());
    EXPECT_THROW((void)installed()->getIpcDevPtr("nobody's"), c10::Error);
    EXPECT_TRUE(is_refused_in_a_child());
  });
  in_a_fresh_process([&] {
    ASSERT_EQ(weir_torch_enable(), WEIR_OK) << c::last_error();
    EXPECT_FALSE(is_refused_in_a_child());
    // (Of handlers the last to come runs first.)
    std::atexit([] { ::_exit(memory_is_gone() && !is_forked_child() ? 0 : 3); });
    (void)installed()->memory(0);
    EXPECT_TRUE(is_refused_in_a_child());
    EXPECT_FALSE(memory_is_gone());
    if (testing::Test::HasFailure()) ::_exit(1);
  });
}

// As CUDAGraph.capture_begin leaves it, if cudaStreamBeginCapture fails.
TEST(Entry, ACaptureThatCouldNotBeginIsClosed) {
  in_a_fresh_process([] {
    ASSERT_EQ(weir_torch_enable(), WEIR_OK) << c::last_error();
    Backend& backend = *installed();
    backend.init(1);
    auto& sim = dynamic_cast<SimDevice&>(backend.memory(0).device());
    Stream stream = sim.new_stream();
    if ((reinterpret_cast<std::uintptr_t>(stream.handle) & 1) != 0) stream = sim.new_stream();
    const auto handle = static_cast<cudaStream_t>(stream.handle);
    c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromExternal(handle, 0));
    const c10::MempoolId_t pool{0, 1};
    backend.createOrIncrefPool(0, pool, nullptr);
    backend.beginAllocateToPool(0, pool, [](cudaStream_t) { return false; });
    EXPECT_EQ(backend.getPoolUseCount(0, pool), 2);
    EXPECT_EQ(weir_torch_close_failed_captures(), WEIR_OK);
    EXPECT_EQ(backend.getPoolUseCount(0, pool), 1);
    EXPECT_THROW(backend.endAllocateToPool(0, pool), c10::Error);
    backend.beginAllocateToPool(0, pool, [](cudaStream_t) { return false; });
    backend.endAllocateToPool(0, pool);
    if (testing::Test::HasFailure()) ::_exit(1);
  });
}

TEST(Entry, PoolsFencesAndIdleMemoryAreHadOnceWeirIsEnabled) {
  in_a_fresh_process([] {
    ASSERT_EQ(weir_torch_enable(), WEIR_OK) << c::last_error();
    Backend& backend = *installed();
    backend.init(1);
    DeviceMemory& memory = backend.memory(0);
    auto& sim = dynamic_cast<SimDevice&>(memory.device());
    Stream stream = sim.new_stream();
    if ((reinterpret_cast<std::uintptr_t>(stream.handle) & 1) != 0) stream = sim.new_stream();
    const auto handle = static_cast<cudaStream_t>(stream.handle);
    const auto allocate = [&] { return backend.raw_alloc_with_stream((4_MiB).count, handle); };

    void* scope = nullptr;
    ASSERT_EQ(weir_torch_idle_memory_begin(0, &scope), WEIR_OK);
    void* const idle = allocate();
    weir_torch_idle_memory_end(scope);
    void* const block = allocate();
    EXPECT_NE(memory.heap().find(idle)->pool, 0u);
    EXPECT_EQ(memory.heap().find(block)->pool, 0u);

    void* const pointers[] = {static_cast<char*>(block) + 100, nullptr, &backend};
    EXPECT_EQ(weir_torch_fence(pointers, 2, 0, handle), WEIR_OK);
    EXPECT_EQ(weir_torch_fence(pointers, 3, 0, handle), WEIR_INTERNAL_ERROR);
    EXPECT_THAT(c::last_error(), HasSubstr("is no memory of device 0 that Weir gave out"));

    // The tag is of pools that are new.
    weir_torch_tag_new_pools("weights");
    backend.createOrIncrefPool(0, {0, 1}, nullptr);
    weir_torch_tag_new_pools(nullptr);
    ASSERT_EQ(weir_torch_make_plain(0, 0, 2), WEIR_OK);
    const auto allocate_in = [&](c10::MempoolId_t pool) {
      check(memory.pools().begin(
          pool, [](cudaStream_t) { return true; }, stream));
      void* const in_pool = allocate();
      check(memory.pools().end(pool));
      return in_pool;
    };
    void* const tagged = allocate_in({0, 1});
    void* const plain = allocate_in({0, 2});
    EXPECT_EQ(memory.heap().parts(tagged).front().memory, MemoryKind::pages);
    EXPECT_EQ(memory.heap().parts(plain).front().memory, MemoryKind::plain);
    EXPECT_EQ(weir_torch_make_plain(0, 0, 1), WEIR_INVALID_ARGUMENT);
    EXPECT_THAT(c::last_error(), HasSubstr("memory pool (0, 1) has been used already"));
    sim.finish();
    ASSERT_TRUE(memory.heap().tags().sleep({.tags = {"weights"}}).ok());
    ASSERT_TRUE(memory.heap().tags().wake().ok());

    auto& collectives = *static_cast<CollectiveMemory*>(weir_torch_collective_memory());
    fake_runtime().make_stream = [&] {
      Stream made = sim.new_stream();
      if ((reinterpret_cast<std::uintptr_t>(made.handle) & 1) != 0) made = sim.new_stream();
      return static_cast<cudaStream_t>(made.handle);
    };
    Operation operation;
    operation.memory.push_back(block);
    EXPECT_TRUE(collectives.fence({&operation, 0}, operation, [&] {
      const auto current = memory.streams().of(c10::cuda::getCurrentCUDAStream(0));
      EXPECT_TRUE(sim.launch(*current, Reads(block, 4_MiB), 5_ms).ok());
    }));
    backend.raw_delete(block);
    EXPECT_EQ(weir_torch_fenced_operations(), 1u);
    for (void* const each : {idle, tagged, plain}) backend.raw_delete(each);
    EXPECT_THAT(weir_torch_allocator()->allocator.validate(), testing::IsEmpty());
    EXPECT_EQ(sim.race_count(), 0u);
  });
}

}  // namespace
}  // namespace weir::pytorch
