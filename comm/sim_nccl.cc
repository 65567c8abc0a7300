// SPDX-License-Identifier: Apache-2.0
// Simulated ranks: what the ranks of a process share, what each launches of a communicator, and the
// NCCL of one rank.
#include "weir/comm/sim_nccl.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <unordered_map>
#include <utility>

#include "comm/bounded.h"
#include "core/base/format.h"

namespace weir {

// Of SimWorld and of every SimNccl. Its members are guarded by `mutex`, which nobody holds in a
// call to the device.
struct SimWorld::State {
  // What is launched in one order by those that launch it together, graphs included: all ranks of a
  // communicator its collectives; a sender (0) and a receiver (1) what the one sends to the other.
  struct Launched {
    std::vector<int> ranks;                          // those that launch it
    std::vector<std::uint64_t> by;                   // how many each has launched
    std::map<std::uint64_t, std::string> what = {};  // what those were that not all have
  };
  // A communicator, as all its ranks have it.
  struct Comm {
    std::uint64_t id = 0;
    int size = 0;
    int joined = 0;                                 // ranks that have it
    std::string name;                               // as one of its ranks has it
    std::set<int> ended = {};                       // ranks that revoked, aborted or destroyed it
    std::map<std::string, Launched> launched = {};  // collectives: ""; by pair: "3>5"
  };
  struct Rendezvous {
    std::vector<std::optional<std::string>> brought;
    std::size_t arrived = 0, left = 0;
  };
  struct Rank {
    std::map<NcclCall, std::vector<std::uint64_t>> failing;  // how many calls from now
    std::vector<std::uint64_t> hanging;                      // how many operations from now
    std::string async_error;
    std::uint64_t operations = 0;
  };

  explicit State(SimWorldOptions of) : options(of), ranks(static_cast<std::size_t>(of.ranks)) {}
  Rank& rank(int number) { return ranks[static_cast<std::size_t>(number)]; }

  // Waits until `count` parties with this key have come, and returns what each brought, by index.
  // Errors: device (not all came in time, one came twice, or `of` was ended here).
  Result<std::vector<std::string>> rendezvous(const std::string& call, const std::string& key,
                                              std::shared_ptr<const Comm> of, int index, int count,
                                              std::string brought,
                                              std::chrono::nanoseconds host_timeout);

  const SimWorldOptions options;
  mutable std::mutex mutex;
  std::condition_variable came;
  std::map<std::string, Rendezvous> all_rendezvous;
  // By what they were agreed under, until all ranks have joined.
  std::map<std::string, std::shared_ptr<Comm>> comms;
  std::vector<Rank> ranks;
  std::vector<std::string> mismatches;
  std::uint64_t last_id = 0;
  SimCounts counts;
};

namespace {

using Lock = std::lock_guard<std::mutex>;
constexpr int kRings = -1;  // and trees; in place of a rank

Error refused(std::string_view call, const std::string& why) {
  return {ErrorCode::device, fmt::format("{}: {}", call, why)};
}

bool is_of_a_pair(const Operation& operation) {
  return operation.kind == OperationKind::send || operation.kind == OperationKind::receive;
}

// Counts down what is to happen some calls from now. Returns whether one happens now.
bool happens(std::vector<std::uint64_t>& calls_left) {
  bool now = false;
  for (std::uint64_t& left : calls_left) now = --left == 0 || now;
  std::erase(calls_left, 0u);
  return now;
}

// What one rank launches of a SimWorld::State::Launched, and whether the others have come as far.
class SimLine final : public SimPeers {
 public:
  // Under the world's mutex, which guards what is mutable. `party`: its place in Launched::ranks.
  SimLine(std::shared_ptr<SimWorld::State> world, std::shared_ptr<SimWorld::State::Comm> comm,
          int rank, std::string list, std::size_t party)
      : world_(std::move(world)),
        comm_(std::move(comm)),
        rank_(rank),
        list_(std::move(list)),
        party_(party),
        launched_(comm_->launched.at(list_)) {}
  // For an operation that was made to hang, which `hanging` describes: it ends with the
  // communicator.
  SimLine(const SimLine& of, std::string hanging) : SimLine(of) { hanging_ = std::move(hanging); }

