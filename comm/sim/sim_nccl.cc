// SPDX-License-Identifier: Apache-2.0
// One simulated rank.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "comm/sim/sim_world.h"
#include "core/base/format.h"

namespace weir {
namespace {

using Lock = std::lock_guard<std::mutex>;
constexpr int kRings = -1;  // and trees; in place of a rank

Error refused(const std::string& call, const std::string& why) {
  return {ErrorCode::device, call + ": " + why};
}

class SimNccl final : public Nccl {
 public:
  SimNccl(std::shared_ptr<SimWorld::State> world, int rank, SimDevice& device)
      : world_(std::move(world)),
        state_(world_->ranks[static_cast<std::size_t>(rank)]),
        device_(device) {}

  std::string version() const override { return "simulated"; }

  Result<UniqueId> unique_id() override {
    const Lock lock(world_->mutex);
    UniqueId id;
    fmt::format_to_n(id.bytes.data(), id.bytes.size(), "simulated {}", ++world_->last_id);
    return id;
  }

  Result<CommHandle> init(const UniqueId& id, int ranks, int rank,
                          const CommConfig& config) override {
    if (fails(NcclCall::init)) return refused("init", "made to fail");
    if (rank < 0 || rank >= ranks) {
      return refused("init", fmt::format("there is no rank {} of {}", rank, ranks));
    }
    const std::string key = std::string(id.bytes.data()) + " init";
    const auto all = world_->rendezvous(key, rank, ranks, "", world_->options.host_timeout);
    if (!all) return refused("init", fmt::format("'{}': {}", config.name, all.error().message()));
    return join(key, ranks, rank, config.name);
  }

  Result<CommHandle> split(CommHandle comm, int color, int key, const CommConfig& config) override {
    if (fails(NcclCall::split)) return refused("split", "made to fail");
    Mine& parent = at(comm);
    const std::string where = parent.next_rendezvous("split");
    const auto all =
        world_->rendezvous(where, parent.part->rank, parent.part->comm->size,
                           fmt::format("{} {}", color, key), world_->options.host_timeout);
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
    return join(fmt::format("{} color {}", where, color), static_cast<int>(members.size()),
                static_cast<int>(mine - members.begin()), config.name);
  }

  Status destroy(CommHandle comm) override {
    if (fails(NcclCall::destroy)) return refused("destroy", "made to fail");
    for (const std::shared_ptr<SimLine>& line : lines(comm)) {
      const Status ended = line->await_all();
      if (!ended) return refused("destroy", "it would wait for ever: " + ended.error().message());
    }
    return abort(comm);
  }
  Status abort(CommHandle comm) override {
    const Lock lock(world_->mutex);
    const auto found = comms_.find(comm.value);
    if (found == comms_.end()) return refused("destroy", "there is no such communicator");
    end(*found->second->part);
    comms_.erase(found);
    --world_->counts.communicators;
    return {};
  }
  Status revoke(CommHandle comm) override {
    Mine& mine = at(comm);
    const Lock lock(world_->mutex);
    end(*mine.part);
    return {};
  }

  Status async_error(CommHandle) override {
    const Lock lock(world_->mutex);
    if (state_.async_error.empty()) return {};
    return refused("ncclCommGetAsyncError", state_.async_error);
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
    const Lock lock(world_->mutex);
    segments_[address->value] = {.bytes = size};
    ++world_->counts.segments;
    return address;
  }

  Status free_segment(Address address) override {
    Bytes bytes;
    {
      const Lock lock(world_->mutex);
      const auto found = segments_.find(address.value);
      if (found == segments_.end()) return refused("free_segment", "there is none");
      if (found->second.registered) {
        return refused("free_segment", format(address) + " is still registered");
      }
      bytes = found->second.bytes;
      segments_.erase(found);
      --world_->counts.segments;
    }
    return device_.free_segment(address, bytes);
  }

  // A registration has the segment's address for its handle.
  Result<RegistrationHandle> register_range(CommHandle, Address address, Bytes bytes) override {
    if (fails(NcclCall::register_range)) return refused("register_range", "made to fail");
    const Lock lock(world_->mutex);
    const auto found = segments_.find(address.value);
    if (found == segments_.end() || found->second.bytes != bytes) {
      return refused("register_range", format(address) + " is not one whole segment");
    }
    found->second.registered = true;
    ++world_->counts.registrations;
    return RegistrationHandle{address.value};
  }

  Status deregister(CommHandle, RegistrationHandle registration) override {
    const Lock lock(world_->mutex);
    const auto found = segments_.find(registration.value);
    if (found == segments_.end() || !std::exchange(found->second.registered, false)) {
      return refused("deregister", "there is none");
    }
    --world_->counts.registrations;
    return {};
  }

  Result<Stream> create_stream() override {
    const Stream made = device_.new_stream();
    const Lock lock(world_->mutex);
    ++world_->counts.streams;
    return made;
  }
  Status destroy_stream(Stream stream) override {
    Status destroyed = device_.destroy_stream(stream);
    const Lock lock(world_->mutex);
    if (destroyed) --world_->counts.streams;
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
    std::map<std::pair<std::string, std::size_t>, std::shared_ptr<SimLine>> lines;
    std::uint64_t rendezvous_count = 0;
    std::string next_rendezvous(const std::string& what) {
      return fmt::format("communicator {} {} {}", part->comm->id, what, ++rendezvous_count);
    }
    std::set<int> connected;  // kRings, and ranks that a send or a receive connected
  };
  struct Segment {
    Bytes bytes;
    bool registered = false;
  };

