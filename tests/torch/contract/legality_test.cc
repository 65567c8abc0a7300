// SPDX-License-Identifier: Apache-2.0
// The rules for programs, the generators that keep to them, and whether their programs find
// defects.
#include "tests/torch/contract/legality.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>

#include "tests/torch/contract/composer.h"
#include "tests/torch/contract/random.h"
#include "tests/torch/contract/runner.h"

namespace weir::contract {
namespace {

using Kind = Step::Kind;

constexpr std::uint32_t kMain = 0, kSide = 1, kThird = 2;

Step allocate(std::uint32_t tensor, std::uint32_t stream) {
  return {.kind = Kind::allocate, .stream = stream, .tensor = tensor, .bytes = 64_MiB};
}
Step write(std::uint32_t tensor, std::uint32_t stream) {
  return {.kind = Kind::kernel, .stream = stream, .duration = kSpin, .uses = {{tensor, true}}};
}
Step read(std::uint32_t tensor, std::uint32_t stream) {
  return {.kind = Kind::kernel, .stream = stream, .duration = kSpin, .uses = {{tensor, false}}};
}
Step order(std::uint32_t later, std::uint32_t earlier) {
  return {.kind = Kind::order, .stream = later, .other = earlier};
}
Step record(std::uint32_t tensor, std::uint32_t stream) {
  return {.kind = Kind::record_stream, .stream = stream, .tensor = tensor};
}
Step drop(std::uint32_t tensor) { return {.kind = Kind::drop, .tensor = tensor}; }
Step begin_capture(std::uint32_t graph, std::uint32_t stream, std::uint32_t pool) {
  return {.kind = Kind::begin_capture, .stream = stream, .graph = graph, .pool = pool};
}
Step end_capture(std::uint32_t graph) { return {.kind = Kind::end_capture, .graph = graph}; }
Step replay(std::uint32_t graph, std::uint32_t stream) {
  return {.kind = Kind::replay, .stream = stream, .graph = graph};
}

// A tensor of the side stream that the main stream reads, in order.
const std::vector<Step> kReadByMain = {allocate(1, kSide), write(1, kSide), order(kMain, kSide),
                                       read(1, kMain)};

Program program_of(std::vector<Step> first, const std::vector<Step>& then = {}) {
  Program program;
  program.steps = std::move(first);
  program.steps.insert(program.steps.end(), then.begin(), then.end());
  return program;
}
bool legal(const std::vector<Step>& first, const std::vector<Step>& then = {}) {
  return !first_illegal_step(program_of(first, then));
}

TEST(Legality, KernelsThatShareATensorAreInOrder) {
  EXPECT_TRUE(legal(kReadByMain));
  EXPECT_FALSE(legal({allocate(1, kSide), write(1, kSide), read(1, kMain)}));
  EXPECT_FALSE(legal({allocate(1, kSide), read(1, kMain)}));  // the allocation is work, too
  EXPECT_FALSE(legal(kReadByMain, {write(1, kSide)}));
  EXPECT_TRUE(legal(kReadByMain, {read(1, kSide)}));
}

TEST(Legality, ATensorIsNotUsedAfterItWasDropped) {
  EXPECT_FALSE(legal(kReadByMain, {drop(1), read(1, kMain)}));
  EXPECT_FALSE(legal(kReadByMain, {drop(1), drop(1)}));
}

TEST(Legality, MemoryIsUsedAgainByItsStreamOnlyAfterOthersUsesOfIt) {
  EXPECT_FALSE(legal(kReadByMain, {drop(1), allocate(2, kSide), write(2, kSide)}));
  EXPECT_TRUE(
      legal(kReadByMain, {drop(1), allocate(2, kSide), order(kSide, kMain), write(2, kSide)}));
  EXPECT_TRUE(
      legal(kReadByMain, {order(kSide, kMain), drop(1), allocate(2, kSide), write(2, kSide)}));
  EXPECT_TRUE(legal(kReadByMain, {record(1, kMain), drop(1), allocate(2, kSide), write(2, kSide)}));
  EXPECT_TRUE(legal(kReadByMain, {drop(1), allocate(2, kThird), write(2, kThird)}));
}

TEST(Legality, ReplaysAreInOrderWithUsesOfTheirPool) {
  const std::vector<Step> graph = {begin_capture(1, kSide, 1), allocate(1, kSide), write(1, kSide),
                                   end_capture(1), replay(1, kMain)};
  EXPECT_TRUE(legal(graph, {read(1, kMain), replay(1, kMain)}));
  EXPECT_FALSE(legal(graph, {read(1, kThird)}));
  EXPECT_FALSE(legal(graph, {order(kThird, kMain), read(1, kThird), replay(1, kMain)}));
  EXPECT_TRUE(legal(graph, {drop(1), replay(1, kMain)}));  // its own memory stays its own
}

// A capture with a pool of its own, in a thread that allocates from a MemPool: the capture's memory
// is the MemPool's, which gives it out again once the tensor was dropped.
TEST(Legality, ReplaysAreInOrderWithUsesOfAMemPoolThatServedTheCapture) {
  const Step enter{.kind = Kind::enter_pool, .pool = 2}, leave{.kind = Kind::leave_pool, .pool = 2};
  const std::vector<Step> graph = {begin_capture(1, kSide, 1),
                                   {.kind = Kind::make_pool, .pool = 2},
                                   enter,
                                   allocate(1, kSide),
                                   write(1, kSide),
                                   end_capture(1),
                                   drop(1)};
  const auto then = [&](std::vector<Step> steps) { return legal(graph, std::move(steps)); };
  EXPECT_TRUE(then({leave, replay(1, kMain)}));
  // A tensor that the MemPool gave out afterwards.
  EXPECT_FALSE(then({allocate(2, kSide), write(2, kSide), leave, replay(1, kMain)}));
  EXPECT_FALSE(then({allocate(2, kSide), leave, replay(1, kMain), write(2, kSide)}));
  EXPECT_TRUE(
      then({allocate(2, kSide), write(2, kSide), order(kMain, kSide), leave, replay(1, kMain)}));
  EXPECT_TRUE(
      then({allocate(2, kSide), leave, replay(1, kMain), order(kSide, kMain), write(2, kSide)}));
  EXPECT_TRUE(then({leave, allocate(2, kSide), write(2, kSide), replay(1, kMain)}));
  // Another graph that was captured with the MemPool.
  const std::vector<Step> second = {leave, begin_capture(2, kSide, 2), allocate(2, kSide),
                                    write(2, kSide), end_capture(2)};
  const auto and_second = [&](const std::vector<Step>& steps) {
    std::vector<Step> all = second;
    all.insert(all.end(), steps.begin(), steps.end());
    return then(all);
  };
  EXPECT_FALSE(and_second({replay(1, kMain), replay(2, kSide)}));
  EXPECT_TRUE(and_second({replay(1, kMain), order(kSide, kMain), replay(2, kSide)}));
  // Once nobody has the MemPool, cudaFree may take what was dropped.
  EXPECT_FALSE(then({leave, {.kind = Kind::drop_pool, .pool = 2}, replay(1, kMain)}));
}

const Step kPause{.kind = Kind::pause_pool, .graph = 1};
const Step kResume{.kind = Kind::resume_pool, .graph = 1, .on = true};
const Step kFail{.kind = Kind::fail_capture, .graph = 1};

TEST(Legality, APoolIsEndedAndBegunAgainWithinItsCapture) {
  const std::vector<Step> half = {begin_capture(1, kSide, 1), allocate(1, kSide), write(1, kSide),
                                  kPause};
  EXPECT_FALSE(legal(half, {end_capture(1)}));
  EXPECT_FALSE(legal(half, {kPause, kResume, end_capture(1)}));
  EXPECT_FALSE(legal(half, {kResume, kResume, end_capture(1)}));
  EXPECT_TRUE(legal(half, {kResume, drop(1), allocate(2, kSide), write(2, kSide), end_capture(1),
                           replay(1, kMain)}));
  // What was allocated meanwhile is no memory of the pool's.
  const std::vector<Step> meanwhile = {allocate(2, kSide), write(2, kSide), kResume, end_capture(1),
                                       replay(1, kMain)};
  EXPECT_TRUE(legal(half, meanwhile));
  EXPECT_FALSE(legal(program_of(half, meanwhile).steps, {drop(2), replay(1, kMain)}));
  // While no pool is bound, the native allocator records events.
  EXPECT_FALSE(legal({allocate(3, kMain), record(3, kSide)}, program_of(half, {kResume}).steps));
}

TEST(Legality, AResumedPoolServesItsThreadOnEveryStream) {
  const std::vector<Step> resumed = {begin_capture(1, kSide, 1), kPause,           kResume,
                                     allocate(1, kThird),        write(1, kThird), end_capture(1)};
  EXPECT_FALSE(legal(resumed, {replay(1, kMain)}));
  EXPECT_TRUE(legal(resumed, {order(kMain, kThird), replay(1, kMain)}));
}

TEST(Legality, ACaptureThatFailsLeavesItsTensorsAndIsBegunNoMore) {
  const std::vector<Step> failed = {begin_capture(1, kSide, 1), allocate(1, kSide), write(1, kSide),
                                    kFail};
  EXPECT_TRUE(legal(failed, {write(1, kSide), order(kMain, kSide), read(1, kMain), drop(1)}));
  EXPECT_FALSE(legal(failed, {replay(1, kMain)}));
  EXPECT_FALSE(legal(failed, {end_capture(1)}));
  EXPECT_FALSE(legal(failed, {begin_capture(2, kSide, 1), end_capture(2)}));
  EXPECT_TRUE(legal(failed, {begin_capture(2, kSide, 2), end_capture(2)}));
  EXPECT_FALSE(legal({begin_capture(1, kSide, 1), kPause, kResume, kFail}));
}

TEST(Legality, ACaptureIsRefusedOfAStreamThatIsCaptured) {
  const Step refused{.kind = Kind::refuse_capture, .stream = kSide, .graph = 2, .pool = 2};
  EXPECT_FALSE(legal({refused}));
  EXPECT_TRUE(legal({begin_capture(1, kSide, 1), refused, end_capture(1)}));
  Step by_driver = refused;
  by_driver.on = true;
  EXPECT_TRUE(legal({by_driver}));
  EXPECT_FALSE(legal({begin_capture(1, kSide, 1), by_driver, end_capture(1)}));
}

TEST(Legality, AnInputOfAGraphLivesAsLongAsTheGraphIsReplayed) {
  const std::vector<Step> graph = {allocate(1, kMain), begin_capture(1, kSide, 1), read(1, kSide),
                                   end_capture(1), replay(1, kMain)};
  EXPECT_TRUE(legal(graph, {drop(1)}));
  EXPECT_FALSE(legal(graph, {drop(1), replay(1, kMain)}));
}

TEST(Legality, NothingWaitsWhileACaptureGoesOn) {
  const std::vector<Step> capture = {begin_capture(1, kSide, 1)};
  const Step wait{.kind = Kind::synchronize_stream, .stream = kMain};
  const Step empty{.kind = Kind::empty_cache};
  EXPECT_TRUE(legal(capture, {end_capture(1), wait, empty}));
  EXPECT_FALSE(legal(capture, {wait, end_capture(1)}));
  EXPECT_FALSE(legal(capture, {empty, end_capture(1)}));
  EXPECT_FALSE(legal(capture));  // nor does a program end then
  EXPECT_FALSE(legal(capture, {order(kMain, kSide)}));
  EXPECT_FALSE(legal(capture, {order(kSide, kMain)}));
  EXPECT_FALSE(legal(capture, {order(kThird, kSide), allocate(1, kThird), end_capture(1)}));
  EXPECT_TRUE(legal(
      capture, {order(kThird, kSide), allocate(1, kThird), order(kSide, kThird), end_capture(1)}));
}

TEST(Legality, APoolThatAnOpenCaptureUsedOnTwoStreamsTakesNoOther) {
  const std::vector<Step> used = {{.kind = Kind::make_stream, .stream = 7},
                                  begin_capture(1, kSide, 1),
                                  order(kThird, kSide),
                                  {.kind = Kind::pause_pool, .graph = 1},
                                  {.kind = Kind::make_pool, .pool = 2},
                                  {.kind = Kind::enter_pool, .pool = 2},
                                  allocate(1, kSide),
                                  {.kind = Kind::leave_pool, .pool = 2},
                                  {.kind = Kind::resume_pool, .graph = 1}};
  const auto with_another = [](std::vector<Step> before) {
    const std::vector<Step> rest = {
        {.kind = Kind::begin_capture, .thread = 1, .stream = 7, .graph = 2, .pool = 2},
        {.kind = Kind::end_capture, .thread = 1, .graph = 2},
        order(kSide, kThird),
        end_capture(1)};
    before.insert(before.end(), rest.begin(), rest.end());
    return before;
  };
  EXPECT_TRUE(legal(used, with_another({})));
  EXPECT_FALSE(legal(used, with_another({record(1, kThird)})));
}

TEST(Legality, TheHostWaitsForNoKernelThatWaitsForTheHost) {
  Step waits = {.kind = Kind::kernel, .stream = kSide, .flag = 1, .duration = kShort};
  const Step set{.kind = Kind::set_flag, .flag = 1};
  const Step wait{.kind = Kind::synchronize_stream, .stream = kMain};
  EXPECT_TRUE(legal({waits, wait, set}));
  EXPECT_FALSE(legal({waits, order(kMain, kSide), wait, set}));
  EXPECT_TRUE(legal({waits, order(kMain, kSide), set, wait}));
  EXPECT_FALSE(legal({waits, {.kind = Kind::empty_cache}, set}));
  EXPECT_FALSE(legal({waits}));
}

TEST(Legality, AStreamIsDestroyedWhenItsWorkIsDone) {
  const Step made{.kind = Kind::make_stream, .stream = 7};
  const Step gone{.kind = Kind::destroy_stream, .stream = 7};
  const Step wait{.kind = Kind::synchronize_stream, .stream = 7};
  EXPECT_TRUE(legal({made, allocate(1, 7), wait, gone, drop(1)}));
  EXPECT_FALSE(legal({made, allocate(1, 7), gone, drop(1)}));
  EXPECT_FALSE(legal({made, allocate(1, kMain), record(1, 7), wait, gone, drop(1)}));
}

// (weir_contract runs more of them, and all enumerated ones, on the model before it runs them on
// Weir.)
TEST(RandomPrograms, HaveEveryStepAndTheSameSeedGivesTheSameProgram) {
  std::set<Kind> kinds;
  for (std::uint64_t seed = 1; seed <= 4000; ++seed) {
    const RandomOptions options{.flags = seed % 4 == 0};
    const Program program = random_program(seed, options);
    if (seed <= 50) {
      EXPECT_EQ(program, random_program(seed, options)) << "seed " << seed;
    }
    for (const Step& step : program.steps) kinds.insert(step.kind);
  }
  EXPECT_EQ(kinds.size(), static_cast<std::size_t>(Step::kKinds));
  EXPECT_NE(random_program(1).steps, random_program(2).steps);
}

// How many of the first random programs fail where the model has this defect.
int found(NativeDefect defect) {
  int failed = 0;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    failed += run_on_native(random_program(seed), defect).failure ? 1 : 0;
  }
  return failed;
}

TEST(RandomPrograms, FindEachDefectOfAnAllocator) {
  EXPECT_EQ(found(NativeDefect::none), 0);
  EXPECT_GT(found(NativeDefect::frees_at_once), 50);
  EXPECT_GT(found(NativeDefect::serves_other_streams), 50);
  EXPECT_GT(found(NativeDefect::serves_other_pools), 3);
  EXPECT_GT(found(NativeDefect::forgets_records), 3);
  EXPECT_GT(found(NativeDefect::asks_in_captures), 3);
}

// What Weir's runs are looked at for, beside races.
std::optional<Failure::Kind> found_in(const Program& program, NativeDefect defect,
                                      const RunOptions& options) {
  const auto make = [&](SimDevice& device) {
    return std::make_unique<NativeModel>(device, defect);
  };
  const Outcome outcome = run(program, make, options);
  if (!outcome.failure) return std::nullopt;
  return outcome.failure->kind;
}

TEST(RandomPrograms, FindALeakAndAPoolThatGrows) {
  int leaked = 0, grown = 0;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    const Program program = random_program(seed);
    const Bytes enough = run_on_native(program).peak;
    const auto none = NativeDefect::none, defect = NativeDefect::keeps_dropped;
    EXPECT_EQ(found_in(program, none, {.most_memory = enough, .leaks_fail = true}), std::nullopt);
    leaked += found_in(program, defect, {.leaks_fail = true}) == Failure::Kind::leaked ? 1 : 0;
    grown += found_in(program, defect, {.most_memory = enough}) == Failure::Kind::too_much ? 1 : 0;
  }
  EXPECT_GT(leaked, 300);
  EXPECT_GT(grown, 50);
}

TEST(RandomPrograms, FindMemoryThatStaysWithItsStream) {
  EXPECT_EQ(found_in(random_program(1), NativeDefect::none, {.moves_memory = true}),
            Failure::Kind::stays_apart);
}

TEST(RandomPrograms, WithFlagsFindAnOrderBetweenStreams) {
  int hung = 0;
  for (std::uint64_t seed = 1; seed <= 1500; ++seed) {
    const Program program = random_program(seed, {.flags = true});
    const auto failure = run_on_native(program, NativeDefect::orders_streams).failure;
    hung += failure && failure->kind == Failure::Kind::hang ? 1 : 0;
  }
  EXPECT_GT(hung, 10);
}

TEST(RandomPrograms, WithoutTheirOrdersAreFoundOut) {
  int illegal = 0, racing = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const Program program = random_program(seed, {.omit_orders = true});
    const bool is_illegal = first_illegal_step(program).has_value();
    illegal += is_illegal ? 1 : 0;
    if (!run_on_native(program).failure) continue;
    ++racing;
    EXPECT_TRUE(is_illegal) << describe(program);
  }
  EXPECT_GT(illegal, 200);
  EXPECT_GT(racing, 100);
}

}  // namespace
}  // namespace weir::contract
