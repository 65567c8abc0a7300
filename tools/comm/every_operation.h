// Every operation that a program can capture, one of each, for matrices of them.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "comm/ranks.h"

namespace weir {

// What is asked for in one call: an operation, or a group that ranks must have.
struct Asked {
  std::string name;
  std::vector<OperationKind> kinds;
};
std::vector<Asked> every_operation();
// For `rank`: sends go to the next rank, receives come from the one before. Each has memory of its
// own, one after the other; `memory` has memory_for() bytes.
std::vector<Operation> operations_for(const Asked& asked, const BenchRank& rank, void* memory,
                                      std::uint64_t count);
Bytes memory_for(const Asked& asked, int ranks, std::uint64_t count);

inline constexpr std::array<CaptureMode, 3> kCaptureModes{
    CaptureMode::global, CaptureMode::thread_local_, CaptureMode::relaxed};
std::string_view name_of(CaptureMode mode);

}  // namespace weir
