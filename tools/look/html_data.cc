// SPDX-License-Identifier: Apache-2.0
#include "look/html_data.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "look/block_lifetimes.h"
#include "look/html_columns.h"
#include "look/numbering.h"
#include "look/report.h"
#include "look/symbols.h"

namespace weir {
namespace {

using Json = nlohmann::json;

// What PyTorch held at the step `step`, and where.
Json held_json(const Held& held, std::ptrdiff_t step) {
  Json causes = Json::array(), segments = Json::array();
  for (int i = 0; i < kInactives; ++i) {
    const auto why = static_cast<Inactive>(i);
    causes.push_back({name_of(why), meaning_of(why), held.inactive[i].count});
  }
  for (const HeldSegment& segment : held.segments) {
    Json blocks = Json::array();
    for (const auto& [from, bytes] : segment.blocks) blocks.push_back({from, bytes.count});
    segments.push_back({segment.address, segment.bytes.count, std::to_string(segment.stream),
                        segment.why, std::move(blocks)});
  }
  return {{"step", step},
          {"reserved", held.reserved.count},
          {"live", held.live.count},
          {"largest", held.largest_inactive.count},
          {"causes", std::move(causes)},
          {"segments", std::move(segments)}};
}

class Writer {
 public:
  // `report`: of the recording; little of it is kept.
  Writer(const Loaded& recording, Paths paths, const Report& report)
      : recording_(recording),
        verdict_(verdict_of(report)),
        lifetimes_(lifetimes_of(recording)),
        stacks_(readable_stacks(recording, paths)),
        begin_(recording.begin()) {
    for (const Advice& each : further_advice(report))
      advice_.push_back(each.evidence + " " + each.remedy);
  }

  std::string run() {
    for (const std::uint64_t stream : lifetimes_.streams) streams_.of(stream);
    for (const std::uint64_t pool : lifetimes_.pools) pools_.of(pool);
    steps();
    blocks();
    fences();
    reserved();
    pages();
    happenings();
    waits();
    other_reserved();
    recorded_addresses();
    whole_stacks();
    return bytes();
  }

 private:
  std::uint32_t heap_of(HeapId heap, std::uint64_t stream, std::uint64_t pool) {
    return heaps_.of({heap.value, streams_.of(stream), pool == 0 ? 0 : 1 + pools_.of(pool)});
  }

  std::uint64_t since_begin(Nanoseconds time) const {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(0, (time - begin_).count));
  }

  // The order of beginnings and ends tells apart what happened at the same time. Blocks are
  // numbered by their beginnings: `step` 0 is that of the next block, K > 0 the end of the block
  // that began K blocks ago. `under`: which block has the next lower address when a block begins
  // (0: none; K: the one that began K blocks ago), so that the page can stack blocks by address
  // without searching.
  void steps() {
    HtmlColumn& step = columns_.emplace_back("step");
    HtmlColumn& time = columns_.emplace_back("step_time");
    HtmlColumn& under = columns_.emplace_back("under");
    std::multimap<std::uint64_t, std::uint32_t> live;  // by address
    std::uint64_t last = 0;
    std::uint32_t begun = 0;
    step_events_.reserve(2 * lifetimes_.blocks.size());
    for_each_step(lifetimes_, [&](std::uint32_t block, bool begins, std::size_t event) {
      const BlockLifetime& lifetime = lifetimes_.blocks[block];
      const std::uint64_t now = std::max(last, since_begin(begins ? lifetime.begin : lifetime.end));
      time.add(now - last);
      last = now;
      step_events_.push_back(static_cast<std::uint32_t>(event));
      if (begins) {
        step.add(0);
        ++begun;
        const auto place = live.emplace(lifetime.address.value, block);
        under.add(place == live.begin() ? 0 : block - std::prev(place)->second);
        return;
      }
      step.add(begun - block);
      auto place = live.lower_bound(lifetime.address.value);
      while (place->second != block) ++place;
      live.erase(place);
    });
  }

