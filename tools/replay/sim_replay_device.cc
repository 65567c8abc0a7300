// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <bit>
#include <cstdint>
#include <unordered_map>

#include "replay/replay_device.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

class SimReplayDevice final : public ReplayDevice {
 public:
  SimReplayDevice(Bytes memory, const CostModel& costs, bool checked)
      : sim_(SimOptions{.memory = memory, .check_races = checked, .costs = costs}) {}
  std::string_view name() const override { return "sim"; }
  MeteredDevice& device() override { return metered_; }

  Result<MemoryInfo> memory() override { return sim_.memory_info(); }

  Result<Stream> new_stream() override {
    const Stream stream = sim_.new_stream();
    Result<EventHandle> event = sim_.create_event();
    if (!event.ok()) return std::move(event).error();
    events_.emplace(stream.id, *event);
    return stream;
  }

  Status write(Stream stream, const BlockUse& block) override {
    return sim_.launch(stream, Writes(block.pointer, block.bytes), kShortWork);
  }
  Status read(Stream stream, const BlockUse& block, Nanoseconds duration) override {
    return sim_.launch(stream, Reads(block.pointer, block.bytes), duration);
  }

  Status order(Stream later, Stream earlier) override {
    const EventHandle event = events_.at(earlier.id);
    if (Status status = sim_.record(event, earlier); !status.ok()) return status;
    return sim_.wait(later, event);
  }

  void advance_to(Nanoseconds time) override { sim_.advance_to(time); }
  Status finish() override {
    sim_.finish();
    return {};
  }

  void run_in_random_orders(GraphHandle graph, std::uint64_t orders) override {
    for (std::uint64_t seed = 1; seed <= orders; ++seed) {
      wrong_reads_ += sim_.replay_in_random_order(graph, seed);
    }
  }

  std::optional<std::uint64_t> races() const override { return sim_.race_count() + wrong_reads_; }
  std::string first_race() const override {
    const std::vector<Race> races = sim_.races();
    return races.empty() ? "" : races.front().describe();
  }

 private:
  SimDevice sim_;
  MeteredDevice metered_{sim_};
  std::uint64_t wrong_reads_ = 0;
  std::unordered_map<std::uint64_t, EventHandle> events_;  // the program's own, one for each stream
};

}  // namespace

std::unique_ptr<ReplayDevice> make_sim_replay_device(Bytes memory, bool timed, bool checked) {
  using Zeros = std::array<std::int64_t, sizeof(CostModel) / sizeof(Nanoseconds)>;
  return std::make_unique<SimReplayDevice>(
      memory, timed ? CostModel{} : std::bit_cast<CostModel>(Zeros{}), checked);
}

}  // namespace weir
