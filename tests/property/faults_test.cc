// SPDX-License-Identifier: Apache-2.0
// Every driver call of a program is made to fail in turn. The heap survives, or reports an error
// that names the call and changes nothing; the program then goes on to its end, under the oracle.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/property/program.h"
#include "tests/property/runner.h"
#include "tests/sanitized.h"

namespace weir::test {
namespace {

// Calls that a program makes too often to fail each: this many, evenly spread, are tried.
constexpr std::uint64_t kMostOfAKind = 60;

class FaultSweep : public ::testing::TestWithParam<DeviceCall> {
 protected:
  // Returns how many faults were tried.
  static std::uint64_t sweep(const Program& program, DeviceCall call, ErrorCode code) {
    const RunResult clean = run(program, {.check_every = 0, .fault = {}, .sink = nullptr});
    EXPECT_FALSE(clean.failure) << clean.failure->what;
    const std::uint64_t calls = clean.calls[static_cast<std::size_t>(call)];
    const std::uint64_t stride = std::max<std::uint64_t>(1, calls / kMostOfAKind);
    std::uint64_t tried = 0;
    for (std::uint64_t nth = 1; nth <= calls; nth += stride, ++tried) {
      const RunOptions options{
          .check_every = 16, .fault = RunOptions::Fault{call, nth, code}, .sink = nullptr};
      const RunResult result = run(program, options);
      if (result.failure) {
        ADD_FAILURE() << name_of(call) << " number " << nth << " failed; "
                      << report(program, options, *result.failure);
        return tried;
      }
    }
    return tried;
  }
};

TEST_P(FaultSweep, LeavesTheHeapSoundAndTheProgramGoesOn) {
  std::uint64_t tried = 0;
  const bool plain =
      GetParam() == DeviceCall::allocate_segment || GetParam() == DeviceCall::free_segment;
  // A program gives little memory back, and seldom in a trim.
  const bool gives_back = GetParam() == DeviceCall::unmap || GetParam() == DeviceCall::release;
  const std::uint64_t programs = gives_back ? some_if_sanitized(30) : 3;
  for (std::uint64_t seed = 11; seed < 11 + programs; ++seed) {
    const Program program =
        random_program(seed, {.operations = 250,
                              .least_memory = 48_MiB,
                              .most_memory = 256_MiB,
                              .kind = plain ? MemoryKind::plain : MemoryKind::pages});
    tried += sweep(program, GetParam(), ErrorCode::device);
    if (HasFailure()) return;
  }
  RecordProperty("faults", static_cast<int>(tried));
}

class SleepFaultSweep : public FaultSweep {};

TEST_P(SleepFaultSweep, LeavesTheHeapSoundTheBytesIntactAndTheProgramGoesOn) {
  for (const std::uint64_t seed : {31, 32, 33}) {
    const Program program = random_program(
        seed, {.operations = 200, .least_memory = 48_MiB, .most_memory = 256_MiB, .sleeps = true});
    sweep(program, GetParam(), ErrorCode::device);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(
    EveryCall, SleepFaultSweep,
    ::testing::Values(DeviceCall::create, DeviceCall::map, DeviceCall::set_access,
                      DeviceCall::unmap, DeviceCall::release, DeviceCall::allocate_host,
                      DeviceCall::free_host, DeviceCall::copy_stream, DeviceCall::copy_to_host,
                      DeviceCall::copy_to_device, DeviceCall::create_event, DeviceCall::record,
                      DeviceCall::synchronize, DeviceCall::synchronize_context),
    [](const auto& tested) { return std::string(name_of(tested.param)); });

INSTANTIATE_TEST_SUITE_P(
    EveryCall, FaultSweep,
    ::testing::Values(DeviceCall::reserve, DeviceCall::unreserve, DeviceCall::create,
                      DeviceCall::map, DeviceCall::set_access, DeviceCall::unmap,
                      DeviceCall::release, DeviceCall::allocate_segment, DeviceCall::free_segment,
                      DeviceCall::create_event, DeviceCall::destroy_event, DeviceCall::record,
                      DeviceCall::wait, DeviceCall::query, DeviceCall::synchronize,
                      DeviceCall::capture_info, DeviceCall::memory_info),
    [](const auto& tested) { return std::string(name_of(tested.param)); });

TEST(FaultSweeps, ADeviceThatRefusesToCreateIsOutOfMemoryOnlyWhenNothingElseHelps) {
  const Program program =
      random_program(21, {.operations = 250, .least_memory = 1_GiB, .most_memory = 2_GiB});
  const RunResult clean = run(program, {.check_every = 0, .fault = {}, .sink = nullptr});
  ASSERT_FALSE(clean.failure) << clean.failure->what;
  const std::uint64_t creates = clean.calls[static_cast<std::size_t>(DeviceCall::create)];
  ASSERT_GT(creates, 0u);
  for (std::uint64_t nth = 1; nth <= creates; ++nth) {
    const RunOptions options{
        .check_every = 16,
        .fault = RunOptions::Fault{DeviceCall::create, nth, ErrorCode::out_of_memory},
        .sink = nullptr};
    const RunResult result = run(program, options);
    ASSERT_FALSE(result.failure) << "create number " << nth << " failed; "
                                 << report(program, options, *result.failure);
    // One refusal, of a device that has room again on the next call, costs at most one request.
    EXPECT_LE(result.out_of_memory, clean.out_of_memory + 1);
  }
}

}  // namespace
}  // namespace weir::test
