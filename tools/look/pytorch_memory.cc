// SPDX-License-Identifier: Apache-2.0
// Source of the schema: torch.cuda.memory._snapshot(), PyTorch 2.0 to 2.11.
#include "look/pytorch_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "replay/units.h"

namespace weir {
namespace {

using Kind = PickleValue::Kind;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;  // so that no sum overflows
constexpr Bytes kSmallSegment = 2_MiB;

bool is_count(PickleValue value) { return value.is(Kind::integer) && value.integer() >= 0; }

// 1: held from then on; -1: no longer; 0: neither.
int segment_change(std::string_view action) {
  if (action == "segment_alloc" || action == "segment_map") return 1;
  if (action == "segment_free" || action == "segment_unmap") return -1;
  return 0;
}
int block_change(std::string_view action) {
  if (action == "alloc") return 1;
  if (action == "free_completed" || action == "free") return -1;
  return 0;
}

// PyTorch 2.0 has the frames and the size that was asked for in a list of what the block was.
PickleValue recorded(PickleValue block, std::string_view key, std::string_view old_key) {
  const std::span<const PickleValue> history = block.at("history").list();
  return history.empty() ? block.at(key) : history.front().at(old_key);
}

}  // namespace

std::uint64_t number(PickleValue of, std::string_view key) {
  return static_cast<std::uint64_t>(of.at(key).integer());
}

Bytes bytes_of(PickleValue of, std::string_view key) {
  return Bytes{
      static_cast<std::uint64_t>(std::clamp<std::int64_t>(of.at(key).integer(), 0, kMostBytes))};
}

std::string_view name_of(Inactive cause) {
  constexpr std::array<std::string_view, kInactives> kNames = {
      "graph_pool", "small_pool", "other_stream", "remainder", "cached"};
  return kNames[static_cast<std::size_t>(cause)];
}

std::string_view meaning_of(Inactive cause) {
  constexpr std::array<std::string_view, kInactives> kMeanings = {
      "in segments of a CUDA graph's private pool",
      "in the 2 MiB segments for requests of up to 1 MiB",
      "in segments of another stream, which no request of the main one may use",
      "beside live blocks of the same segments", "in segments without a live block"};
  return kMeanings[static_cast<std::size_t>(cause)];
}

// Ranges of addresses that are held, by address.
class PytorchMemory::Ranges {
 public:
  using Map = std::map<std::uint64_t, Range>;

  void add(const Range& segment) {
    if (segment.bytes == 0_B) return;
    ranges_.insert_or_assign(segment.address, segment);
  }

  // Parts of an expandable segment lie side by side, and a block may lie on several.
  void add_beside(Range part) {
    const auto same = [&](const Range& other) {
      return other.stream == part.stream && other.small == part.small;
    };
    auto next = ranges_.find(part.address + part.bytes.count);
    if (next != ranges_.end() && same(next->second)) {
      part.bytes += next->second.bytes;
      next = ranges_.erase(next);
    }
    auto before = ranges_.lower_bound(part.address);
    if (before == ranges_.begin()) return add(part);
    Range& last = std::prev(before)->second;
    if (last.address + last.bytes.count != part.address || !same(last)) return add(part);
    last.bytes += part.bytes;
  }

  // Parts of an expandable segment are unmapped one by one, so a range may be cut.
  void remove(std::uint64_t from, Bytes bytes) {
    const std::uint64_t to = from + bytes.count;
    auto at = ranges_.upper_bound(from);
    if (at != ranges_.begin()) --at;
    while (at != ranges_.end() && at->first < to) {
      Range whole = at->second;
      const std::uint64_t end = whole.address + whole.bytes.count;
      if (end <= from) {
        ++at;
        continue;
      }
      at = ranges_.erase(at);
      Range before = whole, after = whole;
      before.bytes = Bytes{std::max(from, whole.address) - whole.address};
      after.address = std::min(to, end);
      after.bytes = Bytes{end - after.address};
      add(before);
      add(after);
    }
  }

