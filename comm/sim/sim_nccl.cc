// SPDX-License-Identifier: Apache-2.0
// One simulated rank.
#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "comm/sim/sim_world.h"
#include "core/base/format.h"

namespace weir {
namespace {

Error refused(const std::string& call, const std::string& why) {
  return {ErrorCode::device, call + ": " + why};
}

Nanoseconds kernel_time(const SimWorldOptions& options, Bytes bytes) {
  const double moved = static_cast<double>(bytes.count) / options.bytes_per_nanosecond;
  return options.latency + Nanoseconds{static_cast<std::int64_t>(moved)};
}

class SimNccl final : public Nccl {
 public:
  SimNccl(std::shared_ptr<SimWorld::State> world, int rank, SimDevice& device)
      : world_(std::move(world)), rank_(rank), device_(device) {}

  std::string version() const override { return "simulated"; }

  Result<UniqueId> unique_id() override {
    const std::lock_guard lock(world_->mutex);
    UniqueId id;
    const std::string text = "simulated " + std::to_string(++world_->last_id);
    std::memcpy(id.bytes.data(), text.data(), text.size());
    return id;
  }

  Result<CommHandle> init(const UniqueId& id, int ranks, int rank,
                          const CommConfig& config) override {
    if (fails(NcclCall::init)) return refused("init", "made to fail");
    const std::string key = std::string(id.bytes.data()) + " init";
    if (rank < 0 || rank >= ranks) {
      return refused("init",
                     "there is no rank " + std::to_string(rank) + " of " + std::to_string(ranks));
    }
    const auto all = world_->rendezvous(key, rank, ranks, "", world_->options.host_timeout,
                                        /*is_id=*/true);
    if (!all) return refused("init", "'" + config.name + "': " + all.error().message());
    return join(key, ranks, rank, config.name);
  }

  Result<CommHandle> split(CommHandle comm, int color, int key, const CommConfig& config) override {
    if (fails(NcclCall::split)) return refused("split", "made to fail");
    Mine& parent = at(comm);
    const std::string where = parent.next_rendezvous("split");
    const auto all = world_->rendezvous(where, parent.part->rank, parent.part->comm->size,
                                        std::to_string(color) + " " + std::to_string(key),
                                        world_->options.host_timeout);
    if (!all) return refused("split", all.error().message());
    if (color < 0) return CommHandle{};
    std::vector<std::pair<int, int>> members;  // key, rank
    for (int rank = 0; rank < parent.part->comm->size; ++rank) {
      const std::string& entry = (*all)[static_cast<std::size_t>(rank)];
      if (std::stoi(entry) != color) continue;
      members.emplace_back(std::stoi(entry.substr(entry.find(' '))), rank);
    }
    std::sort(members.begin(), members.end());
    const auto mine = std::find(members.begin(), members.end(), std::pair(key, parent.part->rank));
    return join(where + " color " + std::to_string(color), static_cast<int>(members.size()),
                static_cast<int>(mine - members.begin()), config.name);
  }

  Status destroy(CommHandle comm) override {
    if (fails(NcclCall::destroy)) return refused("destroy", "made to fail");
    for (const std::shared_ptr<SimLine>& line : lines(comm)) {
      const Status ended = line->await_all();
      if (!ended) return refused("destroy", "it would wait for ever: " + ended.error().message());
    }
    return forget(comm);
  }
  Status abort(CommHandle comm) override { return forget(comm); }
  Status revoke(CommHandle comm) override {
    at(comm).part->end(*world_);
    return {};
  }

  Status async_error(CommHandle) override {
    const std::lock_guard lock(world_->mutex);
    const std::string& error = world_->ranks[static_cast<std::size_t>(rank_)].async_error;
    if (error.empty()) return {};
    return refused("ncclCommGetAsyncError", error);
  }

  Result<int> size(CommHandle comm) override { return at(comm).part->comm->size; }
  Result<int> rank(CommHandle comm) override { return at(comm).part->rank; }

  // What comes before an operation that is refused runs.
  Status enqueue(CommHandle comm, std::span<const Operation> group, Stream stream) override {
    Mine& mine = at(comm);
    for (const Operation& operation : group) {
      if (fails(NcclCall::enqueue)) return refused("enqueue", "made to fail");
      if (has_ended(mine)) return refused("enqueue", "the communicator was aborted");
      const Status good = operation.check(mine.part->comm->size, mine.part->rank);
      if (!good) return refused("enqueue", good.error().message());
      if (Status ran = run(mine, operation, stream); !ran) return ran;
    }
    return {};
  }

