// SPDX-License-Identifier: Apache-2.0
#include "weir/comm/communicator.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "comm/bounded.h"
#include "comm/comm_state.h"
#include "weir/log.h"

namespace weir {
namespace {

Error refused(const CommunicatorOptions& options, ErrorCode code, const std::string& what) {
  return {code, "communicator '" + options.name + "': " + what};
}

Status check_options(const CommunicatorOptions& options) {
  const std::pair<const char*, Nanoseconds> times[] = {{"timeout", options.timeout},
                                                       {"host_timeout", options.host_timeout},
                                                       {"watch_every", options.watch_every}};
  for (const auto& [name, time] : times) {
    if (time >= Nanoseconds{}) continue;
    return refused(
        options, ErrorCode::invalid_argument,
        std::string(name) + " is " + std::to_string(time.count) + " ns: a time is zero or more");
  }
  if (options.max_ctas.value_or(1) >= 1) return {};
  return refused(
      options, ErrorCode::invalid_argument,
      "max_ctas is " + std::to_string(*options.max_ctas) + ": an operation takes one at least");
}

CommConfig config_of(const CommunicatorOptions& options) {
  return {.name = options.name, .max_ctas = options.max_ctas};
}

// The communicators that have operations in a capture or graph of these resources, in the order in
// which they joined; without `self`.
std::vector<std::shared_ptr<CommState>> others_in(
    const std::vector<std::shared_ptr<CaptureResource>>& resources, const CommState* self) {
  std::vector<std::shared_ptr<CommState>> others;
  for (const std::shared_ptr<CaptureResource>& each : resources) {
    const auto* const captured = dynamic_cast<const CapturedCommunicator*>(each.get());
    if (captured != nullptr && captured->state.get() != self) others.push_back(captured->state);
  }
  return others;
}

// A communicator that `make` makes, of some of `parent`'s ranks (null: of nobody's). Where ranks
// come too late, what they make is ended; so is the parent, whose ranks are out of step: NCCL may
// still be at it.
Result<CommHandle> made_in_time(Nccl& nccl, CommState* parent, const std::string& call,
                                Nanoseconds host_timeout,
                                std::function<Result<CommHandle>()> make) {
  struct Made {
    std::mutex mutex;
    CommHandle handle;
    bool late = false;
  };
  const auto made = std::make_shared<Made>();
  std::function<Status()> bounded_call = [made, &nccl, make = std::move(make)]() -> Status {
    Result<CommHandle> handle = make();
    if (!handle) return std::move(handle).error();
    const std::lock_guard lock(made->mutex);
    made->handle = *handle;
    if (made->late && handle->value != 0) return nccl.abort(*handle);
    return {};
  };
  std::optional<Status> status = parent != nullptr
                                     ? parent->in_time(host_timeout, std::move(bounded_call))
                                     : bounded(host_timeout, std::move(bounded_call));
  if (!status && parent != nullptr) {
    parent->fail({ErrorCode::device, call + ": not all ranks came in time: all of them call it"});
  }
  const std::lock_guard lock(made->mutex);
  if (status) return *status ? Result(made->handle) : std::move(*status).error();
  made->late = true;
  if (made->handle.value != 0) (void)nccl.abort(made->handle);  // it came meanwhile
  return Error(ErrorCode::device,
               "not all ranks came in time: see that all were started and make the same call, with "
               "the same number of ranks and the same address of rank 0");
}

}  // namespace

// The same of some of its ranks, by `call`, which errors name beside the rank.
Result<Communicator> Communicator::derive(const std::string& call, CommunicatorOptions options,
                                          std::function<Result<CommHandle>()> make) {
  CommState& parent = *state_;
  Nccl& nccl = parent.context.nccl;
  const Result<CommHandle> handle =
      made_in_time(nccl, &parent, call, options.host_timeout, [&parent, make = std::move(make)] {
        const auto nccl_call = parent.lock_nccl();
        return make();
      });
  if (!handle) {
    return parent.error(handle.error().code(),
                        call + " into '" + options.name + "': " + handle.error().message());
  }
  if (handle->value == 0) return Communicator(nullptr);
  const Result<int> size = nccl.size(*handle), rank = nccl.rank(*handle);
  if (!size || !rank) return size ? rank.error() : size.error();
  Communicator made(
      std::make_shared<CommState>(parent.context, *handle, *size, *rank, std::move(options)));
  made.state_->keep(parent.context_owner());
  return made;
}

Error moved_away() {
  return {ErrorCode::invalid_argument,
          "this communicator was moved away, and can't be used: use the one that it became"};
}

Communicator::Communicator(Communicator&&) noexcept = default;

Communicator& Communicator::operator=(Communicator&& other) noexcept {
  if (this != &other) {
    const Communicator old = std::move(*this);
    state_ = std::move(other.state_);
  }
  return *this;
}

Communicator::~Communicator() {
  if (state_ == nullptr) return;
  if (const Status closed = close(); !closed) log(LogLevel::error, closed.error().message());
}

Result<Communicator> Communicator::create(CommContext context, const UniqueId& id, int ranks,
                                          int rank, const CommunicatorOptions& options) {
  if (rank < 0 || rank >= ranks) {
    return refused(options, ErrorCode::invalid_argument,
                   "there is no rank " + std::to_string(rank) + " of " + std::to_string(ranks) +
                       ": ranks count from 0");
  }
  if (Status good = check_options(options); !good) return std::move(good).error();
  const Result<CommHandle> handle =
      made_in_time(context.nccl, nullptr, "create", options.host_timeout,
                   [=, nccl = &context.nccl, config = config_of(options)] {
                     return nccl->init(id, ranks, rank, config);
                   });
  if (!handle) return refused(options, handle.error().code(), handle.error().message());
  return Communicator(std::make_shared<CommState>(context, *handle, ranks, rank, options));
}

const CommContext& Communicator::context() const { return state_->context; }
int Communicator::rank() const { return state_ != nullptr ? state_->rank : -1; }
int Communicator::ranks() const { return state_ != nullptr ? state_->ranks : 0; }
const std::string& Communicator::name() const {
  static const std::string none;
  return state_ != nullptr ? state_->options.name : none;
}
bool Communicator::prepared() const { return state_ != nullptr && state_->prepared; }
Status Communicator::prepare() { return state_ != nullptr ? state_->prepare() : moved_away(); }
Status Communicator::status() const { return state_ != nullptr ? state_->status() : moved_away(); }
Status Communicator::suspend() { return state_ != nullptr ? state_->suspend() : moved_away(); }
Status Communicator::resume() { return state_ != nullptr ? state_->resume() : moved_away(); }
Status Communicator::poll() { return state_ != nullptr ? state_->poll() : moved_away(); }
Status Communicator::close() { return state_ != nullptr ? state_->close() : moved_away(); }

void Communicator::abort(const std::string& why) {
  if (state_ == nullptr) return;
  state_->fail({ErrorCode::device, "aborted: " + why});
}

Result<Work> Communicator::run(std::span<const Operation> group, Where where) {
  if (state_ == nullptr) return moved_away();
  if (group.empty()) return Work();
  const Result<WorkPoint> end =
      state_->run(group, where.stream, where.overlap || state_->options.overlap);
  if (!end) return end.error();
  return Work(state_, *end);
}

Result<std::vector<Work>> Communicator::run_together(std::span<const Part> parts, Where where) {
  return CommState::run_together(parts, where);
}

Status Work::wait(Stream stream) const {
  return state_ == nullptr ? Status() : state_->wait(stream, end_);
}

Result<Graph> Communicator::end_capture(CaptureScope& capture) {
  if (state_ == nullptr) return moved_away();
  const std::uint64_t id = capture.id();
  const auto others = others_in(capture.resources(), state_.get());
  Result<Graph> graph = capture.end();
  // All whose operations it has agree among their own ranks, in the order in which they joined;
  // last this one, which tells of the others too.
  const auto ended = [&] { return graph ? Status{} : Status(graph.error()); };
  Status agreed = ended();
  for (const std::shared_ptr<CommState>& other : others) {
    Status of_other = other->agree(id, ended());
    if (agreed) agreed = std::move(of_other);
  }
  if (Status all = state_->agree(id, agreed); !all) return std::move(all).error();
  return graph;
}

Status Communicator::launch(Graph& graph, Stream stream) {
  if (state_ == nullptr) return moved_away();
  if (Status works = state_->usable(); !works) return works;
  const auto others = others_in(graph.resources(), state_.get());
  for (const std::shared_ptr<CommState>& other : others) {
    if (Status works = other->usable(); !works) return works;
  }
  if (Status launched = graph.launch(stream); !launched) return launched;
  Status watched = state_->launched(stream);
  for (const std::shared_ptr<CommState>& other : others) {
    Status of_other = other->launched(stream);
    if (watched) watched = std::move(of_other);
  }
  return watched;
}

Result<std::optional<Communicator>> Communicator::split(int color, int key,
                                                        const CommunicatorOptions& options) {
  if (state_ == nullptr) return moved_away();
  if (Status good = check_options(options); !good) return std::move(good).error();
  CommState& parent = *state_;
  const auto calls = parent.lock_calls();
  if (Status works = parent.usable(); !works) return std::move(works).error();
  Nccl& nccl = parent.context.nccl;
  Result<Communicator> made =
      derive("split", options, [=, &nccl, from = parent.handle, config = config_of(options)] {
        return nccl.split(from, color, key, config);
      });
  if (!made) return std::move(made).error();
  if (made->state_ == nullptr) return std::optional<Communicator>();  // this rank is in none
  return std::optional(*std::move(made));
}

Result<Communicator> Communicator::shrink(std::span<const int> excluded,
                                          const CommunicatorOptions& options) {
  if (state_ == nullptr) return moved_away();
  if (Status good = check_options(options); !good) return std::move(good).error();
  CommState& parent = *state_;
  const auto calls = parent.lock_calls();
  if (parent.closed()) return parent.error(ErrorCode::invalid_argument, "shrink: it was closed");
  if (Status works = parent.usable(); !works && parent.status()) return std::move(works).error();
  std::vector<int> gone(excluded.begin(), excluded.end());
  std::sort(gone.begin(), gone.end());
  gone.erase(std::unique(gone.begin(), gone.end()), gone.end());
  for (const int each : gone) {
    if (each >= 0 && each < parent.ranks && each != parent.rank) continue;
    return parent.error(ErrorCode::invalid_argument,
                        "shrink: rank " + std::to_string(each) +
                            (each == parent.rank ? " calls, and so can't be excluded"
                                                 : " can't be excluded: there is none"));
  }
  Nccl& nccl = parent.context.nccl;
  return derive("shrink", options, [=, &nccl, &parent, config = config_of(options)] {
    const bool failed = !parent.status();
    return nccl.shrink(parent.handle, gone, failed, config);
  });
}

}  // namespace weir
