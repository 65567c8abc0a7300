// SPDX-License-Identifier: Apache-2.0
// What makes every operation capturable, and agreement between ranks.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <utility>

#include "comm/bounded.h"
#include "comm/comm_state.h"
#include "weir/log.h"

namespace weir {
namespace {

// Bytes of an operation, enough for NCCL to choose rings and its simple protocol, which it connects
// at first use where NCCL_RUNTIME_CONNECT=0 came too late.
constexpr std::uint64_t kLarge = std::uint64_t{32} << 20;

template <class Number>
Number number_in_bytes(const std::vector<std::byte>& bytes) {
  Number number{};
  if (bytes.size() == sizeof number) std::memcpy(&number, bytes.data(), sizeof number);
  return number;
}

}  // namespace

Status CommState::prepare() {
  const std::lock_guard calls(calls_);
  if (Status works = status(); !works) return works;
  if (prepared) return {};
  const Result<Stream> stream = captures_.eager_stream();
  if (!stream) return stream.error();
  const std::optional<Status> connected =
      in_time(options.host_timeout, [this, stream = *stream] { return connect(stream); });
  gave_up_ = !connected;
  prepared = connected && *connected;
  if (prepared) return {};
  fail(connected
           ? connected->error()
           : Error(ErrorCode::device, "prepare: not all ranks came in time: all of them call it"));
  return status().error();
}

// Ranks tell each other how they are before they connect, as one may have no memory, and after.
Status CommState::connect(Stream stream) {
  const std::uint64_t whole = std::max(kLarge / 4, static_cast<std::uint64_t>(ranks));
  const Result<Address> memory = allocate_segment(context, Bytes{8 * whole});
  if (!memory) log(LogLevel::error, error(memory.error()).message());  // others may never come
  const auto control = [&] {
    const auto nccl_call = lock_nccl();
    return context.nccl.split(handle, 0, rank, {.name = options.name + " control", .max_ctas = 1});
  }();
  Status ended = control ? Status() : control.error();
  if (control) {
    control_ = *control;
    ended = tell(memory ? Status() : memory.error());
  }
  if (ended) return tell(connect_all(stream, *memory, whole));
  if (memory) (void)context.nccl.free_segment(*memory);
  return memory ? std::move(ended) : Status(memory.error());
}

// All go on, or none: who has failed, or waits no more, says 0. Rank 0 numbers the communicator.
Status CommState::tell(Status mine) {
  const auto nccl_call = lock_nccl();
  if (mine) mine = status();
  std::random_device random;
  const std::uint64_t number = mine && !gave_up_ ? std::uint64_t{random()} << 32 | random() | 1 : 0;
  const auto all = context.nccl.host_all_gather(control_, std::as_bytes(std::span(&number, 1)),
                                                options.host_timeout);
  if (!mine) return mine;
  if (!all) return all.error();
  for (std::size_t other = 0; other < all->size(); ++other) {
    if (number_in_bytes<std::uint64_t>((*all)[other]) != 0) continue;
    return Error(ErrorCode::device,
                 fmt::format("prepare: rank {} has failed, or waits no more", other));
  }
  group_ = number_in_bytes<std::uint64_t>(all->front());
  return {};
}

Result<Address> allocate_segment(const CommContext& context, Bytes bytes) {
  Result<Address> memory = context.nccl.allocate_segment(bytes);
  if (memory.ok()) return memory;
  const Result<Bytes> gone = context.heap.trim(0_B, Trim::waits);
  return gone.ok() && *gone > 0_B ? context.nccl.allocate_segment(bytes) : std::move(memory);
}

// One operation of each kind, eagerly, in memory of NCCL's: the heap keeps nothing of it. Where
// ranks have a part each, the parts are of kLarge bytes together, so that the memory does not grow
// with the ranks.
Status CommState::connect_all(Stream stream, Address memory, std::uint64_t whole) {
  auto* const from = static_cast<std::byte*>(memory.pointer());
  std::byte* const into = from + 4 * whole;
  Status first;
  for (int kind = 0; kind < static_cast<int>(OperationKind::send) && first; ++kind) {
    Operation operation{.kind = static_cast<OperationKind>(kind),
                        .send = from,
                        .receive = into,
                        .count = whole,
                        .type = DataType::int32};
    if (operation.has_parts()) operation.count = whole / static_cast<std::uint64_t>(ranks);
    first = enqueue({&operation, 1}, stream);
  }
  std::vector<Operation> pairs;
  for (int peer = 0; peer < ranks; ++peer) {
    pairs.push_back({.kind = OperationKind::send, .send = from, .count = 1, .peer = peer});
    pairs.push_back({.kind = OperationKind::receive,
                     .receive = into + 4 * static_cast<std::uint64_t>(peer),
                     .count = 1,
                     .peer = peer});
  }
  if (first) first = enqueue(pairs, stream);
  Status finished = host_wait(context.device, stream);  // prepare() bounds it
  if (first) first = std::move(finished);
  Status freed = context.nccl.free_segment(memory);
  return first ? std::move(freed) : std::move(first);
}

Result<std::vector<std::vector<CommState::Entry>>> CommState::agree(
    const std::string& call, const Status& mine, ErrorCode failed,
    std::span<const Entry> captured) {
  struct Message {
    char call[64] = {};
    std::uint32_t has_failed = 0;
    std::uint32_t bytes = 0;       // of `content`
    char content[kMostSaid] = {};  // why the call has failed, or the entries
  };
  const Status works = status();
  if (!prepared) {
    if (!works) return works.error();
    return error(ErrorCode::invalid_argument,
                 call + ": ranks agree by a communicator that is prepared: call prepare() first");
  }
  const std::string why = mine ? "" : mine.error().message();
  const std::span<const char> content =
      mine ? std::span(reinterpret_cast<const char*>(captured.data()), captured.size_bytes())
           : std::span<const char>(why);
  Message message{.has_failed = mine ? 0u : 1u,
                  .bytes = static_cast<std::uint32_t>(std::min(content.size(), kMostSaid))};
  std::memcpy(message.call, call.data(), std::min(call.size(), sizeof message.call - 1));
  std::copy_n(content.begin(), message.bytes, message.content);
  const auto gathered = [&] {
    // Operations of other threads go on meanwhile.
    const std::lock_guard control_call(control_calls_);
    return context.nccl.host_all_gather(
        control_, std::as_bytes(std::span(&message, 1)),
        works ? options.host_timeout : std::min(options.host_timeout, kSecond));
  }();
  if (!gathered) end_agreement();
  if (!works) return works.error();
  if (!gathered) {
    fail({ErrorCode::device, call + ": a rank did not take part: " + gathered.error().message()});
    return status().error();  // what ended it, if somebody did meanwhile
  }
  std::vector<std::vector<Entry>> all;
  for (const std::vector<std::byte>& bytes : *gathered) {
    const auto theirs = number_in_bytes<Message>(bytes);
    const std::size_t rank = all.size(), size = std::min<std::size_t>(theirs.bytes, kMostSaid);
    const std::string_view their_call(theirs.call, ::strnlen(theirs.call, sizeof theirs.call));
    if (their_call != message.call) {
      return error(ErrorCode::invalid_argument,
                   fmt::format("ranks ask for different things: rank {} {}, this one {}: make the "
                               "same calls on every rank",
                               rank, their_call, call));
    }
    if (theirs.has_failed != 0) {
      return error(failed, fmt::format("{}: failed on rank {}, and therefore on all ranks: {}",
                                       call, rank, std::string_view(theirs.content, size)));
    }
    std::vector<Entry>& entries = all.emplace_back(size / sizeof(Entry));
    std::copy_n(theirs.content, entries.size() * sizeof(Entry),
                reinterpret_cast<char*>(entries.data()));
  }
  return all;
}

CommState::Entry CommState::captured(std::uint64_t capture) {
  const std::lock_guard calls(calls_);
  const Captured* const of = captures_.find(capture);
  return {.group = group_,
          .ranks = static_cast<std::uint64_t>(ranks),
          .operations = of != nullptr ? of->operations : CapturedOperations{}};
}

// A rank says once what it captured of all communicators, so that no order of communicators has to
// be the same on all ranks.
Status agree_on_capture(const std::vector<std::shared_ptr<CommState>>& all, std::uint64_t capture,
                        Status mine) {
  using Entry = CommState::Entry;
  CommState& comm = *all.front();
  std::vector<Entry> entries;
  std::map<std::uint64_t, std::string> names;  // of communicators of this rank
  for (const std::shared_ptr<CommState>& each : all) {
    if (mine) mine = each->status();
    entries.push_back(each->captured(capture));
    names[entries.back().group] = each.get() == &comm ? "" : " of '" + each->options.name + "'";
  }
  if (mine && all.size() > CommState::kMostEntries) {
    mine = Error(ErrorCode::capture, fmt::format("it has operations of more than {} communicators",
                                                 CommState::kMostEntries));
  }
  const auto told = comm.agree("end_capture", mine, ErrorCode::capture, entries);
  if (!told) return told.error();

  struct Group {
    std::size_t first_rank = 0;
    Entry entry;
    std::uint64_t found = 0;
  };
  std::map<std::uint64_t, Group> groups;
  const auto name_of = [&](std::uint64_t group) {
    const auto known = names.find(group);
    return known == names.end() ? " of another communicator" : known->second;
  };
  for (std::size_t rank = 0; rank < told->size(); ++rank) {
    for (const Entry& entry : (*told)[rank]) {
      Group& group = groups.try_emplace(entry.group, Group{rank, entry}).first->second;
      ++group.found;
      if (entry.operations == group.entry.operations) continue;
      return comm.error(
          ErrorCode::capture,
          fmt::format(
              "rank {} captured other operations{} than rank {} ({} and {} of them, unlike in "
              "number, kind, size, type or order), and the graphs would wait for each other "
              "for ever: capture the same on every rank",
              rank, name_of(entry.group), group.first_rank, entry.operations.count,
              group.entry.operations.count));
    }
  }
  for (const auto& [number, group] : groups) {
    if (group.found == group.entry.ranks) continue;
    return comm.error(ErrorCode::capture,
                      fmt::format("{} of {} ranks have captured operations{}: all of them capture, "
                                  "and a communicator that has all of them ends the capture",
                                  group.found, group.entry.ranks, name_of(number)));
  }
  return {};
}

}  // namespace weir
