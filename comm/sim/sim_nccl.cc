// One simulated rank.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>
#include <unordered_map>
#include <utility>

#include "comm/sim/sim_world.h"
#include "core/format.h"

namespace weir {
namespace {

// Longer than anybody waits; short enough for a few one after the other to stand in 64 bits.
constexpr Nanoseconds kForEver{std::int64_t{30} * 24 * 3600 * 1'000'000'000};

Error refused(const std::string& call, const std::string& why) {
  return {ErrorCode::device, call + ": " + why};
}

class SimNccl final : public Nccl {
 public:
  SimNccl(std::shared_ptr<SimWorld::State> world, int rank, SimDevice& device)
      : world_(std::move(world)), rank_(rank), device_(device) {}

  std::string version() const override { return "simulated"; }
  bool connects_at_once() const override { return world_->options.connects_at_once; }

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
    if (!world_->meet(key, rank, ranks, "", world_->options.patience)) {
      return refused("init",
                     "not all " + std::to_string(ranks) + " ranks of '" + config.name + "' came");
    }
    return join(key, ranks, rank);
  }

  Result<CommHandle> split(CommHandle comm, int color, int key, const CommConfig&) override {
    if (fails(NcclCall::split)) return refused("split", "made to fail");
    Mine& parent = at(comm);
    const std::string where = next_meeting(parent, "split");
    const auto all =
        world_->meet(where, parent.rank, parent.comm->size,
                     std::to_string(color) + " " + std::to_string(key), world_->options.patience);
    if (!all) return refused("split", "not all ranks came");
    if (color < 0) return CommHandle{};
    std::vector<std::pair<int, int>> members;  // key, rank
    for (int rank = 0; rank < parent.comm->size; ++rank) {
      const std::string& said = (*all)[static_cast<std::size_t>(rank)];
      if (std::stoi(said) != color) continue;
      members.emplace_back(std::stoi(said.substr(said.find(' '))), rank);
    }
    std::sort(members.begin(), members.end());
    const auto mine = std::find(members.begin(), members.end(), std::pair(key, parent.rank));
    return join(where + " color " + std::to_string(color), static_cast<int>(members.size()),
                static_cast<int>(mine - members.begin()));
  }

  Result<CommHandle> shrink(CommHandle comm, std::span<const int> excluded, bool abort,
                            const CommConfig&) override {
    Mine& parent = at(comm);
    if (parent.ended && !abort) return refused("shrink", "the communicator was aborted");
    const std::set<int> gone(excluded.begin(), excluded.end());
    const int left = parent.comm->size - static_cast<int>(gone.size());
    int rank = 0;
    for (int each = 0; each < parent.rank; ++each) rank += gone.contains(each) ? 0 : 1;
    const std::string where = next_meeting(parent, "shrink");
    if (!world_->meet(where, rank, left, "", world_->options.patience)) {
      return refused("shrink", "not all ranks that are left came");
    }
    return join(where, left, rank);
  }

  Status destroy(CommHandle comm) override {
    if (fails(NcclCall::destroy)) return refused("destroy", "made to fail");
    return forget(comm);
  }
  Status abort(CommHandle comm) override { return forget(comm); }
  Status revoke(CommHandle comm) override {
    at(comm).ended = true;
    return {};
  }

  Status async_error(CommHandle) override {
    const std::lock_guard lock(world_->mutex);
    const std::string& error = world_->ranks[static_cast<std::size_t>(rank_)].async_error;
    if (error.empty()) return {};
    return refused("ncclCommGetAsyncError", error);
  }

  Result<int> size(CommHandle comm) override { return at(comm).comm->size; }
  Result<int> rank(CommHandle comm) override { return at(comm).rank; }

  Status enqueue(CommHandle comm, const Operation& operation, Stream stream) override {
    if (fails(NcclCall::enqueue)) return refused("enqueue", "made to fail");
    Mine& mine = at(comm);
    if (mine.ended) return refused("enqueue", "the communicator was aborted");
    if (groups_ != 0) {
      grouped_.push_back({comm, operation, stream});
      return {};
    }
    return run(mine, operation, stream);
  }
  Status group_start() override {
    ++groups_;
    return {};
  }
  Status group_end() override {
    if (groups_ == 0) return refused("group_end", "there is no group");
    if (--groups_ != 0) return {};
    const std::vector<Grouped> grouped = std::exchange(grouped_, {});
    if (fails(NcclCall::group_end)) return refused("group_end", "made to fail");
    for (const Grouped& each : grouped) {
      if (Status status = run(at(each.comm), each.operation, each.stream); !status) return status;
    }
    return {};
  }

  Result<Address> allocate_segment(Bytes bytes) override {
    if (fails(NcclCall::allocate_segment)) return refused("allocate_segment", "made to fail");
    const Bytes size = round_up(bytes, device_.granularity());
    Result<Address> address = device_.reserve(size, device_.granularity());
    if (!address) return address;
    Result<PhysicalHandle> page = device_.create(size);
    if (!page) {
      (void)device_.unreserve(*address, size);
      return std::move(page).error();
    }
    if (Status status = device_.map(*address, size, *page); !status) return status.error();
    if (Status status = device_.set_access(*address, size); !status) return status.error();
    const std::lock_guard lock(mutex_);
    segments_[address->value] = {size, *page};
    count(&SimWorld::State::live_segments, 1);
    return address;
  }

  Status free_segment(Address segment) override {
    Segment gone;
    {
      const std::lock_guard lock(mutex_);
      const auto found = segments_.find(segment.value);
      if (found == segments_.end()) return refused("free_segment", "there is none");
      for (const auto& [handle, range] : registered_) {
        if (range == segment) {
          return refused("free_segment", format(segment) + " is still registered");
        }
      }
      gone = found->second;
      segments_.erase(found);
    }
    count(&SimWorld::State::live_segments, -1);
    (void)device_.unmap(segment, gone.bytes);
    (void)device_.release(gone.page);
    return device_.unreserve(segment, gone.bytes);
  }

  Result<RegistrationHandle> register_range(CommHandle, Address address, Bytes bytes) override {
    if (fails(NcclCall::register_range)) return refused("register_range", "made to fail");
    const std::lock_guard lock(mutex_);
    const auto found = segments_.find(address.value);
    if (found == segments_.end() || found->second.bytes != bytes) {
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
  Status copy(void* to, const void* from, Bytes bytes, Stream stream) override {
    const Access accesses[] = {Reads(from, bytes), Writes(to, bytes)};
    return device_.launch(stream, accesses, kernel_time(bytes));
  }

  Result<std::vector<std::vector<std::byte>>> exchange(CommHandle comm,
                                                       std::span<const std::byte> mine,
                                                       Nanoseconds timeout) override {
    Mine& of = at(comm);
    if (of.ended) return refused("exchange", "the communicator was aborted");
    const auto all =
        world_->meet(next_meeting(of, "exchange"), of.rank, of.comm->size,
                     std::string(reinterpret_cast<const char*>(mine.data()), mine.size()),
                     std::chrono::nanoseconds(timeout.count));
    if (!all) return refused("exchange", "not all ranks came in time");
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
    std::shared_ptr<SimComm> comm;
    int rank = 0;
    std::atomic<bool> ended = false;
    std::uint64_t meetings = 0;
    bool connected = false;    // rings and trees
    std::set<int> peers = {};  // connected by a send or a receive
  };
  struct Grouped {
    CommHandle comm;
    Operation operation;
    Stream stream;
  };
  struct Segment {
    Bytes bytes;
    PhysicalHandle page;
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
  static std::string next_meeting(Mine& of, const std::string& what) {
    return "communicator " + std::to_string(of.comm->id) + " " + what + " " +
           std::to_string(++of.meetings);
  }
  Nanoseconds kernel_time(Bytes bytes) const {
    const double moved = static_cast<double>(bytes.count) / world_->options.bytes_per_nanosecond;
    return world_->options.latency + Nanoseconds{static_cast<std::int64_t>(moved)};
  }

  CommHandle join(const std::string& agreed, int size, int rank) {
    auto mine = std::make_unique<Mine>();
    mine->rank = rank;
    mine->connected = world_->options.connects_at_once;
    CommHandle handle;
    {
      const std::lock_guard lock(world_->mutex);
      std::shared_ptr<SimComm>& comm = world_->comms[agreed];
      if (comm == nullptr) comm = std::make_shared<SimComm>(SimComm{++world_->last_id, size, {}});
      mine->comm = comm;
      handle.value = ++world_->last_id;
      ++world_->made_communicators;
      ++world_->live_communicators;
    }
    const std::lock_guard lock(mutex_);
    comms_[handle.value] = std::move(mine);
    return handle;
  }

  Status forget(CommHandle comm) {
    {
      const std::lock_guard lock(mutex_);
      if (comms_.erase(comm.value) == 0) return refused("destroy", "there is no such communicator");
    }
    count(&SimWorld::State::live_communicators, -1);
    return {};
  }

  // May it run as things stand? Connects what it needs.
  Status connect(Mine& mine, const Operation& operation, bool captured) {
    std::set<int> missing;
    const bool pair =
        operation.kind == OperationKind::send || operation.kind == OperationKind::receive;
    for (int peer = 0; operation.is_point_to_point() && peer < mine.comm->size; ++peer) {
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

  void note(Mine& mine, const Operation& operation, bool captured) {
    const int size = mine.comm->size;
    const std::string prefix =
        "communicator " + std::to_string(mine.comm->id) + (captured ? ", captured" : "");
    if (operation.kind == OperationKind::send) {
      const std::string list =
          prefix + ", " + std::to_string(mine.rank) + ">" + std::to_string(operation.peer);
      world_->ask(*mine.comm, list, 0, 2, bytes_text(operation));
    } else if (operation.kind == OperationKind::receive) {
      const std::string list =
          prefix + ", " + std::to_string(operation.peer) + ">" + std::to_string(mine.rank);
      world_->ask(*mine.comm, list, 1, 2, bytes_text(operation));
    } else {
      world_->ask(*mine.comm, prefix, mine.rank, static_cast<std::size_t>(size),
                  operation.describe(size));
    }
  }
  static std::string bytes_text(const Operation& operation) {
    return std::to_string(operation.count) + " of " + std::string(name_of(operation.type));
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
      note(mine, operation, captured);
    }
    const Bytes reads = operation.reads(mine.comm->size, mine.rank);
    const Bytes writes = operation.writes(mine.comm->size, mine.rank);
    std::vector<Access> accesses;
    if (reads > 0_B) accesses.push_back(Reads(operation.send, reads));
    if (writes > 0_B) accesses.push_back(Writes(operation.receive, writes));
    device_.advance(world_->options.host_time);
    return device_.launch(stream, accesses,
                          hangs ? kForEver : kernel_time(std::max(reads, writes)));
  }

  const std::shared_ptr<SimWorld::State> world_;
  const int rank_;
  SimDevice& device_;

  std::mutex mutex_;  // of what follows, but for groups
  std::unordered_map<std::uint64_t, std::unique_ptr<Mine>> comms_;
  std::unordered_map<std::uint64_t, Segment> segments_;
  std::unordered_map<std::uint64_t, Address> registered_;
  std::uint64_t last_registration_ = 0;

  // One thread has a group at a time.
  int groups_ = 0;
  std::vector<Grouped> grouped_;
};

}  // namespace

std::unique_ptr<Nccl> make_sim_nccl(std::shared_ptr<SimWorld::State> world, int rank,
                                    SimDevice& device) {
  return std::make_unique<SimNccl>(std::move(world), rank, device);
}

}  // namespace weir