  std::uint64_t arrive(const std::string& what) override {
    const Lock lock(world_->mutex);
    const std::uint64_t number = ++launched_.by[party_];
    const std::string& first = launched_.what.emplace(number, what).first->second;
    if (first != what) {
      world_->mismatches.push_back(
          fmt::format("operation {} of communicator '{}': rank {} asks for {}, another for {}",
                      number, comm_->name, rank_, what, first));
    }
    const std::uint64_t all = *std::min_element(launched_.by.begin(), launched_.by.end());
    launched_.what.erase(launched_.what.begin(), launched_.what.upper_bound(all));
    world_->came.notify_all();
    return number;
  }
  Status await(std::uint64_t number) override {
    std::unique_lock lock(world_->mutex);
    const std::chrono::nanoseconds longest = world_->options.host_timeout;
    if (!came(number) && !given_up_ && hanging_.empty()) {
      given_up_ =
          !world_->came.wait_for(lock, waitable({longest.count()}), [&] { return came(number); });
    }
    return came(number) ? Status() : missing();
  }
  bool are_there(std::uint64_t number) const override {
    const Lock lock(world_->mutex);
    return came(number);
  }
  // For all that was launched so far.
  Status await_all() {
    std::unique_lock lock(world_->mutex);
    const std::uint64_t last = launched_.by[party_];
    lock.unlock();
    return await(last);
  }

 private:
  bool came(std::uint64_t number) const {
    return comm_->ended.contains(rank_) ||
           (hanging_.empty() && std::all_of(launched_.by.begin(), launched_.by.end(),
                                            [&](std::uint64_t each) { return each >= number; }));
  }
  // The first that has not ended is the one to look at.
  Error missing() const {
    if (!hanging_.empty()) {
      return {ErrorCode::device, hanging_ + ", has not ended: it was made to hang"};
    }
    const std::uint64_t first = *std::min_element(launched_.by.begin(), launched_.by.end()) + 1;
    std::vector<int> ranks;
    for (std::size_t party = 0; party < launched_.by.size(); ++party) {
      if (launched_.by[party] < first) ranks.push_back(launched_.ranks[party]);
    }
    return {ErrorCode::device,
            fmt::format("operation {} of communicator '{}'{}{}, {}, has not ended on rank {} of "
                        "{}: rank{} {} {} not come to it",
                        first, comm_->name, list_.empty() ? "" : " between ranks ", list_,
                        launched_.what.at(first), rank_, comm_->size, ranks.size() == 1 ? "" : "s",
                        fmt::join(ranks, ", "), ranks.size() == 1 ? "has" : "have")};
  }

  const std::shared_ptr<SimWorld::State> world_;
  const std::shared_ptr<SimWorld::State::Comm> comm_;
  const int rank_;
  const std::string list_;  // of Comm::launched
  const std::size_t party_;
  SimWorld::State::Launched& launched_;
  std::string hanging_;
  bool given_up_ = false;  // somebody waited in vain: nobody waits again
};

class SimNccl final : public Nccl {
 public:
  SimNccl(std::shared_ptr<SimWorld::State> world, int rank, SimDevice& device)
      : world_(std::move(world)), state_(world_->rank(rank)), device_(device) {}

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
    const auto all =
        world_->rendezvous("init", key, nullptr, rank, ranks, "", world_->options.host_timeout);
    if (!all) return all.error();
    return join(key, ranks, rank, config.name);
  }

  Result<CommHandle> split(CommHandle comm, int color, int key, const CommConfig& config) override {
    if (fails(NcclCall::split)) return refused("split", "made to fail");
    Mine& parent = at(comm);
    const std::string where = parent.next_rendezvous("split");
    const auto all =
        world_->rendezvous("split", where, parent.comm, parent.rank, parent.comm->size,
                           fmt::format("{} {}", color, key), world_->options.host_timeout);
    if (!all) return all.error();
    if (color < 0) return CommHandle{};
    std::vector<std::pair<int, int>> members;  // key, rank
    for (int rank = 0; rank < parent.comm->size; ++rank) {
      const std::string& entry = (*all)[static_cast<std::size_t>(rank)];
      if (std::stoi(entry) != color) continue;
      members.emplace_back(std::stoi(entry.substr(entry.find(' '))), rank);
    }
    std::sort(members.begin(), members.end());
    const auto mine = std::find(members.begin(), members.end(), std::pair(key, parent.rank));
    return join(fmt::format("{} color {}", where, color), static_cast<int>(members.size()),
                static_cast<int>(mine - members.begin()), config.name);
  }