  std::uint64_t stream_with_most() const {
    std::unordered_map<std::uint64_t, std::uint64_t> bytes;
    std::uint64_t most = 0, stream = 0;
    for (const auto& [address, range] : ranges_) {
      std::uint64_t& sum = bytes[range.stream] += range.bytes.count;
      if (sum > most) most = sum, stream = range.stream;
    }
    return stream;
  }

  Map& map() { return ranges_; }

 private:
  Map ranges_;
};

Inactive PytorchMemory::cause_of(const Range& segment, bool has_live, std::uint64_t main_stream) {
  if (segment.graph_pool) return Inactive::graph_pool;
  if (segment.small) return Inactive::small_pool;
  if (segment.stream != main_stream) return Inactive::other_stream;
  return has_live ? Inactive::remainder : Inactive::cached;
}

PytorchMemory::PytorchMemory(PickleValue snapshot, int device) {
  const std::span<const PickleValue> devices = snapshot.at("device_traces").list();
  if (static_cast<std::size_t>(device) < devices.size()) {
    history_ = devices[static_cast<std::size_t>(device)];
  }
  read_segments(snapshot, device);
  std::int64_t reserved = 0, live = 0;
  for (const Range& segment : segments_) {
    reserved = std::min(reserved + static_cast<std::int64_t>(segment.bytes.count), kMostBytes);
  }
  for (const FinalBlock& block : blocks_) live += static_cast<std::int64_t>(block.bytes.count);
  std::int64_t peak = reserved, most_live = live;
  fullest_ = history().size();
  for (std::size_t i = history().size(); i-- > 0;) {
    const PickleValue& entry = history()[i];
    const std::string_view action = entry.at("action").string();
    if (action == "oom" && !failure_) failure_ = i;
    for (const char* const key : {"size", "time_us"}) {
      const PickleValue value = entry.at(key);
      if (is_count(value) || (value.is(Kind::none) && (*key == 't' || action == "snapshot")))
        continue;
      unread(fmt::format("device_traces[{}][{}].{}", device, i, key));
    }
    const auto size = static_cast<std::int64_t>(bytes_of(entry, "size").count);
    if (const int change = segment_change(action); change != 0) {
      changes_.push_back({i, Bytes{static_cast<std::uint64_t>(reserved)}});
      lacks_segments_ = lacks_segments_ || reserved < change * size;
      reserved = std::clamp<std::int64_t>(reserved - change * size, 0, kMostBytes);
    }
    live = std::clamp<std::int64_t>(live - block_change(action) * size, -kMostBytes, kMostBytes);
    lacks_segments_ = lacks_segments_ || (reserved == 0 && live < 0);
    if (reserved > peak || (reserved == peak && live > most_live)) {
      peak = reserved, most_live = live, fullest_ = i;
    }
  }
  // Of a part that can't be read the history says more than it.
  lacks_segments_ = lacks_segments_ && (unread_ == 0 || segments_.empty());
  if (lacks_segments_) reserved = peak = 0, changes_.clear();
  std::reverse(changes_.begin(), changes_.end());
  first_ = Bytes{static_cast<std::uint64_t>(reserved)};
  peak_ = Bytes{static_cast<std::uint64_t>(peak)};
}

void PytorchMemory::read_segments(PickleValue snapshot, int device) {
  std::unordered_set<std::uint64_t> seen;  // a file can refer to one segment any number of times
  std::size_t n = 0;
  for (const PickleValue& segment : snapshot.at("segments").list()) {
    const std::string path = fmt::format("segments[{}].", n++);
    if (segment.at("device").integer() != device) continue;
    const PickleValue blocks = segment.at("blocks");
    if (blocks.list().empty()) unread(path + "blocks");
    if (!blocks.list().empty() && !seen.insert(blocks.identity()).second) continue;
    Range held{.address = number(segment, "address"),
               .bytes = bytes_of(segment, "total_size"),
               .stream = number(segment, "stream"),
               .small = segment.at("segment_type").string() == "small"};
    for (const PickleValue& part : segment.at("segment_pool_id").list()) {
      held.graph_pool = held.graph_pool || part.integer() != 0;
    }
    const std::uint64_t end = read_blocks(blocks, path, held);
    if (!is_count(segment.at("total_size"))) {
      unread(path + "total_size");
      held.bytes = Bytes{end - held.address};
    }
    segments_.push_back(held);
  }
}

// Returns where the last of them ends.
std::uint64_t PytorchMemory::read_blocks(PickleValue list, const std::string& path,
                                         const Range& segment) {
  const std::span<const PickleValue> blocks = list.list();
  std::uint64_t address = segment.address;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const PickleValue& block = blocks[i];
    if (block.at("address").is(Kind::integer)) address = number(block, "address");
    Bytes bytes = bytes_of(block, "size");
    if (!is_count(block.at("size"))) {
      unread(fmt::format("{}blocks[{}].size", path, i));
      // It ends where the next begins.
      const bool is_last = i + 1 == blocks.size();
      const std::uint64_t end =
          is_last ? segment.address + segment.bytes.count : number(blocks[i + 1], "address");
      bytes = Bytes{std::max(end, address) - address};
    }
    const std::string_view state = block.at("state").string();
    if (state.empty()) unread(fmt::format("{}blocks[{}].state", path, i));
    if (state.starts_with("active")) {
      const std::int64_t requested = recorded(block, "requested_size", "real_size").integer();
      blocks_.push_back(
          {.address = address,
           .bytes = bytes,
           .requested = requested <= 0 ? bytes : Bytes{static_cast<std::uint64_t>(requested)},
           .stream = segment.stream,
           .pending = state == "active_pending_free",
           .frames = recorded(block, "frames", "frames")});
    }
    address += bytes.count;
  }
  return address;
}

