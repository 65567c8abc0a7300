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

// How a capture went on one rank.
struct AgreementMessage {
  std::uint64_t good = 0;
  std::uint64_t operations = 0;
  std::uint64_t digest = 0;
  char why[232] = {};
};

AgreementMessage decode(const std::vector<std::byte>& bytes) {
  AgreementMessage message;
  if (bytes.size() == sizeof message) std::memcpy(&message, bytes.data(), sizeof message);
  message.why[sizeof message.why - 1] = '\0';
  return message;
}

}  // namespace

Status CommState::prepare() {
  const std::lock_guard calls(calls_);
  if (Status works = status(); !works) return works;
  if (prepared) return {};
  Result<CommStream*> comm_stream = comm_streams_.eager();
  if (!comm_stream) return std::move(comm_stream).error();
  // What connects waits for the other ranks inside NCCL. Of three steps the second may be tried
  // again: a communicator that can't be split works still.
  const auto refused = std::make_shared<std::optional<Error>>();
  const std::optional<Status> connected =
      in_time(options.host_timeout, [this, comm_stream = *comm_stream, refused]() -> Status {
        if (Status pairs = connect(*comm_stream); !pairs) return pairs;
        const Result<CommHandle> control = split_control();
        if (control) return connect_control(*control);
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
  const CommConfig config{.name = options.name + " control", .max_ctas = 1};
  const auto nccl_call = lock_nccl();
  Result<CommHandle> control = context.nccl.split(handle, 0, rank, config);
  if (!control) return control;
  const std::lock_guard lock(state_mutex_);
  control_ = *control;
  return control;
}

// Its first operation, which connects it.
Status CommState::connect_control(CommHandle control) {
  const std::byte any{1};
  const auto nccl_call = lock_nccl();
  const auto gathered = context.nccl.host_all_gather(control, {&any, 1}, options.host_timeout);
  return gathered ? Status() : Status(gathered.error());
}

// One operation of each kind, eagerly.
Status CommState::connect(CommStream& comm_stream) {
  const std::uint64_t count = context.nccl.connects_at_once() ? 1 : kLarge / 4;
  const Bytes bytes{4 * count * static_cast<std::uint64_t>(ranks)};
  Result<void*> memory = context.heap.allocate(bytes * 2, comm_stream.stream);
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
    first = enqueue({&operation, 1}, comm_stream.stream);
  }
  std::vector<Operation> pairs;
  for (int peer = 0; peer < ranks; ++peer) {
    pairs.push_back({.kind = OperationKind::send, .send = from, .count = 1, .peer = peer});
    pairs.push_back({.kind = OperationKind::receive,
                     .receive = into + 4 * static_cast<std::uint64_t>(peer),
                     .count = 1,
                     .peer = peer});
  }
  if (first) first = enqueue(pairs, comm_stream.stream);
  Status finished = finish_whenever(comm_stream.stream);  // prepare() bounds it
  if (first) first = std::move(finished);
  Status freed = context.heap.deallocate(*memory);
  return first ? std::move(freed) : std::move(first);
}

Result<std::vector<std::vector<std::byte>>> CommState::host_all_gather(
    const std::string& call, std::span<const std::byte> mine) {
  const std::lock_guard calls(calls_);
  if (Status works = status(); !works) return std::move(works).error();
  if (!prepared) {
    return error(ErrorCode::invalid_argument,
                 call +
                     ": ranks agree on it, by a communicator that is prepared: call prepare() "
                     "first");
  }
  auto gathered = [&] {
    const auto nccl_call = lock_nccl();
    return context.nccl.host_all_gather(control_, mine, options.host_timeout);
  }();
  if (gathered) return gathered;
  const Error why(ErrorCode::device,
                  call + ": a rank did not take part: " + gathered.error().message());
  fail(why);
  return error(why.code(), why.message());
}

Status CommState::agree(std::uint64_t capture, const Status& mine) {
  AgreementMessage message{.good = mine ? 1U : 0U};
  {
    const std::lock_guard calls(calls_);
    if (const CommStream* const comm_stream = comm_streams_.find(capture)) {
      message.operations = comm_stream->operations;
      message.digest = comm_stream->digest;
    }
  }
  if (!mine) {
    const std::string& why = mine.error().message();
    std::memcpy(message.why, why.data(), std::min(why.size(), sizeof message.why - 1));
  }
  const auto all = host_all_gather("end_capture",
                                   {reinterpret_cast<const std::byte*>(&message), sizeof message});
  if (!all) return all.error();
  for (std::size_t other = 0; other < all->size(); ++other) {
    const AgreementMessage theirs = decode((*all)[other]);
    if (theirs.good == 0) {
      return error(ErrorCode::capture, "the capture failed on rank " + std::to_string(other) +
                                           ", so no rank may launch its graph: " + theirs.why);
    }
    const AgreementMessage first = decode(all->front());
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