  void blocks() {
    HtmlColumn& address = columns_.emplace_back("address");
    HtmlColumn& bytes = columns_.emplace_back("bytes");
    HtmlColumn& slack = columns_.emplace_back("slack");
    HtmlColumn& heap = columns_.emplace_back("heap");
    HtmlColumn& stack = columns_.emplace_back("stack");
    HtmlColumn& flags = columns_.emplace_back("flags");
    HtmlColumn& reused =
        columns_.emplace_back("reused");  // 0: by none; else 1 + the distance, signed
    std::uint32_t block = 0;
    for (const BlockLifetime& lifetime : lifetimes_.blocks) {
      const std::uint32_t number = block++;
      address.add_difference(lifetime.address.value);
      bytes.add(lifetime.bytes.count);
      slack.add(lifetime.bytes.count - std::min(lifetime.requested, lifetime.bytes).count);
      heap.add(heap_of(lifetime.heap, lifetime.stream, lifetime.pool));
      stack.add(lifetime.stack < stacks_.number.size() ? stacks_.number[lifetime.stack] : 0);
      flags.add((lifetime.live_at_begin ? 1 : 0) | (lifetime.waited_for ? 2 : 0));
      if (lifetime.reused_by >= lifetimes_.blocks.size()) {
        reused.add_signed(0);
        continue;
      }
      const auto distance = std::int64_t{lifetime.reused_by} - std::int64_t{number};
      reused.add_signed(distance < 0 ? distance : distance + 1);
    }
  }

  void fences() {
    HtmlColumn& count = columns_.emplace_back("fences");
    HtmlColumn& stream = columns_.emplace_back("fence_stream");
    HtmlColumn& after = columns_.emplace_back("fence_after");  // the block's beginning
    for (const BlockLifetime& lifetime : lifetimes_.blocks) {
      count.add(lifetime.fences);
      fence_count_ += lifetime.fences;
      for (std::uint32_t i = 0; i < lifetime.fences; ++i) {
        const FenceTaken& fence = lifetimes_.fences[lifetime.first_fence + i];
        stream.add(streams_.of(fence.stream));
        after.add(since_begin(fence.time) -
                  std::min(since_begin(fence.time), since_begin(lifetime.begin)));
      }
    }
  }

  void reserved() {
    HtmlColumn& time = columns_.emplace_back("reserved_time");
    HtmlColumn& bytes = columns_.emplace_back("reserved_bytes");
    Bytes last{~std::uint64_t{0}};
    memory_over_time(recording_, [&](const MemoryPoint& point) {
      if (point.reserved == last) return;
      last = point.reserved;
      time.add_difference(since_begin(point.time));
      bytes.add_difference(last.count);
      ++reserved_count_;
    });
  }

  void pages() {
    HtmlColumn& kind = columns_.emplace_back("page_kind");
    HtmlColumn& time = columns_.emplace_back("page_time");
    HtmlColumn& step = columns_.emplace_back("page_step");  // how many steps came before
    HtmlColumn& page = columns_.emplace_back("page_id");
    HtmlColumn& heap = columns_.emplace_back("page_heap");  // of create: whose scratch; 0: nobody's
    HtmlColumn& address = columns_.emplace_back("page_address");
    HtmlColumn& bytes = columns_.emplace_back("page_bytes");
    HtmlColumn& further = columns_.emplace_back("page_further");  // so many pages, in a row
    constexpr EventKind kKinds[] = {EventKind::create, EventKind::release, EventKind::map,
                                    EventKind::unmap,  EventKind::lease,   EventKind::unlease,
                                    EventKind::keep};
    std::uint32_t place = 0;
    Event first;  // of the pages in a row that are leased at once, or given back
    std::ptrdiff_t steps = 0;
    std::uint64_t more = 0;
    for (const Event& event : recording_.events) {
      const std::uint32_t at = place++;
      // A heap may lease pages before it has a block, and without ever having one.
      if (event.kind == EventKind::heap_open) heap_of(event.heap, event.stream, event.pool);
      const auto* const found = std::find(std::begin(kKinds), std::end(kKinds), event.kind);
      if (found == std::end(kKinds)) continue;
      const auto next = std::lower_bound(step_events_.begin(), step_events_.end(), at);
      const bool is_use = event.kind == EventKind::lease || event.kind == EventKind::unlease;
      if (is_use && event.kind == first.kind && event.time == first.time &&
          event.heap == first.heap && event.page.value == first.page.value + more + 1 &&
          next - step_events_.begin() == steps) {
        ++more;
        continue;
      }
      if (page_count_ > 0) further.add(more);
      first = event, steps = next - step_events_.begin(), more = 0;
      kind.add(static_cast<std::uint64_t>(std::distance(std::begin(kKinds), found)));
      time.add_difference(since_begin(event.time));
      step.add_difference(static_cast<std::uint64_t>(steps));
      page.add_difference(event.page.value);
      const std::uint32_t lender = event.pool == 0 ? 0 : 1 + pools_.of(event.pool);
      heap.add(event.kind == EventKind::create ? lender : event.heap.value);
      address.add_difference(event.address.value);
      const bool is_page = event.kind == EventKind::create || event.kind == EventKind::release;
      bytes.add(is_page ? event.bytes.count : 0);  // of others the page has them
      ++page_count_;
    }
    if (page_count_ > 0) further.add(more);
  }

