// SPDX-License-Identifier: Apache-2.0
// Memory at one moment of a recording: which, what made it, and what was held for nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "look/block_lifetimes.h"
#include "look/numbering.h"
#include "look/report.h"
#include "look/stack_calls.h"

namespace weir {

// Names that every part of the report shares.
struct ReportNames {
  ReportNames(const Recording& recording, const BlockLifetimes& lifetimes);
  Numbering<std::uint64_t> streams, pools;
  std::vector<std::vector<std::string>> stacks;  // as text, by number_of()
  // What a report numbers stacks by: those that differ only in frames of PyTorch's are one.
  std::uint32_t number_of(std::uint32_t stack) const;  // of Event::stack
  std::string place(std::uint32_t number) const;
  // Adds to names of stacks that are alike the call in which they differ.
  void tell_apart(std::vector<Share>& shares) const;
  std::optional<Purpose> purpose_of(std::uint32_t stack) const;  // of Event::stack; none: not told

 private:
  std::vector<std::uint32_t> number_;
  std::vector<Purpose> purposes_;
};

// All of it, once the first `events` events have happened. Lists have `top` rows at most.
Moment moment_after(std::size_t events, const Recording& recording, const BlockLifetimes& lifetimes,
                    ReportNames& names, std::size_t top);

}  // namespace weir
