// SPDX-License-Identifier: Apache-2.0
#include "weir/comm/communicator.h"

#include <fmt/format.h>

#include <atomic>
#include <functional>
#include <utility>

#include "comm/bounded.h"
#include "comm/comm_state.h"
#include "weir/allocator.h"
#include "weir/comm/launch.h"
#include "weir/comm/sim_nccl.h"
#include "weir/log.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

Error refused(const CommunicatorOptions& options, ErrorCode code, const std::string& what) {
  return {code, fmt::format("communicator '{}': {}", options.name, what)};
}

Status check_options(const CommunicatorOptions& options) {
  if (options.timeout >= 0_ns && options.watch_every >= 0_ns && options.host_timeout > 0_ns) {
    return {};
  }
  return refused(
      options, ErrorCode::invalid_argument,
      fmt::format("timeout is {} ns, watch_every {} ns, host_timeout {} ns: none may be "
                  "less than zero, and host_timeout not zero",
                  options.timeout.count, options.watch_every.count, options.host_timeout.count));
}

// `self`, and the other communicators that have operations in a capture or graph of these
// resources.
std::vector<std::shared_ptr<CommState>> all_in(
    const std::vector<std::shared_ptr<CaptureResource>>& resources,
    const std::shared_ptr<CommState>& self) {
  std::vector<std::shared_ptr<CommState>> all{self};
  for (const std::shared_ptr<CaptureResource>& each : resources) {
    const auto* const captured = dynamic_cast<const CapturedCommunicator*>(each.get());
    if (captured != nullptr && captured->state != self) all.push_back(captured->state);
  }
  return all;
}

// A communicator that `make` makes, of some of `parent`'s ranks (null: of nobody's). Where ranks
// come too late, what they make is ended; so is the parent, whose ranks are out of step: NCCL may
// still be at it, so the call keeps `owner`, who owns `nccl`.
Result<CommHandle> made_in_time(std::shared_ptr<void> owner, Nccl& nccl, CommState* parent,
                                Nanoseconds host_timeout,
                                std::function<Result<CommHandle>()> make) {
  struct Made {
    CommHandle handle;
    std::atomic<bool> is_over = false;  // the call has returned, or nobody waits for it
  };
  const auto made = std::make_shared<Made>();
  std::function<Status()> bounded_call = [made, &nccl, owner = std::move(owner),
                                          make = std::move(make)]() -> Status {
    Result<CommHandle> handle = make();
    if (!handle) return std::move(handle).error();
    made->handle = *handle;
    const bool is_late = made->is_over.exchange(true);
    return is_late && handle->value != 0 ? nccl.abort(*handle) : Status();
  };
  std::optional<Status> status = parent != nullptr
                                     ? parent->in_time(host_timeout, std::move(bounded_call))
                                     : BoundedCall(std::move(bounded_call)).wait(host_timeout);
  if (!status && made->is_over.exchange(true)) status = Status();  // it came meanwhile
  if (status) return *status ? Result(made->handle) : std::move(*status).error();
  if (parent != nullptr) {
    parent->fail({ErrorCode::device, "split: not all ranks came in time: all of them call it"});
  }
  return Error(ErrorCode::device,
               "not all ranks came in time: see that all were started and make the same call, with "
               "the same number of ranks and the same address of rank 0");
}

// What the communicators of one world run on; they share it.
struct WorldNccl {
  std::optional<SimWorld> simulated;
  std::unique_ptr<Nccl> nccl;
};

Result<int> device_of(const Allocator& allocator, const Launch& launch) {
  const int devices = allocator.device_count();
  if (devices == 1) return 0;  // a launcher may show each process its own alone
  if (launch.local_rank < devices) return launch.local_rank;
  return Error(ErrorCode::invalid_argument,
               fmt::format("world: local rank {} has no GPU: there are {}: start one process for "
                           "each GPU",
                           launch.local_rank, devices));
}

}  // namespace

Result<Communicator> Communicator::world(Allocator& allocator, const CommunicatorOptions& options) {
  try {
    Result<Launch> found = find_launch(process_environment());
    if (!found) return std::move(found).error();
    Launch launch = *std::move(found);
    const Result<int> number = device_of(allocator, launch);
    if (!number) return number.error();
    Device& device = allocator.device(*number);
    const auto kept = std::make_shared<WorldNccl>();
    if (auto* const simulated = dynamic_cast<SimDevice*>(&device)) {
      launch = Launch{};
      kept->simulated.emplace();
      kept->nccl = kept->simulated->rank(0, *simulated);
    } else {
      Result<std::unique_ptr<Nccl>> loaded = load_nccl(*number);
      if (!loaded) return std::move(loaded).error();
      kept->nccl = *std::move(loaded);
    }
    const Result<UniqueId> id = rendezvous(*kept->nccl, launch);
    Result<std::shared_ptr<CommState>> made =
        id ? create_comm_state(kept, {*kept->nccl, device, allocator.heap(*number)}, *id,
                               launch.ranks, launch.rank, options)
           : id.error();
    finish_rendezvous(launch);
    if (!made) return std::move(made).error();
    Communicator world(*std::move(made));
    if (Status ready = world.prepare(); !ready) return std::move(ready).error();
    return world;
  } catch (const Exception& failed) {
    return Error(failed.code(), failed.what());
  }
}

