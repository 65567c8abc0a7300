// What makes every operation capturable, and agreement between ranks.
#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/bounded.h"
#include "comm/comm_state.h"

namespace weir {
namespace {

// Large enough for NCCL to choose rings and its simple protocol, for where size decides.
constexpr std::uint64_t kLarge = std::uint64_t{32} << 20;

// What a rank says of a capture.
struct Said {
  std::uint64_t good = 0;
  std::uint64_t operations = 0;
  std::uint64_t digest = 0;
  char why[232] = {};
};

Said heard(const std::vector<std::byte>& bytes) {
  Said said;
  if (bytes.size() == sizeof said) std::memcpy(&said, bytes.data(), sizeof said);
  said.why[sizeof said.why - 1] = '\0';
  return said;
}

}  // namespace

Status CommState::prepare() {
  const std::lock_guard calls(calls_);
  if (Status works = status(); !works) return works;
  if (prepared) return {};
  Result<Lane*> lane = lanes_.eager();
  if (!lane) return std::move(lane).error();
  eager_ = (*lane)->stream;
  has_lane_.store(true, std::memory_order_release);
  // What connects waits for the other ranks inside NCCL. Of three steps the second may be tried
  // again: a communicator that can't be split works still.
  const auto refused = std::make_shared<std::optional<Error>>();
  const std::optional<Status> connected =
      in_time(options.patience, [this, lane = *lane, refused]() -> Status {
        if (Status pairs = connect(*lane); !pairs) return pairs;
        const Result<CommHandle> control = split_control();
        if (control) return greet(*control);
        *refused = control.error();
        return {};
      });
  if (connected && *connected) {
    prepared = !*refused;
    if (prepared) return {};
    return error((*refused)->code(),
                 "prepare: the communicator that ranks agree with was not "
                 "made: " +
                     (*refused)->message());
  }
  const Error why = connected ? connected->error()
                              : Error(ErrorCode::device,
                                      "prepare: not all ranks came in time: all of them call it");
  fail(why);
  return status().error();
}

// The communicator that ranks agree with.
Result<CommHandle> CommState::split_control() {
  const CommConfig config{.name = options.name + " control", .most_blocks = 1};
  const auto nccl_call = lock_nccl();
  Result<CommHandle> control = place.nccl.split(handle, 0, rank, config);
  if (!control) return control;
  const std::lock_guard lock(state_mutex_);
  control_ = *control;
  return control;
}

// Its first operation, which connects it.
Status CommState::greet(CommHandle control) {
  const std::byte hello{1};
  const auto nccl_call = lock_nccl();
  const auto said = place.nccl.exchange(control, {&hello, 1}, options.patience);
  return said ? Status() : Status(said.error());
}

// One operation of each kind, eagerly.
Status CommState::connect(Lane& lane) {
  const std::uint64_t count = place.nccl.connects_at_once() ? 1 : kLarge / 4;
  const Bytes bytes{4 * count * static_cast<std::uint64_t>(ranks)};
  Result<void*> memory = place.heap.allocate(bytes * 2, lane.stream);
  if (!memory) return std::move(memory).error();
  auto* const from = static_cast<std::byte*>(*memory);
  std::byte* const into = from + bytes.count;
  Status first;
  for (int kind = 0; kind < kOperationKinds && first; ++kind) {
    Operation operation{.kind = static_cast<OperationKind>(kind),
                        .send = from,
                        .receive = into,
                        .count = count,
                        .type = DataType::int32};
    if (operation.kind == OperationKind::send) break;
    first = enqueue({&operation, 1}, lane.stream);
  }
  std::vector<Operation> pairs;
  for (int peer = 0; peer < ranks; ++peer) {
    pairs.push_back({.kind = OperationKind::send, .send = from, .count = 1, .peer = peer});
    pairs.push_back({.kind = OperationKind::receive,
                     .receive = into + 4 * static_cast<std::uint64_t>(peer),
                     .count = 1,
                     .peer = peer});
  }
  if (first) first = enqueue(pairs, lane.stream);
  Status finished = finish_whenever(lane.stream);  // prepare() has the patience
  if (first) first = std::move(finished);
  Status freed = place.heap.deallocate(*memory);
  return first ? std::move(freed) : std::move(first);
}

Result<std::vector<std::vector<std::byte>>> CommState::ask_all(const std::string& call,
                                                               std::span<const std::byte> mine) {
  const std::lock_guard calls(calls_);
  if (Status works = status(); !works) return std::move(works).error();
  if (!prepared) {
    return error(ErrorCode::invalid_argument,
                 call +
                     ": ranks agree on it, by a communicator that is prepared: call prepare() "
                     "first");
  }
  auto said = [&] {
    const auto nccl_call = lock_nccl();
    return place.nccl.exchange(control_, mine, options.patience);
  }();
  if (said) return said;
  const Error why(ErrorCode::device,
                  call + ": a rank did not take part: " + said.error().message());
  fail(why);
  return error(why.code(), why.message());
}

Status CommState::agree(std::uint64_t capture, const Status& mine) {
  Said said{.good = mine ? 1U : 0U};
  {
    const std::lock_guard calls(calls_);
    if (const Lane* const lane = lanes_.find(capture)) {
      said.operations = lane->operations;
      said.digest = lane->digest;
    }
  }
  if (!mine) {
    const std::string& why = mine.error().message();
    std::memcpy(said.why, why.data(), std::min(why.size(), sizeof said.why - 1));
  }
  const auto all = ask_all("end_capture", {reinterpret_cast<const std::byte*>(&said), sizeof said});
  if (!all) return all.error();
  for (std::size_t other = 0; other < all->size(); ++other) {
    const Said theirs = heard((*all)[other]);
    if (theirs.good == 0) {
      return error(ErrorCode::capture, "the capture failed on rank " + std::to_string(other) +
                                           ", so no rank may launch its graph: " + theirs.why);
    }
    const Said first = heard(all->front());
    if (theirs.operations != first.operations || theirs.digest != first.digest) {
      return error(ErrorCode::capture,
                   "rank " + std::to_string(other) + " captured other operations (" +
                       std::to_string(theirs.operations) + ") than rank 0 (" +
                       std::to_string(first.operations) +
                       "), and the graphs would wait for each other for ever: capture the same on "
                       "every rank");
    }
  }
  return {};
}

}  // namespace weir
