// SPDX-License-Identifier: Apache-2.0
// The backend for PyTorch on a simulated device: what PyTorch asks of an allocator, with no GPU.
#include "torch/device_memory.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <thread>

#include "torch/errors.h"
#include "weir/graph_pool.h"
#include "weir/sim_device.h"

namespace c10 {
namespace {

int callbacks_called = 0;
struct CountsCalls final : FreeMemoryCallback {
  bool Execute() override { return ++callbacks_called, false; }
};
REGISTER_FREE_MEMORY_CALLBACK(counts_calls, CountsCalls);

}  // namespace
}  // namespace c10

namespace weir::pytorch {
namespace {

using c10::callbacks_called;

constexpr c10::MempoolId_t kHeap{0, 0};

class DeviceMemories : public testing::Test {
 protected:
  explicit DeviceMemories(Bytes limit = 0_B) : heap_(device_, {.limit = limit}) {}
  void TearDown() override {
    EXPECT_THAT(heap_.validate(), testing::IsEmpty());
    EXPECT_EQ(device_.race_count(), 0u);
  }

  // Of all segments: what PyTorch's own tests compare with the statistics.
  struct Sums {
    std::size_t total = 0, allocated = 0, requested = 0, blocks = 0;
  };
  Sums sums(c10::MempoolId_t pool = kHeap) {
    Sums sums;
    for (const auto& segment : memory_.segments(pool)) {
      std::size_t tiled = 0;
      for (const auto& block : segment.blocks) {
        tiled += block.size;
        sums.blocks += block.allocated ? 1 : 0;
      }
      EXPECT_EQ(tiled, segment.total_size);
      sums.total += segment.total_size;
      sums.allocated += segment.allocated_size;
      sums.requested += segment.requested_size;
      EXPECT_EQ(segment.active_size, segment.allocated_size);
    }
    return sums;
  }
  void expect_consistent() {
    const auto stats = memory_.statistics().stats();
    const Sums all = sums();
    EXPECT_EQ(all.total, static_cast<std::size_t>(stats.reserved_bytes[0].current));
    EXPECT_EQ(all.allocated, static_cast<std::size_t>(stats.allocated_bytes[0].current));
    EXPECT_EQ(all.requested, static_cast<std::size_t>(stats.requested_bytes[0].current));
    EXPECT_EQ(all.blocks, static_cast<std::size_t>(stats.allocation[0].current));
  }
  Pools::Filter takes(Stream stream) {
    return [stream](cudaStream_t asking) { return asking == stream.handle; };
  }