  Status destroy(CommHandle comm) override {
    if (fails(NcclCall::destroy)) return refused("destroy", "made to fail");
    for (const auto& [key, line] : lines(comm)) {
      const Status ended = line->await_all();
      if (!ended) return refused("destroy", "it would wait for ever: " + ended.error().message());
    }
    return abort(comm);
  }
  Status abort(CommHandle comm) override {
    const Lock lock(world_->mutex);
    const auto found = comms_.find(comm.value);
    if (found == comms_.end()) return refused("destroy", "there is no such communicator");
    end(*found->second);
    comms_.erase(found);
    --world_->counts.communicators;
    return {};
  }
  Status revoke(CommHandle comm) override {
    Mine& mine = at(comm);
    const Lock lock(world_->mutex);
    end(mine);
    return {};
  }

  Status async_error(CommHandle) override {
    const Lock lock(world_->mutex);
    if (state_.async_error.empty()) return {};
    return refused("ncclCommGetAsyncError", state_.async_error);
  }

  Result<int> size(CommHandle comm) override { return at(comm).comm->size; }
  Result<int> rank(CommHandle comm) override { return at(comm).rank; }

  // What comes before an operation that is refused runs.
  Status enqueue(CommHandle comm, std::span<const Operation> group, Stream stream) override {
    Mine& mine = at(comm);
    for (const Operation& operation : group) {
      if (fails(NcclCall::enqueue)) return refused("enqueue", "made to fail");
      if (has_ended(mine)) return refused("enqueue", "the communicator was aborted");
      const Status good = operation.check(mine.comm->size, mine.rank);
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
    const auto all = world_->rendezvous(
        "host_all_gather", of.next_rendezvous("host_all_gather"), of.comm, of.rank, of.comm->size,
        std::string(reinterpret_cast<const char*>(mine.data()), mine.size()),
        std::min<std::chrono::nanoseconds>(std::chrono::nanoseconds(timeout.count),
                                           world_->options.host_timeout));
    if (!all) return all.error();
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
    std::shared_ptr<SimWorld::State::Comm> comm;
    int rank = 0;
    std::map<std::pair<std::string, std::size_t>, std::shared_ptr<SimLine>> lines = {};
    std::uint64_t rendezvous_count = 0;
    std::set<int> connected = {};  // kRings, and ranks that a send or a receive connected

    std::string next_rendezvous(const std::string& what) {
      return fmt::format("communicator {} {} {}", comm->id, what, ++rendezvous_count);
    }
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
    return of.comm->ended.contains(of.rank);
  }
  // What waits for others waits no more. Under the world's mutex.
  void end(const Mine& mine) {
    mine.comm->ended.insert(mine.rank);
    world_->came.notify_all();
  }
  std::map<std::pair<std::string, std::size_t>, std::shared_ptr<SimLine>> lines(CommHandle comm) {
    const Lock lock(world_->mutex);
    const auto found = comms_.find(comm.value);
    return found == comms_.end() ? decltype(Mine::lines)() : found->second->lines;
  }
  std::shared_ptr<SimLine> line(Mine& of, const Operation& operation) {
    const bool receives = operation.kind == OperationKind::receive;
    std::vector<int> ranks{of.rank, operation.peer};
    if (receives) std::swap(ranks[0], ranks[1]);
    std::string list = fmt::format("{}", fmt::join(ranks, ">"));
    std::size_t party = receives ? 1 : 0;
    if (!is_of_a_pair(operation)) {
      ranks.resize(static_cast<std::size_t>(of.comm->size));
      std::iota(ranks.begin(), ranks.end(), 0);
      list.clear();
      party = static_cast<std::size_t>(of.rank);
    }
    const Lock lock(world_->mutex);
    std::shared_ptr<SimLine>& line = of.lines[{list, party}];
    if (line != nullptr) return line;
    const std::size_t parties = ranks.size();
    of.comm->launched.try_emplace(
        list, SimWorld::State::Launched{std::move(ranks), std::vector<std::uint64_t>(parties)});
    return line = std::make_shared<SimLine>(world_, of.comm, of.rank, list, party);
  }

  CommHandle join(const std::string& agreed, int size, int rank, const std::string& name) {
    const Lock lock(world_->mutex);
    std::shared_ptr<SimWorld::State::Comm>& comm = world_->comms[agreed];
    if (comm == nullptr) {
      comm = std::make_shared<SimWorld::State::Comm>();
      *comm = {.id = ++world_->last_id, .size = size, .name = name};
    }
    auto mine = std::make_unique<Mine>(Mine{.comm = comm, .rank = rank});
    if (world_->options.connects_at_once) mine->connected = {kRings};
    if (++comm->joined == size) world_->comms.erase(agreed);
    ++world_->counts.communicators;
    comms_[++world_->last_id] = std::move(mine);
    return {world_->last_id};
  }

  // May it run as things stand? Connects what it needs.
  Status connect(Mine& mine, const Operation& operation, bool captured) {
    std::set<int> missing;
    for (int peer = 0; operation.is_point_to_point() && peer < mine.comm->size; ++peer) {
      if (!is_of_a_pair(operation) || peer == operation.peer) missing.insert(peer);
    }
    if (!operation.is_point_to_point()) missing = {kRings};
    std::erase_if(missing, [&](int each) { return mine.connected.contains(each); });
    if (missing.empty()) return {};
    const std::string_view name = name_of(operation.kind);
    if (captured) return refused(name, "operation not permitted when stream is capturing");
    mine.connected.merge(missing);
    return {};
  }

  Status run(Mine& mine, const Operation& operation, Stream stream) {
    const Result<CaptureInfo> info = device_.capture_info(stream);
    if (!info) return info.error();
    const bool captured = info->status != CaptureInfo::Status::none;
    if (Status connected = connect(mine, operation, captured); !connected) return connected;
    // What all that launch it together have to ask for.
    const int size = mine.comm->size;
    const std::shared_ptr<SimLine> line = this->line(mine, operation);
    SimRendezvous others{
        line, is_of_a_pair(operation)
                  ? fmt::format("{} elements of {}", operation.count, name_of(operation.type))
                  : fmt::format("{}, {} elements", operation.describe(size), operation.count)};
    {
      const Lock lock(world_->mutex);
      ++state_.operations;
      if (happens(state_.hanging)) others.peers = std::make_shared<SimLine>(*line, others.what);
    }
    const Bytes reads = operation.reads(size, mine.rank);
    const Bytes writes = operation.writes(size, mine.rank);
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

Result<std::vector<std::string>> SimWorld::State::rendezvous(
    const std::string& call, const std::string& key, std::shared_ptr<const Comm> of, int index,
    int count, std::string brought, std::chrono::nanoseconds host_timeout) {
  const auto all = static_cast<std::size_t>(count);
  std::unique_lock lock(mutex);
  const auto is_over = [&] { return of != nullptr && of->ended.contains(index); };
  if (is_over()) return refused(call, "the communicator was aborted");
  Rendezvous& here = all_rendezvous[key];
  if (here.brought.empty()) here.brought.resize(all);
  if (here.brought.size() != all) {
    return refused(call, fmt::format("this rank says that there are {}, another {}", count,
                                     here.brought.size()));
  }
  std::optional<std::string>& mine = here.brought[static_cast<std::size_t>(index)];
  if (mine) return refused(call, fmt::format("another came as rank {} already", index));
  mine = std::move(brought);
  ++here.arrived;
  came.notify_all();
  (void)came.wait_for(lock, waitable({host_timeout.count()}),
                      [&] { return here.arrived == all || is_over(); });
  if (here.arrived != all) {
    mine.reset();
    --here.arrived;
    return refused(call, is_over() ? "the communicator was aborted"
                                   : fmt::format("not all {} ranks came", count));
  }
  std::vector<std::string> values;
  for (const std::optional<std::string>& each : here.brought) values.push_back(*each);
  if (++here.left == all) all_rendezvous.erase(key);
  return values;
}

SimWorld::SimWorld(SimWorldOptions options) : state_(std::make_shared<State>(options)) {}
SimWorld::~SimWorld() = default;

std::unique_ptr<Nccl> SimWorld::rank(int rank, SimDevice& device) {
  const bool is_one = rank >= 0 && rank < state_->options.ranks;
  return is_one ? std::make_unique<SimNccl>(state_, rank, device) : nullptr;
}

void SimWorld::fail(int rank, NcclCall call, std::uint64_t nth) {
  const std::lock_guard lock(state_->mutex);
  state_->rank(rank).failing[call].push_back(nth);
}
void SimWorld::hang(int rank, std::uint64_t nth) {
  const std::lock_guard lock(state_->mutex);
  state_->rank(rank).hanging.push_back(nth);
}
void SimWorld::set_async_error(int rank, std::string error) {
  const std::lock_guard lock(state_->mutex);
  state_->rank(rank).async_error = std::move(error);
}
std::vector<std::string> SimWorld::mismatches() const {
  const std::lock_guard lock(state_->mutex);
  return state_->mismatches;
}
std::uint64_t SimWorld::operations(int rank) const {
  const std::lock_guard lock(state_->mutex);
  return state_->rank(rank).operations;
}
SimCounts SimWorld::counts() const {
  const std::lock_guard lock(state_->mutex);
  return state_->counts;
}

}  // namespace weir