void PytorchMemory::unread(std::string value) {
  if (unread_++ == 0) first_unread_ = std::move(value);
}

std::string PytorchMemory::damage() const {
  if (unread_ == 0) return {};
  return fmt::format("{} can't be read{}: {}", counted(unread_, "value"),
                     unread_ > 1 ? ", the first" : "", first_unread_);
}

std::size_t PytorchMemory::worst() const { return failure_.value_or(fullest_); }

Held PytorchMemory::at(std::size_t entries) const {
  Ranges ranges;
  for (const Range& segment : segments_) ranges.add(segment);
  std::map<std::uint64_t, Bytes> live;
  for (const FinalBlock& block : blocks_) live.insert_or_assign(block.address, block.bytes);
  for (std::size_t i = history().size(); i-- > entries;) {
    const PickleValue& entry = history()[i];
    const std::string_view action = entry.at("action").string();
    const std::uint64_t address = number(entry, "addr");
    const Bytes bytes = bytes_of(entry, "size");
    if (block_change(action) > 0) live.erase(address);
    if (block_change(action) < 0) live.insert_or_assign(address, round_up(bytes, kGrain));
    if (segment_change(action) > 0) ranges.remove(address, bytes);
    if (segment_change(action) < 0) {
      const Range part{.address = address,
                       .bytes = bytes,
                       .stream = number(entry, "stream"),
                       .small = bytes <= kSmallSegment};
      action == "segment_unmap" ? ranges.add_beside(part) : ranges.add(part);
    }
  }
  Held held;
  const std::uint64_t main_stream = ranges.stream_with_most();
  for (const auto& [address, range] : ranges.map()) {
    const std::uint64_t end = address + range.bytes.count;
    std::uint64_t reached = address;
    Bytes used, free;
    HeldSegment segment{.address = address, .bytes = range.bytes, .stream = range.stream};
    const auto gap_until = [&](std::uint64_t at) {
      const Bytes gap{at - std::min(at, reached)};
      free += gap;
      held.largest_inactive = std::max(held.largest_inactive, gap);
    };
    for (auto block = live.lower_bound(address); block != live.end() && block->first < end;
         ++block) {
      gap_until(block->first);
      const std::uint64_t to = std::min(end, block->first + block->second.count);
      used += Bytes{to - block->first};
      segment.blocks.emplace_back(block->first - address, Bytes{to - block->first});
      reached = std::max(reached, to);
    }
    gap_until(end);
    held.reserved += range.bytes;
    held.live += used;
    segment.why = cause_of(range, used > 0_B, main_stream);
    held.inactive[static_cast<int>(segment.why)] += free;
    held.segments.push_back(std::move(segment));
  }
  return held;
}

}  // namespace weir
