// SPDX-License-Identifier: Apache-2.0
// The names of functions in stacks: readable, and which are Weir's own.
#pragma once

#include <cxxabi.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <string>
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

// The function whose symbol `name` is; `name` itself where it is no C++ symbol.
inline std::string demangled(const char* name) {
  const std::unique_ptr<char, decltype(&std::free)> readable(
      abi::__cxa_demangle(name, nullptr, nullptr, nullptr), &std::free);
  return readable == nullptr ? name : readable.get();
}

}  // namespace weir
