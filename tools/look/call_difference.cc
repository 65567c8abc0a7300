// SPDX-License-Identifier: Apache-2.0
#include "look/call_difference.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <tuple>
#include <unordered_map>

#include "look/numbering.h"
#include "look/stack_calls.h"
#include "look/streams.h"

namespace weir {
namespace {

constexpr std::size_t kPrevious = 3;  // calls that are shown before the one that differs

// What Weir does for a call, and what may differ where the calls are the same.
bool is_work(EventKind kind) {
  switch (kind) {
    case EventKind::stream_wait:
    case EventKind::host_wait:
    case EventKind::create:
    case EventKind::release:
    case EventKind::map:
    case EventKind::unmap:
    case EventKind::trim:
    case EventKind::context_events_lost:
      return true;
    default:
      return false;
  }
}

// One recording, call by call.
class CallReader {
 public:
  explicit CallReader(const Recording& recording)
      : recording_(recording), at_(recording.events.begin()), end_(recording.events.end()) {
    number_ = recording.calls_before;
    for (; at_ != end_ && at_.index() < recording.initial; ++at_) note(*at_);
  }

  // Goes on to the next call; false: there is none. The work since the last one is in work().
  bool next() {
    work_.clear();
    for (; at_ != end_; ++at_) {
      const Event& event = *at_;
      if (is_call(event.kind)) {
        take(event);
        ++at_;
        return true;
      }
      note(event);
      if (is_work(event.kind)) work_.push_back(event);
    }
    call_.reset();
    return false;
  }
  // Past all calls before the one of that number. What they met counts as never met.
  void skip_to(std::uint64_t number) {
    while (number_ + 1 < number && next()) continue;
    streams_ = {}, pools_ = {}, rows_ = {};
    (void)pools_.of(0);
  }

  const std::optional<RecordedCall>& call() const { return call_; }
  const std::vector<Event>& work() const { return work_; }
  std::uint64_t number() const { return number_; }
  std::uint32_t known(std::uint64_t stream) const { return streams_.known(stream); }

  // The rest is counted, and no more.
  std::uint64_t count_all() {
    std::uint64_t count = number_;
    for (; at_ != end_; ++at_) count += is_call(at_->kind) ? 1 : 0;
    return count - recording_.calls_before;
  }

  // What is live, whatever its row: its size, and where it lies in that.
  std::vector<std::tuple<std::uint64_t, std::uint64_t>> live() const {
    std::vector<std::tuple<std::uint64_t, std::uint64_t>> all;
    for (const auto& [address, block] : live_) {
      all.emplace_back(block.event.bytes.count, row_of(block.event.address).second);
    }
    std::sort(all.begin(), all.end());
    return all;
  }

  std::string mark() const {
    const Nanoseconds now = call_ ? call_->event.time : recording_.end();
    std::string text;
    for (const RecordedMark& mark : recording_.marks) {
      if (mark.time >= now) break;
      const bool is_weirs =
          mark.text.starts_with("driver calls") || mark.text.starts_with("layout:");
      if (!is_weirs) text = mark.text;
    }
    return text;
  }

  std::vector<std::string> stack() const {
    if (!call_ || call_->stack == 0 || call_->stack >= recording_.stacks.size()) return {};
    const CallStacks stacks = calls_of(recording_.frames, {{}, recording_.stacks[call_->stack]});
    return calls_text(stacks, stacks.of(1));
  }

  CallSide side() {
    CallSide side{recording_.source, call_, stack(), work_, mark(), 0, recording_.dropped};
    side.calls = count_all();
    side.last = recording_.calls_before + side.calls;
    side.damaged = !recording_.damage.empty();
    return side;
  }

 private:
  // Segments of plain memory lie anywhere; all other rows begin at a multiple of this.
  static constexpr std::uint64_t kRow = std::uint64_t{1} << 30;
  static constexpr std::uint64_t kSegment = std::uint64_t{1} << 63;
  static constexpr int kRowBits = 34;  // of addresses of 64 bits

  struct Segment {
    std::uint64_t end, number;
  };
  struct Live {
    Event event;
    std::uint64_t number;
  };

  void note(const Event& event) {
    const std::uint64_t at = event.address.value;
    if (event.kind == EventKind::allocate) live_[at] = {event, 0};
    if (event.kind == EventKind::heap_open) pool_of_heap_[event.heap.value] = event.pool;
    if (event.kind == EventKind::map && event.plain) {
      segments_[at] = {at + event.bytes.count, kSegment | segments_made_++};
    }
    if (event.kind == EventKind::unmap && event.plain) segments_.erase(at);
  }

