// The generator of programs, and what checks it.
#include "tests/torch/contract/legality.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/torch/contract/composer.h"
#include "tests/torch/contract/enumerate.h"
#include "tests/torch/contract/random.h"
#include "tests/torch/contract/runner.h"

namespace weir::contract {
namespace {

TEST(RandomPrograms, TheSameSeedGivesTheSameProgram) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    EXPECT_EQ(random_program(seed), random_program(seed)) << "seed " << seed;
  }
  EXPECT_NE(random_program(1).steps, random_program(2).steps);
}

TEST(RandomPrograms, RunCleanlyOnTheModelOfTheNativeAllocator) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const Program program = random_program(seed);
    ASSERT_FALSE(first_illegal_step(program)) << describe(program);
    const Outcome native = run_on_native(program);
    ASSERT_FALSE(native.failure) << native.failure->what << "\n" << describe(program);
  }
}

}  // namespace
}  // namespace weir::contract