  // Rare events, shown as marks above the memory.
  void happenings() {
    HtmlColumn& kind = columns_.emplace_back("happening_kind");
    HtmlColumn& time = columns_.emplace_back("happening_time");
    HtmlColumn& amount =
        columns_.emplace_back("happening_amount");  // bytes; of a wait, nanoseconds
    constexpr EventKind kKinds[] = {EventKind::out_of_memory, EventKind::host_wait, EventKind::trim,
                                    EventKind::capture_begin, EventKind::capture_end};
    for (const Event& event : recording_.events) {
      const auto* const found = std::find(std::begin(kKinds), std::end(kKinds), event.kind);
      if (found == std::end(kKinds)) continue;
      kind.add(static_cast<std::uint64_t>(std::distance(std::begin(kKinds), found)));
      time.add_difference(since_begin(event.time));
      const auto waited =
          static_cast<std::uint64_t>(std::max<std::int64_t>(0, event.duration.count));
      amount.add(event.kind == EventKind::host_wait       ? waited
                 : event.kind == EventKind::out_of_memory ? event.requested.count
                                                          : event.bytes.count);
      ++happening_count_;
    }
  }

  void waits() {
    HtmlColumn& time = columns_.emplace_back("wait_time");
    HtmlColumn& waiter = columns_.emplace_back("wait_stream");
    HtmlColumn& awaited = columns_.emplace_back("wait_other");
    for (const Event& event : recording_.events) {
      if (event.kind != EventKind::stream_wait) continue;
      time.add_difference(since_begin(event.time));
      waiter.add(streams_.of(event.stream));
      awaited.add(streams_.of(event.other));
      ++wait_count_;
    }
  }

  void whole_stacks() {
    HtmlColumn& frames = columns_.emplace_back("stack_frames");
    HtmlColumn& frame = columns_.emplace_back("stack_frame");
    for (const std::vector<std::uint32_t>& stack : stacks_.stacks) {
      frames.add(stack.size());
      for (const std::uint32_t each : stack) frame.add(each);
    }
  }

  void recorded_addresses() {
    HtmlColumn& address = columns_.emplace_back("recorded_address");
    for (const std::uint64_t each : recording_.origin.addresses) address.add_difference(each);
  }

  void other_reserved() {
    HtmlColumn& time = columns_.emplace_back("other_time");
    HtmlColumn& bytes = columns_.emplace_back("other_bytes");
    for (const RecordedReserved& point : recording_.other_reserved) {
      time.add_difference(since_begin(begin_ + point.time));
      bytes.add_difference(point.bytes.count);
    }
  }