  void take(const Event& event) {
    RecordedCall call{.number = ++number_, .event = event, .stack = event.stack};
    const auto found = live_.find(event.address.value);
    const bool is_of_block = event.kind == EventKind::deallocate || event.kind == EventKind::fence;
    if (is_of_block && found != live_.end()) {
      const Event& block = found->second.event;
      call.allocated_in = found->second.number;
      call.stack = block.stack;
      call.event.bytes = block.bytes, call.event.requested = block.requested;
      call.event.stream = block.stream, call.event.heap = block.heap;
    }
    call.stream = streams_.of(call.event.stream);
    if (event.kind == EventKind::fence) call.user = streams_.of(event.other);
    if (event.kind != EventKind::out_of_memory) {
      const auto pool = pool_of_heap_.find(call.event.heap.value);
      call.pool_id = pool == pool_of_heap_.end() ? event.pool : pool->second;
      call.pool = pools_.of(call.pool_id);
      call.place = place(event.address, call.pool);
    }
    if (event.kind == EventKind::allocate) live_[event.address.value] = {event, number_};
    if (event.kind == EventKind::deallocate && found != live_.end()) live_.erase(found);
    call_ = call;
  }

  // The row's key, and the offset in it.
  std::pair<std::uint64_t, std::uint64_t> row_of(Address address) const {
    if (!segments_.empty()) {
      auto segment = segments_.upper_bound(address.value);
      if (segment != segments_.begin() && address.value < (--segment)->second.end) {
        return {segment->second.number, address.value - segment->first};
      }
    }
    return {address.value / kRow, address.value % kRow};
  }

  // Rows are a pool's own: the driver may give one pool the addresses that another gave back.
  CallPlace place(Address address, std::uint64_t pool) {
    const auto [row, offset] = row_of(address);
    const bool is_segment = (row & kSegment) != 0;
    const std::uint64_t key = is_segment ? row : pool << kRowBits | row;
    const std::size_t met = rows_.size();
    CallPlace place{.row = rows_.of(key), .offset = Bytes{offset}};
    if (rows_.size() > met && !is_segment) {
      place.below = rows_.known(key - 1);
      place.above = rows_.known(key + 1);
    }
    return place;
  }

  const Recording& recording_;
  EventLog::const_iterator at_;
  const EventLog::const_iterator end_;
  std::uint64_t number_ = 0;
  std::optional<RecordedCall> call_;
  std::vector<Event> work_;
  std::unordered_map<std::uint64_t, Live> live_;  // by address
  std::unordered_map<std::uint32_t, std::uint64_t> pool_of_heap_;
  std::map<std::uint64_t, Segment> segments_;  // of plain memory, by address
  std::uint64_t segments_made_ = 0;
  Numbering<std::uint64_t> streams_, pools_, rows_;
};

std::vector<std::string> differences(const std::optional<RecordedCall>& a,
                                     const std::optional<RecordedCall>& b) {
  if (!a && !b) return {};
  if (!a || !b) return {"end"};
  if (a->event.kind != b->event.kind) return {"call"};
  std::vector<std::string> found;
  const auto add = [&found](const char* name, bool differs) {
    if (differs) found.emplace_back(name);
  };
  add("bytes", a->event.requested != b->event.requested || a->event.bytes != b->event.bytes);
  add("stream", a->stream != b->stream ||
                    is_captured_stream(a->event.stream) != is_captured_stream(b->event.stream));
  add("user", a->user != b->user);
  add("pool", a->pool != b->pool);
  add("place", a->place != b->place);
  return found;
}

// Streams are those that calls have met; all others are one.
bool is_same_work(const CallReader& a, const CallReader& b) {
  return std::equal(a.work().begin(), a.work().end(), b.work().begin(), b.work().end(),
                    [&](const Event& x, const Event& y) {
                      const bool waits = x.kind == EventKind::stream_wait;
                      return x.kind == y.kind && x.plain == y.plain && x.bytes == y.bytes &&
                             (!waits || (a.known(x.stream) == b.known(y.stream) &&
                                         a.known(x.other) == b.known(y.other)));
                    });
}

}  // namespace

CallDifference first_difference(const Recording& before, const Recording& after) {
  CallReader a(before), b(after);
  CallDifference found{.first = std::max(before.calls_before, after.calls_before) + 1};
  a.skip_to(found.first);
  b.skip_to(found.first);
  const bool both_begin = a.number() + 1 == found.first && b.number() + 1 == found.first;
  found.lived_otherwise = both_begin && a.live() != b.live();
  std::deque<RecordedCall> previous;
  while (true) {
    const bool has_a = a.next(), has_b = b.next();
    const bool both = has_a && has_b;
    found.differs = differences(a.call(), b.call());
    // (What came before a ring's first call is in the ring only in part.)
    const bool whole = found.first == 1 || found.same > 0;
    if (found.worked_otherwise == 0 && both && whole && !is_same_work(a, b)) {
      found.worked_otherwise = a.number();
    }
    if (!both || !found.differs.empty()) break;
    ++found.same;
    if (found.moved == 0 && a.call()->event.address != b.call()->event.address) {
      found.moved = a.number();
    }
    previous.push_back(*a.call());
    if (previous.size() > kPrevious) previous.pop_front();
  }
  found.previous.assign(previous.begin(), previous.end());
  found.before = a.side();
  found.after = b.side();
  return found;
}

}  // namespace weir
