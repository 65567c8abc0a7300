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
std::uint64_t SimWorld::made_communicators() const {
  return read(*state_, &State::made_communicators);
}
std::uint64_t SimWorld::live_communicators() const {
  return read(*state_, &State::live_communicators);
}
std::uint64_t SimWorld::live_segments() const { return read(*state_, &State::live_segments); }
std::uint64_t SimWorld::live_registrations() const {
  return read(*state_, &State::live_registrations);
}
std::uint64_t SimWorld::live_streams() const { return read(*state_, &State::live_streams); }

}  // namespace weir
