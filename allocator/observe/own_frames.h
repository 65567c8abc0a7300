// SPDX-License-Identifier: Apache-2.0
// Which functions of a stack are Weir's own.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace weir {

// Whether a function (with its C++ name readable) is on the way from an allocation to the recorder,
// which is the same in all stacks and says nothing.
inline bool is_own_function(std::string_view function) {
  constexpr std::array<std::string_view, 7> kOwn{"weir::(anonymous namespace)::CppStacks",
                                                 "weir::(anonymous namespace)::PythonStacks",
                                                 "weir::Observer::",
                                                 "weir::DeviceHeap::",
                                                 "weir::Allocator::",
                                                 "weir::Buffer::",
                                                 "weir_allocate"};
  return std::any_of(kOwn.begin(), kOwn.end(),
                     [&](std::string_view own) { return function.starts_with(own); });
}

}  // namespace weir
