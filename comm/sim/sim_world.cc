// SPDX-License-Identifier: Apache-2.0
#include "comm/sim/sim_world.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/bounded.h"

namespace weir {

Result<std::vector<std::string>> SimWorld::State::rendezvous(
    const std::string& key, int index, int count, std::string brought,
    std::chrono::nanoseconds host_timeout) {
  const auto refused = [](const std::string& why) { return Error(ErrorCode::device, why); };
  const auto all = static_cast<std::size_t>(count);
  std::unique_lock lock(mutex);
  Rendezvous& here = all_rendezvous[key];
  if (here.brought.empty()) here.brought.resize(all);
  if (here.brought.size() != all) {
    return refused(
        fmt::format("this rank says that there are {}, another {}", count, here.brought.size()));
  }
  std::optional<std::string>& mine = here.brought[static_cast<std::size_t>(index)];
  if (mine) return refused(fmt::format("another came as rank {} already", index));
  mine = std::move(brought);
  ++here.arrived;
  came.notify_all();
  if (!came.wait_for(lock, waitable({host_timeout.count()}), [&] { return here.arrived == all; })) {
    mine.reset();
    --here.arrived;
    return refused(fmt::format("not all {} ranks came", count));
  }
  std::vector<std::string> values;
  for (const std::optional<std::string>& each : here.brought) values.push_back(*each);
  if (++here.left == all) all_rendezvous.erase(key);
  return values;
}

bool happens(std::vector<std::uint64_t>& calls_left) {
  bool now = false;
  for (std::uint64_t& left : calls_left) now = --left == 0 || now;
  std::erase(calls_left, 0u);
  return now;
}

SimWorld::SimWorld(SimWorldOptions options) : state_(std::make_shared<State>(options)) {}
SimWorld::~SimWorld() = default;

std::unique_ptr<Nccl> SimWorld::rank(int rank, SimDevice& device) {
  const bool is_one = rank >= 0 && rank < state_->options.ranks;
  return is_one ? make_sim_nccl(state_, rank, device) : nullptr;
}

void SimWorld::fail(int rank, NcclCall call, std::uint64_t nth) {
  const std::lock_guard lock(state_->mutex);
  state_->ranks[static_cast<std::size_t>(rank)].failing[call].push_back(nth);
}
void SimWorld::hang(int rank, std::uint64_t nth) {
  const std::lock_guard lock(state_->mutex);
  state_->ranks[static_cast<std::size_t>(rank)].hanging.push_back(nth);
}
void SimWorld::set_async_error(int rank, std::string error) {
  const std::lock_guard lock(state_->mutex);
  state_->ranks[static_cast<std::size_t>(rank)].async_error = std::move(error);
}
std::vector<std::string> SimWorld::mismatches() const {
  const std::lock_guard lock(state_->mutex);
  return state_->mismatches;
}
std::uint64_t SimWorld::operations(int rank) const {
  const std::lock_guard lock(state_->mutex);
  return state_->ranks[static_cast<std::size_t>(rank)].operations;
}
SimCounts SimWorld::counts() const {
  const std::lock_guard lock(state_->mutex);
  return state_->counts;
}

SimParty SimParty::of(const Operation& operation, const SimPart& part) {
  const int mine = part.rank, other = operation.peer;
  if (operation.kind == OperationKind::send) {
    return {fmt::format("{}>{}", mine, other), 0, {mine, other}};
  }
  if (operation.kind == OperationKind::receive) {
    return {fmt::format("{}>{}", other, mine), 1, {other, mine}};
  }
  std::vector<int> all(static_cast<std::size_t>(part.comm->size));
  std::iota(all.begin(), all.end(), 0);
  return {"", static_cast<std::size_t>(mine), std::move(all)};
}

SimLine::SimLine(std::shared_ptr<SimWorld::State> world, std::shared_ptr<SimPart> part,
                 SimParty party)
    : world_(std::move(world)),
      part_(std::move(part)),
      party_(std::move(party)),
      launched_(part_->comm->launched[party_.list]) {
  launched_.by.resize(party_.ranks.size());
}

std::uint64_t SimLine::arrive(const std::string& what) {
  const std::lock_guard lock(world_->mutex);
  const std::uint64_t number = ++launched_.by[party_.number];
  const std::string& first = launched_.what.emplace(number, what).first->second;
  if (first != what) {
    world_->mismatches.push_back(
        fmt::format("operation {} of communicator '{}': rank {} asks for {}, another for {}",
                    number, part_->comm->name, part_->rank, what, first));
  }
  const std::uint64_t all = *std::min_element(launched_.by.begin(), launched_.by.end());
  launched_.what.erase(launched_.what.begin(), launched_.what.upper_bound(all));
  world_->came.notify_all();
  return number;
}

bool SimLine::came(std::uint64_t number) const {
  return part_->ended || std::all_of(launched_.by.begin(), launched_.by.end(),
                                     [&](std::uint64_t each) { return each >= number; });
}

bool SimLine::are_there(std::uint64_t number) const {
  const std::lock_guard lock(world_->mutex);
  return came(number);
}

bool SimLine::has_ended() const {
  const std::lock_guard lock(world_->mutex);
  return part_->ended;
}

Status SimLine::await(std::uint64_t number) {
  std::unique_lock lock(world_->mutex);
  const std::chrono::nanoseconds longest = world_->options.host_timeout;
  if (!came(number) && !given_up_) {
    given_up_ =
        !world_->came.wait_for(lock, waitable({longest.count()}), [&] { return came(number); });
  }
  return came(number) ? Status() : missing();
}

Status SimLine::await_all() {
  std::uint64_t last = 0;
  {
    const std::lock_guard lock(world_->mutex);
    last = launched_.by[party_.number];
  }
  return await(last);
}

// The first that has not ended is the one to look at.
Error SimLine::missing() const {
  const std::uint64_t first = *std::min_element(launched_.by.begin(), launched_.by.end()) + 1;
  std::vector<int> ranks;
  for (std::size_t party = 0; party < launched_.by.size(); ++party) {
    if (launched_.by[party] < first) ranks.push_back(party_.ranks[party]);
  }
  return {
      ErrorCode::device,
      fmt::format(
          "operation {} of communicator '{}'{}{}, {}, has not ended on rank {} of {}: "
          "rank{} {} not come to it",
          first, part_->comm->name, party_.list.empty() ? "" : " between ranks ", party_.list,
          launched_.what.at(first), part_->rank, part_->comm->size, ranks.size() == 1 ? "" : "s",
          fmt::format("{} {}", fmt::join(ranks, ", "), ranks.size() == 1 ? "has" : "have"))};
}

}  // namespace weir
