// SPDX-License-Identifier: Apache-2.0
// weir_sleep: how long sleep and wake take, beside a plain copy from and to pinned memory in the
// same run.
//
// usage: weir_sleep [--sim] [--gib N] [--cycles N] [--small N]
// One line a figure: name, value, unit, and what it is to be. Exit 1 where bytes were not as
// before, a call failed or standard output could not be written; 2 for wrong arguments; 77 where
// there is no GPU and --sim was not asked for.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/sleep/machine.h"
#include "tools/option_checks.h"
#include "tools/standard_output.h"
#include "weir/device_heap.h"
#include "weir/graph_pool.h"

namespace weir::sleep_bench {
namespace {

constexpr Bytes kSlab = 64_MiB;
constexpr Bytes kKeepAll{~std::uint64_t{0}};

struct Options {
  bool sim = false;
  std::uint64_t gib = 32;
  int cycles = 100;
  std::uint64_t small = 200'000;
};

template <class T>
T ok(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message());
  return *std::move(result);
}
void ok(const Status& status) {
  if (!status) throw std::runtime_error(status.error().message());
}

double seconds(Nanoseconds time) { return static_cast<double>(time.count) / 1e9; }
double gib(Bytes bytes) {
  return static_cast<double>(bytes.count) / static_cast<double>((1_GiB).count);
}

void say(const char* name, double value, const char* unit, const std::string& aim = "") {
  std::printf("%-44s %10.2f %-6s %s\n", name, value, unit, aim.c_str());
}

std::string at_most(double value) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "to be %.4g or less", value);
  return text.data();
}

class Bench {
 public:
  Bench(Machine& machine, const Options& options)
      : machine_(machine), device_(machine.device()), options_(options) {}

  void run() {
    plain_copies();
    backup();
    discard();
    small_blocks();
    graphs();
  }
  bool intact() const { return intact_; }

 private:
  double rate(Bytes bytes, Nanoseconds time) const { return gib(bytes) / seconds(time); }

  // One slab of pinned memory after the other, as sleep() copies, and nothing else.
  void plain_copies() {
    const Bytes size = 1_GiB * std::max<std::uint64_t>(1, options_.gib / 4);
    DeviceHeap heap(device_);
    const Stream stream = machine_.new_stream();
    void* const memory = ok(heap.allocate(size, stream));
    std::vector<void*> host;
    for (Bytes at; at < size; at += kSlab) host.push_back(ok(device_.allocate_host(kSlab)));
    machine_.fill(memory, size, 1, stream);
    machine_.synchronize();
    for (const auto direction : {Device::Direction::to_host, Device::Direction::to_device}) {
      const bool out = direction == Device::Direction::to_host;
      const Stream copies = ok(device_.copy_stream(direction));
      Nanoseconds best{INT64_MAX};
      for (int round = 0; round < 3; ++round) {
        const EventHandle event = ok(device_.create_event());
        const Nanoseconds begun = device_.now();
        for (std::size_t i = 0; i < host.size(); ++i) {
          const Address at = Address::of(memory) + kSlab * i;
          ok(out ? device_.copy_to_host(host[i], at, kSlab, copies)
                 : device_.copy_to_device(at, host[i], kSlab, copies));
        }
        ok(device_.record(event, copies));
        ok(device_.synchronize(event));
        best = std::min(best, device_.now() - begun);
        ok(device_.destroy_event(event));
      }
      (out ? plain_out_ : plain_in_) = rate(size, best);
      say(out ? "plain pinned copy, to the host" : "plain pinned copy, to the device",
          rate(size, best), "GiB/s");
    }
    for (void* const each : host) ok(device_.free_host(each, kSlab));
    ok(heap.deallocate(memory));
  }

  void say_share(const char* name, const SleepReport& report, double plain, const char* aim) {
    say(name, 100 * rate(report.copied, report.time) / plain, "%", aim);
  }

