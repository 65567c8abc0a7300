// SPDX-License-Identifier: Apache-2.0
#include "look/report_moment.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <unordered_map>
#include <utility>

#include "look/streams.h"

namespace weir {
namespace {

constexpr std::size_t kCallsInLine = 3;

std::string power_in_words(Bytes bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  std::uint64_t value = bytes.count;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return fmt::format("{} {}", value, kUnits[unit]);
}

// The largest size of the class that `bytes` is in: a power of two, 512 at least.
Bytes size_class(Bytes bytes) {
  if (bytes <= kGrain) return kGrain;
  constexpr Bytes kLargest{std::uint64_t{1} << 63};
  return bytes > kLargest ? kLargest : Bytes{std::bit_ceil(bytes.count)};
}

// "(1 MiB, 2 MiB]" as "1 - 2 MiB"; the smallest as "up to 512 B".
std::string size_class_name(Bytes largest) {
  if (largest <= kGrain) return "up to 512 B";
  const std::string from = power_in_words(largest / 2), to = power_in_words(largest);
  // "1 - 2 MiB", but "512 KiB - 1 MiB".
  const std::size_t unit = from.find(' ');
  const bool same_unit = to.ends_with(from.substr(unit));
  return fmt::format("{} - {}", same_unit ? from.substr(0, unit) : from, to);
}

// The innermost of a stack's calls in one line, as far as main(); "unknown" for an empty stack.
std::string place_text(const std::vector<std::string>& calls) {
  if (calls.empty()) return "unknown";
  std::string text = calls.front();
  for (std::size_t i = 1; i < std::min(calls.size(), kCallsInLine); ++i) {
    // Who calls main() says nothing.
    if (calls[i - 1] == "main" || calls[i - 1].starts_with("main (")) break;
    text += " < " + calls[i];
  }
  return text;
}

// The pages of a recording at one moment, and what of their bytes live blocks use.
class ReportPages {
 public:
  struct Page {
    Bytes bytes;
    bool plain = false;               // a segment of plain memory
    std::optional<HeapId> lease;      // the heap that used it first since it was idle
    std::optional<HeapId> last_heap;  // of the latest event about it
    std::vector<std::pair<std::uint64_t, std::uint64_t>> used;  // [begin, end), in its bytes
  };
  // What is left of a page beside its blocks.
  struct Free {
    Bytes used, edges, between;
    Bytes twice;  // bytes that two blocks have: events are missing
  };

  // Events of other kinds are passed over.
  void apply(const Event& event);
  // Bytes of the block that are on pages; call with every live block, after the last event.
  Bytes add_block(Address at, Bytes bytes);

  static Free free_of(Page& page);
  std::unordered_map<std::uint32_t, Page>& pages() { return pages_; }

