#include "comm/registered_memory.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "comm/bounded.h"
#include "comm/comm_state.h"
#include "core/base/format.h"
#include "weir/log.h"

namespace weir {
namespace {

constexpr Bytes kAlignment = RegisteredPool::kAlignment;

enum class Call : std::uint64_t { none, create, created, verify };

std::string name_of(Call call, std::uint64_t pool) {
  constexpr const char* kNames[] = {"agrees on something else", "creates", "has created",
                                    "verifies"};
  const std::string name = kNames[std::min(static_cast<std::uint64_t>(call), std::uint64_t{3})];
  return call == Call::none ? name : name + " registered pool " + std::to_string(pool);
}

std::size_t alive_of(const std::vector<std::weak_ptr<void>>& graphs) {
  return static_cast<std::size_t>(std::count_if(
      graphs.begin(), graphs.end(), [](const auto& graph) { return !graph.expired(); }));
}

}  // namespace

// Of one size for every call.
struct RegisteredMemory::AgreementMessage {
  Call call = Call::none;
  std::uint64_t pool = 0;
  std::uint64_t segments = 0;
  std::uint64_t segment = 0;  // bytes of each
  std::uint64_t blocks = 0;
  std::uint64_t failed = 0;  // 1: with this code, for this reason
  ErrorCode code = ErrorCode::device;
  char why[200] = {};
};

RegisteredMemory::RegisteredMemory(CommState& comm, std::uint64_t number, Bytes segment)
    : comm_(comm), number_(number), segment_(segment) {}

Error RegisteredMemory::error(ErrorCode code, const std::string& what) const {
  return comm_.error(code, "registered pool " + std::to_string(number_) + ": " + what);
}

Error RegisteredMemory::unknown(const char* call, const void* block) const {
  return error(ErrorCode::unknown_pointer,
               std::string(call) + ": no live block begins at " + format(Address::of(block)));
}

Bytes RegisteredMemory::begin_of(std::size_t segment) const {
  return kAlignment + (segment_ + kAlignment) * segment;
}
std::size_t RegisteredMemory::segment_of(Bytes offset) const {
  return static_cast<std::size_t>((offset - kAlignment) / (segment_ + kAlignment));
}

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

// Ranks agree twice: on what to make, and on whether all have made it.
Status RegisteredMemory::make(std::uint64_t segments) {
  const std::lock_guard agreeing(agreeing_);
  const auto asked = gather_messages(
      {.call = Call::create, .pool = number_, .segments = segments, .segment = segment_.count});
  if (!asked) return asked.error();
  std::string list;
  bool same = true;
  for (std::size_t rank = 0; rank < asked->size(); ++rank) {
    const AgreementMessage& theirs = (*asked)[rank];
    same &= theirs.segments == segments && theirs.segment == segment_.count;
    list += (rank == 0 ? "rank " : ", rank ") + std::to_string(rank) + " for " +
            std::to_string(theirs.segments) + " of " + format(Bytes{theirs.segment});
  }
  if (!same) {
    return error(ErrorCode::invalid_argument,
                 "ranks ask for different segments: " + list +
                     ": memory registered with NCCL must be equal on every rank; none was made");
  }
  AgreementMessage done{.call = Call::created, .pool = number_};
  std::vector<Segment> made;
  while (made.size() < segments && done.failed == 0) {
    const Result<Segment> one = make_segment();
    if (one) {
      made.push_back(*one);
      continue;
    }
    const std::string& why = one.error().message();
    done.failed = 1;
    done.code = one.error().code();
    std::memcpy(done.why, why.data(), std::min(why.size(), sizeof done.why - 1));
  }
  const auto by_rank = gather_messages(done);
  Status outcome = by_rank ? Status{} : Status(by_rank.error());
  for (std::size_t rank = 0; outcome && rank < by_rank->size(); ++rank) {
    const AgreementMessage& theirs = (*by_rank)[rank];
    if (theirs.failed == 0) continue;
    outcome = error(theirs.code, "rank " + std::to_string(rank) + " has no segment of " +
                                     format(segment_) + ", so no rank keeps one: " + theirs.why);
  }
  if (!outcome) {
    if (Status gone = end_segments(std::move(made), true); !gone) {
      log(LogLevel::error, gone.error().message());
    }
    return outcome;
  }
  const std::lock_guard lock(mutex_);
  segments_ = std::move(made);
  for (std::size_t i = 0; i < segments_.size(); ++i) {
    free_.insert({Address{begin_of(i).count}, segment_});
  }
  return {};
}

Result<RegisteredMemory::Segment> RegisteredMemory::make_segment() {
  Nccl& nccl = comm_.context.nccl;
  const Result<Address> address = nccl.allocate_segment(segment_);
  if (!address) return error(address.error().code(), address.error().message());
  const Result<RegistrationHandle> handle = nccl.register_range(comm_.handle, *address, segment_);
  if (!handle) {
    (void)nccl.free_segment(*address);
    return error(handle.error().code(), handle.error().message());
  }
  return Segment{*address, *handle};
}

Result<void*> RegisteredMemory::allocate(Bytes bytes, Stream stream) {
  if (bytes == 0_B) return nullptr;
  const Result<CaptureInfo> info = comm_.context.device.capture_info(stream);
  if (!info) return info.error();
  if (info->status != CaptureInfo::Status::none) {
    return error(ErrorCode::capture,
                 "allocate: stream " + std::to_string(stream.id) +
                     " is being captured, and what a pool gives is not the graph's: allocate "
                     "before the capture begins");
  }
  if (Status works = comm_.status(); !works) return std::move(works).error();
  const bool fits = bytes <= segment_;  // rounding up what does not might overflow
  const Bytes size = fits ? round_up(bytes, kAlignment) : bytes;
  const std::lock_guard lock(mutex_);
  const std::optional<Range> room = fits ? free_.best_fit(size) : std::nullopt;
  if (!room) {
    return error(ErrorCode::out_of_memory,
                 "no segment has room for " + format(bytes) + ": there are " +
                     std::to_string(segments_.size()) + " of " + format(segment_) +
                     ", fixed when the pool was created (RegisteredPoolOptions)");
  }
  const Bytes begin{room->begin.value};
  // From now on the block's own stream implies the fences of whoever had the bytes before.
  FenceSet fences = take_fences(begin, begin + size);
  for (const Fence fence : fences) {
    const Status waited = comm_.context.heap.wait(stream, fence);
    if (waited) continue;
    freed_.emplace(begin, Freed{begin + size, std::move(fences)});  // for who gets them next
    return error(waited.error().code(), "allocate: " + waited.error().message());
  }
  free_.erase({room->begin, size});
  const std::size_t segment = segment_of(begin);
  const Address address = segments_[segment].address + (begin - begin_of(segment));
  blocks_.emplace(address, Block{begin, size, stream, {}, {}});
  return address.pointer();
}

Status RegisteredMemory::fence(void* block, Stream user) {
  if (block == nullptr) return {};
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(Address::of(block));
  if (found == blocks_.end()) return unknown("fence", block);
  const Result<Fence> point = comm_.context.heap.take_fence({}, user);
  if (!point) return error(point.error().code(), "fence: " + point.error().message());
  found->second.fences.join(*point);
  return {};
}

Status RegisteredMemory::deallocate(void* block) {
  if (block == nullptr) return {};
  (void)soon([&] { return graphs_of(block) == 0; });
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(Address::of(block));
  if (found == blocks_.end()) return unknown("deallocate", block);
  Block& gone = found->second;
  if (const std::size_t alive = alive_of(gone.graphs); alive > 0) {
    return error(ErrorCode::invalid_argument,
                 "deallocate: " + std::to_string(alive) +
                     " graphs that captured operations on the block at " + format(found->first) +
                     " are alive, and use it when they are launched: destroy them first");
  }
  const Result<Fence> point = comm_.context.heap.take_fence({}, gone.stream);
  if (!point && point.error().code() == ErrorCode::capture) {
    return error(ErrorCode::capture, "deallocate: stream " + std::to_string(gone.stream.id) +
                                         ", which the block was allocated for, is being captured: "
                                         "deallocate before the capture begins, or after its end");
  }
  if (!point) return error(point.error().code(), "deallocate: " + point.error().message());
  gone.fences.join(*point);
  free_.insert({Address{gone.begin.count}, gone.bytes});
  freed_.emplace(gone.begin, Freed{gone.begin + gone.bytes, std::move(gone.fences)});
  blocks_.erase(found);
  return {};
}

// A block begins where free bytes begin: nothing that was freed reaches into it from before. What
// reaches beyond the end stays there.
FenceSet RegisteredMemory::take_fences(Bytes begin, Bytes end) {
  FenceSet fences;
  for (auto at = freed_.lower_bound(begin); at != freed_.end() && at->first < end;) {
    Freed freed = std::move(at->second);
    at = freed_.erase(at);
    fences.join(freed.fences);
    if (freed.end > end) freed_.emplace(end, std::move(freed));
  }
  return fences;
}

RegisteredMemory::Blocks::iterator RegisteredMemory::containing(const void* pointer) {
  const Address address = Address::of(pointer);
  auto at = blocks_.upper_bound(address);
  if (at == blocks_.begin()) return blocks_.end();
  --at;
  return address < at->first + at->second.bytes ? at : blocks_.end();
}

void RegisteredMemory::fence_use(const void* pointer, Fence done) {
  const std::lock_guard lock(mutex_);
  if (const auto block = containing(pointer); block != blocks_.end()) {
    block->second.fences.join(done);
  }
}

bool RegisteredMemory::is_of_other(const void* pointer, Stream stream) {
  const std::lock_guard lock(mutex_);
  const auto block = containing(pointer);
  return block != blocks_.end() && block->second.stream != stream;
}

void RegisteredMemory::keep_for(const void* pointer, const std::weak_ptr<void>& graph) {
  const std::lock_guard lock(mutex_);
  const auto block = containing(pointer);
  if (block == blocks_.end()) return;
  std::vector<std::weak_ptr<void>>& graphs = block->second.graphs;
  std::erase_if(graphs, [](const std::weak_ptr<void>& old) { return old.expired(); });
  const bool known = std::any_of(graphs.begin(), graphs.end(), [&](const auto& old) {
    return !old.owner_before(graph) && !graph.owner_before(old);
  });
  if (!known) graphs.push_back(graph);
}

std::size_t RegisteredMemory::graphs_of(const void* block) const {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(Address::of(block));
  return found == blocks_.end() ? 0 : alive_of(found->second.graphs);
}

RegisteredPoolStatistics RegisteredMemory::statistics() const {
  const std::lock_guard lock(mutex_);
  RegisteredPoolStatistics now{.segments = segments_.size(),
                               .segment_bytes = segment_ * segments_.size(),
                               .live_blocks = blocks_.size()};
  for (const auto& [address, block] : blocks_) now.live_bytes += block.bytes;
  return now;
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

// Every rank's blocks, as pairs of offset and size; zeros where a rank has fewer.
Status RegisteredMemory::verify() {
  const std::lock_guard agreeing(agreeing_);
  std::vector<std::uint64_t> mine;
  {
    const std::lock_guard lock(mutex_);
    std::map<Bytes, Bytes> live;
    for (const auto& [address, block] : blocks_) live.emplace(block.begin, block.bytes);
    for (const auto& [begin, bytes] : live) mine.insert(mine.end(), {begin.count, bytes.count});
  }
  const auto counts =
      gather_messages({.call = Call::verify, .pool = number_, .blocks = mine.size() / 2});
  if (!counts) return counts.error();
  std::size_t longest = 0;
  for (const AgreementMessage& theirs : *counts) {
    longest = std::max(longest, 2 * static_cast<std::size_t>(theirs.blocks));
  }
  if (longest == 0) return {};
  mine.resize(longest);
  const auto all =
      comm_.host_all_gather(name_of(Call::verify, number_), std::as_bytes(std::span(mine)));
  if (!all) return all.error();
  std::vector<std::vector<std::uint64_t>> blocks;
  for (const std::vector<std::byte>& bytes : *all) {
    blocks.emplace_back(longest);
    std::memcpy(blocks.back().data(), bytes.data(), std::min(bytes.size(), longest * 8));
  }
  for (std::size_t at = 0; at < longest; at += 2) {
    for (std::size_t rank = 1; rank < blocks.size(); ++rank) {
      const std::uint64_t *theirs = &blocks[rank][at], *first = &blocks.front()[at];
      if (std::equal(theirs, theirs + 2, first)) continue;
      return error(ErrorCode::invalid_argument,
                   "rank " + std::to_string(rank) + " has " + describe(theirs) +
                       " where rank 0 has " + describe(first) +
                       ": make the same calls in the same order on every rank");
    }
  }
  return {};
}

std::string RegisteredMemory::describe(const std::uint64_t* block) const {
  const Bytes begin{block[0]}, bytes{block[1]};
  if (bytes == 0_B) return "no block more";
  const std::size_t segment = segment_of(begin);
  return format(bytes) + " at offset " + std::to_string((begin - begin_of(segment)).count) +
         " of segment " + std::to_string(segment);
}

}  // namespace weir
