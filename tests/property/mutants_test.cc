// SPDX-License-Identifier: Apache-2.0
// The checker checks: with any one wait or fence left out of the core, some random program must
// make the simulated device report a race. (Linked with a core that was built with WEIR_MUTANTS.)
#include <gtest/gtest.h>

#include <string>

#include "core/base/mutation.h"
#include "tests/property/program.h"
#include "tests/property/runner.h"

namespace weir::test {
namespace {

using mutation::Site;

constexpr std::uint64_t kSeeds = 400;

// Mostly small blocks on some seeds, mostly large ones on others, and memory that is soon used up.
Program busy_program(std::uint64_t seed) {
  return random_program(seed, {.operations = 300,
                               .most_streams = 5,
                               .least_memory = 24_MiB,
                               .most_memory = seed % 2 == 0 ? 48_MiB : 256_MiB});
}

class Mutant : public ::testing::TestWithParam<Site> {
 protected:
  ~Mutant() override { mutation::leave_out(Site::none); }
};

TEST_P(Mutant, IsCaughtAsARace) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const Program program = busy_program(seed);
    mutation::leave_out(GetParam());
    const RunResult result = run(program, {.check_every = 0, .fault = {}, .sink = nullptr});
    if (!result.failure || result.failure->what.find("race: ") == std::string::npos) continue;

    mutation::leave_out(Site::none);
    const RunResult whole = run(program);
    EXPECT_FALSE(whole.failure) << whole.failure->what;
    RecordProperty("seed", static_cast<int>(seed));
    return;
  }
  FAIL() << "no program of " << kSeeds << " raced";
}

INSTANTIATE_TEST_SUITE_P(EverySite, Mutant,
                         ::testing::Values(Site::wait_for_bytes_of_same_heap, Site::wait_for_donor,
                                           Site::wait_for_fences_of_donated,
                                           Site::wait_for_small_bytes, Site::fence_records,
                                           Site::fence_goes_with_block,
                                           Site::fence_goes_with_small_block,
                                           Site::fence_goes_with_slab, Site::record_stream_fences,
                                           Site::retire_records, Site::trim_checks_completion),
                         [](const auto& tested) {
                           return "site_" + std::to_string(static_cast<int>(tested.param));
                         });

}  // namespace
}  // namespace weir::test
