// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "comm/bounded.h"
#include "comm/comm_state.h"
#include "comm/registered_memory.h"
#include "core/base/format.h"
#include "weir/log.h"

namespace weir {

namespace {

constexpr Bytes kMostSegment = 1_TiB * 1024;  // more than any device has

}  // namespace

RegisteredMemory::RegisteredMemory(CommState& comm, std::uint64_t number, Bytes segment)
    : comm_(comm), name_("registered pool " + std::to_string(number)), segment_(segment) {}

Error RegisteredMemory::error(ErrorCode code, const std::string& what) const {
  return comm_.error(code, name_ + ": " + what);
}

Error RegisteredMemory::error(const Error& why, const std::string& call) const {
  return error(why.code(), call + why.message());
}

// Ranks agree twice: on what to make, and on whether all have made it.
Status RegisteredMemory::make(std::uint64_t segments) {
  const auto asked =
      comm_.gather_said("creates " + name_, std::to_string(segments) + " of " +
                                                std::to_string(segment_.count) + " bytes");
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
  const auto by_rank = comm_.gather_said("has created " + name_, failed);
  Status outcome = by_rank ? Status{} : Status(by_rank.error());
  for (std::size_t rank = 0; outcome && rank < by_rank->size(); ++rank) {
    const std::string& theirs = (*by_rank)[rank];
    if (theirs.empty()) continue;
    outcome = error(static_cast<ErrorCode>(theirs.front() - '0'),
                    "rank " + std::to_string(rank) + " has no segment of " + format(segment_) +
                        ", so no rank keeps one: " + theirs.substr(1));
  }
  if (!outcome) {
    if (Status gone = end_segments(std::move(made)); !gone) {
      log(LogLevel::error, gone.error().message());
    }
    return outcome;
  }
  const std::lock_guard lock(mutex_);
  segments_ = std::move(made);
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

Address RegisteredMemory::find_room(Bytes bytes) const {
  Address best;
  Bytes least = kMostSegment;
  for (const Segment& segment : segments_) {  // a pool has few buffers, which live long
    const Address end = segment.address + segment_;
    const auto after = blocks_.lower_bound(end);
    Address begin = segment.address;  // of the gap before `next`, or at the end
    for (auto next = blocks_.lower_bound(begin);; ++next) {
      const Bytes room = (next == after ? end : next->first) - begin;
      if (room >= bytes && room < least) {
        best = begin;
        least = room;
      }
      if (next == after) break;
      begin = next->first + next->second.bytes;
    }
  }
  return best;
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
  const Bytes size = bytes <= segment_ ? round_up(bytes, RegisteredPool::kAlignment) : bytes;
  const Address begin = find_room(size);
  if (begin.value == 0) {
    return error(ErrorCode::out_of_memory,
                 "no segment has room for " + format(bytes) + " in one piece: the pool has " +
                     std::to_string(segments_.size()) +
                     (segments_.size() == 1 ? " segment of " : " segments of ") + format(segment_) +
                     ", fixed when it was created (RegisteredPoolOptions)");
  }
  const Range taken{begin, size};
  FenceSet fences;
  for (const Freed& freed : freed_) {
    const bool overlaps = freed.bytes.begin < taken.end() && taken.begin < freed.bytes.end();
    if (overlaps) fences.join(freed.fences);
  }
  for (const Fence fence : fences) {
    const Status waited = comm_.context.heap.wait(stream, fence);
    if (!waited) return error(waited.error(), "allocate: ");
  }
  // From now on the block's own stream implies the fences of whoever had the bytes before.
  std::erase_if(freed_, [&](const Freed& freed) { return taken.contains(freed.bytes); });
  blocks_.emplace(begin, Block{size, stream, {}, {}});
  return begin.pointer();
}

Result<RegisteredMemory::Blocks::iterator> RegisteredMemory::find(const char* call,
                                                                  const void* block) {
  const auto found = blocks_.find(Address::of(block));
  if (found != blocks_.end()) return found;
  return error(ErrorCode::unknown_pointer,
               std::string(call) + ": no live block begins at " + format(Address::of(block)));
}

Status RegisteredMemory::fence(void* block, Stream user) {
  if (block == nullptr) return {};
  const std::lock_guard lock(mutex_);
  const Result<Blocks::iterator> found = find("fence", block);
  if (!found) return found.error();
  const Result<Fence> point = comm_.context.heap.take_fence({}, user);
  if (!point) return error(point.error(), "fence: ");
  (*found)->second.fences.join(*point);
  return {};
}

Status RegisteredMemory::deallocate(void* block) {
  if (block == nullptr) return {};
  (void)soon([&] {
    std::size_t alive = 0;
    with_block(block, [&](const Block& its) { alive = its.live_graphs(); });
    return alive == 0;
  });
  const std::lock_guard lock(mutex_);
  const Result<Blocks::iterator> found = find("deallocate", block);
  if (!found) return found.error();
  auto& [begin, gone] = **found;
  if (const std::size_t alive = gone.live_graphs(); alive > 0) {
    return error(ErrorCode::invalid_argument,
                 "deallocate: " + std::to_string(alive) +
                     " graphs that captured operations on the block at " + format(begin) +
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
  freed_.push_back({{begin, gone.bytes}, gone.fences});
  blocks_.erase(*found);
  return {};
}

void RegisteredMemory::deallocate_all() {
  std::vector<void*> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [begin, block] : blocks_) all.push_back(begin.pointer());
  }
  for (void* const block : all) (void)deallocate(block);
}

void RegisteredMemory::Block::keep_for(const std::weak_ptr<void>& graph) {
  std::erase_if(graphs, [&](const std::weak_ptr<void>& old) {
    return old.expired() || (!old.owner_before(graph) && !graph.owner_before(old));
  });
  graphs.push_back(graph);
}

std::size_t RegisteredMemory::Block::live_graphs() const {
  return static_cast<std::size_t>(std::count_if(
      graphs.begin(), graphs.end(), [](const auto& graph) { return !graph.expired(); }));
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
Status RegisteredMemory::end_segments(std::vector<Segment> segments) {
  if (segments.empty()) return {};
  const std::size_t count = segments.size();
  const std::optional<Status> ended =
      bounded(comm_.options.host_timeout, [kept = comm_.owner, nccl = &comm_.context.nccl,
                                           comm = comm_.handle, segments = std::move(segments)] {
        Status first;
        for (const Segment& segment : segments) {
          Status status = nccl->deregister(comm, segment.registration);
          if (status) status = nccl->free_segment(segment.address);
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
  FenceSet fences;
  std::vector<Segment> segments;
  {
    const std::lock_guard lock(mutex_);
    if (!blocks_.empty()) {
      return error(ErrorCode::invalid_argument, std::to_string(blocks_.size()) +
                                                    " blocks are live, of " + format(live_bytes()) +
                                                    ": deallocate them first");
    }
    for (const Freed& freed : freed_) fences.join(freed.fences);
    segments = segments_;
  }
  if (Status waited = wait_for(fences); !waited) return waited;
  {
    const std::lock_guard lock(mutex_);
    segments_.clear();
    freed_.clear();
  }
  return end_segments(std::move(segments));
}

RegisteredPool::RegisteredPool(std::shared_ptr<CommState> communicator)
    : communicator_(std::move(communicator)) {}
RegisteredPool::RegisteredPool(RegisteredPool&&) noexcept = default;

RegisteredPool& RegisteredPool::operator=(RegisteredPool&& other) noexcept {
  if (this != &other) {
    const RegisteredPool old = std::move(*this);
    communicator_ = std::move(other.communicator_);
    memory_ = std::move(other.memory_);
  }
  return *this;
}

RegisteredPool::~RegisteredPool() {
  if (memory_ == nullptr) return;
  Status closed = close();
  if (closed) return;
  log(LogLevel::error, closed.error().message());
  memory_->deallocate_all();
  if (close()) return;
  communicator_->remove_memory(memory_.get());
}

Result<RegisteredPool> RegisteredPool::create(Communicator& communicator,
                                              const RegisteredPoolOptions& options) {
  RegisteredPool pool(communicator.state_);
  CommState& state = *communicator.state_;
  if (options.segment == 0_B) {
    return state.error(ErrorCode::invalid_argument,
                       "a registered pool needs segments of at least one byte");
  }
  if (options.segments < 1) {
    return state.error(
        ErrorCode::invalid_argument,
        "a registered pool needs at least one segment, not " + std::to_string(options.segments));
  }
  if (options.segment > kMostSegment) {
    return state.error(ErrorCode::out_of_memory,
                       "a registered pool: no device has segments of " + format(options.segment));
  }
  pool.memory_ = state.add_memory(round_up(options.segment, state.context.device.granularity()));
  const auto segments = static_cast<std::uint64_t>(options.segments);
  Status made = pool.memory_->make(segments);
  if (made) return pool;
  state.remove_memory(std::exchange(pool.memory_, nullptr).get());
  return std::move(made).error();
}

Result<void*> RegisteredPool::allocate(Bytes bytes, Stream stream) {
  return memory_->allocate(bytes, stream);
}
Status RegisteredPool::fence(void* block, Stream user) { return memory_->fence(block, user); }
Status RegisteredPool::deallocate(void* block) { return memory_->deallocate(block); }
RegisteredPoolStatistics RegisteredPool::statistics() const { return memory_->statistics(); }

Status RegisteredPool::close() {
  if (memory_ == nullptr) return {};
  if (Status closed = memory_->close(); !closed) return closed;
  communicator_->remove_memory(memory_.get());
  memory_ = nullptr;
  return {};
}

}  // namespace weir
