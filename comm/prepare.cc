// SPDX-License-Identifier: Apache-2.0
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

}  // namespace

Status CommState::prepare() {
  const std::lock_guard calls(calls_);
  if (Status works = usable(); !works) return works;
  if (prepared) return {};
  Result<CommStream*> comm_stream = comm_streams_.eager();
  if (!comm_stream) return std::move(comm_stream).error();
  // What connects waits for the other ranks inside NCCL. To split off the communicator that ranks
  // agree with may be tried again: a communicator that can't be split works still.
  const auto refused = std::make_shared<std::optional<Error>>();
  const std::optional<Status> connected =
      in_time(options.host_timeout, [this, comm_stream = *comm_stream, refused]() -> Status {
        if (Status pairs = connect(*comm_stream); !pairs) return pairs;
        const auto nccl_call = lock_nccl();
        const CommConfig config{.name = options.name + " control", .max_ctas = 1};
        const Result<CommHandle> control = context.nccl.split(handle, 0, rank, config);
        if (!control) {
          *refused = control.error();
          return {};
        }
        {
          const std::lock_guard lock(state_mutex_);
          control_ = *control;
        }
        const std::byte any{1};  // its first operation, which connects it
        const auto all = context.nccl.host_all_gather(*control, {&any, 1}, options.host_timeout);
        return all ? Status() : Status(all.error());
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

Result<std::vector<std::string>> CommState::gather_said(const std::string& call,
                                                        const std::string& mine) {
  struct Message {
    char call[64] = {}, said[192] = {};
  };
  const std::lock_guard calls(calls_);
  if (Status works = usable(); !works) return std::move(works).error();
  if (!prepared) {
    return error(ErrorCode::invalid_argument,
                 call +
                     ": ranks agree on it, by a communicator that is prepared: call prepare() "
                     "first");
  }
  Message message;
  std::memcpy(message.call, call.data(), std::min(call.size(), sizeof message.call - 1));
  std::memcpy(message.said, mine.data(), std::min(mine.size(), sizeof message.said - 1));
  const auto gathered = [&] {
    const auto nccl_call = lock_nccl();
    return context.nccl.host_all_gather(control_, std::as_bytes(std::span(&message, 1)),
                                        options.host_timeout);
  }();
  if (!gathered) {
    const Error why(ErrorCode::device,
                    call + ": a rank did not take part: " + gathered.error().message());
    fail(why);
    return error(why.code(), why.message());
  }
  std::vector<std::string> said;
  for (const std::vector<std::byte>& bytes : *gathered) {
    Message theirs;
    if (bytes.size() == sizeof theirs) std::memcpy(&theirs, bytes.data(), sizeof theirs);
    theirs.call[sizeof theirs.call - 1] = theirs.said[sizeof theirs.said - 1] = '\0';
    if (std::strcmp(theirs.call, message.call) != 0) {
      return error(ErrorCode::invalid_argument,
                   "ranks ask for different things: rank " + std::to_string(said.size()) + " " +
                       theirs.call + ", this one " + call + ": make the same calls on every rank");
    }
    said.emplace_back(theirs.said);
  }
  return said;
}

// A rank says why its capture failed, after a '!', or how many operations it has, and their digest.
Status CommState::agree(std::uint64_t capture, const Status& mine) {
  std::string said = mine ? "0 operations" : "!" + mine.error().message();
  if (mine) {
    const std::lock_guard calls(calls_);
    if (const CommStream* const comm_stream = comm_streams_.find(capture)) {
      said = std::to_string(comm_stream->operations) + " operations, digest " +
             std::to_string(comm_stream->digest);
    }
  }
  const auto all = gather_said("end_capture", said);
  if (!all) return all.error();
  const auto number_in = [](const std::string& text) { return text.substr(0, text.find(' ')); };
  for (std::size_t other = 0; other < all->size(); ++other) {
    const std::string &theirs = (*all)[other], &first = all->front();
    if (theirs.starts_with('!')) {
      return error(ErrorCode::capture,
                   "the capture failed on rank " + std::to_string(other) +
                       ", so no rank may launch its graph: " + theirs.substr(1));
    }
    if (theirs != first) {
      return error(ErrorCode::capture,
                   "rank " + std::to_string(other) + " captured other operations (" +
                       number_in(theirs) + ") than rank 0 (" + number_in(first) +
                       "), and the graphs would wait for each other for ever: capture the same on "
                       "every rank");
    }
  }
  return {};
}

}  // namespace weir
