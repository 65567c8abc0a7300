// SPDX-License-Identifier: Apache-2.0
// Runs programs that PyTorch's own allocator runs correctly on Weir, over the simulated device.
//
//   weir_contract --enumerated            all short programs
//   weir_contract --programs N            N random programs, from --seed on
//   weir_contract --seconds S             random programs for so long
//   weir_contract --replay SEED           one random program
//
// Exit status: 0 all programs ran well; 1 one failed; 2 one was not legal, a defect of the
// generator.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <optional>
#include <vector>

#include "tests/torch/contract/enumerate.h"
#include "tests/torch/contract/legality.h"
#include "tests/torch/contract/random.h"
#include "tests/torch/contract/runner.h"
#include "tests/torch/contract/shrink.h"

namespace weir::contract {
namespace {

struct Options {
  bool enumerated = false;
  std::uint64_t programs = 0;
  double seconds = 0;
  std::uint64_t seed = 1;
  std::uint64_t replay = 0;
  bool flags = false;
  RunOptions run;
};

class Session {
 public:
  explicit Session(const Options& options) : options_(options) {}

  // Whether to go on.
  bool run(const Program& program) {
    ++programs_;
    if (const auto illegal = first_illegal_step(program)) {
      return not_legal(program, illegal->step, illegal->what);
    }
    const Outcome native = run_on_native(program);
    if (native.failure) {
      return not_legal(program, native.failure->step,
                       std::string("on the model of the native allocator: ") +
                           name_of(native.failure->kind) + ": " + native.failure->what);
    }
    const Outcome weir = run_on_weir(program, options_.run);
    host_waits_ += weir.host_waits;
    out_of_memory_ += weir.out_of_memory;
    native_out_of_memory_ += native.out_of_memory;
    if (!weir.failure) return true;
    ++failures_;
    std::cout << report(program, *weir.failure, options_.run);
    return false;
  }

  int finish(double seconds) const {
    std::cout << programs_ << " programs in " << seconds << " s; " << failures_ << " failed; "
              << host_waits_ << " host waits where the native allocator has none; out of memory "
              << out_of_memory_ << " times (native: " << native_out_of_memory_ << ")\n";
    if (illegal_ > 0) return 2;
    return failures_ > 0 ? 1 : 0;
  }

 private:
  bool not_legal(const Program& program, std::size_t step, const std::string& what) {
    ++illegal_;
    std::cout << "not a legal program, after step " << step << ": " << what << "\n"
              << describe(program);
    return false;
  }

  const Options options_;
  std::uint64_t programs_ = 0, failures_ = 0, illegal_ = 0;
  std::uint64_t host_waits_ = 0, out_of_memory_ = 0, native_out_of_memory_ = 0;
};

int run_all(const Options& options) {
  Session session(options);
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  bool going = true;
  if (options.enumerated) {
    for (const Program& program : enumerated_programs()) going = going && session.run(program);
  }
  const RandomOptions random{.flags = options.flags};
  if (options.replay != 0) {
    const Program program = random_program(options.replay, random);
    std::cout << describe(program);
    going = session.run(program);
  }
  const auto more = [&](std::uint64_t made) {
    return going && (made < options.programs || elapsed() < options.seconds);
  };
  for (std::uint64_t made = 0; more(made); ++made) {
    going = session.run(random_program(options.seed + made, random));
  }
  return session.finish(elapsed());
}

int run_command(int argc, char** argv) {
  CLI::App app("Programs that PyTorch's own allocator runs correctly, run on Weir");
  Options options;
  app.add_flag("--enumerated", options.enumerated, "All short programs");
  app.add_option("--programs", options.programs, "Random programs to run");
  app.add_option("--seconds", options.seconds, "Run random programs for so long");
  app.add_option("--seed", options.seed, "Of the first random program")->check(CLI::PositiveNumber);
  app.add_option("--replay", options.replay, "Run the random program of this seed alone");
  app.add_flag("--flags", options.flags, "Kernels may wait for flags of the host");
  app.add_flag("--host-waits-fail", options.run.host_waits_fail,
               "The host may not wait where the native allocator never does");
  app.add_flag("--fixed-addresses", options.run.fixed_addresses,
               "Tensors must lie at addresses that the program alone decides, and no time");
  CLI11_PARSE(app, argc, argv);
  return run_all(options);
}

}  // namespace
}  // namespace weir::contract

int main(int argc, char** argv) { return weir::contract::run_command(argc, argv); }
