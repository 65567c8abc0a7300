#include "comm/registered_memory.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "comm/bounded.h"
#include "comm/comm_state.h"
#include "comm/digest.h"
#include "core/base/format.h"
#include "weir/log.h"

namespace weir {
namespace {

constexpr Bytes kAlignment = RegisteredPool::kAlignment;

std::size_t alive_of(const std::vector<std::weak_ptr<void>>& graphs) {
  return static_cast<std::size_t>(std::count_if(
      graphs.begin(), graphs.end(), [](const auto& graph) { return !graph.expired(); }));
}

}  // namespace

RegisteredMemory::RegisteredMemory(CommState& comm, std::uint64_t number, Bytes segment)
    : comm_(comm), number_(number), segment_(segment) {}

Error RegisteredMemory::error(ErrorCode code, const std::string& what) const {
  return comm_.error(code, "registered pool " + std::to_string(number_) + ": " + what);
}

Error RegisteredMemory::error(const Error& why, const std::string& call) const {
  return error(why.code(), call + why.message());
}

Error RegisteredMemory::unknown(const char* call, const void* block) const {
  return error(ErrorCode::unknown_pointer,
               std::string(call) + ": no live block begins at " + format(Address::of(block)));
}

Result<std::vector<std::string>> RegisteredMemory::agree(const std::string& call,
                                                         const std::string& mine) {
  return comm_.gather_said(call + " registered pool " + std::to_string(number_), mine);
}

// Ranks agree twice: on what to make, and on whether all have made it.
Status RegisteredMemory::make(std::uint64_t segments) {
  const std::lock_guard agreeing(agreeing_);
  const auto asked = agree(
      "creates", std::to_string(segments) + " of " + std::to_string(segment_.count) + " bytes");
  if (!asked) return asked.error();
  std::string list;
  for (std::size_t rank = 0; rank < asked->size(); ++rank) {
    list += (rank == 0 ? "rank " : ", rank ") + std::to_string(rank) + " for " + (*asked)[rank];
  }
  if (std::count(asked->begin(), asked->end(), asked->front()) != std::ssize(*asked)) {
    return error(ErrorCode::invalid_argument,
                 "ranks ask for different segments: " + list +
                     ": memory registered with NCCL must be equal on every rank; none was made");
  }
  std::vector<Segment> made;
  std::string failed;  // the code, as one character, and why
  while (made.size() < segments && failed.empty()) {
    const Result<Segment> one = make_segment();
    if (one) {
      made.push_back(*one);
    } else {
      failed = static_cast<char>('0' + static_cast<int>(one.error().code()));
      failed += one.error().message();
    }
  }
  const auto by_rank = agree("has created", failed);
  Status outcome = by_rank ? Status{} : Status(by_rank.error());
  for (std::size_t rank = 0; outcome && rank < by_rank->size(); ++rank) {
    const std::string& theirs = (*by_rank)[rank];
    if (theirs.empty()) continue;
    outcome = error(static_cast<ErrorCode>(theirs.front() - '0'),
                    "rank " + std::to_string(rank) + " has no segment of " + format(segment_) +
                        ", so no rank keeps one: " + theirs.substr(1));
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
    add_free((segment_ + kAlignment) * i, segment_);
  }
  return {};
}

Result<RegisteredMemory::Segment> RegisteredMemory::make_segment() {
  Nccl& nccl = comm_.context.nccl;
  const Result<Address> address = nccl.allocate_segment(segment_);
  if (!address) return error(address.error());
  const Result<RegistrationHandle> handle = nccl.register_range(comm_.handle, *address, segment_);
  if (handle) return Segment{*address, *handle};
  (void)nccl.free_segment(*address);
  return error(handle.error());
}

void RegisteredMemory::add_free(Bytes begin, Bytes bytes) {
  auto after = free_.lower_bound(begin);
  if (after != free_.end() && after->first == begin + bytes) {
    bytes += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == begin) {
      before->second += bytes;
      return;
    }
  }
  free_.emplace(begin, bytes);
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
  const std::lock_guard lock(mutex_);
  // Rounding up what does not fit might overflow.
  const Bytes size = bytes <= segment_ ? round_up(bytes, kAlignment) : bytes;
  auto best = free_.end();  // the smallest that has room; a pool has few buffers, which live long
  for (auto room = free_.begin(); room != free_.end(); ++room) {
    if (room->second < size) continue;
    if (best == free_.end() || room->second < best->second) best = room;
  }
  if (best == free_.end()) {
    return error(ErrorCode::out_of_memory,
                 "no segment has room for " + format(bytes) + ": there are " +
                     std::to_string(segments_.size()) + " of " + format(segment_) +
                     ", fixed when the pool was created (RegisteredPoolOptions)");
  }
  const auto [begin, room] = *best;
  FenceSet fences;
  freed_.collect(begin.count, (begin + size).count, fences);
  for (const Fence fence : fences) {
    const Status waited = comm_.context.heap.wait(stream, fence);
    if (!waited) return error(waited.error(), "allocate: ");
  }
  // From now on the block's own stream implies the fences of whoever had the bytes before.
  freed_.forget(begin.count, (begin + size).count);
  free_.erase(best);
  if (room > size) free_.emplace(begin + size, room - size);
  const Bytes in_segment = begin % (segment_ + kAlignment);
  const auto segment = static_cast<std::size_t>(begin / (segment_ + kAlignment));
  const Address address = segments_[segment].address + in_segment;
  blocks_.emplace(address, Block{begin, size, stream, {}, {}});
  return address.pointer();
}