  bool fails(NcclCall call) {
    const Lock lock(world_->mutex);
    return happens(state_.failing[call]);
  }
  Mine& at(CommHandle comm) {
    const Lock lock(world_->mutex);
    return *comms_.at(comm.value);
  }
  bool has_ended(const Mine& of) const {
    const Lock lock(world_->mutex);
    return of.part->ended;
  }
  // What waits for others waits no more. Under the world's mutex.
  void end(SimPart& part) {
    part.ended = true;
    world_->came.notify_all();
  }
  std::vector<std::shared_ptr<SimLine>> lines(CommHandle comm) {
    const Lock lock(world_->mutex);
    std::vector<std::shared_ptr<SimLine>> all;
    const auto found = comms_.find(comm.value);
    if (found == comms_.end()) return all;
    for (const auto& [key, line] : found->second->lines) all.push_back(line);
    return all;
  }
  std::shared_ptr<SimLine> line(Mine& of, const Operation& operation) {
    SimParty party = SimParty::of(operation, *of.part);
    const Lock lock(world_->mutex);
    std::shared_ptr<SimLine>& line = of.lines[{party.list, party.number}];
    if (line == nullptr) line = std::make_shared<SimLine>(world_, of.part, std::move(party));
    return line;
  }

  CommHandle join(const std::string& agreed, int size, int rank, const std::string& name) {
    const Lock lock(world_->mutex);
    std::shared_ptr<SimComm>& comm = world_->comms[agreed];
    if (comm == nullptr) {
      comm = std::make_shared<SimComm>(
          SimComm{.id = ++world_->last_id, .size = size, .name = name, .launched = {}});
    }
    auto mine = std::make_unique<Mine>();
    *mine->part = {.comm = comm, .rank = rank};
    if (world_->options.connects_at_once) mine->connected = {kRings};
    if (++comm->joined == size) world_->comms.erase(agreed);
    ++world_->counts.communicators;
    comms_[++world_->last_id] = std::move(mine);
    return {world_->last_id};
  }

  // May it run as things stand? Connects what it needs.
  Status connect(Mine& mine, const Operation& operation, bool captured) {
    std::set<int> missing;
    const bool pair =
        operation.kind == OperationKind::send || operation.kind == OperationKind::receive;
    for (int peer = 0; operation.is_point_to_point() && peer < mine.part->comm->size; ++peer) {
      if (!pair || peer == operation.peer) missing.insert(peer);
    }
    if (!operation.is_point_to_point()) missing = {kRings};
    std::erase_if(missing, [&](int each) { return mine.connected.contains(each); });
    if (missing.empty()) return {};
    const Lock lock(world_->mutex);
    if (captured) {
      ++world_->counts.refused_in_captures;
      return refused(std::string(name_of(operation.kind)),
                     "operation not permitted when stream is capturing");
    }
    world_->counts.lazy_connections += missing.size();
    mine.connected.merge(missing);
    return {};
  }

  Status run(Mine& mine, const Operation& operation, Stream stream) {
    const Result<CaptureInfo> info = device_.capture_info(stream);
    if (!info) return info.error();
    const bool captured = info->status != CaptureInfo::Status::none;
    if (Status connected = connect(mine, operation, captured); !connected) return connected;
    // What all that launch it together have to ask for.
    const int size = mine.part->comm->size;
    const std::shared_ptr<SimLine> line = this->line(mine, operation);
    SimRendezvous others{
        line, operation.kind == OperationKind::send || operation.kind == OperationKind::receive
                  ? fmt::format("{} elements of {}", operation.count, name_of(operation.type))
                  : operation.describe(size)};
    {
      const Lock lock(world_->mutex);
      ++state_.operations;
      if (happens(state_.hanging)) others.peers = std::make_shared<SimHanging>(line, others.what);
    }
    const Bytes reads = operation.reads(size, mine.part->rank);
    const Bytes writes = operation.writes(size, mine.part->rank);
    std::vector<Access> accesses;
    if (reads > 0_B) accesses.push_back(Reads(operation.send, reads));
    if (writes > 0_B) accesses.push_back(Writes(operation.receive, writes));
    const SimWorldOptions& options = world_->options;
    device_.advance(options.host_time);
    const auto moved = static_cast<std::int64_t>(
        static_cast<double>(std::max(reads, writes).count) / options.bytes_per_nanosecond);
    return device_.launch(stream, accesses, options.latency + Nanoseconds{moved}, others);
  }

  const std::shared_ptr<SimWorld::State> world_;
  SimWorld::State::Rank& state_;  // this and what follows under the world's mutex
  SimDevice& device_;

  std::unordered_map<std::uint64_t, std::unique_ptr<Mine>> comms_;
  std::unordered_map<std::uint64_t, Segment> segments_;
};

}  // namespace

std::unique_ptr<Nccl> make_sim_nccl(std::shared_ptr<SimWorld::State> world, int rank,
                                    SimDevice& device) {
  return std::make_unique<SimNccl>(std::move(world), rank, device);
}

}  // namespace weir