  Result<Address> allocate_segment(Bytes bytes) override {
    if (fails(NcclCall::allocate_segment)) return refused("allocate_segment", "made to fail");
    const Bytes size = round_up(bytes, device_.granularity());
    Result<Address> address = device_.allocate_segment(size);
    if (!address) return address;
    const std::lock_guard lock(mutex_);
    segments_[address->value] = size;
    count(&SimWorld::State::live_segments, 1);
    return address;
  }

  Status free_segment(Address segment) override {
    Bytes bytes;
    {
      const std::lock_guard lock(mutex_);
      const auto found = segments_.find(segment.value);
      if (found == segments_.end()) return refused("free_segment", "there is none");
      for (const auto& [handle, range] : registered_) {
        if (range == segment) {
          return refused("free_segment", format(segment) + " is still registered");
        }
      }
      bytes = found->second;
      segments_.erase(found);
    }
    count(&SimWorld::State::live_segments, -1);
    return device_.free_segment(segment, bytes);
  }

  Result<RegistrationHandle> register_range(CommHandle, Address address, Bytes bytes) override {
    if (fails(NcclCall::register_range)) return refused("register_range", "made to fail");
    const std::lock_guard lock(mutex_);
    const auto found = segments_.find(address.value);
    if (found == segments_.end() || found->second != bytes) {
      return refused("register_range", format(address) + " is not one whole segment");
    }
    registered_[++last_registration_] = address;
    count(&SimWorld::State::live_registrations, 1);
    return RegistrationHandle{last_registration_};
  }

  Status deregister(CommHandle, RegistrationHandle registration) override {
    const std::lock_guard lock(mutex_);
    if (registered_.erase(registration.value) == 0) return refused("deregister", "there is none");
    count(&SimWorld::State::live_registrations, -1);
    return {};
  }

  Result<Stream> create_stream() override {
    count(&SimWorld::State::live_streams, 1);
    return device_.new_stream();
  }
  Status destroy_stream(Stream stream) override {
    Status destroyed = device_.destroy_stream(stream);
    if (destroyed) count(&SimWorld::State::live_streams, -1);
    return destroyed;
  }

  Result<std::vector<std::vector<std::byte>>> host_all_gather(CommHandle comm,
                                                              std::span<const std::byte> mine,
                                                              Nanoseconds timeout) override {
    Mine& of = at(comm);
    if (has_ended(of)) return refused("host_all_gather", "the communicator was aborted");
    const auto all = world_->rendezvous(
        of.next_rendezvous("host_all_gather"), of.part->rank, of.part->comm->size,
        std::string(reinterpret_cast<const char*>(mine.data()), mine.size()),
        std::min<std::chrono::nanoseconds>(std::chrono::nanoseconds(timeout.count),
                                           world_->options.host_timeout));
    if (!all) return refused("host_all_gather", all.error().message());
    std::vector<std::vector<std::byte>> bytes;
    for (const std::string& each : *all) {
      const auto* const begin = reinterpret_cast<const std::byte*>(each.data());
      bytes.emplace_back(begin, begin + each.size());
    }
    return bytes;
  }

 private:
  // This rank's part of a communicator.
  struct Mine {
    std::shared_ptr<SimPart> part = std::make_shared<SimPart>();
    std::map<std::pair<std::string, std::size_t>, std::shared_ptr<SimLine>> lines;  // under mutex_
    std::uint64_t rendezvous_count = 0;
    std::string next_rendezvous(const std::string& what) {
      return "communicator " + std::to_string(part->comm->id) + " " + what + " " +
             std::to_string(++rendezvous_count);
    }
    bool connected = false;    // rings and trees
    std::set<int> peers = {};  // connected by a send or a receive
  };
  bool fails(NcclCall call) {
    const std::lock_guard lock(world_->mutex);
    return world_->fails(rank_, call);
  }
  void count(std::uint64_t SimWorld::State::*counter, int by) {
    const std::shared_ptr<SimWorld::State> world = world_;  // which may be all that is left
    const std::lock_guard lock(world->mutex);
    (*world).*counter += static_cast<std::uint64_t>(by);
  }
  Mine& at(CommHandle comm) {
    const std::lock_guard lock(mutex_);
    return *comms_.at(comm.value);
  }

  bool has_ended(const Mine& of) const { return of.part->has_ended(*world_); }
  std::vector<std::shared_ptr<SimLine>> lines(CommHandle comm) {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<SimLine>> all;
    const auto found = comms_.find(comm.value);
    if (found == comms_.end()) return all;
    for (const auto& [key, line] : found->second->lines) all.push_back(line);
    return all;
  }
  std::shared_ptr<SimLine> line(Mine& of, const Operation& operation) {
    SimParty party = SimParty::of(operation, of.part->rank, of.part->comm->size);
    const std::lock_guard lock(mutex_);
    std::shared_ptr<SimLine>& line = of.lines[{party.list, party.number}];
    if (line == nullptr) line = std::make_shared<SimLine>(world_, of.part, std::move(party));
    return line;
  }