  Json header() {
    Json heaps = Json::array(), frames = Json::array(), marks = Json::array();
    for (const auto& [heap, stream, pool] : heaps_.take()) heaps.push_back({heap, stream, pool});
    Json calls = Json::array(), purposes = Json::array();
    for (const Purpose purpose : stacks_.purposes) purposes.push_back(name_of(purpose));
    for (const Calls& each : stacks_.calls) calls.push_back({each.frames, each.named, each.via});
    for (const RecordedFrame& frame : stacks_.frames)
      frames.push_back({frame.function, frame.file, frame.line});
    for (const RecordedMark& mark : recording_.marks)
      marks.push_back({since_begin(mark.time), mark.text});
    // Ids may be larger than the page's numbers.
    Json streams = Json::array(), pools = Json::array(), columns = Json::array();
    for (const std::uint64_t stream : streams_.take()) streams.push_back(std::to_string(stream));
    for (const std::uint64_t pool : pools_.take()) pools.push_back(std::to_string(pool));
    for (const HtmlColumn& column : columns_)
      columns.push_back({column.name(), column.bytes().size()});
    // No path: a page is passed on, and whose folder it was is nobody's business.
    const std::string& source = recording_.source;
    return {{"source", source.substr(source.find_last_of('/') + 1)},
            {"program", recording_.program},
            {"device", recording_.device},
            {"device_bytes", recording_.device_bytes.count},
            {"duration", since_begin(recording_.end())},
            {"events", recording_.events.size()},
            {"dropped", recording_.dropped},
            {"damage", recording_.damage},
            {"streams", streams},
            {"pools", pools},
            {"heaps", heaps},
            {"frames", frames},
            {"calls", calls},
            {"calls_of_stack", stacks_.of_stack},
            {"purposes", purposes},
            {"marks", marks},
            {"origin", origin()},
            {"counts",
             {{"blocks", lifetimes_.blocks.size()},
              {"steps", step_events_.size()},
              {"fences", fence_count_},
              {"reserved", reserved_count_},
              {"pages", page_count_},
              {"happenings", happening_count_},
              {"waits", wait_count_},
              {"other", recording_.other_reserved.size()},
              {"addresses", recording_.origin.addresses.size()}}},
            {"other_peak_reserved", recording_.other_peak_reserved.count},
            {"columns", columns}};
  }

  // What is known beside the recording.
  Json origin() const {
    const Origin& from = recording_.origin;
    Json json = {{"has_times", from.has_times},
                 {"devices", devices_text(from)},
                 {"pytorchs", from.is_pytorchs()},
                 {"verdict", verdict_},
                 {"advice", advice_}};
    // The last step that had happened.
    const auto step_after = [&](std::size_t events) {
      const auto step = std::lower_bound(step_events_.begin(), step_events_.end(), events);
      return std::distance(step_events_.begin(), step) - 1;
    };
    if (const std::optional<FailedRequest>& failure = from.failure) {
      json["failure"] = {{"bytes", failure->wanted.count},
                         {"time", since_begin(begin_ + failure->time)},
                         {"step", step_after(failure->events)}};
    }
    if (from.held) json["held"] = held_json(*from.held, step_after(from.held->events));
    return json;
  }

  std::string bytes() {
    // A text of a recording may be anything; what is no UTF-8 in it is replaced.
    const std::string head = header().dump(-1, ' ', false, Json::error_handler_t::replace);
    std::size_t size = 4 + head.size();
    for (const HtmlColumn& column : columns_) size += column.bytes().size();
    std::string bytes;
    bytes.reserve(size);
    for (int byte = 0; byte < 4; ++byte)
      bytes.push_back(static_cast<char>((head.size() >> (8 * byte)) & 0xff));
    bytes += head;
    for (; !columns_.empty(); columns_.pop_front()) bytes += columns_.front().bytes();
    return bytes;
  }

  const Loaded& recording_;
  const std::vector<std::string> verdict_;
  std::vector<std::string> advice_;
  const BlockLifetimes lifetimes_;
  const ReadableStacks stacks_;
  const Nanoseconds begin_;
  std::deque<HtmlColumn> columns_;  // in the order of their making; a reference to one stays good
  Numbering<std::uint64_t> streams_, pools_;
  Numbering<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>> heaps_;  // id, stream, pool
  std::vector<std::uint32_t> step_events_;  // by step: its place among the events
  std::size_t fence_count_ = 0, reserved_count_ = 0, page_count_ = 0, happening_count_ = 0;
  std::size_t wait_count_ = 0;
};

}  // namespace

std::string html_data(const Loaded& recording, Paths paths, const Report* report) {
  if (report != nullptr) return Writer(recording, paths, *report).run();
  return Writer(recording, paths, report_of(recording, {}, recording.origin)).run();
}

}  // namespace weir
