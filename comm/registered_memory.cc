// Blocks and fences. What ranks agree on is in registered_segments.cc.
#include "comm/registered_memory.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "comm/bounded.h"
#include "comm/comm_state.h"
#include "core/base/format.h"

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
  if (bytes > kMost) {
    return error(ErrorCode::out_of_memory, "no device has " + format(bytes));
  }
  const Bytes size = round_up(bytes, kAlignment);
  const std::lock_guard agreeing(agreeing_);
  if (Status works = comm_.status(); !works) return std::move(works).error();
  const auto room = [&] {
    const std::lock_guard lock(mutex_);
    return free_.best_fit(size);
  };
  std::optional<Range> found = room();
  if (!found) {
    const Bytes whole = round_up(size, comm_.context.device.granularity());
    if (Status grown = grow(std::max(whole, segment_)); !grown) return std::move(grown).error();
    found = room();
  }
  return take(*found, size, stream);
}

Result<void*> RegisteredMemory::take(Range room, Bytes bytes, Stream stream) {
  const std::lock_guard lock(mutex_);
  const Bytes begin{room.begin.value};
  for (const Fence fence : fences_in(begin, begin + bytes)) {
    Status waited = comm_.context.heap.wait(stream, fence);
    if (!waited) return error(waited.error().code(), "allocate: " + waited.error().message());
  }
  // From now on the block's own stream implies them.
  forget_fences(begin, begin + bytes);
  free_.erase({room.begin, bytes});
  const Address address = address_of(begin);
  blocks_.emplace(address, Block{begin, bytes, stream, {}, {}});
  return address.pointer();
}

Status RegisteredMemory::fence(void* block, Stream user) {
  if (block == nullptr) return {};
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(Address::of(block));
  if (found == blocks_.end()) {
    return error(ErrorCode::unknown_pointer,
                 "fence: no live block begins at " + format(Address::of(block)));
  }
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
  if (found == blocks_.end()) {
    return error(ErrorCode::unknown_pointer,
                 "deallocate: no live block begins at " + format(Address::of(block)));
  }
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

// A block begins where free bytes begin: nothing that was freed reaches into it from before.
FenceSet RegisteredMemory::fences_in(Bytes begin, Bytes end) const {
  FenceSet fences;
  for (auto at = freed_.lower_bound(begin); at != freed_.end() && at->first < end; ++at) {
    fences.join(at->second.fences);
  }
  return fences;
}

// What reaches beyond the end stays there.
void RegisteredMemory::forget_fences(Bytes begin, Bytes end) {
  auto at = freed_.lower_bound(begin);
  while (at != freed_.end() && at->first < end) {
    Freed freed = std::move(at->second);
    at = freed_.erase(at);
    if (freed.end > end) {
      freed_.emplace(end, std::move(freed));
      return;
    }
  }
}

Address RegisteredMemory::address_of(Bytes offset) const {
  const auto after =
      std::upper_bound(segments_.begin(), segments_.end(), offset,
                       [](Bytes where, const Segment& segment) { return where < segment.begin; });
  const Segment& segment = *std::prev(after);
  return segment.address + (offset - segment.begin);
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

std::size_t RegisteredMemory::graphs_of(const void* block) const {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(Address::of(block));
  return found == blocks_.end() ? 0 : alive_of(found->second.graphs);
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

RegisteredPoolStatistics RegisteredMemory::statistics() const {
  const std::lock_guard lock(mutex_);
  RegisteredPoolStatistics now{.segments = segments_.size(), .live_blocks = blocks_.size()};
  for (const Segment& segment : segments_) now.segment_bytes += segment.bytes;
  for (const auto& [address, block] : blocks_) now.live_bytes += block.bytes;
  return now;
}

}  // namespace weir