  CommHandle join(const std::string& agreed, int size, int rank, const std::string& name) {
    auto mine = std::make_unique<Mine>();
    mine->part->rank = rank;
    mine->connected = world_->options.connects_at_once;
    CommHandle handle;
    {
      const std::lock_guard lock(world_->mutex);
      std::shared_ptr<SimComm>& comm = world_->comms[agreed];
      if (comm == nullptr) {
        comm = std::make_shared<SimComm>(
            SimComm{.id = ++world_->last_id, .size = size, .name = name, .launched = {}});
      }
      mine->part->comm = comm;
      if (++comm->joined == size) world_->comms.erase(agreed);
      handle.value = ++world_->last_id;
      ++world_->live_communicators;
    }
    const std::lock_guard lock(mutex_);
    comms_[handle.value] = std::move(mine);
    return handle;
  }

  Status forget(CommHandle comm) {
    std::unique_ptr<Mine> gone;
    {
      const std::lock_guard lock(mutex_);
      const auto found = comms_.find(comm.value);
      if (found == comms_.end()) return refused("destroy", "there is no such communicator");
      gone = std::move(found->second);
      comms_.erase(found);
    }
    gone->part->end(*world_);
    count(&SimWorld::State::live_communicators, -1);
    return {};
  }

  // May it run as things stand? Connects what it needs.
  Status connect(Mine& mine, const Operation& operation, bool captured) {
    std::set<int> missing;
    const bool pair =
        operation.kind == OperationKind::send || operation.kind == OperationKind::receive;
    for (int peer = 0; operation.is_point_to_point() && peer < mine.part->comm->size; ++peer) {
      if (pair && peer != operation.peer) continue;
      if (!mine.peers.contains(peer)) missing.insert(peer);
    }
    const bool rings = !operation.is_point_to_point() && !mine.connected;
    if (missing.empty() && !rings) return {};
    const std::lock_guard lock(world_->mutex);
    if (captured) {
      ++world_->refused_in_captures;
      return refused(std::string(name_of(operation.kind)),
                     "operation not permitted when stream is capturing");
    }
    world_->lazy_connections += missing.size() + (rings ? 1 : 0);
    mine.peers.merge(missing);
    mine.connected = mine.connected || rings;
    return {};
  }

  Status run(Mine& mine, const Operation& operation, Stream stream) {
    const Result<CaptureInfo> info = device_.capture_info(stream);
    if (!info) return info.error();
    const bool captured = info->status != CaptureInfo::Status::none;
    if (Status connected = connect(mine, operation, captured); !connected) return connected;
    bool hangs = false;
    {
      const std::lock_guard lock(world_->mutex);
      SimWorld::State::Rank& rank = world_->ranks[static_cast<std::size_t>(rank_)];
      ++rank.operations;
      for (std::uint64_t& left : rank.hanging) hangs = --left == 0 || hangs;
      std::erase(rank.hanging, 0u);
    }
    const Bytes reads = operation.reads(mine.part->comm->size, mine.part->rank);
    const Bytes writes = operation.writes(mine.part->comm->size, mine.part->rank);
    std::vector<Access> accesses;
    if (reads > 0_B) accesses.push_back(Reads(operation.send, reads));
    if (writes > 0_B) accesses.push_back(Writes(operation.receive, writes));
    SimRendezvous others{line(mine, operation),
                         SimParty::describe(operation, mine.part->comm->size)};
    if (hangs) {
      others.peers = std::make_shared<SimHanging>(std::static_pointer_cast<SimLine>(others.peers));
    }
    device_.advance(world_->options.host_time);
    return device_.launch(stream, accesses, kernel_time(world_->options, std::max(reads, writes)),
                          others);
  }

  const std::shared_ptr<SimWorld::State> world_;
  const int rank_;
  SimDevice& device_;

  std::mutex mutex_;  // of what follows
  std::unordered_map<std::uint64_t, std::unique_ptr<Mine>> comms_;
  std::unordered_map<std::uint64_t, Bytes> segments_;
  std::unordered_map<std::uint64_t, Address> registered_;
  std::uint64_t last_registration_ = 0;
};

}  // namespace

std::unique_ptr<Nccl> make_sim_nccl(std::shared_ptr<SimWorld::State> world, int rank,
                                    SimDevice& device) {
  return std::make_unique<SimNccl>(std::move(world), rank, device);
}

}  // namespace weir
