// weir_micro: the host's time for the allocator's calls. docs/performance.md says how to run it.
//
// usage: weir_micro [--quick] [--benchmark_filter=REGEX ...]
//
//   --quick   few rounds of each: to see that all works, not for the figures
//
// Exit: 0; 1 if a benchmark failed, or left its heap unsound.
#include <algorithm>
#include <cstdio>
#include <string_view>

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
}

// Takes "--quick" out of the arguments.
bool take_quick(int& argc, char** argv) {
  char** const end = std::remove_if(
      argv + 1, argv + argc, [](const char* each) { return std::string_view(each) == "--quick"; });
  const bool found = end != argv + argc;
  argc = static_cast<int>(end - argv);
  argv[argc] = nullptr;
  return found;
}

int run(int argc, char** argv) {
  const bool quick = take_quick(argc, argv);
  NullTarget null;
  add_all({"null", &null, quick});
  Result<std::unique_ptr<Target>> cuda = open_cuda_target();
  if (cuda.ok()) {
    add_all({"cuda", cuda->get(), quick});
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
