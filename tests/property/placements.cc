// SPDX-License-Identifier: Apache-2.0
// Runs a recorded program on a simulated device of its own, and prints where its memory lay.
//
// usage: weir_placements TRACE SEED MODE TRUST
//
// MODE: fixed, any. TRUST: told, context. The seed decides what a program does not tell: where the
// driver has free addresses, how long kernels and calls of the driver take, how far the host runs
// ahead, which ids the streams have, and whether somebody records.
//
// Prints a hash of all addresses in order, if it recorded them; placements and hash of each pool;
// and the most memory that was held. Exit: 0; 1 if the replay failed; 2 for wrong arguments.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "replay/replay.h"
#include "replay/trace_reader.h"
#include "tests/splitmix.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

using test::SplitMix;

CostModel costs_of(SplitMix& random) {
  CostModel costs;
  for (Nanoseconds* const cost :
       {&costs.create, &costs.set_access_per_mapping, &costs.unmap_per_mapping, &costs.release,
        &costs.record, &costs.query, &costs.wait, &costs.launch_graph, &costs.reserve}) {
    cost->count = cost->count * static_cast<std::int64_t>(random.below(64)) / 8;
  }
  return costs;
}

// A GPU of any speed, before a host that is late or early.
class Machine final : public ReplayDevice {
 public:
  Machine(SimDevice& device, std::uint64_t seed, std::uint64_t other_streams)
      : sim_(device), random_(seed), slowness_(static_cast<std::int64_t>(random_.below(200))) {
    for (std::uint64_t i = 0; i < other_streams; ++i) (void)sim_.new_stream();
  }
  std::string_view name() const override { return "sim"; }
  MeteredDevice& device() override { return metered_; }
  Result<MemoryInfo> memory() override { return sim_.memory_info(); }
  Result<Stream> new_stream() override {
    const Stream stream = sim_.new_stream();
    Result<EventHandle> event = sim_.create_event();
    if (!event) return std::move(event).error();
    events_.emplace(stream.id, *event);
    return stream;
  }
  Status write(Stream stream, const BlockUse& block) override {
    return sim_.launch(stream, Writes(block.pointer, block.bytes), slow(kShortWork));
  }
  Status read(Stream stream, const BlockUse& block, Nanoseconds duration) override {
    return sim_.launch(stream, Reads(block.pointer, block.bytes), slow(duration));
  }
  Status order(Stream later, Stream earlier) override {
    const EventHandle event = events_.at(earlier.id);
    if (Status status = sim_.record(event, earlier); !status) return status;
    return sim_.wait(later, event);
  }
  void advance_to(Nanoseconds time) override {
    sim_.advance_to(time);
    if (random_.below(16) == 0) sim_.advance({static_cast<std::int64_t>(random_.below(2'000'000))});
  }
  Status finish() override {
    sim_.finish();
    return {};
  }
  std::optional<std::uint64_t> races() const override { return sim_.race_count(); }
  std::string first_race() const override {
    const std::vector<Race> races = sim_.races();
    return races.empty() ? "" : races.front().describe();
  }

 private:
  Nanoseconds slow(Nanoseconds duration) const { return {duration.count * slowness_ / 8}; }

  SimDevice& sim_;
  SplitMix random_;
  const std::int64_t slowness_;
  MeteredDevice metered_{sim_};
  std::unordered_map<std::uint64_t, EventHandle> events_;
};

// Records, and hashes the addresses.
class AddressHash final : public ReplayWatcher {
 public:
  void on_stream(std::uint64_t, std::uint64_t) override {}
  void on_pass_begin(Nanoseconds) override {}
  void on_phase(std::string_view, Nanoseconds) override {}
  void on_pass_end(Nanoseconds) override {}
  void on_event(const Event& event) override {
    if (event.kind != EventKind::allocate) return;
    hash_ = hash_ * 0x100000001b3 + event.address.value;
  }
  std::uint64_t hash() const { return hash_; }

 private:
  std::uint64_t hash_ = 0;
};

int fail(const std::string& why) {
  std::fprintf(stderr, "weir_placements: %s\n", why.c_str());
  return 1;
}

int run(const std::string& path, std::uint64_t seed, Addresses addresses, Trust trust) {
  const Result<Trace> trace = read_trace(path);
  if (!trace) return fail(trace.error().message());
  SplitMix random(seed);
  SimDevice sim({.address_seed = random.next() | 1,
                 .check_races = random.below(4) == 0,
                 .costs = costs_of(random)});
  Machine machine(sim, random.next(), random.below(300));
  AddressHash watcher;
  const bool watched = random.below(2) == 0;
  const Result<ReplayReport> report = replay(*trace, machine,
                                             {.trust = trust,
                                              .addresses = addresses,
                                              .passes = 2,
                                              .watcher = watched ? &watcher : nullptr});
  if (!report) return fail(report.error().message());
  if (report->failure) return fail(report->failure->message);
  if (*report->all.races != 0) return fail(report->first_race);
  const auto number = [](auto value) { return static_cast<unsigned long long>(value); };
  if (watched) std::printf("addresses %016llx\n", number(watcher.hash()));
  for (const PoolLayout& each : report->layouts) {
    std::printf("pool %llu %llu %016llx\n", number(each.pool), number(each.placements),
                number(each.hash));
  }
  std::printf("held %llu\n", number(report->all.peak_reserved.count));
  return 0;
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: weir_placements TRACE SEED fixed|any told|context\n");
    return 2;
  }
  return weir::run(argv[1], std::strtoull(argv[2], nullptr, 10),
                   std::strcmp(argv[3], "any") == 0 ? weir::Addresses::any : weir::Addresses::fixed,
                   std::strcmp(argv[4], "told") == 0 ? weir::Trust::told : weir::Trust::context);
}