  SimDevice device_;
  const Stream a_ = device_.new_stream(), b_ = device_.new_stream();
  DeviceHeap heap_;
  DeviceMemory memory_{0, device_, heap_};
};

TEST_F(DeviceMemories, SegmentsAddUpToTheStatistics) {
  std::vector<void*> blocks;
  for (std::uint64_t i = 0; i < 300; ++i) {
    const Stream stream = i % 3 == 0 ? b_ : a_;
    blocks.push_back(memory_.allocate(Bytes{1 + i * i * i * 7 % 9'000'000}, stream));
    if (i % 4 != 3) continue;
    EXPECT_TRUE(memory_.deallocate(blocks[i / 2]));
    blocks[i / 2] = nullptr;
    blocks[i / 2] = memory_.allocate(Bytes{5'000'000 - i * 7'000}, a_);
  }
  expect_consistent();
  for (void* const block : blocks) EXPECT_TRUE(memory_.deallocate(block));
  expect_consistent();
  EXPECT_EQ(sums().blocks, 0u);
  memory_.empty(kHeap);
  expect_consistent();
  EXPECT_EQ(sums().total, 0u);
}

TEST_F(DeviceMemories, APoolServesWhatItsFilterTakesAndIsNamedInSegments) {
  const c10::MempoolId_t pool{0, 7};
  check(memory_.pools().begin(pool, takes(a_), a_));
  void* const inside = memory_.allocate(6_MiB, a_);
  void* const outside = memory_.allocate(3_MiB, b_);
  check(memory_.pools().end(pool));
  void* const after = memory_.allocate(5_MiB, a_);
  EXPECT_EQ(sums(pool).allocated, (6_MiB).count);
  EXPECT_EQ(sums(pool).blocks, 1u);
  expect_consistent();
  EXPECT_EQ(memory_.pools().uses(pool), 1);
  check(memory_.pools().release(pool));
  EXPECT_EQ(memory_.pools().uses(pool), 0);
  for (void* const block : {inside, outside, after}) EXPECT_TRUE(memory_.deallocate(block));
  memory_.empty(kHeap);
  EXPECT_EQ(sums().total, 0u);
}

TEST_F(DeviceMemories, HistoryHasWhatHappenedInOrderAndNoMoreThanItMay) {
  memory_.history().set({.enabled = true, .most_entries = 100}, false);
  constexpr Bytes kAsked = 3_MiB + 5_B;
  void* const block = memory_.allocate(kAsked, a_);
  EXPECT_TRUE(memory_.deallocate(block));
  std::vector<native::TraceEntry::Action> actions;
  for (const auto& entry : memory_.history().entries()) {
    actions.push_back(entry.action_);
    if (entry.action_ == native::TraceEntry::SEGMENT_MAP) continue;
    EXPECT_EQ(entry.addr_, Address::of(block).value);
    EXPECT_EQ(entry.size_, kAsked.count);
    if (entry.action_ == native::TraceEntry::ALLOC) {
      EXPECT_EQ(entry.stream_, a_.handle);
    }
  }
  using native::TraceEntry;
  EXPECT_THAT(actions,
              testing::ElementsAre(TraceEntry::SEGMENT_MAP, TraceEntry::ALLOC,
                                   TraceEntry::FREE_REQUESTED, TraceEntry::FREE_COMPLETED));
  for (int i = 0; i < 200; ++i) EXPECT_TRUE(memory_.deallocate(memory_.allocate(1_MiB, a_)));
  EXPECT_EQ(memory_.history().entries().size(), 100u);
  memory_.history().set({.enabled = true, .most_entries = 10, .skip_actions = {"alloc"}}, true);
  EXPECT_TRUE(memory_.deallocate(memory_.allocate(1_MiB, a_)));
  for (const auto& entry : memory_.history().entries()) EXPECT_NE(entry.action_, TraceEntry::ALLOC);
  memory_.history().set({}, true);
  EXPECT_THAT(memory_.history().entries(), testing::IsEmpty());
}

// As torch.profiler does, for the thread that it profiles.
struct Profiler final : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void* block, std::int64_t bytes, std::size_t live, std::size_t,
                         c10::Device) override {
    heard.emplace_back(block, bytes, live);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::vector<std::tuple<void*, std::int64_t, std::size_t>> heard;
};

TEST_F(DeviceMemories, TheProfilerHearsOfAllocationsAndFreesOfItsThread) {
  void* const before = memory_.allocate(1_MiB, a_);
  const auto profiler = std::make_shared<Profiler>();
  void* during = nullptr;
  {
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, profiler);
    during = memory_.allocate(3_MiB, a_);
    EXPECT_TRUE(memory_.deallocate(before));
  }
  EXPECT_TRUE(memory_.deallocate(during));
  constexpr std::int64_t kOne = 1 << 20;
  EXPECT_THAT(profiler->heard, testing::ElementsAre(std::tuple(during, 3 * kOne, 4 * kOne),
                                                    std::tuple(before, -kOne, 3 * kOne)));
}

// PyTorch's own allocator refuses it, too. (PyTorch 2.14 otherwise leaves open a capture that fails
// to begin.)
TEST_F(DeviceMemories, ACaptureIsRefusedWithinAScopeOfItsPoolWhichThenEnds) {
  const c10::MempoolId_t pool{0, 8};
  const auto all = [](cudaStream_t) { return true; };
  const auto of_no_capture_yet = [](cudaStream_t) { return false; };
  check(memory_.pools().begin(pool, all, a_));
  const Status second = memory_.pools().begin(pool, of_no_capture_yet, b_);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.error().message(), testing::HasSubstr("(0, 8)"));
  EXPECT_EQ(memory_.pools().uses(pool), 1);
  check(memory_.pools().end(pool));
  void* const eager = memory_.allocate(3_MiB, a_);
  EXPECT_EQ(memory_.pools().graphs(pool)->statistics().live_bytes, 0_B) << "the pool still serves";
  EXPECT_TRUE(memory_.deallocate(eager));
  // What a capture left that never began keeps no other from beginning.
  check(memory_.pools().begin(pool, of_no_capture_yet, b_));
  check(memory_.pools().begin(pool, of_no_capture_yet, b_));
  check(memory_.pools().end(pool));
  check(memory_.pools().end(pool));
  while (memory_.pools().uses(pool) > 0) check(memory_.pools().release(pool));
}

// As torch.cuda.use_mem_pool() of one pool in two threads: each leaves what it began itself.
TEST_F(DeviceMemories, ThreadsThatShareAPoolLeaveItEachForItself) {
  const c10::MempoolId_t plain{0, 6};
  memory_.pools().retain(plain);
  check(memory_.pools().make_plain(plain));
  const auto by = [](std::thread::id thread) {
    return [thread](cudaStream_t) { return std::this_thread::get_id() == thread; };
  };
  const auto is_plain = [&](void* block) {
    const bool found = memory_.heap().parts(block).front().memory == MemoryKind::plain;
    EXPECT_TRUE(memory_.deallocate(block));
    return found;
  };
  check(memory_.pools().begin(plain, by(std::this_thread::get_id()), a_));
  std::promise<void> begun, left;
  std::thread other([&] {
    check(memory_.pools().begin(plain, by(std::this_thread::get_id()), b_));
    begun.set_value();
    left.get_future().wait();
    EXPECT_TRUE(is_plain(memory_.allocate(3_MiB, b_)));
    check(memory_.pools().end(plain));
    EXPECT_FALSE(is_plain(memory_.allocate(3_MiB, b_)));
  });
  begun.get_future().wait();
  EXPECT_TRUE(is_plain(memory_.allocate(3_MiB, a_)));
  check(memory_.pools().end(plain));
  EXPECT_FALSE(is_plain(memory_.allocate(3_MiB, a_)));
  left.set_value();
  other.join();
}

// As ProcessGroupNCCL does, which registers what comes and forgets what goes, and fails at what it
// has already: the memory is there whenever it is told.
TEST_F(DeviceMemories, WhoRegistersSegmentsNeverHoldsOneThatIsGone) {
  using native::TraceEntry;
  const c10::MempoolId_t plain{0, 5};
  ASSERT_TRUE(memory_.streams().of(static_cast<cudaStream_t>(a_.handle)).ok());
  memory_.pools().retain(plain);
  check(memory_.pools().make_plain(plain));
  const auto allocate_plain = [&](Bytes bytes) {
    check(memory_.pools().begin(plain, takes(a_), a_));
    void* const block = memory_.allocate(bytes, a_);
    check(memory_.pools().end(plain));
    return block;
  };
  void* const before = allocate_plain(64_MiB);
  std::map<std::size_t, std::size_t> registered;  // by address
  std::size_t mapped = 0, heard = 0;
  for (const auto& segment : memory_.segments(kHeap)) {
    EXPECT_EQ(segment.is_expandable, segment.owner_private_pool_id != plain);
    EXPECT_GE(segment.registration_counter, 0);
    if (!segment.is_expandable) registered[segment.address] = segment.total_size;
  }
  ASSERT_EQ(registered.size(), 1u);
  memory_.history().track([&](const TraceEntry& entry) {
    const bool comes = entry.action_ == TraceEntry::SEGMENT_ALLOC;
    const bool goes = entry.action_ == TraceEntry::SEGMENT_FREE;
    if (entry.action_ == TraceEntry::SEGMENT_MAP) mapped += entry.size_;
    if (entry.action_ == TraceEntry::SEGMENT_UNMAP) mapped -= entry.size_;
    if (!comes && !goes) return;
    ++heard;
    EXPECT_EQ(entry.mempool_, plain);
    EXPECT_EQ(entry.stream_, a_.handle);
    EXPECT_EQ(device_.translate(Address{entry.addr_}, Bytes{entry.size_}).size(), 1u);
    if (comes) {
      EXPECT_TRUE(registered.emplace(entry.addr_, entry.size_).second) << "registered already";
    } else {
      EXPECT_EQ(registered.erase(entry.addr_), 1u) << "not registered";
    }
  });
  EXPECT_EQ(heard, 0u) << "what was there is no news";
  for (int round = 0; round < 20; ++round) {
    void* const first = allocate_plain(Bytes{20'000'000} * (1 + round % 3));
    void* const paged = memory_.allocate(64_MiB, b_);
    void* const second = allocate_plain(3_MiB);
    EXPECT_TRUE(memory_.deallocate(first));
    EXPECT_TRUE(memory_.deallocate(paged));
    EXPECT_TRUE(memory_.deallocate(second));
    if (round % 4 == 3) {
      memory_.empty(plain);
      memory_.empty(kHeap);
    }
    std::map<std::size_t, std::size_t> there;
    for (const auto& segment : memory_.segments(plain)) {
      there[segment.address] = segment.total_size;
    }
    EXPECT_EQ(registered, there);
  }
  EXPECT_GT(heard, 10u);
  EXPECT_EQ(mapped, 0u);
  EXPECT_TRUE(memory_.deallocate(before));
  check(memory_.pools().release(plain));
}

TEST_F(DeviceMemories, TrackersHearOfEveryEntryWhileThereIsNoHistory) {
  using native::TraceEntry;
  std::vector<TraceEntry::Action> heard;
  memory_.history().track([&](const TraceEntry& entry) { heard.push_back(entry.action_); });
  void* const block = memory_.allocate(4_MiB, a_);
  EXPECT_TRUE(memory_.deallocate(block));
  EXPECT_THAT(heard, testing::ElementsAre(TraceEntry::SEGMENT_MAP, TraceEntry::ALLOC,
                                          TraceEntry::FREE_REQUESTED, TraceEntry::FREE_COMPLETED));
  EXPECT_THAT(memory_.history().entries(), testing::IsEmpty());
  EXPECT_EQ(memory_.history().context_of(block), nullptr);
}

class SmallDeviceMemories : public DeviceMemories {
 protected:
  SmallDeviceMemories() : DeviceMemories(64_MiB) {}
};

// torch.cuda.MemPool(use_on_oom=True).
TEST_F(SmallDeviceMemories, AReserveServesTheDefaultPoolFromItsFreeBlocksAndDoesNotGrow) {
  const c10::MempoolId_t pool{0, 5}, other{0, 6};
  memory_.pools().set_use_on_oom(pool, true);
  check(memory_.pools().begin(pool, takes(a_), a_));
  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(memory_.allocate(512_KiB, a_));
  check(memory_.pools().end(pool));
  for (std::size_t i = 0; i < blocks.size(); i += 2) {
    EXPECT_TRUE(memory_.deallocate(blocks[i]));
    blocks[i] = nullptr;
  }
  const std::size_t held = sums(pool).total;
  void* rest = nullptr;
  for (Bytes bytes = 60_MiB; rest == nullptr; bytes = bytes - 1_MiB) {
    try {
      rest = memory_.allocate(bytes, a_);
    } catch (const c10::OutOfMemoryError&) {
      // That is more than there is beside the pool.
    }
  }
  check(memory_.pools().begin(other, takes(a_), a_));
  EXPECT_THROW((void)memory_.allocate(512_KiB, a_), c10::OutOfMemoryError);
  check(memory_.pools().end(other));
  int asked = 0;
  void* const spare = memory_.allocate(512_KiB, b_);
  heap_.on_shortage(weir::Shortage::out_of_memory, [&](Bytes) { ++asked; });
  EXPECT_EQ(sums(pool).blocks, 5u);
  EXPECT_THROW((void)memory_.allocate(30_MiB, a_), c10::OutOfMemoryError);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(sums(pool).total, held);
  blocks.insert(blocks.end(), {rest, spare});
  std::erase(blocks, nullptr);
  for (void* const block : blocks) EXPECT_TRUE(memory_.deallocate(block));
  check(memory_.pools().release(pool));
  check(memory_.pools().release(other));
}

TEST_F(SmallDeviceMemories, ARequestThatFindsNoMemoryIsOneRetryOneFailureAndOneCallOfEachCallback) {
  void* const block = memory_.allocate(60_MiB, a_);
  for (const bool with_history : {false, true}) {
    memory_.history().set({.enabled = with_history, .most_entries = 100}, true);
    memory_.statistics().reset_accumulated();
    const std::uint64_t before = heap_.statistics().out_of_memory;
    callbacks_called = 0;
    EXPECT_THROW((void)memory_.allocate(10_MiB, a_), c10::OutOfMemoryError);
    EXPECT_EQ(memory_.statistics().stats().num_alloc_retries, 1);
    EXPECT_EQ(memory_.statistics().stats().num_ooms, 1);
    EXPECT_EQ(heap_.statistics().out_of_memory - before, 1u);
    EXPECT_EQ(callbacks_called, 1);
  }
  EXPECT_TRUE(memory_.deallocate(block));
}

TEST_F(DeviceMemories, FreeMemoryCallbacksAreCalledBeforeNewMemoryIsTaken) {
  callbacks_called = 0;
  void* const block = memory_.allocate(4_MiB, a_);
  EXPECT_GE(callbacks_called, 1);
  callbacks_called = 0;
  EXPECT_TRUE(memory_.deallocate(block));
  EXPECT_TRUE(memory_.deallocate(memory_.allocate(4_MiB, a_)));
  EXPECT_EQ(callbacks_called, 0);  // the cache had it
}

TEST(Environment, WithPyTorchsVariableNothingIsCached) {
  for (const auto& [value, caches] : {std::pair("1", false), std::pair("0", true)}) {
    ASSERT_EQ(::setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", value, 1), 0);
    SimDevice device;
    const Stream stream = device.new_stream();
    DeviceHeap heap(device);
    DeviceMemory memory(0, device, heap);
    ASSERT_EQ(::unsetenv("PYTORCH_NO_CUDA_MEMORY_CACHING"), 0);
    EXPECT_TRUE(memory.deallocate(memory.allocate(4_MiB, stream)));
    EXPECT_EQ(device.physical_bytes() > 0_B, caches);
    memory.set_caching(true);  // as Backend::enable(true), which changes nothing
    EXPECT_TRUE(memory.deallocate(memory.allocate(8_MiB, stream)));
    EXPECT_EQ(device.physical_bytes() > 0_B, caches);
  }
}

TEST_F(DeviceMemories, AFractionLimitsAndIsNamed) {
  const Bytes total = device_.memory_info()->total;
  memory_.set_fraction(0.5);
  EXPECT_EQ(memory_.fraction(), 0.5);
  EXPECT_THROW((void)memory_.allocate(total / 2 + 4_MiB, a_), c10::OutOfMemoryError);
  memory_.set_fraction(1);
  void* const most = memory_.allocate(total / 2 + 4_MiB, a_);
  EXPECT_TRUE(memory_.deallocate(most));
  EXPECT_THROW(memory_.set_fraction(1.5), c10::Error);
  EXPECT_THROW(memory_.set_fraction(-1), c10::Error);
}

// WEIR_LIMIT is what the heap has from the start.
TEST_F(SmallDeviceMemories, AFractionAndTheConfiguredLimitBothHold) {
  const auto total = static_cast<double>(device_.memory_info()->total.count);
  const double configured = static_cast<double>((64_MiB).count) / total;
  ASSERT_LT(configured, 0.5);
  EXPECT_EQ(memory_.fraction(), configured);
  for (const double none : {1.0, 0.5}) {
    memory_.set_fraction(none);
    EXPECT_EQ(heap_.options().limit, 64_MiB);
    EXPECT_EQ(memory_.fraction(), configured);
    EXPECT_THROW((void)memory_.allocate(65_MiB, a_), c10::OutOfMemoryError);
  }
  memory_.set_fraction(configured / 2);
  EXPECT_EQ(heap_.options().limit, 32_MiB);
  EXPECT_EQ(memory_.fraction(), configured / 2);
}

TEST_F(DeviceMemories, WhatTheDeviceRefusesIsPyTorchsErrorOfAccelerators) {
  device_.fail(DeviceCall::create, 1);
  try {
    (void)memory_.allocate(4_MiB, a_);
    ADD_FAILURE() << "the device refused";
  } catch (const c10::AcceleratorError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("CUDA error: "));
    EXPECT_NE(error.get_error_code(), 0);
  }
  EXPECT_TRUE(memory_.deallocate(memory_.allocate(4_MiB, a_)));
}

TEST_F(DeviceMemories, TheNameOfAPoolIsForgottenOnceNothingIsLeftOfIt) {
  memory_.pools().retain({0, 1000});  // the first, which stays
  const c10::MempoolId_t kept{0, 1001};
  check(memory_.pools().begin(kept, takes(a_), a_));
  void* const block = memory_.allocate(4_MiB, a_);
  check(memory_.pools().end(kept));
  check(memory_.pools().release(kept));
  for (unsigned long long i = 0; i < 300; ++i) {
    memory_.pools().retain({1, i});
    check(memory_.pools().release({1, i}));
  }
  EXPECT_EQ(memory_.pools().id_of(1), (c10::MempoolId_t{0, 1000}));
  EXPECT_EQ(memory_.pools().id_of(2), kept);
  EXPECT_EQ(memory_.pools().id_of(3), (c10::MempoolId_t{0, 0}));
  EXPECT_TRUE(memory_.deallocate(block));
  check(memory_.pools().release({0, 1000}));
}

struct Gathered : c10::GatheredContext {};

TEST_F(DeviceMemories, SegmentsInTheHistoryHaveTheStacksThatTheyComeOf) {
  using native::RecordContext;
  using native::TraceEntry;
  const auto gather = +[]() -> History::Context { return std::make_shared<Gathered>(); };
  for (const RecordContext when :
       {RecordContext::STATE, RecordContext::ALLOC, RecordContext::ALL}) {
    memory_.history().set({.enabled = true, .context = gather, .most_entries = 100, .when = when},
                          true);
    EXPECT_TRUE(memory_.deallocate(memory_.allocate(1_MiB, a_)));
    memory_.empty({0, 0});
    int maps = 0, unmaps = 0;
    for (const TraceEntry& entry : memory_.history().entries()) {
      if (entry.action_ == TraceEntry::SEGMENT_MAP) {
        ++maps;
        EXPECT_EQ(entry.context_ != nullptr, when >= RecordContext::ALLOC);
      } else if (entry.action_ == TraceEntry::SEGMENT_UNMAP) {
        ++unmaps;
        EXPECT_EQ(entry.context_ != nullptr, when >= RecordContext::ALLOC);
      }
    }
    EXPECT_EQ(maps, 1);
    EXPECT_EQ(unmaps, 1);
  }
  memory_.history().set({}, true);
}

// As viewers show it: the stack of the request that a segment was made for.
TEST_F(DeviceMemories, SegmentsHaveTheStackThatTheyComeOfWhileTheHistoryHasStacks) {
  using native::RecordContext;
  const auto gather = +[]() -> History::Context { return std::make_shared<Gathered>(); };
  void* const before = memory_.allocate(8_MiB, a_);
  memory_.history().set(
      {.enabled = true, .context = gather, .most_entries = 100, .when = RecordContext::STATE},
      true);
  const c10::MempoolId_t pool{0, 7};
  check(memory_.pools().begin(pool, takes(b_), b_));
  check(memory_.pools().end(pool));
  check(memory_.pools().begin(pool, takes(b_), b_));
  void* const after = memory_.allocate(8_MiB, b_);
  check(memory_.pools().end(pool));
  const auto has_stack = [&](c10::MempoolId_t of) {
    std::vector<bool> all;
    for (const auto& segment : memory_.segments(of)) {
      all.push_back(segment.context_when_allocated != nullptr);
    }
    return all;
  };
  EXPECT_THAT(has_stack(pool), testing::ElementsAre(true));
  EXPECT_THAT(has_stack(kHeap), testing::UnorderedElementsAre(true, false));
  memory_.history().set({}, true);
  EXPECT_THAT(has_stack(kHeap), testing::Each(false));
  for (void* const block : {before, after}) EXPECT_TRUE(memory_.deallocate(block));
  for (int i = 0; i < 2; ++i) check(memory_.pools().release(pool));
}

TEST_F(DeviceMemories, APoolThatGoesBackToAnEarlierStateKeepsNoStackOfBlocksThatAreGone) {
  static std::vector<std::weak_ptr<c10::GatheredContext>> stacks;
  stacks.clear();
  const auto gather = +[]() -> History::Context {
    auto stack = std::make_shared<Gathered>();
    stacks.push_back(stack);
    return stack;
  };
  memory_.history().set(
      {.enabled = true, .context = gather, .most_entries = 1, .when = native::RecordContext::STATE},
      true);
  const c10::MempoolId_t pool{0, 3};
  check(memory_.pools().begin(pool, takes(a_), a_));
  void* const kept = memory_.allocate(3_MiB, a_);
  const std::vector<PlacedBlock> state = check(memory_.pools().blocks(pool));
  stacks.clear();  // that of the first segment stays with it
  for (int i = 0; i < 4; ++i) (void)memory_.allocate(600_KiB, a_);
  check(memory_.pools().end(pool));
  memory_.restore(pool, state);
  memory_.history().note(native::TraceEntry::SNAPSHOT, {}, 0_B, {},
                         {0, 0});  // the one entry that there may be
  memory_.empty({0, 0});
  EXPECT_THAT(stacks, testing::SizeIs(testing::Ge(4u)));
  for (const auto& stack : stacks) EXPECT_TRUE(stack.expired());
  memory_.history().set({}, true);
  EXPECT_TRUE(memory_.deallocate(kept));
  check(memory_.pools().release(pool));
}

TEST_F(DeviceMemories, WithCachingOffMemoryIsTheDriversAndCountedNowhere) {
  EXPECT_TRUE(memory_.deallocate(memory_.allocate(4_MiB, a_)));  // the cache keeps this
  memory_.statistics().reset_accumulated();
  const Bytes free = device_.memory_info()->free;
  memory_.history().set({.enabled = true, .most_entries = 100}, true);
  memory_.set_caching(false);
  void* const block = memory_.allocate(8_MiB, a_);
  memory_.set_caching(true);
  EXPECT_LE(device_.memory_info()->free, free - 8_MiB);
  const auto stats = memory_.statistics().stats();
  EXPECT_EQ(stats.requested_bytes[0].allocated, 0);
  EXPECT_EQ(stats.allocated_bytes[0].current, 0);
  EXPECT_EQ(stats.reserved_bytes[0].current, 4 << 20);
  expect_consistent();
  EXPECT_TRUE(memory_.pools().has_sources());
  EXPECT_TRUE(memory_.deallocate(block));       // though caching is on again
  EXPECT_FALSE(memory_.pools().has_sources());  // requests go straight to the heap again
  EXPECT_FALSE(memory_.deallocate(block));
  EXPECT_EQ(device_.memory_info()->free, free);
  for (const auto& entry : memory_.history().entries()) {
    EXPECT_NE(entry.addr_, Address::of(block).value);
  }
}

TEST_F(DeviceMemories, WithCachingOffMemoryCannotSleepAndIsNamed) {
  void* const sleeps = memory_.allocate(30_MiB, a_);
  memory_.set_caching(false);
  void* const block = memory_.allocate(8_MiB, a_);
  memory_.set_caching(true);
  const Bytes before = device_.physical_bytes();
  const Result<SleepReport> refused = heap_.tags().sleep();
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message(),
              testing::HasSubstr("8.00 MiB of tag 'default': allocated while "
                                 "torch.cuda.caching_allocator_enable(False)"));
  EXPECT_EQ(device_.physical_bytes(), before);
  ASSERT_EQ(heap_.tags().residue().held.size(), 1u);
  const Result<SleepReport> kept = heap_.tags().sleep({.keep = true});
  ASSERT_TRUE(kept.ok()) << kept.error().message();
  EXPECT_EQ(kept->kept.size(), 1u);
  EXPECT_EQ(device_.physical_bytes(), 8_MiB);
  ASSERT_TRUE(heap_.tags().wake().ok());
  EXPECT_TRUE(memory_.deallocate(block));
  ASSERT_TRUE(heap_.tags().sleep().ok());
  EXPECT_EQ(device_.physical_bytes(), 0_B);
  ASSERT_TRUE(heap_.tags().wake().ok());
  EXPECT_TRUE(memory_.deallocate(sleeps));
}

