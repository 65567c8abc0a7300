// SPDX-License-Identifier: Apache-2.0
// Each driver call and each copy of a sleep and of a wake is made to fail: there is an error, the
// books are whole, and either call, made again, ends with every byte intact.
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/sleep_fixture.h"

namespace weir::test {
namespace {

constexpr std::array kCalls{
    DeviceCall::create,         DeviceCall::map,
    DeviceCall::set_access,     DeviceCall::unmap,
    DeviceCall::release,        DeviceCall::create_event,
    DeviceCall::record,         DeviceCall::query,
    DeviceCall::synchronize,    DeviceCall::synchronize_context,
    DeviceCall::allocate_host,  DeviceCall::free_host,
    DeviceCall::copy_stream,    DeviceCall::copy_to_host,
    DeviceCall::copy_to_device, DeviceCall::fill_with_zeros,
    DeviceCall::capture_info,   DeviceCall::memory_info,
    DeviceCall::destroy_event,  DeviceCall::unreserve,
};
class SleepFaults : public SleepFixture, public testing::WithParamInterface<DeviceCall> {
 protected:
  static DeviceCall tested() { return GetParam(); }
  // Blocks of every kind: many pages, stitched rows, small ones, a tag, zeros, and a graph.
  void build() {
    heap_->set_limit(600_MiB);
    std::vector<void*> blocks;
    for (int i = 0; i < 18; ++i) blocks.push_back(written(28_MiB, i % 2 == 0 ? a_ : b_));
    for (std::size_t i = 0; i < blocks.size(); i += 3) free(blocks[i]);
    device_.finish();
    for (int i = 0; i < 2; ++i) written(70_MiB, a_);  // in pieces
    for (int i = 0; i < 20; ++i) written(900_B, b_);
    written_in("cache", 9_MiB, a_);
    ok(heap_->tags().set_contents("zeros", SleepContents::zero));
    zeros_ = ok(ok(heap_->tags().pool("zeros"))->allocate(8_MiB, a_));
    graphs_ = std::make_unique<GraphPool>(*heap_, GraphPoolOptions{.tag = "graphs"});
    CaptureScope capture = ok(CaptureScope::begin(*graphs_, a_));
    void* const scratch = ok(heap_->allocate(5_MiB, a_));
    EXPECT_TRUE(device_.launch(a_, Writes(scratch, 5_MiB), 10_us).ok());
    ok(heap_->deallocate(scratch));
    graph_ = ok(capture.end());
    ok(graph_.launch(b_));
    // So that they are zeros from now on.
    ok(heap_->tags().sleep());
    ok(heap_->tags().wake());
    std::uint64_t pages = 0;
    for (const SimPage& page : device_.pages()) pages += page.bytes > 0_B ? 1 : 0;
    EXPECT_GT(device_.live().mappings, pages) << "no stitched row was made";
  }
  void expect_back() {
    EXPECT_EQ(tag(kDefaultTag).state, TagState::awake);
    expect_sound();
    expect_intact();
    const std::vector<SimContent> zeros = device_.contents(Address::of(zeros_), 8_MiB);
    EXPECT_TRUE(zeros.size() == 1 && zeros[0].write == SimContent::kZeros);
    ok(graph_.launch(a_));
    void* const block = ok(heap_->allocate(1_MiB, a_));
    ok(heap_->deallocate(block));
  }
  void tear_down_world() {
    free_all();
    ok(heap_->deallocate(zeros_));
    graph_ = Graph();
    graphs_.reset();
  }
  void* zeros_ = nullptr;
  std::unique_ptr<GraphPool> graphs_;
  Graph graph_;
};

// Whatever comes of it, the program then goes on, forth or back, and has all its bytes in the end.
TEST_P(SleepFaults, SleepOrWakeFailsAndGoesOnOrBack) {
  build();
  for (const bool of_wake : {false, true}) {
    std::uint64_t nth = 1;
    for (bool hit = true; hit && !HasFailure(); ++nth) {
      if (of_wake) {
        ok(heap_->tags().sleep());
        EXPECT_EQ(device_.physical_bytes(), 0_B);
      }
      device_.fail(tested(), nth);
      const bool done = of_wake ? heap_->tags().wake().ok() : heap_->tags().sleep().ok();
      hit = device_.forget_faults() == 0;
      expect_sound();
      if (of_wake ? !done && nth % 2 == 0 : done || nth % 2 == 0) {
        ok(heap_->tags().sleep());
        EXPECT_EQ(device_.physical_bytes(), 0_B);
        expect_sound();
      }
      ok(heap_->tags().wake());
      expect_back();
      if (HasFailure()) ADD_FAILURE() << name_of(tested()) << " number " << nth;
    }
  }
  tear_down_world();
}

// The mapping is there and without access, and the driver does not take it back.
TEST_F(SleepFixture, AMappingThatCanNeitherBeUsedNorTakenBackIsTriedAgain) {
  for (int i = 0; i < 4; ++i) written(50_MiB, a_);
  for (const bool back : {false, true}) {
    ok(heap_->tags().sleep());
    device_.fail(DeviceCall::set_access, 2);
    device_.fail(DeviceCall::unmap, 1);
    EXPECT_FALSE(heap_->tags().wake().ok());
    EXPECT_EQ(device_.forget_faults(), 0u);
    expect_sound();
    if (back) {
      device_.fail(DeviceCall::unmap, 1);  // of that mapping, once more
      ok(heap_->tags().sleep());
      EXPECT_EQ(device_.forget_faults(), 0u);
      EXPECT_EQ(device_.live().mappings, 0u);
      EXPECT_EQ(device_.physical_bytes(), 0_B);
    }
    ok(heap_->tags().wake());
    expect_intact();
  }
  free_all();
}

// A wake fails at a copy, the program frees blocks, and the second sleep gives idle pages away: the
// second wake fills none of them.
TEST_F(SleepFixture, PagesThatGoBetweenTwoSleepsAreFilledNoMore) {
  std::uint64_t nth = 1;
  for (bool hit = true; hit && !HasFailure(); ++nth) {
    std::vector<void*> passing;
    for (int i = 0; i < 4; ++i) {
      passing.push_back(written(50_MiB, a_));
      written(50_MiB, a_);
    }
    ok(heap_->tags().sleep());
    device_.fail(DeviceCall::copy_to_device, nth);
    const bool woke = heap_->tags().wake().ok();
    hit = device_.forget_faults() == 0;
    EXPECT_EQ(woke, !hit);
    for (void* const block : passing) free(block);
    ok(heap_->tags().sleep());
    EXPECT_EQ(device_.physical_bytes(), 0_B);
    ok(heap_->tags().wake());
    expect_sound();
    expect_intact();
    free_all();
  }
}

INSTANTIATE_TEST_SUITE_P(EveryCall, SleepFaults, testing::ValuesIn(kCalls),
                         [](const auto& tested) { return std::string(name_of(tested.param)); });

}  // namespace
}  // namespace weir::test
