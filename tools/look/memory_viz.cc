// SPDX-License-Identifier: Apache-2.0
// Source of the schema: torch.cuda.memory._snapshot() and _memory_viz.py, PyTorch 2.11.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "look/exporters.h"
#include "look/streams.h"
#include "look/visible_mapping.h"

namespace weir {
namespace {

// The stream and the pool that a heap has its blocks for.
struct HeapServes {
  std::uint64_t stream = 0, pool = 0;
};

// By HeapId: what its `heap_open` says last; of a heap without one, what its first block says.
std::unordered_map<std::uint32_t, HeapServes> heaps_of(const Recording& recording) {
  std::unordered_map<std::uint32_t, HeapServes> heaps;
  for (const Event& event : recording.events) {
    if (event.kind == EventKind::heap_open) {
      heaps[event.heap.value] = {event.stream, event.pool};
    } else if (event.kind == EventKind::allocate) {
      heaps.try_emplace(event.heap.value, HeapServes{event.stream, event.pool});
    }
  }
  return heaps;
}

constexpr std::string_view kOurs = "weir";  // the file that frames of no program are in

class MemoryViz {
 public:
  MemoryViz(const Recording& recording, const Origin& origin, const BlockLifetimes& lifetimes,
            PlainWriter& writer, OutputFile& file)
      : recording_(recording),
        origin_(origin),
        lifetimes_(lifetimes),
        heaps_(heaps_of(recording)),
        writer_(writer),
        file_(file) {}

  void run() {
    writer_.begin_dict();
    traces();
    segments();
    annotations();
    settings();
    writer_.end_dict();
    writer_.finish();
  }

 private:
  using Frames = std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>;  // stack, stream, pool

  void traces() {
    writer_.key("device_traces");
    writer_.begin_list();
    for (std::uint64_t i = 0; i < device(); ++i) {
      writer_.begin_list();
      writer_.end_list();
    }
    writer_.begin_list();
    std::size_t i = 0;
    for (const Event& event : recording_.events) {
      changes_.clear();
      if (event.kind == EventKind::create && event.pool != 0) {
        lenders_[event.page.value] = event.pool;
      }
      visible_.on_event(event, changes_);
      if (i >= recording_.initial) {
        for (const VisibleRangeChange& change : changes_) segment_event(change, event.time);
      }
      if (event.kind == EventKind::release || event.kind == EventKind::keep) {
        lenders_.erase(event.page.value);
      }
      if (event.kind == EventKind::allocate) at_[event.address.value] = next_++;
      if (i >= recording_.initial) trace_event(event);
      if (event.kind == EventKind::deallocate) at_.erase(event.address.value);
      ++i;
      file_.relieve();
    }
    Event end;
    end.time = recording_.end();
    other_event("snapshot", end);
    writer_.end_list();
    writer_.end_list();
  }

  void trace_event(const Event& event) {
    switch (event.kind) {
      case EventKind::allocate:
        return block_event(lifetimes_.blocks[next_ - 1], "alloc", event.time);
      case EventKind::deallocate: {
        const auto found = at_.find(event.address.value);
        if (found == at_.end()) return;
        block_event(lifetimes_.blocks[found->second], "free_requested", event.time);
        return block_event(lifetimes_.blocks[found->second], "free_completed", event.time);
      }
      case EventKind::out_of_memory:
        return other_event("oom", event);
      default:
        return;
    }
  }

  void block_event(const BlockLifetime& lifetime, std::string_view action, Nanoseconds time) {
    writer_.begin_dict();
    writer_.member("action", action);
    writer_.member("addr", lifetime.address.value);
    event_rest(lifetime.requested, lifetime.stream, time);
    writer_.key("frames");
    block_frames(lifetime);
    writer_.end_dict();
  }

  void segment_event(const VisibleRangeChange& change, Nanoseconds time) {
    constexpr std::array<std::string_view, 3> kWhy = {
        "mapped here", "unmapped", "shown elsewhere: no driver call, a block uses another address"};
    const auto heap = heaps_.find(change.range.heap.value);
    writer_.begin_dict();
    writer_.member("action", change.visible ? "segment_map" : "segment_unmap");
    writer_.member("addr", change.range.at.value);
    event_rest(change.range.bytes, heap == heaps_.end() ? 0 : heap->second.stream, time);
    writer_.key("frames");
    writer_.begin_list();
    const std::string_view why = change.visible && change.why != VisibleRangeChange::Why::mapped
                                     ? "shown here now: mapped here already"
                                     : kWhy[static_cast<std::size_t>(change.why)];
    const auto lender = lenders_.find(change.range.page.value);
    ours(fmt::format(
        "page {}{}: {}", change.range.page.value,
        lender == lenders_.end() ? "" : fmt::format(", scratch lent by pool {}", lender->second),
        why));
    writer_.end_list();
    writer_.end_dict();
  }

