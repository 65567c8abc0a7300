// SPDX-License-Identifier: Apache-2.0
// One rank of a launch, as a user would write it. processes_test.py starts it, kills it, stops it.
//
// Prints {"event": ...} lines as it goes, and one JSON object at its end.
// Exit: 0 it went as was asked, 1 not, 2 the options or the launcher's variables are wrong, 77
// (--probe) fewer than two GPUs, or no NCCL.
#include "tests/comm/peer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "tools/option_checks.h"
#include "weir/comm/nccl.h"
#include "weir/cuda_device.h"

namespace weir::peer {
namespace {

constexpr int kSkipped = 77;            // what ctest is told to take for "skipped"
constexpr unsigned kSecondsToEnd = 30;  // after --limit

int probe() {
  const Result<int> gpus = CudaDevice::count();
  if (!gpus || *gpus < 2) {
    std::fprintf(
        stderr, "comm_peer: two GPUs are needed: %s\n",
        gpus ? fmt::format("there is {} here", *gpus).c_str() : gpus.error().message().c_str());
    return kSkipped;
  }
  const Result<std::unique_ptr<Nccl>> nccl = load_nccl(0);
  if (!nccl) {
    std::fprintf(stderr, "comm_peer: %s\n", nccl.error().message().c_str());
    return kSkipped;
  }
  say({{"gpus", *gpus}, {"nccl", (*nccl)->version()}});
  return 0;
}

int parse(int argc, char** argv, Options& options) {
  CLI::App app("One rank of a launch: docs/testing.md.");
  app.add_option(
         "work", options.work,
         "once: some steps, eager and captured; eager, replay: as many as --steps says; "
         "hang: --bad-rank stops taking part; absent: it never prepares; mismatch: it asks for "
         "another size")
      ->check(CLI::IsMember({"once", "eager", "replay", "hang", "absent", "mismatch"}))
      ->capture_default_str();
  app.add_option("--steps", options.steps, "0: until something fails")
      ->transform(whole_number(0, 1'000'000'000))
      ->capture_default_str();
  app.add_option("--sound-steps", options.sound_steps, "Before a rank misbehaves")
      ->transform(whole_number(1, 1'000'000'000))
      ->capture_default_str();
  app.add_option("--bad-rank", options.bad_rank, "Misbehaves")
      ->transform(whole_number(0, 1023))
      ->capture_default_str();
  const CLI::Validator seconds = real_number(0.1, 3600);
  app.add_option("--timeout", options.timeout, "Seconds that an operation may take")
      ->transform(seconds)
      ->capture_default_str();
  app.add_option("--host-timeout", options.host_timeout,
                 "Seconds that the host waits for other ranks")
      ->transform(seconds)
      ->capture_default_str();
  app.add_option("--limit", options.limit, "Seconds in which what is expected must fail")
      ->transform(seconds)
      ->capture_default_str();
  app.add_flag("--captured", options.captured, "hang: in replays; mismatch: in a capture");
  app.add_flag("--expect-error", options.expect_error, "It is good if something fails");
  app.add_flag("--probe", options.probe, "Only says whether there are two GPUs and NCCL");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kWrongOptions;
  }
  return -1;
}

}  // namespace
}  // namespace weir::peer

int main(int argc, char** argv) {
  weir::peer::Options options;
  if (const int code = weir::peer::parse(argc, argv, options); code >= 0) return code;
  // Nothing that was left behind by who started it goes on for ever.
  alarm(static_cast<unsigned>(options.limit) + weir::peer::kSecondsToEnd);
  if (options.probe) return weir::peer::probe();
  return weir::peer::run(options);
}