TEST_F(DeviceMemories, WithCachingOffWhatIsCachedStays) {
  void* const cached = memory_.allocate(4_MiB, a_);
  memory_.set_caching(false);
  EXPECT_TRUE(memory_.deallocate(cached));
  EXPECT_TRUE(memory_.deallocate(memory_.allocate(1_MiB, a_)));
  EXPECT_EQ(memory_.statistics().stats().reserved_bytes[0].current, 4 << 20);
  memory_.set_caching(true);
  EXPECT_EQ(memory_.allocate(4_MiB, a_), cached);
  EXPECT_TRUE(memory_.deallocate(cached));
}

TEST_F(DeviceMemories, WithCachingOffTheHostWaitsForWorkOfEveryStreamThatUsesABlock) {
  memory_.set_caching(false);
  void* const recorded = memory_.allocate(8_MiB, a_);
  void* const fenced = memory_.allocate(8_MiB, a_);
  ASSERT_TRUE(device_.launch(b_, Writes(recorded, 8_MiB), 5_ms).ok());
  EXPECT_TRUE(memory_.record_stream(recorded, b_));
  ASSERT_TRUE(device_.launch(b_, Writes(fenced, 8_MiB), 5_ms).ok());
  EXPECT_TRUE(memory_.fence(std::array{fenced}, b_).ok());
  const Nanoseconds before = device_.now();
  EXPECT_TRUE(memory_.deallocate(fenced));
  EXPECT_TRUE(memory_.deallocate(recorded));
  EXPECT_GE(device_.now() - before, 10_ms);
}

