// SPDX-License-Identifier: Apache-2.0
// weir_micro: the host's time for the allocator's calls. docs/performance.md says how to run it.
//
// usage: weir_micro [--quick] [--phases=N] [--seed=N] [--benchmark_filter=REGEX ...]
//
//   --quick      few rounds of each: to see that all works, not for the figures
//   --phases=N   of irregular/: how long its programs run (default 30; with --quick 3)
//   --seed=N     of irregular/: other programs of the same families
//
// Exit: 0; 1 if a benchmark failed, or left its heap unsound; 2 for a number that makes no sense.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "bench/micro/micro.h"

namespace weir::bench {
namespace {

void add_all(const Context& context) {
  add_hot_pair(context);
  add_random_mix(context);
  add_threads(context);
  add_handoff(context);
  add_fenced(context);
  add_find(context);
  add_batches(context);
  add_recorded(context);
  add_irregular(context);
}

// Takes the first argument that begins so out of the arguments, and returns the rest of it.
std::optional<std::string_view> take(std::string_view option, int& argc, char** argv) {
  char** const end = argv + argc;
  char** const found = std::find_if(
      argv + 1, end, [&](const char* each) { return std::string_view(each).starts_with(option); });
  if (found == end) return std::nullopt;
  const std::string_view value = std::string_view(*found).substr(option.size());
  std::copy(found + 1, end, found);
  argv[--argc] = nullptr;
  return value;
}

// The same of a number, which replaces `number`. Returns whether it makes sense.
template <class Number>
bool take_number(std::string_view option, Number least, Number most, Number& number, int& argc,
                 char** argv) {
  const std::optional<std::string_view> text = take(option, argc, argv);
  if (!text) return true;
  const char* const end = text->data() + text->size();
  const auto [rest, error] = std::from_chars(text->data(), end, number);
  if (error == std::errc{} && rest == end && number >= least && number <= most) return true;
  std::fprintf(stderr, "weir_micro: %.*s'%s' is not a whole number from %s to %s\n",
               static_cast<int>(option.size()), option.data(), text->data(),
               std::to_string(least).c_str(), std::to_string(most).c_str());
  return false;
}

int run(int argc, char** argv) {
  NullTarget null;
  Context context{"null", &null};
  context.quick = take("--quick", argc, argv).has_value();
  if (context.quick) context.history = {.phases = 3, .pairs = 512};
  if (!take_number("--phases=", 2U, 10'000U, context.history.phases, argc, argv) ||
      !take_number("--seed=", std::uint64_t{0}, std::numeric_limits<std::uint64_t>::max(),
                   context.seed, argc, argv)) {
    return 2;
  }
  add_all(context);
  Result<std::unique_ptr<Target>> cuda = open_cuda_target();
  if (cuda.ok()) {
    context.name = "cuda";
    context.target = cuda->get();
    add_all(context);
    add_captured(context);
    benchmark::AddCustomContext("gpu", (*cuda)->device().name());
  } else {
    std::fprintf(stderr, "weir_micro: skipped on CUDA: %s\n", cuda.error().message().c_str());
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  if (benchmark::RunSpecifiedBenchmarks() == 0) return 1;
  benchmark::Shutdown();
  return any_failed() ? 1 : 0;
}

}  // namespace
}  // namespace weir::bench

int main(int argc, char** argv) { return weir::bench::run(argc, argv); }
