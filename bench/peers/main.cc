// SPDX-License-Identifier: Apache-2.0
// weir_peers: host time of one allocate + free, of Weir and of the allocators beside it, by the
// same loops. bench/peers/run runs it, once for each allocator and setting, and makes the table.
//
// Prints one line of JSON a result. Exit: 0; 1 if a loop failed (its line says why); 2 for wrong
// arguments, or where nothing could be run.
#include <dlfcn.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "bench/peers/driver_peer.h"
#include "bench/peers/malloc_peer.h"
#include "bench/peers/session.h"
#include "bench/peers/torch_context.h"
#include "bench/peers/torch_peer.h"
#include "bench/peers/weir_peers.h"
#include "replay/trace_reader.h"
#include "suite/null_device.h"
#include "tools/option_checks.h"
#include "weir/cuda_device.h"

namespace weir::peers {
namespace {

std::unique_ptr<Device> open_device(bool gpu) {
  if (!gpu) return std::make_unique<bench::NullDevice>();
  Result<std::unique_ptr<CudaDevice>> device = CudaDevice::open(0);
  if (!device.ok()) throw std::runtime_error(device.error().message());
  return *std::move(device);
}

// Is libweir_no_cuda.so loaded?
bool has_no_cuda() { return dlsym(RTLD_DEFAULT, "weir_no_cuda") != nullptr; }

// What the program ran with, as the first line: {"peers", "device", "cuda", "torch", "setting"}.
void print_setting(const Options& options, const Gpu& gpu) {
  const Gpu::Description description = gpu.describe();
  const nlohmann::ordered_json line = {{"peers", options.peers},
                                       {"device", description.device},
                                       {"cuda", description.versions},
                                       {"torch", WEIR_TORCH_VERSION},
                                       {"setting", Torch::setting()}};
  std::puts(line.dump().c_str());
  std::fflush(stdout);
}

template <class P>
void run_peer(Session& session, const std::string& name) {
  session.run(name, [](ReusePolicy) { return P(); });
}

// The device stays from loop to loop: with a new heap on it, nothing is left of the loop before.
void run_weir_heap(Session& session, const std::string& name, Device& device, Trust trust) {
  const auto make = [&](ReusePolicy policy) { return WeirHeap(device, policy, trust); };
  session.run(name, make);
  session.run_fenced(name, "fenced.balanced", 1 << 20, ReusePolicy::balanced, make);
}

// What is amiss before the first loop is an error of the whole peer: its loop is "all".
void run_by_name(Session& session, const Options& options, const std::string& name) {
  if (name == "weir") {
    const std::unique_ptr<Device> device = open_device(options.gpu);
    session.run(name, [&](ReusePolicy policy) { return WeirAllocator(*device, policy); });
  } else if (name == "weir-heap") {
    run_weir_heap(session, name, *open_device(options.gpu), Trust::told);
  } else if (name == "weir-context") {
    run_weir_heap(session, name, *open_device(options.gpu), Trust::context);
  } else if (name == "malloc") {
    run_peer<Malloc>(session, name);
  } else if (!options.gpu && !(name == "torch" && has_no_cuda())) {
    throw std::runtime_error(
        "needs a GPU; of the allocators that do, torch can do with "
        "LD_PRELOAD=libweir_no_cuda.so, as bench/peers/run --no-gpu runs it");
  } else if (name == "driver-pool") {
    run_peer<DriverPool>(session, name);
  } else if (name == "torch-raw") {
    set_torch_context_hook(true);
    if (!options.torch_backend.empty()) {
      use_weir_in_torch(options.torch_backend);
      run_peer<WithWeir<TorchRaw>>(session, "torch-weir-raw");
    } else {
      run_peer<TorchRaw>(session, "torch-" + Torch::setting() + "-raw");
    }
  } else {
    set_torch_context_hook(options.gpu);
    if (!options.torch_backend.empty()) {
      use_weir_in_torch(options.torch_backend);
      run_peer<WithWeir<Torch>>(session, "torch-weir");
    } else {
      run_peer<Torch>(session, "torch-" + Torch::setting());
    }
  }
}

int run(const Options& options) {
  const std::unique_ptr<Gpu> gpu = options.gpu ? make_cuda_gpu() : make_null_gpu();
  print_setting(options, *gpu);
  Session session(options, *gpu);
  bool failed = false;
  for (const std::string& name : options.peers) {
    try {
      run_by_name(session, options, name);
    } catch (const std::exception& error) {
      print_error(name, "all", error.what());
      failed = true;
    }
  }
  return failed || session.failed() ? 1 : 0;
}

int parse_and_run(int argc, char** argv) {
  Options options;
  CLI::App app("Host time of one allocate + free: Weir and the allocators beside it.");
  app.add_flag("!--no-gpu", options.gpu,
               "Weir on a device that does nothing, PyTorch's with no CUDA, and malloc");
  app.add_option("--peers", options.peers,
                 "weir, weir-heap, weir-context, torch, torch-raw, driver-pool, malloc")
      ->delimiter(',')
      ->required()
      ->check(CLI::IsMember(
          {"weir", "weir-heap", "weir-context", "torch", "torch-raw", "driver-pool", "malloc"}));
  app.add_option("--torch-backend", options.torch_backend,
                 "torch, torch-raw: with this libweir_torch.so as PyTorch's allocator")
      ->check(CLI::ExistingFile);
  app.add_option("--loops", options.loops, "only those whose names begin so: hot, mix, own, ...")
      ->delimiter(',');
  app.add_option("--threads", options.threads, "counts of threads, at most 16 each")
      ->delimiter(',')
      ->transform(whole_number(1, 16));
  std::vector<std::string> traces;
  app.add_option("--traces", traces, "recorded programs: files as `weir replay` reads them")
      ->delimiter(',')
      ->check(CLI::ExistingFile);
  app.add_option("--seconds", options.seconds, "for each loop, once it is warm")
      ->transform(real_number(0.001, 60));
  app.add_option("--phases", options.history.phases, "of programs that never repeat")
      ->transform(whole_number(2, 10'000));
  app.add_option("--pairs", options.history.pairs, "of a phase of these")
      ->transform(whole_number(1, 1'000'000));
  app.add_option("--seed", options.seed, "of these")->transform(any_whole_number());
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  for (const std::string& path : traces) {
    Result<Trace> trace = read_trace(path);
    if (!trace.ok()) throw std::runtime_error(trace.error().message());
    options.traces.push_back(*std::move(trace));
  }
  return run(options);
}

}  // namespace
}  // namespace weir::peers

int main(int argc, char** argv) {
  try {
    return weir::peers::parse_and_run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "weir_peers: %s\n", error.what());
    return 2;
  }
}