TEST(CachingOff, IdleMemoryOfTheCacheGoesBackWhereTheDeviceHasNoMore) {
  SimDevice device({.memory = 64_MiB});
  const Stream stream = device.new_stream();
  DeviceHeap heap(device);
  DeviceMemory memory(0, device, heap);
  EXPECT_TRUE(memory.deallocate(memory.allocate(60_MiB, stream)));
  memory.set_caching(false);
  EXPECT_TRUE(memory.deallocate(memory.allocate(30_MiB, stream)));
  EXPECT_THROW((void)memory.allocate(70_MiB, stream), c10::OutOfMemoryError);
  // Anything else that the device refuses is its own error.
  device.fail(DeviceCall::allocate_segment, 1);
  EXPECT_THROW((void)memory.allocate(2_MiB, stream), c10::AcceleratorError);
}

TEST_F(DeviceMemories, WithCachingOffACaptureIsServedFromItsPoolAllTheSame) {
  const c10::MempoolId_t pool{1, 0};
  memory_.set_caching(false);
  std::uint64_t capture = 0;
  check(memory_.pools().begin(
      pool,
      [&](cudaStream_t asking) {
        return capture != 0 && device_.capture_info(Stream::of_captured(asking))->id == capture;
      },
      a_));
  ASSERT_TRUE(device_.begin_capture(a_, CaptureMode::global).ok());
  capture = device_.capture_info(a_)->id;
  void* const output = memory_.allocate(2_MiB, a_);
  ASSERT_TRUE(device_.launch(a_, Writes(output, 2_MiB), 10_us).ok());
  const GraphHandle graph = *device_.end_capture(a_);
  check(memory_.pools().end(pool));
  EXPECT_EQ(check(memory_.pools().blocks(pool)).size(), 1u);
  ASSERT_TRUE(device_.destroy_graph(graph).ok());
  EXPECT_TRUE(memory_.deallocate(output));
  check(memory_.pools().release(pool));
}