 private:
  struct Mapping {
    std::uint32_t page = 0;
    Bytes bytes;
  };
  std::unordered_map<std::uint32_t, Page> pages_;  // by PageId
  std::map<Address, Mapping> mappings_;
};

void ReportPages::apply(const Event& event) {
  switch (event.kind) {
    case EventKind::create:
      pages_[event.page.value].bytes = event.bytes;
      pages_[event.page.value].plain = event.plain;
      break;
    case EventKind::release:
      pages_.erase(event.page.value);
      break;
    case EventKind::map:
      mappings_[event.address] = {event.page.value, event.bytes};
      if (const auto page = pages_.find(event.page.value); page != pages_.end()) {
        page->second.last_heap = event.heap;
      }
      break;
    case EventKind::unmap:
      mappings_.erase(event.address);
      break;
    case EventKind::lease:
    case EventKind::unlease:
      if (const auto page = pages_.find(event.page.value); page != pages_.end()) {
        page->second.last_heap = event.heap;
        page->second.lease.reset();
        if (event.kind == EventKind::lease) page->second.lease = event.heap;
      }
      break;
    default:
      break;
  }
}

Bytes ReportPages::add_block(Address at, Bytes bytes) {
  const Address end = at + bytes;
  Bytes found;
  auto mapping = mappings_.upper_bound(at);
  if (mapping != mappings_.begin()) --mapping;
  for (; mapping != mappings_.end() && mapping->first < end; ++mapping) {
    const auto page = pages_.find(mapping->second.page);
    if (page == pages_.end()) continue;
    const Bytes mapped = std::min(mapping->second.bytes, page->second.bytes);
    const Address from = std::max(at, mapping->first);
    const Address to = std::min(end, mapping->first + mapped);
    if (from >= to) continue;
    page->second.used.emplace_back((from - mapping->first).count, (to - mapping->first).count);
    found += to - from;
  }
  return found;
}

ReportPages::Free ReportPages::free_of(Page& page) {
  Free free;
  if (page.used.empty()) return free;
  std::sort(page.used.begin(), page.used.end());
  std::uint64_t reached = page.used.front().first;  // all before it has been counted
  free.edges = Bytes{reached};
  for (const auto& [begin, end] : page.used) {
    if (begin > reached) free.between += Bytes{begin - reached};
    free.twice += Bytes{std::min(end, reached) - std::min(begin, reached)};
    free.used += Bytes{std::max(end, reached) - std::max(begin, reached)};
    reached = std::max(reached, end);
  }
  free.edges += Bytes{std::max(page.bytes.count, reached) - reached};
  return free;
}

void add(std::unordered_map<std::uint64_t, Share>& shares, std::uint64_t id,
         const BlockLifetime& lifetime) {
  Share& share = shares[id];
  share.id = id;
  ++share.blocks;
  share.bytes += lifetime.bytes;
  share.requested += lifetime.requested;
}

std::vector<Share> sorted(std::unordered_map<std::uint64_t, Share>& shares) {
  std::vector<Share> list;
  list.reserve(shares.size());
  for (auto& [id, share] : shares) list.push_back(std::move(share));
  std::sort(list.begin(), list.end(), [](const Share& a, const Share& b) {
    if (a.bytes != b.bytes) return a.bytes > b.bytes;
    return a.nth != b.nth ? a.nth < b.nth : a.id < b.id;
  });
  return list;
}

// The rest of a long list in its last row.
std::vector<Share> shortened(std::vector<Share> list, std::size_t top) {
  top = std::max<std::size_t>(top, 1);
  if (list.size() <= top) return list;
  Share rest{.id = 0, .nth = BlockLifetime::kNone, .name = "others", .rest = true};
  for (std::size_t i = top - 1; i < list.size(); ++i) {
    rest.blocks += list[i].blocks;
    rest.bytes += list[i].bytes;
    rest.requested += list[i].requested;
  }
  list.resize(top - 1);
  list.push_back(rest);
  return list;
}

class MomentMaker {
 public:
  MomentMaker(ReportNames& names, Moment& moment) : names_(names), moment_(moment) {}

  // A heap may serve one stream after another.
  void see(const Event& event) {
    if (event.kind == EventKind::heap_open) pool_of_heap_[event.heap.value] = event.pool;
  }

  void add_block(const BlockLifetime& lifetime, ReportPages& pages) {
    ++moment_.blocks;
    moment_.live += lifetime.bytes;
    moment_.requested += lifetime.requested;
    moment_.unplaced += lifetime.bytes - pages.add_block(lifetime.address, lifetime.bytes);
    add(streams_, lifetime.stream, lifetime);
    add(pools_, lifetime.pool, lifetime);
    add(sizes_, size_class(lifetime.bytes).count, lifetime);
    add(stacks_, names_.number_of(lifetime.stack), lifetime);
    if (const std::optional<Purpose> purpose = names_.purpose_of(lifetime.stack)) {
      add(purposes_, static_cast<std::uint64_t>(*purpose), lifetime);
    }
  }

  void add_page(ReportPages::Page& page) {
    ++moment_.pages;
    moment_.reserved += page.bytes;
    const ReportPages::Free free = ReportPages::free_of(page);
    moment_.unplaced += free.twice;
    if (page.lease) moment_.leased += page.bytes;
    if (page.plain) {
      ++moment_.plain.segments;
      moment_.plain.reserved += page.bytes;
      moment_.plain.live += free.used;
      if (page.lease) moment_.plain.leased += page.bytes;
    }
    if (page.used.empty() && !page.lease) {
      const bool pools = page.last_heap && pool_of_heap_[page.last_heap->value] != 0;
      cause(pools ? Cause::pool_partition : Cause::idle_pages) += page.bytes;
      return;
    }
    if (page.used.empty()) {
      cause(Cause::stream_partition) += page.bytes;
      return;
    }
    cause(Cause::page_tails) += free.edges;
    cause(Cause::placement) += free.between;
  }