  void other_event(std::string_view action, const Event& event) {
    writer_.begin_dict();
    writer_.member("action", action);
    // PyTorch's viewers need the key. Of the last failure a file may say what was free; a recording
    // of Weir's does not.
    const std::optional<FailedRequest>& failure = origin_.failure;
    const Bytes free = failure && failure->free ? *failure->free : 0_B;
    writer_.member(action == "snapshot" ? "addr" : "device_free",
                   action == "snapshot" ? 0 : free.count);
    event_rest(event.requested, event.stream, event.time);
    writer_.key("frames");
    shared_frames(0, event.stream, 0);
    writer_.end_dict();
  }

  void event_rest(Bytes bytes, std::uint64_t stream, Nanoseconds time) {
    writer_.member("size", bytes.count);
    writer_.member("stream", eager_stream(stream));
    writer_.key("time_us");
    writer_.integer(time.count / 1000);
    writer_.member("compile_context", "N/A");
    writer_.member("user_metadata", "");
  }

  std::uint64_t pool_of(HeapId heap) const {
    const auto found = heaps_.find(heap.value);
    return found == heaps_.end() ? 0 : found->second.pool;
  }

  // The streams of a pool share its addresses: adjacent ranges are one segment.
  void segments() {
    for (const auto& [address, block] : at_) live_.emplace_back(address, block);
    std::ranges::sort(live_);
    writer_.key("segments");
    writer_.begin_list();
    const std::vector<VisibleRange> ranges = visible_.ranges();
    for (std::size_t begin = 0; begin < ranges.size();) {
      std::size_t end = begin + 1;
      while (end < ranges.size() && pool_of(ranges[end].heap) == pool_of(ranges[begin].heap) &&
             ranges[end].at == ranges[end - 1].at + ranges[end - 1].bytes) {
        ++end;
      }
      segment(std::span(ranges).subspan(begin, end - begin));
      file_.relieve();
      begin = end;
    }
    writer_.end_list();
  }

  // The live blocks that begin between the two addresses.
  std::span<const std::pair<std::uint64_t, std::uint32_t>> live_in(std::uint64_t begin,
                                                                   std::uint64_t end) const {
    const auto address = &std::pair<std::uint64_t, std::uint32_t>::first;
    const auto first = std::ranges::lower_bound(live_, begin, {}, address);
    return {first, std::ranges::lower_bound(first, live_.end(), end, {}, address)};
  }

  void segment(std::span<const VisibleRange> ranges) {
    const std::uint64_t begin = ranges.front().at.value;
    const std::uint64_t end = ranges.back().at.value + ranges.back().bytes.count;
    Bytes live, requested, lent;
    for (const VisibleRange& range : ranges) {
      if (lenders_.contains(range.page.value)) lent += range.bytes;
    }
    for (const auto& [address, block] : live_in(begin, end)) {
      live += lifetimes_.blocks[block].bytes;
      requested += lifetimes_.blocks[block].requested;
    }
    const auto heap = heaps_.find(ranges.front().heap.value);
    const HeapServes serves = heap == heaps_.end() ? HeapServes{} : heap->second;
    writer_.begin_dict();
    writer_.member("device", device());
    writer_.member("address", begin);
    writer_.member("total_size", end - begin);
    writer_.member("allocated_size", live.count);
    writer_.member("active_size", live.count);
    writer_.member("requested_size", requested.count);
    writer_.member("stream", eager_stream(serves.stream));
    writer_.member("segment_type", "large");
    writer_.key("segment_pool_id");
    writer_.begin_list();
    writer_.unsigned_integer(serves.pool);
    writer_.unsigned_integer(0);
    writer_.end_list();
    writer_.key("is_expandable");
    writer_.boolean(true);
    writer_.key("frames");
    if (lent == 0_B) {
      shared_frames(0, serves.stream, serves.pool);
    } else {
      writer_.begin_list();
      ours(fmt::format("{} bytes of it are scratch lent by graph pools", lent.count));
      frames(0, serves.stream, serves.pool);
      writer_.end_list();
    }
    writer_.key("blocks");
    blocks(begin, end);
    writer_.end_dict();
  }

  // The live blocks between the two addresses, and what lies between them.
  void blocks(std::uint64_t begin, std::uint64_t end) {
    writer_.begin_list();
    std::uint64_t at = begin;
    for (const auto& [address, number] : live_in(begin, end)) {
      const BlockLifetime& lifetime = lifetimes_.blocks[number];
      if (address > at) block(at, address - at, nullptr);
      const std::uint64_t bytes = std::min(lifetime.bytes.count, end - address);
      block(address, bytes, &lifetime);
      at = address + bytes;
    }
    if (at < end) block(at, end - at, nullptr);
    writer_.end_list();
  }

  // `lifetime`: null for a free block.
  void block(std::uint64_t at, std::uint64_t bytes, const BlockLifetime* lifetime) {
    writer_.begin_dict();
    writer_.member("address", at);
    writer_.member("size", bytes);
    writer_.member("requested_size",
                   lifetime == nullptr ? 0 : std::min(lifetime->requested.count, bytes));
    writer_.member("state", lifetime == nullptr ? "inactive" : "active_allocated");
    writer_.key("frames");
    if (lifetime != nullptr) {
      block_frames(*lifetime);
    } else {
      writer_.begin_list();
      writer_.end_list();
    }
    writer_.end_dict();
  }

