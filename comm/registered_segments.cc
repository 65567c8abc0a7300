// What ranks agree on, and the life of segments.
#include <algorithm>
#include <cstring>
#include <utility>

#include "comm/bounded.h"
#include "comm/comm_state.h"
#include "comm/digest.h"
#include "comm/registered_memory.h"
#include "core/base/format.h"
#include "weir/log.h"

namespace weir {
namespace {

enum class Call : std::uint64_t { none, grow, grown, verify };

std::string name_of(Call call, std::uint64_t pool) {
  const std::string of = " registered pool " + std::to_string(pool);
  switch (call) {
    case Call::grow:
      return "adds a segment to" + of;
    case Call::grown:
      return "has added a segment to" + of;
    case Call::verify:
      return "verifies" + of;
    case Call::none:
      break;
  }
  return "agrees on something else";
}

}  // namespace

// Of one size for every call.
struct RegisteredMemory::AgreementMessage {
  Call call = Call::none;
  std::uint64_t pool = 0;
  std::uint64_t segments = 0;
  std::uint64_t bytes = 0;  // of the new segment
  std::uint64_t blocks = 0;
  std::uint64_t digest = 0;
  std::uint64_t failed = 0;  // 1: with this code, for this reason
  ErrorCode code = ErrorCode::device;
  char why[200] = {};
};

// Every rank's message of the same call.
Result<std::vector<RegisteredMemory::AgreementMessage>> RegisteredMemory::gather_messages(
    const AgreementMessage& mine) {
  const auto all = comm_.host_all_gather(name_of(mine.call, number_),
                                         {reinterpret_cast<const std::byte*>(&mine), sizeof mine});
  if (!all) return all.error();
  std::vector<AgreementMessage> messages;
  for (const std::vector<std::byte>& bytes : *all) {
    AgreementMessage theirs;
    if (bytes.size() == sizeof theirs) std::memcpy(&theirs, bytes.data(), sizeof theirs);
    theirs.why[sizeof theirs.why - 1] = '\0';
    if (theirs.call != mine.call || theirs.pool != mine.pool) {
      return error(ErrorCode::invalid_argument,
                   "ranks ask for different things: rank " + std::to_string(messages.size()) + " " +
                       name_of(theirs.call, theirs.pool) + ", this one " +
                       name_of(mine.call, number_) + ": make the same calls on every rank");
    }
    messages.push_back(theirs);
  }
  return messages;
}

Status RegisteredMemory::add_segment() {
  const std::lock_guard agreeing(agreeing_);
  return grow(segment_);
}

// Twice: on what to make, and on whether all have made it.
Status RegisteredMemory::grow(Bytes bytes) {
  AgreementMessage mine{.call = Call::grow, .pool = number_, .bytes = bytes.count};
  mine.segments = statistics().segments;
  const Result<std::vector<AgreementMessage>> asked = gather_messages(mine);
  if (!asked) return asked.error();
  const bool same = std::all_of(asked->begin(), asked->end(), [&](const AgreementMessage& theirs) {
    return theirs.segments == mine.segments && theirs.bytes == mine.bytes;
  });
  if (!same) {
    std::string list;
    for (std::size_t rank = 0; rank < asked->size(); ++rank) {
      list += (rank == 0 ? "rank " : ", rank ") + std::to_string(rank) + " for " +
              format(Bytes{(*asked)[rank].bytes}) + " as segment " +
              std::to_string((*asked)[rank].segments);
    }
    return error(
        ErrorCode::invalid_argument,
        "ranks ask for different segments: " + list +
            ": memory registered with NCCL must be equal on every rank; nothing was added");
  }
  Result<Segment> made = make_segment(bytes);
  AgreementMessage done{.call = Call::grown, .pool = number_};
  if (!made) {
    const std::string& why = made.error().message();
    done.failed = 1;
    done.code = made.error().code();
    std::memcpy(done.why, why.data(), std::min(why.size(), sizeof done.why - 1));
  }
  const Result<std::vector<AgreementMessage>> done_by_rank = gather_messages(done);
  Status outcome = done_by_rank ? Status{} : Status(done_by_rank.error());
  for (std::size_t rank = 0; outcome && rank < done_by_rank->size(); ++rank) {
    const AgreementMessage& theirs = (*done_by_rank)[rank];
    if (theirs.failed == 0) continue;
    outcome = error(theirs.code, "rank " + std::to_string(rank) + " has no segment of " +
                                     format(bytes) + ", so no rank keeps one: " + theirs.why);
  }
  if (!outcome) {
    if (made) {
      if (Status gone = end_segments({*made}, true); !gone) {
        log(LogLevel::error, gone.error().message());
      }
    }
    return outcome;
  }
  const std::lock_guard lock(mutex_);
  // The gap keeps ranges of two segments from touching.
  made->begin = segments_.empty()
                    ? RegisteredPool::kAlignment
                    : segments_.back().begin + segments_.back().bytes + RegisteredPool::kAlignment;
  segments_.push_back(*made);
  free_.insert({Address{made->begin.count}, bytes});
  return {};
}

Result<RegisteredMemory::Segment> RegisteredMemory::make_segment(Bytes bytes) {
  Nccl& nccl = comm_.context.nccl;
  const Result<Address> address = nccl.allocate_segment(bytes);
  if (!address) return error(address.error().code(), address.error().message());
  const Result<RegistrationHandle> handle = nccl.register_range(comm_.handle, *address, bytes);
  if (!handle) {
    (void)nccl.free_segment(*address);
    return error(handle.error().code(), handle.error().message());
  }
  return Segment{*address, bytes, 0_B, *handle};
}

// Host-waits, on a stream of its own: another may hold more work than this.
Status RegisteredMemory::wait_for(const FenceSet& fences) {
  if (fences.empty()) return {};
  const CommContext& context = comm_.context;
  const Result<Stream> stream = context.nccl.create_stream();
  if (!stream) return error(stream.error().code(), stream.error().message());
  Status first;
  for (const Fence fence : fences) {
    if (first) first = context.heap.wait(*stream, fence);
  }
  if (first) first = comm_.finish(*stream);
  if (!first) return error(first.error().code(), first.error().message());  // it may be in use
  if (Status retired = context.heap.retire(*stream); !retired) return retired;
  return context.nccl.destroy_stream(*stream);
}

// Whatever one refuses, the others are done; a segment that is still registered is kept.
Status RegisteredMemory::end_segments(std::vector<Segment> segments, bool free) {
  if (segments.empty()) return {};
  const std::size_t count = segments.size();
  const std::optional<Status> ended = bounded(
      comm_.options.host_timeout,
      [nccl = &comm_.context.nccl, comm = comm_.handle, segments = std::move(segments), free] {
        Status first;
        for (const Segment& segment : segments) {
          Status status;
          if (segment.registration.value != 0) {
            status = nccl->deregister(comm, segment.registration);
          }
          if (status && free) status = nccl->free_segment(segment.address);
          if (first && !status) first = std::move(status);
        }
        return first;
      });
  if (!ended) {
    return error(ErrorCode::device, "NCCL did not deregister its " + std::to_string(count) +
                                        " segments in time: they are kept");
  }
  if (!*ended) return error(ended->error().code(), ended->error().message());
  return {};
}

Status RegisteredMemory::close() {
  const std::lock_guard agreeing(agreeing_);
  FenceSet fences;
  {
    const std::lock_guard lock(mutex_);
    if (!blocks_.empty()) {
      Bytes live;
      for (const auto& [address, block] : blocks_) live += block.bytes;
      return error(ErrorCode::invalid_argument, std::to_string(blocks_.size()) +
                                                    " blocks are live, of " + format(live) +
                                                    ": deallocate them first");
    }
    for (const auto& [begin, freed] : freed_) fences.join(freed.fences);
  }
  if (Status waited = wait_for(fences); !waited) return waited;
  std::vector<Segment> segments;
  {
    const std::lock_guard lock(mutex_);
    segments = std::exchange(segments_, {});
    free_ = RangeSet();
    freed_.clear();
  }
  return end_segments(std::move(segments), true);
}

bool RegisteredMemory::abandon() {
  const std::lock_guard lock(mutex_);
  abandoned_ = true;
  return left_;
}

Status RegisteredMemory::leave() {
  std::vector<Segment> segments;
  FenceSet fences;
  Status unknown;
  bool abandoned = false;
  {
    const std::lock_guard lock(mutex_);
    left_ = true;
    abandoned = abandoned_;
    segments = segments_;
    for (Segment& segment : segments_) segment.registration = {};
    if (abandoned) segments_.clear();
    for (const auto& [begin, freed] : freed_) fences.join(freed.fences);
    for (const auto& [address, block] : blocks_) {
      fences.join(block.fences);
      if (!abandoned) continue;
      const Result<Fence> point = comm_.context.heap.take_fence({}, block.stream);
      if (!point) unknown = point.error();
      if (point) fences.join(*point);
    }
  }
  if (!abandoned) return end_segments(std::move(segments), false);
  if (unknown) unknown = wait_for(fences);
  Status ended = end_segments(std::move(segments), unknown.ok());
  if (unknown) return ended;
  return error(ErrorCode::device,
               "its memory is kept, since its last use is not known to be over: " +
                   unknown.error().message());
}

std::vector<std::uint64_t> RegisteredMemory::layout() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> live;
  for (const auto& [address, block] : blocks_)
    live.emplace_back(block.begin.count, block.bytes.count);
  std::sort(live.begin(), live.end());
  std::vector<std::uint64_t> words;
  for (const Segment& segment : segments_) {
    words.insert(words.end(), {segment.begin.count, segment.bytes.count});
  }
  for (const auto& [begin, bytes] : live) words.insert(words.end(), {begin, bytes});
  return words;
}