// A thread notes what it knows of streams: of those that are there, and not of others that lay at
// the same address.
TEST_F(DeviceMemories, StreamsAreKnownToWhoeverWasAsked) {
  std::optional<Streams> streams;
  const auto handle = static_cast<cudaStream_t>(a_.handle);
  const c10::cuda::CUDAStream lasting = c10::cuda::getDefaultCUDAStream(0);
  for (int i = 0; i < 2; ++i) {
    streams.emplace(heap_, device_, /*gpu=*/std::nullopt);
    EXPECT_EQ(streams->handle_of(a_.id), nullptr);
    EXPECT_EQ(streams->of(handle)->id, a_.id);
    EXPECT_EQ(streams->handle_of(a_.id), handle);
    EXPECT_EQ(streams->known(lasting), nullptr);
    EXPECT_FALSE(streams->of(lasting)->may_end);
    ASSERT_NE(streams->known(lasting), nullptr);
    EXPECT_EQ(streams->known(lasting)->handle, nullptr);
    // What a program made itself may be destroyed, and its handle another's then.
    const auto external = c10::cuda::getStreamFromExternal(handle, 0);
    EXPECT_TRUE(streams->of(external).ok());
    EXPECT_EQ(streams->known(external), nullptr);
  }
  const Result<Stream> none = streams->of(reinterpret_cast<cudaStream_t>(&streams));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code(), ErrorCode::device);
}

TEST_F(DeviceMemories, APoolThatCantBeBegunHasNoUser) {
  const c10::MempoolId_t pool{0, 4};
  device_.fail(DeviceCall::capture_info, 1);
  EXPECT_THROW(check(memory_.pools().begin(pool, takes(a_), a_)), c10::Error);
  EXPECT_EQ(memory_.pools().uses(pool), 0);
  EXPECT_THROW(check(memory_.pools().end(pool)), c10::Error);
  memory_.pools().retain(pool);
  check(memory_.pools().begin(pool, takes(a_), a_));
  EXPECT_EQ(memory_.pools().uses(pool), 2);
  check(memory_.pools().end(pool));
  for (int i = 2; i > 0; --i) {
    EXPECT_EQ(memory_.pools().uses(pool), i);
    check(memory_.pools().release(pool));
  }
  EXPECT_THROW(check(memory_.pools().release(pool)), c10::Error);
}

}  // namespace
}  // namespace weir::pytorch