  void annotations() {
    writer_.key("external_annotations");
    writer_.begin_list();
    const auto annotation = [this](std::string_view name, std::string_view stage,
                                   Nanoseconds time) {
      writer_.begin_dict();
      writer_.member("name", name);
      writer_.member("stage", stage);
      writer_.member("device", device());
      writer_.key("time_us");
      writer_.integer(time.count / 1000);
      writer_.end_dict();
    };
    for (std::size_t i = 0; i < recording_.marks.size(); ++i) {
      const bool last = i + 1 == recording_.marks.size();
      annotation(recording_.marks[i].text, "START", recording_.marks[i].time);
      annotation(recording_.marks[i].text, "END",
                 last ? recording_.end() : recording_.marks[i + 1].time);
      file_.relieve();
    }
    writer_.end_list();
  }

  void settings() {
    writer_.key("allocator_settings");
    writer_.begin_dict();
    writer_.member("allocator", "weir");
    writer_.member("program", recording_.program);
    writer_.member("device", recording_.device);
    writer_.key("max_split_size");
    writer_.integer(-1);
    writer_.key("expandable_segments");
    writer_.boolean(true);
    writer_.end_dict();
  }

  void block_frames(const BlockLifetime& lifetime) {
    if (lifetime.fences == 0 && !lifetime.waited_for) {
      return shared_frames(lifetime.stack, lifetime.stream, lifetime.pool);
    }
    writer_.begin_list();
    fences(lifetime);
    frames(lifetime.stack, lifetime.stream, lifetime.pool);
    writer_.end_list();
  }

  void shared_frames(std::uint32_t stack, std::uint64_t stream, std::uint64_t pool) {
    const auto [id, added] = frames_.try_emplace(Frames{stack, stream, pool},
                                                 static_cast<std::uint32_t>(frames_.size()));
    writer_.shared(id->second, [&] {
      writer_.begin_list();
      frames(stack, stream, pool);
      writer_.end_list();
    });
  }

  void fences(const BlockLifetime& lifetime) {
    if (lifetime.waited_for) {
      const BlockLifetime& next = lifetimes_.blocks[lifetime.reused_by];
      ours(fmt::format("its memory went to block {} on stream {}, which waited for it",
                       lifetime.reused_by, stream_text(next.stream)));
    }
    constexpr std::uint32_t kMost = 16;
    for (std::uint32_t i = 0; i < std::min(lifetime.fences, kMost); ++i) {
      const FenceTaken& fence = lifetimes_.fences[lifetime.first_fence + i];
      ours(fmt::format("fence of {}, {} after its allocation", stream_title(fence.stream),
                       microseconds(fence.time - lifetime.begin)));
    }
    if (lifetime.fences > kMost) ours(fmt::format("and {} more fences", lifetime.fences - kMost));
  }

  void frames(std::uint32_t stack, std::uint64_t stream, std::uint64_t pool) {
    for (const std::uint32_t i : recording_.stacks[stack]) {
      const RecordedFrame& each = recording_.frames[i];
      frame(each.function, each.file, each.line);
    }
    if (pool != 0) ours(fmt::format("pool {}", pool));
    ours(stream_title(stream));
  }

  void frame(std::string_view function, std::string_view file, std::int64_t line) {
    writer_.begin_dict();
    writer_.member("filename", file.empty() ? "??" : file);
    writer_.key("line");
    writer_.integer(line);
    writer_.member("name", function.empty() ? "??" : function);
    writer_.end_dict();
  }

  void ours(std::string_view text) { frame(text, kOurs, 0); }

  std::uint64_t device() const { return static_cast<std::uint64_t>(origin_.device); }
  static std::string microseconds(Nanoseconds length) {
    return fmt::format("{}.{:03} us", length.count / 1000, length.count % 1000);
  }

  const Recording& recording_;
  const Origin& origin_;
  const BlockLifetimes& lifetimes_;
  const std::unordered_map<std::uint32_t, HeapServes> heaps_;
  PlainWriter& writer_;
  OutputFile& file_;
  VisibleMapping visible_;
  std::unordered_map<std::uint32_t, std::uint64_t> lenders_;   // by PageId: GraphPool::id()
  std::vector<VisibleRangeChange> changes_;                    // scratch
  std::unordered_map<std::uint64_t, std::uint32_t> at_;        // live blocks, by address
  std::vector<std::pair<std::uint64_t, std::uint32_t>> live_;  // the same at the end, in order
  std::uint32_t next_ = 0;                  // the block that the next allocation is
  std::map<Frames, std::uint32_t> frames_;  // -> shared id
};

}  // namespace

void write_memory_viz(const Recording& recording, const Origin& origin,
                      const BlockLifetimes& lifetimes, PlainWriter& writer, OutputFile& file) {
  MemoryViz(recording, origin, lifetimes, writer, file).run();
}

}  // namespace weir