Status RegisteredMemory::verify() {
  const std::lock_guard agreeing(agreeing_);
  const std::vector<std::uint64_t> mine = layout();
  const RegisteredPoolStatistics now = statistics();
  const Result<std::vector<AgreementMessage>> all =
      gather_messages({.call = Call::verify,
                       .pool = number_,
                       .segments = now.segments,
                       .blocks = mine.size() / 2 - now.segments,
                       .digest = digest(mine)});
  if (!all) return all.error();
  const AgreementMessage& first = all->front();
  std::size_t longest = 0;
  bool same = true;
  for (std::size_t rank = 0; rank < all->size(); ++rank) {
    const AgreementMessage& theirs = (*all)[rank];
    if (theirs.segments != first.segments) {
      return error(ErrorCode::invalid_argument,
                   "rank " + std::to_string(rank) + " has " + std::to_string(theirs.segments) +
                       " segments, rank 0 has " + std::to_string(first.segments));
    }
    same = same && theirs.blocks == first.blocks && theirs.digest == first.digest;
    longest = std::max(longest, 2 * static_cast<std::size_t>(theirs.segments + theirs.blocks));
  }
  return same ? Status{} : compare(mine, longest);
}

std::string RegisteredMemory::describe(const std::vector<std::uint64_t>& words,
                                       std::size_t at) const {
  const Bytes begin{words[at]}, bytes{words[at + 1]};
  if (bytes == 0_B) return "no block more";
  const std::lock_guard lock(mutex_);
  const auto after =
      std::upper_bound(segments_.begin(), segments_.end(), begin,
                       [](Bytes where, const Segment& each) { return where < each.begin; });
  const auto index = std::max<std::ptrdiff_t>(after - segments_.begin() - 1, 0);
  const Bytes offset = after == segments_.begin() ? begin : begin - std::prev(after)->begin;
  return format(bytes) + " at offset " + std::to_string(offset.count) + " of segment " +
         std::to_string(index);
}