Status RegisteredMemory::fence(void* block, Stream user) {
  if (block == nullptr) return {};
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(Address::of(block));
  if (found == blocks_.end()) return unknown("fence", block);
  const Result<Fence> point = comm_.context.heap.take_fence({}, user);
  if (!point) return error(point.error(), "fence: ");
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
  if (!point) return error(point.error(), "deallocate: ");
  gone.fences.join(*point);
  freed_.add(gone.begin.count, (gone.begin + gone.bytes).count, gone.fences);
  add_free(gone.begin, gone.bytes);
  blocks_.erase(found);
  return {};
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
  std::erase_if(graphs, [&](const std::weak_ptr<void>& old) {
    return old.expired() || (!old.owner_before(graph) && !graph.owner_before(old));
  });
  graphs.push_back(graph);
}

std::size_t RegisteredMemory::graphs_of(const void* block) const {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(Address::of(block));
  return found == blocks_.end() ? 0 : alive_of(found->second.graphs);
}

Bytes RegisteredMemory::live_bytes() const {
  Bytes live;
  for (const auto& [address, block] : blocks_) live += block.bytes;
  return live;
}

RegisteredPoolStatistics RegisteredMemory::statistics() const {
  const std::lock_guard lock(mutex_);
  return {.segments = segments_.size(),
          .segment_bytes = segment_ * segments_.size(),
          .live_blocks = blocks_.size(),
          .live_bytes = live_bytes()};
}

// Ranks compare where their blocks are by a digest.
Status RegisteredMemory::verify() {
  const std::lock_guard agreeing(agreeing_);
  std::string mine;
  {
    const std::lock_guard lock(mutex_);
    std::map<Bytes, Bytes> live;  // by offset, the same order on every rank
    for (const auto& [address, block] : blocks_) live.emplace(block.begin, block.bytes);
    std::uint64_t all = kDigestStart;
    for (const auto& [begin, bytes] : live) {
      const std::uint64_t range[] = {begin.count, bytes.count};
      all = digest(range, all);
    }
    mine = std::to_string(live.size()) + " blocks of " + format(live_bytes()) +
           ", which lie as in digest " + std::to_string(all);
  }
  const auto said = agree("verifies", mine);
  if (!said) return said.error();
  for (std::size_t rank = 1; rank < said->size(); ++rank) {
    if ((*said)[rank] == said->front()) continue;
    return error(ErrorCode::invalid_argument,
                 "rank " + std::to_string(rank) + " has " + (*said)[rank] + ", rank 0 " +
                     said->front() + ": make the same calls in the same order on every rank");
  }
  return {};
}

// Host-waits, on a stream of its own: another may hold more work than this.
Status RegisteredMemory::wait_for(const FenceSet& fences) {
  if (fences.empty()) return {};
  const CommContext& context = comm_.context;
  const Result<Stream> stream = context.nccl.create_stream();
  if (!stream) return error(stream.error());
  Status first;
  for (const Fence fence : fences) {
    if (first) first = context.heap.wait(*stream, fence);
  }
  if (first) first = comm_.finish(*stream);
  if (!first) return error(first.error());  // the stream may be in use
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
  return *ended ? Status() : Status(error(ended->error()));
}

Status RegisteredMemory::close() {
  const std::lock_guard agreeing(agreeing_);
  FenceSet fences;
  {
    const std::lock_guard lock(mutex_);
    if (!blocks_.empty()) {
      return error(ErrorCode::invalid_argument, std::to_string(blocks_.size()) +
                                                    " blocks are live, of " + format(live_bytes()) +
                                                    ": deallocate them first");
    }
    freed_.collect(0, ~std::uint64_t{0}, fences);
  }
  if (Status waited = wait_for(fences); !waited) return waited;
  std::vector<Segment> segments;
  {
    const std::lock_guard lock(mutex_);
    segments = std::exchange(segments_, {});
    free_.clear();
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
    freed_.collect(0, ~std::uint64_t{0}, fences);
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
  return error(unknown.error(), "its memory is kept, since its last use is not known to be over: ");
}

}  // namespace weir
