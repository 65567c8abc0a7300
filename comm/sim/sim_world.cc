// SPDX-License-Identifier: Apache-2.0
#include "comm/sim/sim_world.h"

#include <algorithm>
#include <utility>

#include "comm/bounded.h"

namespace weir {

Result<std::vector<std::string>> SimWorld::State::rendezvous(const std::string& key, int index,
                                                             int count, std::string brought,
                                                             std::chrono::nanoseconds host_timeout,
                                                             bool is_id) {
  const auto refused = [](const std::string& why) { return Error(ErrorCode::device, why); };
  const auto all = static_cast<std::size_t>(count);
  std::unique_lock lock(mutex);
  Rendezvous& here = all_rendezvous[key];
  if (here.over) return refused("all ranks have met under this id already: take a new one");
  if (here.brought.empty()) here.brought.resize(all);
  if (here.brought.size() != all) {
    return refused("this rank says that there are " + std::to_string(count) + ", another " +
                   std::to_string(here.brought.size()));
  }
  std::optional<std::string>& mine = here.brought[static_cast<std::size_t>(index)];
  if (mine) return refused("another came as rank " + std::to_string(index) + " already");
  mine = std::move(brought);
  here.over = ++here.arrived == all;
  came.notify_all();
  if (!came.wait_for(lock, waitable({host_timeout.count()}), [&] { return here.over; })) {
    mine.reset();
    --here.arrived;
    return refused("not all " + std::to_string(count) + " ranks came");
  }
  std::vector<std::string> values;
  for (const std::optional<std::string>& each : here.brought) values.push_back(*each);
  if (++here.left == all) {
    here.brought.clear();
    if (!is_id) all_rendezvous.erase(key);
  }
  return values;
}

bool SimWorld::State::fails(int rank, NcclCall call) {
  std::vector<std::uint64_t>& failing = ranks[static_cast<std::size_t>(rank)].failing[call];
  bool now = false;
  for (std::uint64_t& left : failing) now = --left == 0 || now;
  std::erase(failing, 0u);
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

// A copy, under the mutex.
template <class Member>
static Member read(const SimWorld::State& state, Member SimWorld::State::*member) {
  const std::lock_guard lock(state.mutex);
  return state.*member;
}
std::vector<std::string> SimWorld::mismatches() const { return read(*state_, &State::mismatches); }
std::uint64_t SimWorld::lazy_connections() const { return read(*state_, &State::lazy_connections); }
std::uint64_t SimWorld::refused_in_captures() const {
  return read(*state_, &State::refused_in_captures);
}
std::uint64_t SimWorld::operations(int rank) const {
  return read(*state_, &State::ranks)[static_cast<std::size_t>(rank)].operations;
}
std::uint64_t SimWorld::live_communicators() const {
  return read(*state_, &State::live_communicators);
}
std::uint64_t SimWorld::live_segments() const { return read(*state_, &State::live_segments); }
std::uint64_t SimWorld::live_registrations() const {
  return read(*state_, &State::live_registrations);
}
std::uint64_t SimWorld::live_streams() const { return read(*state_, &State::live_streams); }

bool SimPart::has_ended(SimWorld::State& world) const {
  const std::lock_guard lock(world.mutex);
  return ended;
}

void SimPart::end(SimWorld::State& world) {
  const std::lock_guard lock(world.mutex);
  ended = true;
  world.came.notify_all();
}

SimParty SimParty::of(const Operation& operation, int rank, int ranks) {
  const std::string mine = std::to_string(rank), other = std::to_string(operation.peer);
  if (operation.kind == OperationKind::send) return {mine + ">" + other, 0, 2};
  if (operation.kind == OperationKind::receive) return {other + ">" + mine, 1, 2};
  return {"", static_cast<std::size_t>(rank), static_cast<std::size_t>(ranks)};
}

std::string SimParty::describe(const Operation& operation, int ranks) {
  if (operation.kind == OperationKind::send || operation.kind == OperationKind::receive) {
    return std::to_string(operation.count) + " elements of " + std::string(name_of(operation.type));
  }
  return operation.describe(ranks);
}

std::string SimParty::rank_of(std::size_t party) const {
  if (list.empty()) return std::to_string(party);
  const std::size_t between = list.find('>');
  return party == 0 ? list.substr(0, between) : list.substr(between + 1);
}

SimLine::SimLine(std::shared_ptr<SimWorld::State> world, std::shared_ptr<SimPart> part,
                 SimParty party)
    : world_(std::move(world)),
      part_(std::move(part)),
      party_(std::move(party)),
      launched_([&]() -> SimComm::Launched& {
        const std::lock_guard lock(world_->mutex);
        SimComm::Launched& launched = part_->comm->launched[party_.list];
        launched.by.resize(party_.all);
        return launched;
      }()) {}

std::uint64_t SimLine::arrive(const std::string& what, bool hangs) {
  const std::lock_guard lock(world_->mutex);
  const std::uint64_t number = ++launched_.by[party_.number];
  const std::string& first = launched_.what.emplace(number, what).first->second;
  if (first != what) {
    world_->mismatches.push_back("operation " + std::to_string(number) + " of communicator '" +
                                 part_->comm->name + "': rank " + std::to_string(part_->rank) +
                                 " asks for " + what + ", another for " + first);
  }
  const std::uint64_t all = *std::min_element(launched_.by.begin(), launched_.by.end());
  launched_.what.erase(launched_.what.begin(), launched_.what.upper_bound(all));
  if (hangs) {
    if (number < hangs_from_) hanging_ = what;
    hangs_from_ = std::min(hangs_from_, number);
  }
  world_->came.notify_all();
  return number;
}

bool SimLine::came(std::uint64_t number) const {
  return std::all_of(launched_.by.begin(), launched_.by.end(),
                     [&](std::uint64_t each) { return each >= number; });
}

bool SimLine::are_there(std::uint64_t number) const {
  const std::lock_guard lock(world_->mutex);
  return part_->ended || (number < hangs_from_ && came(number));
}

Status SimLine::await(std::uint64_t number) {
  std::unique_lock lock(world_->mutex);
  const auto known = [&] { return part_->ended || number >= hangs_from_ || came(number); };
  if (!known() && !given_up_) {
    (void)world_->came.wait_for(
        lock, waitable({std::chrono::nanoseconds(world_->options.host_timeout).count()}), known);
  }
  given_up_ = given_up_ || !known();
  if (part_->ended || (number < hangs_from_ && came(number))) return {};
  return missing();
}

Status SimLine::await_all() {
  std::uint64_t last = 0;
  {
    const std::lock_guard lock(world_->mutex);
    last = launched_.by[party_.number];
  }
  return last == 0 ? Status() : await(last);
}

// The first that has not ended is the one to look at.
Error SimLine::missing() const {
  const std::uint64_t all = *std::min_element(launched_.by.begin(), launched_.by.end());
  const std::uint64_t first = std::min(hangs_from_, all + 1);
  const bool hangs = first >= hangs_from_;
  const std::string text =
      "operation " + std::to_string(first) + " of communicator '" + part_->comm->name + "'" +
      (party_.list.empty() ? "" : " between ranks " + party_.list) + ", " +
      (hangs ? hanging_ : launched_.what.at(first)) + ", has not ended on rank " +
      std::to_string(part_->rank) + " of " + std::to_string(part_->comm->size) + ": ";
  if (hangs) return {ErrorCode::device, text + "it was made to hang"};
  constexpr std::size_t kNamed = 4;
  std::string ranks;
  std::size_t named = 0;
  for (std::size_t party = 0; party < launched_.by.size(); ++party) {
    if (launched_.by[party] >= first || ++named > kNamed) continue;
    ranks += (named == 1 ? "" : ", ") + party_.rank_of(party);
  }
  if (named > kNamed) ranks += " and " + std::to_string(named - kNamed) + " more";
  return {ErrorCode::device,
          text + (named == 1 ? "rank " + ranks + " has" : "ranks " + ranks + " have") +
              " not come to it"};
}

}  // namespace weir