// Everything, from everybody; zeros where a rank has less.
Status RegisteredMemory::compare(const std::vector<std::uint64_t>& mine, std::size_t longest) {
  std::vector<std::uint64_t> padded = mine;
  padded.resize(longest);
  const auto all =
      comm_.host_all_gather(name_of(Call::verify, number_), std::as_bytes(std::span(padded)));
  if (!all) return all.error();
  std::vector<std::vector<std::uint64_t>> layouts;
  for (const std::vector<std::byte>& bytes : *all) {
    layouts.emplace_back(longest);
    std::memcpy(layouts.back().data(), bytes.data(), std::min(bytes.size(), longest * 8));
  }
  for (std::size_t at = 0; at + 1 < longest; at += 2) {
    for (std::size_t rank = 1; rank < layouts.size(); ++rank) {
      const auto& theirs = layouts[rank];
      const auto& first = layouts.front();
      if (theirs[at] == first[at] && theirs[at + 1] == first[at + 1]) continue;
      return error(ErrorCode::invalid_argument,
                   "rank " + std::to_string(rank) + " has " + describe(theirs, at) +
                       " where rank 0 has " + describe(first, at) +
                       ": make the same calls in the same order on every rank");
    }
  }
  return error(ErrorCode::device, "ranks differ, and say the same when asked again");
}

}  // namespace weir