  void finish(std::size_t top) {
    cause(Cause::rounding) = moment_.live - moment_.requested;
    for (auto& [stream, share] : streams_) {
      share.nth = names_.streams.of(stream);
      share.name = stream_text(stream);
    }
    for (auto& [pool, share] : pools_) {
      share.nth = pool == 0 ? BlockLifetime::kNone : names_.pools.of(pool);
      share.name = pool_name(pool);
    }
    for (auto& [size, share] : sizes_) share.name = size_class_name(Bytes{size});
    for (auto& [stack, share] : stacks_) {
      share.name = names_.place(static_cast<std::uint32_t>(stack));
    }
    for (auto& [purpose, share] : purposes_) share.name = name_of(static_cast<Purpose>(purpose));
    moment_.by_purpose = sorted(purposes_);
    moment_.by_stream = shortened(sorted(streams_), top);
    moment_.by_pool = shortened(sorted(pools_), top);
    moment_.by_size = shortened(sorted(sizes_), top);
    moment_.by_stack = shortened(sorted(stacks_), top);
    names_.tell_apart(moment_.by_stack);
  }

 private:
  Bytes& cause(Cause why) { return moment_.causes[static_cast<int>(why)]; }

  ReportNames& names_;
  Moment& moment_;
  std::unordered_map<std::uint64_t, Share> streams_, pools_, sizes_, stacks_, purposes_;
  std::unordered_map<std::uint32_t, std::uint64_t> pool_of_heap_;
};

}  // namespace

ReportNames::ReportNames(const Recording& recording, const BlockLifetimes& lifetimes)
    : streams(lifetimes.streams), pools(lifetimes.pools) {
  CallStacks calls = calls_of(recording.frames, recording.stacks);
  for (const Calls& each : calls.calls) stacks.push_back(calls_text(calls, each));
  number_ = std::move(calls.of_stack);
  purposes_ = std::move(calls.purposes);
}

std::optional<Purpose> ReportNames::purpose_of(std::uint32_t stack) const {
  if (purposes_.empty()) return std::nullopt;
  return purposes_[stack < purposes_.size() ? stack : 0];
}

std::uint32_t ReportNames::number_of(std::uint32_t stack) const {
  return number_[stack < number_.size() ? stack : 0];
}

std::string ReportNames::place(std::uint32_t number) const {
  return number < stacks.size() ? place_text(stacks[number]) : place_text({});
}

void ReportNames::tell_apart(std::vector<Share>& shares) const {
  std::map<std::string, std::vector<Share*>> alike;
  for (Share& share : shares) {
    if (!share.rest) alike[share.name].push_back(&share);
  }
  for (const auto& [name, group] : alike) {
    for (Share* const share : group) {
      const std::vector<std::string>& calls = stacks[share->id];
      std::size_t same = 0;  // calls that another has too
      for (const Share* const other : group) {
        if (other == share) continue;
        const auto apart = std::ranges::mismatch(calls, stacks[other->id]).in1;
        same = std::max<std::size_t>(same, apart - calls.begin());
      }
      if (group.size() < 2 || same >= calls.size()) continue;
      share->name += (same > kCallsInLine ? " < ... < " : " < ") + calls[same];
    }
  }
}

Moment moment_after(std::size_t events, const Recording& recording, const BlockLifetimes& lifetimes,
                    ReportNames& names, std::size_t top) {
  Moment moment;
  moment.events = events;
  ReportPages pages;
  MomentMaker maker(names, moment);
  Nanoseconds time = recording.begin();
  for (auto event = recording.events.begin(); event.index() < events; ++event) {
    pages.apply(*event);
    maker.see(*event);
    time = event->time;
  }
  moment.time = time - recording.begin();
  for (const BlockLifetime& lifetime : lifetimes.blocks) {
    if (is_live_after(lifetime, events)) maker.add_block(lifetime, pages);
  }
  for (auto& [id, page] : pages.pages()) maker.add_page(page);
  maker.finish(top);
  return moment;
}

}  // namespace weir