  void backup() {
    DeviceHeap heap(device_);
    const Stream stream = machine_.new_stream();
    std::vector<void*> blocks;
    std::vector<std::string> before;
    const Bytes each = 256_MiB;
    for (std::uint64_t i = 0; i < options_.gib * 4; ++i) {
      blocks.push_back(ok(heap.allocate(each, stream)));
      machine_.fill(blocks.back(), each, static_cast<unsigned char>(i + 1), stream);
    }
    machine_.synchronize();
    const auto sampled = [&](std::size_t i) { return i % 16 == 0; };
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      before.push_back(sampled(i) ? machine_.digest(blocks[i], each) : "");
    }
    const auto cycle = [&](Bytes keep) {
      const SleepReport slept = ok(heap.tags().sleep());
      const Residue residue = heap.tags().residue();
      if (residue.weir > 0_B) throw std::runtime_error("Weir holds memory asleep");
      const SleepReport woke = ok(heap.tags().wake({.keep_host = keep}));
      return std::pair{slept, woke};
    };
    for (const char* const which : {", the first", ", the second"}) {
      auto [out, in] = cycle({});
      say_share((std::string("sleep, no pinned memory kept") + which).c_str(), out, plain_out_,
                "of plain; to be 40 or more");
      say_share((std::string("wake, none to be kept") + which).c_str(), in, plain_in_,
                "of plain; to be 40 or more");
    }
    (void)cycle(kKeepAll);
    auto [out, in] = cycle(kKeepAll);
    say_share("sleep, pinned memory kept", out, plain_out_, "of plain; to be 90 or more");
    say_share("wake, pinned memory kept", in, plain_in_, "of plain; to be 90 or more");
    (void)cycle({});
    say("pinned memory left after a wake that keeps none", gib(heap.tags().residue().host), "GiB",
        "to be 0");
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (sampled(i)) compare(machine_.digest(blocks[i], each), before[i], "a block");
    }
    for (void* const block : blocks) ok(heap.deallocate(block));
  }

  void discard() {
    DeviceHeap heap(device_);
    const Stream stream = machine_.new_stream();
    void* const block = ok(heap.allocate(1_GiB * options_.gib, stream));
    say("discard: pages", static_cast<double>(heap.snapshot().pages.size()), "");
    for (int round = 0; round < 2; ++round) {
      const SleepReport slept = ok(heap.tags().sleep({.contents = SleepContents::discard}));
      const SleepReport woke = ok(heap.tags().wake());
      if (round == 0) continue;
      const double share = static_cast<double>(options_.gib) / 32;
      say("discard: asleep after", 1e3 * seconds(slept.time), "ms", at_most(60 * share));
      say("discard: awake after", 1e3 * seconds(woke.time), "ms", at_most(40 * share));
    }
    ok(heap.deallocate(block));
  }

  void small_blocks() {
    constexpr Bytes kSmall = 4_KiB;
    const auto timed = [&](Bytes each, std::uint64_t count) {
      DeviceHeap heap(device_);
      const Stream stream = machine_.new_stream();
      std::vector<void*> blocks;
      for (std::uint64_t i = 0; i < count; ++i) blocks.push_back(ok(heap.allocate(each, stream)));
      say("pages", static_cast<double>(heap.snapshot().pages.size()), "");
      ok(heap.tags().sleep());
      ok(heap.tags().wake({.keep_host = kKeepAll}));
      double best = 1e9;
      for (int round = 0; round < 5; ++round) {
        const SleepReport slept = ok(heap.tags().sleep());
        const SleepReport woke = ok(heap.tags().wake({.keep_host = kKeepAll}));
        best = std::min(best, seconds(slept.time) + seconds(woke.time));
      }
      for (void* const block : blocks) ok(heap.deallocate(block));
      return best;
    };
    const double small = timed(kSmall, options_.small);
    const double big = timed(kSmall * options_.small, 1);
    say("a cycle of small blocks of 4 KiB", 1e3 * small, "ms");
    say("a cycle of one block of as many bytes", 1e3 * big, "ms");
    say("small blocks over one", small / big, "", "to be 1.1 or less");
  }

  void graphs() {
    constexpr int kGraphs = 20;
    constexpr Bytes kBytes = 32_MiB;
    DeviceHeap heap(device_);
    const Stream stream = machine_.new_stream();
    GraphPool pool(heap);
    struct One {
      void* input;
      void* output;
      Graph graph;
      std::string digest;
    };
    std::vector<One> all;
    for (int i = 0; i < kGraphs; ++i) {
      One one{ok(heap.allocate(kBytes, stream)), nullptr, {}, {}};
      machine_.fill(one.input, kBytes, static_cast<unsigned char>(i + 1), stream);
      machine_.synchronize();
      CaptureScope capture = ok(CaptureScope::begin(pool, stream));
      void* const scratch = ok(heap.allocate(kBytes, stream));
      machine_.copy(scratch, one.input, kBytes, stream);
      machine_.fill(scratch, kBytes / 4, static_cast<unsigned char>(200 + i), stream);
      one.output = ok(heap.allocate(kBytes, stream));
      machine_.copy(one.output, scratch, kBytes, stream);
      ok(heap.deallocate(scratch));
      one.graph = ok(capture.end());
      all.push_back(std::move(one));
    }
    for (One& one : all) ok(one.graph.launch(stream));
    machine_.synchronize();
    for (One& one : all) one.digest = machine_.digest(one.output, kBytes);
    Nanoseconds time;
    for (int cycle = 0; cycle < options_.cycles; ++cycle) {
      const SleepReport slept = ok(heap.tags().sleep());
      const SleepReport woke = ok(heap.tags().wake({.keep_host = kKeepAll}));
      time += slept.time + woke.time;
      const bool last = cycle + 1 == options_.cycles;
      for (One& one : all) {
        if (last) compare(machine_.digest(one.output, kBytes), one.digest, "an output asleep");
        ok(one.graph.launch(stream));
      }
      machine_.synchronize();
    }
    for (One& one : all) compare(machine_.digest(one.output, kBytes), one.digest, "a replay");
    say("a cycle with 20 graphs", 1e3 * seconds(time) / options_.cycles, "ms");
    for (One& one : all) {
      one.graph = Graph();
      ok(heap.deallocate(one.output));
      ok(heap.deallocate(one.input));
    }
  }

  void compare(const std::string& is, const std::string& was, const char* what) {
    if (is == was) return;
    intact_ = false;
    std::printf("error: %s has other bytes than before\n", what);
  }

  Machine& machine_;
  Device& device_;
  const Options options_;
  double plain_out_ = 0, plain_in_ = 0;
  bool intact_ = true;
};