Result<Communicator> Communicator::create(CommContext context, const UniqueId& id, int ranks,
                                          int rank, const CommunicatorOptions& options) {
  Result<std::shared_ptr<CommState>> made =
      create_comm_state(nullptr, context, id, ranks, rank, options);
  return made ? Result(Communicator(*std::move(made))) : std::move(made).error();
}

Result<std::shared_ptr<CommState>> create_comm_state(std::shared_ptr<void> owner,
                                                     CommContext context, const UniqueId& id,
                                                     int ranks, int rank,
                                                     const CommunicatorOptions& options) {
  if (rank < 0 || rank >= ranks) {
    return refused(options, ErrorCode::invalid_argument,
                   fmt::format("there is no rank {} of {}: ranks count from 0", rank, ranks));
  }
  if (Status good = check_options(options); !good) return std::move(good).error();
  const Result<CommHandle> handle =
      made_in_time(owner, context.nccl, nullptr, options.host_timeout,
                   [id, ranks, rank, nccl = &context.nccl, name = options.name] {
                     return nccl->init(id, ranks, rank, {.name = name});
                   });
  if (!handle) return refused(options, handle.error().code(), handle.error().message());
  return open_comm_state(
      std::make_shared<CommState>(std::move(owner), context, *handle, ranks, rank, options));
}

const CommContext& Communicator::context() const { return state_->context; }
int Communicator::rank() const { return state_->rank; }
int Communicator::ranks() const { return state_->ranks; }
bool Communicator::prepared() const { return state_->prepared; }
Status Communicator::prepare() { return state_->prepare(); }
Status Communicator::status() const { return state_->status(); }
Status Communicator::poll() { return state_->poll(); }
Status Communicator::close() { return state_->close(); }
void Communicator::abort(const std::string& why) {
  state_->fail({ErrorCode::device, "aborted: " + why});
}

Result<Work> Communicator::run(std::span<const Operation> group, Where where) {
  if (group.empty()) return Work();
  Result<WorkPoint> end = state_->run(group, where.stream, where.overlap);
  if (!end) return std::move(end).error();
  return Work(state_->shared_from_this(), *std::move(end));
}

Status Work::wait(Stream stream) const {
  return state_ == nullptr ? Status() : state_->wait(stream, end_);
}

Result<Graph> Communicator::end_capture(CaptureScope& capture) {
  const std::uint64_t id = capture.id();
  const auto all = all_in(capture.resources(), state_);
  Result<Graph> graph = capture.end();
  Status agreed = agree_on_capture(all, id, graph ? Status() : graph.error());
  return agreed ? std::move(graph) : std::move(agreed).error();
}

Status Communicator::launch(Graph& graph, Stream stream) {
  const auto all = all_in(graph.resources(), state_);
  for (const std::shared_ptr<CommState>& each : all) {
    if (Status works = each->status(); !works) return works;
  }
  if (Status launched = graph.launch(stream); !launched) return launched;
  Status watched;
  for (const std::shared_ptr<CommState>& each : all) {
    if (Status one = each->launched(stream); !one) watched = std::move(one);
  }
  return watched;
}

Result<std::optional<Communicator>> Communicator::split(int color, int key,
                                                        const CommunicatorOptions& options) {
  if (Status good = check_options(options); !good) return std::move(good).error();
  CommState& parent = *state_;
  const auto calls = parent.lock_calls();
  if (Status works = parent.status(); !works) return std::move(works).error();
  Nccl& nccl = parent.context.nccl;
  const Result<CommHandle> handle =
      made_in_time(parent.owner, nccl, &parent, options.host_timeout,
                   [&nccl, &parent, color, key, name = options.name] {
                     const auto nccl_call = parent.lock_nccl();
                     return nccl.split(parent.handle, color, key, {.name = name});
                   });
  if (!handle) {
    if (Status works = parent.status(); !works) return std::move(works).error();
    return parent.error(handle.error().code(),
                        fmt::format("split into '{}': {}", options.name, handle.error().message()));
  }
  if (handle->value == 0) return std::optional<Communicator>();  // this rank is in none
  const Result<int> size = nccl.size(*handle), rank = nccl.rank(*handle);
  if (!size || !rank) {
    (void)nccl.abort(*handle);
    return size ? rank.error() : size.error();
  }
  return std::optional(Communicator(open_comm_state(
      std::make_shared<CommState>(parent.owner, parent.context, *handle, *size, *rank, options))));
}

}  // namespace weir
