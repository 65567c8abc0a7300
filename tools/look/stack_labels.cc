// SPDX-License-Identifier: Apache-2.0
#include "look/stack_labels.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "look/report_names.h"

namespace weir {
namespace {

// A C++ function without its arguments and without unnamed namespaces.
std::string short_name(std::string name) {
  constexpr std::string_view kUnnamed = "(anonymous namespace)::", kCall = "operator()";
  for (std::size_t at = name.find(kUnnamed); at != std::string::npos; at = name.find(kUnnamed))
    name.erase(at, kUnnamed.size());
  const std::size_t call = name.find(kCall);
  const std::size_t from = call == std::string::npos ? 0 : call + kCall.size();
  const std::size_t arguments = name.find('(', from);
  if (arguments != std::string::npos && arguments > 0) name.resize(arguments);
  return name;
}

// What PyTorch calls between a module's call and its forward().
bool is_between_calls(std::string_view name) {
  constexpr std::string_view kModule = "Module.";
  if (name.starts_with(kModule)) name.remove_prefix(kModule.size());
  return name == "_call_impl" || name == "_wrapped_call_impl";
}

struct Call {
  std::string name, with_place;
};

std::vector<Call> calls_of(const ReadableStacks& readable, std::uint32_t stack) {
  std::vector<Call> calls;
  for (const std::uint32_t number : readable.stacks[stack]) {
    RecordedFrame frame = readable.frames[number];
    frame.function = frame.function.empty() ? "(unknown function)" : short_name(frame.function);
    if (!calls.empty() && is_between_calls(frame.function)) continue;
    calls.push_back({frame.function, frame_text(frame)});
  }
  return calls;
}

// The innermost `depth` calls.
std::string chain_of(const std::vector<Call>& calls, std::size_t depth, bool with_place) {
  std::string text;
  const std::size_t count = std::min(depth, calls.size());
  for (std::size_t i = 0; i < count; ++i) {
    if (i > 0) text += " ‹ ";
    text += i + 1 == count && with_place ? calls[i].with_place : calls[i].name;
  }
  return text;
}

}  // namespace

std::vector<std::string> stack_labels(const ReadableStacks& readable,
                                      const std::vector<std::uint32_t>& stacks) {
  std::vector<std::vector<Call>> all;
  std::vector<std::string> first, labels;
  std::size_t deepest = 1;
  for (const std::uint32_t stack : stacks) {
    all.push_back(calls_of(readable, stack));
    first.push_back(all.back().empty() ? "unknown" : all.back().front().with_place);
    deepest = std::max(deepest, all.back().size());
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto is_alone = [&](std::size_t depth, bool with_place) {
      const std::string text = chain_of(all[i], depth, with_place);
      for (std::size_t j = 0; j < all.size(); ++j) {
        if (j != i && first[j] == first[i] && chain_of(all[j], depth, with_place) == text)
          return false;
      }
      return true;
    };
    std::string label = first[i];
    if (std::count(first.begin(), first.end(), first[i]) > 1) {
      for (std::size_t step = 4; step <= 2 * deepest + 1;
           ++step) {  // depth 2, depth 2 with places...
        if (!is_alone(step / 2, step % 2 == 1)) continue;
        label = chain_of(all[i], step / 2, step % 2 == 1);
        break;
      }
    }
    labels.push_back(std::move(label));
  }
  return labels;
}

}  // namespace weir