int parse_and_run(int argc, char** argv) {
  constexpr int kSkipped = 77, kWrongArguments = 2;
  Options options;
  CLI::App app("How long sleep and wake take, beside a plain copy from and to pinned memory.");
  app.add_flag("--sim", options.sim, "On the simulated device (without: on a GPU)");
  app.add_option("--gib", options.gib, "GiB of memory that sleeps")
      ->transform(whole_number(1, 1024))
      ->capture_default_str();
  app.add_option("--cycles", options.cycles, "Cycles of sleep and wake with graphs")
      ->transform(whole_number(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--small", options.small, "How many blocks of 4 KiB sleep")
      ->transform(whole_number(1, 10'000'000))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kWrongArguments;
  }
  const std::unique_ptr<Machine> machine = options.sim ? simulated() : gpu();
  if (machine == nullptr) {
    std::printf("there is no GPU here; --sim runs on the simulated device\n");
    return kSkipped;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // what is known is seen, whatever comes of the rest
  std::printf("%s, %llu GiB\n", machine->name().c_str(),
              static_cast<unsigned long long>(options.gib));
  Bench bench(*machine, options);
  bench.run();
  return bench.intact() ? 0 : 1;
}

}  // namespace
}  // namespace weir::sleep_bench

int main(int argc, char** argv) {
  weir::occupy_closed_streams();
  int code = 1;
  try {
    code = weir::sleep_bench::parse_and_run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
  }
  if (weir::standard_output_written()) return code;
  std::fprintf(stderr, "error: standard output could not be written\n");
  return code == 0 ? 1 : code;
}
