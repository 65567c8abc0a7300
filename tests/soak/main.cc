// SPDX-License-Identifier: Apache-2.0
// The soak (docs/testing.md): random programs of every kind at once on one allocator, for as long
// as asked, and then a line through what the process and the device held.
//
// Exit: 0 every oracle agrees and nothing grows (or what is wrong on purpose was found), 1 not, 2
// for wrong arguments, 77 no such device. SIGINT and SIGTERM end the run early: the samples so far
// are printed, and a run of which no oracle complained exits with 130 or 143.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <fstream>
#include <iostream>
#include <regex>
#include <string>
#include <vector>

#include "tests/soak/soak.h"
#include "tests/soak/trend.h"
#include "tools/option_checks.h"
#include "tools/standard_output.h"

namespace weir::soak {
namespace {

constexpr int kWrongArguments = 2;
constexpr int kSignalled = 128;  // and the signal's number, as shells have it
constexpr int kNoDevice = 77;    // what ctest is told to take for "skipped"

std::atomic<int> caught_signal = 0;  // SIGINT or SIGTERM, once one has come

// The next signal of the kind ends the process as usual.
void catch_signals() {
  struct sigaction action {};
  action.sa_handler = [](int signal) { caught_signal = signal; };
  action.sa_flags = SA_RESTART | SA_RESETHAND;
  for (const int signal : {SIGINT, SIGTERM}) ::sigaction(signal, &action, nullptr);
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

int judge(const std::string& path) {
  std::ifstream file(path);
  try {
    const std::vector<Series> samples = read_samples(file);
    const std::vector<std::string> growing = print_trends(samples, std::cout);
    if (!any_judged(samples)) {
      std::cerr << "soak: " << path << ": there are too few samples to judge any quantity\n";
      return kWrongArguments;
    }
    std::cout << (growing.empty() ? "nothing grows" : "GROWS: " + joined(growing)) << "\n";
    return growing.empty() ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << "soak: " << path << ": " << error.what() << "\n";
    return kWrongArguments;
  }
}

std::string verdict(const Outcome& outcome, const std::vector<std::string>& growing) {
  if (!outcome.complaints.empty()) return "WRONG";
  if (outcome.quiet == 0) return "nothing was checked";
  if (!growing.empty()) return "GROWS: " + joined(growing);
  if (outcome.unjudged == 0) return "right and flat";
  return "right, with too few samples to judge " + std::to_string(outcome.unjudged) + " of " +
         std::to_string(outcome.samples.size()) + " quantities";
}

int run_soak(Options options) {
  catch_signals();
  options.signal = &caught_signal;
  std::cout << "soak: seed " << options.seed << ", " << options.seconds << " s on "
            << (options.simulated ? "the simulated device" : "a GPU")
            << (options.fixed_addresses ? ", at fixed addresses" : "") << std::endl;
  const Result<Outcome> ran = run(options);
  if (!ran.ok()) {
    std::cerr << "soak: " << ran.error().message() << "\n";
    return ran.error().code() == ErrorCode::unavailable ? kNoDevice : 1;
  }
  const std::vector<std::string> growing = print_trends(ran->samples, std::cout);
  std::cout << ran->steps << " steps, " << ran->faults << " failed device calls, " << ran->quiet
            << " times all was checked, " << ran->rests << " times all went back\n";
  std::cout << "verdict: " << verdict(*ran, growing)
            << (ran->signal != 0 ? ", interrupted after " : " after ")
            << static_cast<int>(ran->seconds) << " s, seed " << options.seed << "\n";
  if (options.omits_fences) {
    std::cout << "fences were omitted: " << (ran->wrong_bytes ? "" : "NOT ") << "found\n";
    return ran->wrong_bytes ? 0 : 1;
  }
  bool leak_found = false;
  if (options.leaks_events) {
    leak_found = std::find(growing.begin(), growing.end(), kEventsAtRest) != growing.end();
    std::cout << "the leak on purpose was " << (leak_found ? "" : "NOT ") << "found\n";
  }
  // (What rose for a while in a run that was cut short may be its beginning.)
  const bool grows = !options.leaks_events && !growing.empty() && ran->signal == 0;
  const bool any_wrong = !ran->complaints.empty() || grows;
  if (any_wrong) return 1;
  if (ran->signal != 0) return kSignalled + ran->signal;
  const bool all_done = options.leaks_events ? leak_found : ran->quiet > 0;
  return all_done ? 0 : 1;
}

// Empty: it is one.
std::string is_no_worker(const std::string& name) {
  static const std::regex workers("(blocks|graphs)[0-9]+|ranks|keeper|visitor");
  return std::regex_match(name, workers) ? "" : "'" + name + "' is none of the workers";
}

constexpr double kLeastToFindALeak = 3;  // seconds

int parse_and_run(int argc, char** argv) {
  Options options;
  bool cuda = false;
  std::string samples;
  CLI::App app("Random programs of every kind at once on one allocator, watched for growth.");
  app.add_option("--seed", options.seed, "Of every worker's choices")
      ->transform(any_whole_number())
      ->capture_default_str();
  app.add_option("--seconds", options.seconds)
      ->transform(real_number(0, 1e6))
      ->capture_default_str();
  app.add_option("--threads", options.threads, "That use eager blocks, beside the other workers")
      ->transform(whole_number(1, 16))
      ->capture_default_str();
  app.add_option("--streams-per-minute", options.streams_per_minute,
                 "That go, and others come, on the allocator that lives as long as the soak")
      ->transform(real_number(0, 1e6))
      ->capture_default_str();
  app.add_option(
         "--without", options.without,
         "Workers that stay idle (blocks0, blocks1, graphs0, graphs1, ranks, keeper, visitor), to "
         "find which of them has to do with a failure")
      ->delimiter(',')
      ->check(CLI::Validator(is_no_worker, "NAME"));
  app.add_flag("--fixed-addresses", options.fixed_addresses,
               "Of the allocator that lives as long as the soak");
  app.add_flag("--lend-scratch", options.lends_scratch,
               "Likewise: its graphs lend scratch between their launches");
  app.add_flag("--cuda", cuda, "On a GPU (without: on the simulated device)");
  app.add_option("--ordinal", options.ordinal, "Of the CUDA device")
      ->transform(whole_number(0, 1023))
      ->capture_default_str();
  app.add_flag("--plant-leak", options.leaks_events,
               "Leak events on purpose; succeeds only if that is found. Needs 3 s or more");
  app.add_flag("--omit-fences", options.omits_fences,
               "Of eager blocks; succeeds only if the wrong bytes that follow are found");
  app.add_option("--judge", samples, "Judge the samples of this file instead")->check(not_empty());
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kWrongArguments;
  }
  if (options.leaks_events && options.seconds < kLeastToFindALeak) {
    std::cerr << "--plant-leak: a run of less than " << kLeastToFindALeak
              << " s has too few samples to find a leak: give more --seconds\n";
    return kWrongArguments;
  }
  options.simulated = !cuda;
  return samples.empty() ? run_soak(options) : judge(samples);
}

}  // namespace
}  // namespace weir::soak

int main(int argc, char** argv) {
  weir::occupy_closed_streams();
  const int code = weir::soak::parse_and_run(argc, argv);
  if (weir::standard_output_written()) return code;
  std::cerr << "soak: standard output could not be written\n";
  return code == 0 ? 1 : code;
}
