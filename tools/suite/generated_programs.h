// SPDX-License-Identifier: Apache-2.0
// Generated programs: families whose calls follow from a seed and a length alone.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "suite/irregular_families.h"
#include "suite/program.h"

namespace weir::suite {

struct GeneratedFamily {
  std::string name;   // unique
  std::string title;  // what its programs do, in words
  Program (*generate)(const GeneratedFamily&, std::uint64_t seed, bench::HistoryLength);
};

// Those of irregular_families.h, whose threads take turns here; and phases, pools and sleepers.
std::span<const GeneratedFamily> generated_families();

inline constexpr bench::HistoryLength kSuiteLength{.phases = 10, .pairs = 2048};

// The program of a family with this seed. `length` is as of bench::History: a phase makes about as
// many pairs of calls.
Program generate(const GeneratedFamily& family, std::uint64_t seed,
                 bench::HistoryLength length = kSuiteLength);

}  // namespace weir::suite
