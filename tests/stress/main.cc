// SPDX-License-Identifier: Apache-2.0
// The stress test of the device heap. Exit: 0 all bytes right, 1 not, 2 for wrong arguments, 77 no
// such device.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/stress/program.h"
#include "tools/option_checks.h"
#include "weir/config.h"
#include "weir/metered_device.h"

namespace weir::stress {
namespace {

constexpr int kWrongArguments = 2;
constexpr int kNoDevice = 77;  // what ctest is told to take for "skipped"

struct Session {
  Options options;
  std::unique_ptr<Gpu> gpu;
  std::unique_ptr<MeteredDevice> metered;
  std::unique_ptr<DeviceHeap> heap;
  std::vector<Stream> streams;
  Bytes free_before;
  Tally tally;
  std::uint64_t rounds = 0;
  std::size_t aliased_pages = 0;  // most at the end of a round
};

Result<std::unique_ptr<Gpu>> open_gpu(const Options& options) {
  if (options.simulated) return open_sim_gpu();
  return open_cuda_gpu(options.ordinal);
}

Result<Session> open(const Options& options) {
  Session session;
  session.options = options;
  Result<std::unique_ptr<Gpu>> gpu = open_gpu(options);
  if (!gpu.ok()) return std::move(gpu).error();
  session.gpu = std::move(*gpu);
  for (unsigned i = 0; i < options.streams; ++i) {
    Result<Stream> stream = session.gpu->new_stream();
    if (!stream.ok()) return std::move(stream).error();
    session.streams.push_back(*stream);
  }
  session.metered = std::make_unique<MeteredDevice>(session.gpu->device());
  Result<MemoryInfo> memory = session.gpu->device().memory_info();
  if (!memory.ok()) return std::move(memory).error();
  session.free_before = memory->free;
  session.heap =
      std::make_unique<DeviceHeap>(*session.metered, HeapOptions{.limit = options.limit});
  return session;
}

Status synchronize_all(const Session& session) {
  for (const Stream& stream : session.streams) {
    if (Status done = session.gpu->synchronize(stream); !done) return done;
  }
  return {};
}

// All threads' programs, and what must hold when they have ended.
Status run_round(Session& session, std::uint64_t seed) {
  Exchange exchange;
  const Environment environment{session.options, *session.heap, *session.gpu, session.streams,
                                exchange};
  std::vector<Status> statuses(session.options.threads);
  std::vector<Tally> tallies(session.options.threads);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < session.options.threads; ++i) {
    threads.emplace_back([&, i] {
      Program program(environment, seed * 1000 + i);
      statuses[i] = program.run();
      tallies[i] = program.tally();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Tally& tally : tallies) session.tally += tally;
  if (Status done = synchronize_all(session); !done) return done;
  for (Status& status : statuses) {
    if (!status.ok()) return std::move(status);
  }
  // One thread may have handed a block over after the others had looked.
  for (Block block; exchange.take(&block);) {
    if (Status done = session.heap->deallocate(block.pointer); !done) return done;
  }
  return {};
}

// What the heap says of itself between rounds. True if all is well.
bool check_heap(Session& session) {
  bool sound = true;
  for (const std::string& broken : session.heap->validate()) {
    std::fprintf(stderr, "stress: validate: %s\n", broken.c_str());
    sound = false;
  }
  const Statistics statistics = session.heap->statistics();
  if (statistics.live_blocks.current != 0 || statistics.live_bytes.current != 0) {
    std::fprintf(stderr, "stress: %llu blocks still live after all were deallocated\n",
                 static_cast<unsigned long long>(statistics.live_blocks.current));
    sound = false;
  }
  std::size_t aliased = 0;
  for (const PageInfo& page : session.heap->snapshot().pages) aliased += page.mappings > 1 ? 1 : 0;
  session.aliased_pages = std::max(session.aliased_pages, aliased);
  return sound;
}

double mib(Bytes bytes) { return static_cast<double>(bytes.count) / (1 << 20); }
unsigned long long number(std::uint64_t value) { return value; }

void print_statistics(Session& session, const Findings& findings) {
  const Tally& tally = session.tally;
  const Statistics statistics = session.heap->statistics();
  std::printf(
      "rounds %llu, allocations %llu (%.0f MiB in all), deallocations %llu, handed over %llu\n",
      number(session.rounds), number(tally.allocations), mib(tally.allocated),
      number(tally.deallocations), number(tally.handed_over));
  std::printf(
      "uses on other streams %llu, fences %llu, rewrites %llu, out of memory %llu, trims %llu\n",
      number(tally.cross_uses), number(tally.fences), number(tally.rewrites),
      number(tally.out_of_memory), number(tally.trims));
  std::printf(
      "peaks: live %.1f MiB, reserved %.1f MiB, mapped %.1f MiB; stream waits %llu, host waits "
      "%llu\n",
      mib({statistics.live_bytes.peak}), mib({statistics.reserved_bytes.peak}),
      mib({statistics.mapped_bytes.peak}), number(statistics.stream_waits),
      number(statistics.host_waits));
  std::printf("pages with several addresses, at the end of a round: up to %zu\n",
              session.aliased_pages);
  if (const Result<MemoryInfo> memory = session.gpu->device().memory_info(); memory.ok()) {
    std::printf("reserved now %.1f MiB; the driver has %.1f MiB less than at the start\n",
                mib({statistics.reserved_bytes.current}), mib(session.free_before - memory->free));
  }
  std::printf("driver calls:");
  for (int i = 0; i < kDeviceCalls; ++i) {
    const auto call = static_cast<DeviceCall>(i);
    if (session.metered->calls(call) == 0) continue;
    std::printf(" %s %llu", std::string(name_of(call)).c_str(),
                number(session.metered->calls(call)));
  }
  std::printf("\n%s\n", findings.description.c_str());
}

int failed(const Error& error) {
  std::fprintf(stderr, "stress: %s\n", error.message().c_str());
  return error.code() == ErrorCode::unavailable ? kNoDevice : 1;
}

int run(const Options& options) {
  Result<Session> opened = open(options);
  if (!opened.ok()) return failed(opened.error());
  Session session = std::move(*opened);
  std::printf("stress on %s: seed %llu, %u streams, %u threads\n",
              session.gpu->device().name().c_str(), number(options.seed), options.streams,
              options.threads);
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(options.seconds);
  bool sound = true;
  Findings findings;
  do {
    const std::uint64_t seed = options.seed + session.rounds++;
    if (Status done = run_round(session, seed); !done) {
      std::fprintf(stderr, "stress: the round with --seed %llu:\n", number(seed));
      return failed(done.error());
    }
    sound = check_heap(session);
    Result<Findings> found = session.gpu->findings();
    if (!found.ok()) return failed(found.error());
    findings = *found;
    if (!sound || findings.wrong != 0) {
      std::fprintf(stderr, "stress: wrong in the round with --seed %llu\n", number(seed));
      break;
    }
  } while (Clock::now() < end);
  print_statistics(session, findings);
  if (options.omit_fences) {
    std::printf("fences were omitted: %s\n", findings.wrong != 0 ? "found" : "NOT found");
    return sound && findings.wrong != 0 ? 0 : 1;
  }
  return sound && findings.wrong == 0 ? 0 : 1;
}

// Allows a size such as 64KiB, of `least` to 1 PiB, and gives CLI11 the number of bytes.
CLI::Validator size(Bytes least) {
  const auto check = [least](std::string& text) -> std::string {
    const Result<Bytes> bytes = parse_bytes(text);
    if (!bytes || *bytes < least || *bytes > 1024_TiB) {
      return "'" + text + "' is not a size from " + std::to_string(least.count) + " B to 1 PiB";
    }
    text = std::to_string(bytes->count);
    return {};
  };
  return {check, "SIZE"};
}

int parse_and_run(int argc, char** argv) {
  Options options;
  CLI::App app("Random programs over the device heap, every byte checked.");
  app.add_option("--seed", options.seed, "Of the first round; each round adds one")
      ->transform(any_whole_number())
      ->capture_default_str();
  app.add_option("--seconds", options.seconds, "Rounds begin until then")
      ->transform(real_number(0, 1e6))
      ->capture_default_str();
  app.add_option("--streams", options.streams)
      ->transform(whole_number(1, 64))
      ->capture_default_str();
  app.add_option("--threads", options.threads)
      ->transform(whole_number(1, 64))
      ->capture_default_str();
  app.add_option("--steps", options.steps, "Of each thread in a round")
      ->transform(whole_number(1, 1'000'000'000))
      ->capture_default_str();
  app.add_option("--limit", options.limit.count, "Of the heap; suffixes as in 4GiB; 0: none")
      ->transform(size(0_B));
  app.add_option("--max-bytes", options.max_bytes.count, "Of one block")->transform(size(1_B));
  app.add_option("--max-delay-ns", options.max_delay.count, "Of one kernel")
      ->transform(whole_number(0, 1'000'000'000))
      ->capture_default_str();
  app.add_flag("--simulated", options.simulated, "On the simulated device");
  app.add_option("--ordinal", options.ordinal, "Of the CUDA device")
      ->transform(whole_number(0, 1023))
      ->capture_default_str();
  app.add_flag("--omit-fences", options.omit_fences,
               "Take no fences; succeeds only if the wrong bytes that follow are found");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kWrongArguments;
  }
  return run(options);
}

}  // namespace
}  // namespace weir::stress

int main(int argc, char** argv) { return weir::stress::parse_and_run(argc, argv); }
