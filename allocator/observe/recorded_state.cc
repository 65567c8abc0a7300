// SPDX-License-Identifier: Apache-2.0
#include "observe/recorded_state.h"

#include <iterator>
#include <utility>

namespace weir {
namespace {

// Does it say some addresses, that all are some?
bool has_range(const Event& event) {
  return event.address != Address{} && event.bytes > 0_B &&
         event.address.value + event.bytes.count > event.address.value;
}

Event ended(EventKind kind, const Event& begun, Nanoseconds time) {
  Event event = begun;
  event.kind = kind;
  event.time = time;
  event.stack = 0;
  return event;
}

}  // namespace

RecordedState::ByAddress::iterator RecordedState::overlapping(ByAddress& all, const Event& event) {
  auto next = all.upper_bound(event.address.value);
  if (next != all.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second.bytes.count > event.address.value) return before;
  }
  const std::uint64_t end = event.address.value + event.bytes.count;
  return next != all.end() && next->first < end ? next : all.end();
}

void RecordedState::end_block(ByAddress::iterator block, Nanoseconds time) {
  fitting_.push_back(ended(EventKind::deallocate, block->second, time));
  blocks_.erase(block);
}

void RecordedState::end_mapping(ByAddress::iterator mapping, Nanoseconds time) {
  Event event = ended(EventKind::unmap, mapping->second, time);
  event.heap = HeapId{};
  fitting_.push_back(event);
  pages_.at(mapping->second.page.value).mappings.erase(mapping->first);
  mappings_.erase(mapping);
}

void RecordedState::end_lease(Page& page, Nanoseconds time) {
  if (!page.lease) return;
  fitting_.push_back(ended(EventKind::unlease, *page.lease, time));
}

bool RecordedState::fit(const Event& event) {
  switch (event.kind) {
    case EventKind::allocate:
    case EventKind::deallocate:
    case EventKind::fence:
      return fit_block(event);
    case EventKind::create:
    case EventKind::release:
    case EventKind::map:
    case EventKind::unmap:
    case EventKind::lease:
    case EventKind::unlease:
    case EventKind::keep:
      return fit_page(event);
    case EventKind::pool_open:
    case EventKind::pool_close:
    case EventKind::capture_begin:
    case EventKind::capture_end:
      return fit_pool(event);
    case EventKind::heap_open:
      heaps_[event.heap.value] = event;
      break;
    default:
      break;
  }
  fitting_.push_back(event);
  return true;
}

bool RecordedState::fit_block(const Event& event) {
  if (event.kind == EventKind::allocate) {
    if (!has_range(event)) return false;
    for (auto old = overlapping(blocks_, event); old != blocks_.end();
         old = overlapping(blocks_, event)) {
      end_block(old, event.time);
    }
    blocks_[event.address.value] = event;
    fitting_.push_back(event);
    return fitting_.size() == 1;
  }
  const auto block = blocks_.find(event.address.value);
  if (block == blocks_.end()) return false;
  if (event.kind == EventKind::fence) {
    fitting_.push_back(event);
    return true;
  }
  const Event& begun = block->second;
  const bool same = begun.bytes == event.bytes && begun.requested == event.requested &&
                    begun.stream == event.stream && begun.heap == event.heap;
  end_block(block, event.time);
  return same;
}

bool RecordedState::fit_page(const Event& event) {
  auto page = pages_.find(event.page.value);
  if (event.kind == EventKind::create) {
    if (page != pages_.end() || event.bytes == 0_B) return false;
    pages_[event.page.value].created = event;
    fitting_.push_back(event);
    return true;
  }
  if (page == pages_.end()) {
    if (event.kind != EventKind::map && event.kind != EventKind::lease) return false;
    if (event.bytes == 0_B) return false;
    const Event created{
        .kind = EventKind::create, .page = event.page, .time = event.time, .bytes = event.bytes};
    fitting_.push_back(created);
    page = pages_.emplace(event.page.value, Page{created, {}, {}}).first;
    (void)fit_known_page(event, page);
    return false;
  }
  return fit_known_page(event, page);
}

bool RecordedState::fit_known_page(const Event& event,
                                   std::map<std::uint32_t, Page>::iterator found) {
  Page& page = found->second;
  const std::size_t before = fitting_.size();
  switch (event.kind) {
    case EventKind::release:
      end_lease(page, event.time);
      while (!page.mappings.empty()) {
        end_mapping(mappings_.find(*page.mappings.begin()), event.time);
      }
      pages_.erase(found);
      break;
    case EventKind::lease:
      end_lease(page, event.time);
      page.lease = event;
      break;
    case EventKind::unlease:
      if (!page.lease) return false;
      page.lease.reset();
      break;
    case EventKind::keep:
      if (std::exchange(page.created.pool, 0) == 0) return false;
      break;
    default:
      return fit_mapping(event, page);
  }
  fitting_.push_back(event);
  return fitting_.size() == before + 1;
}

bool RecordedState::fit_mapping(const Event& event, Page& page) {
  const std::size_t before = fitting_.size();
  if (event.kind == EventKind::unmap) {
    const auto mapping = mappings_.find(event.address.value);
    if (mapping == mappings_.end() || mapping->second.page != event.page) return false;
    page.mappings.erase(mapping->first);
    mappings_.erase(mapping);
  } else {
    if (!has_range(event) || event.bytes != page.created.bytes) return false;
    for (auto old = overlapping(mappings_, event); old != mappings_.end();
         old = overlapping(mappings_, event)) {
      end_mapping(old, event.time);
    }
    page.mappings.insert(event.address.value);
    mappings_[event.address.value] = event;
  }
  fitting_.push_back(event);
  return fitting_.size() == before + 1;
}

bool RecordedState::fit_pool(const Event& event) {
  const bool begins = event.kind == EventKind::pool_open || event.kind == EventKind::capture_begin;
  const bool of_pool = event.kind == EventKind::pool_open || event.kind == EventKind::pool_close;
  std::map<std::uint64_t, Event>& all = of_pool ? pools_ : captures_;
  if (begins == all.contains(event.pool)) return false;
  if (begins) {
    all[event.pool] = event;
  } else {
    all.erase(event.pool);
  }
  fitting_.push_back(event);
  return true;
}

std::vector<Event> RecordedState::as_events(Nanoseconds time) const {
  std::vector<Event> events;
  const auto add = [&](Event event) {
    event.time = time;
    events.push_back(event);
  };
  for (const auto& [id, pool] : pools_) add(pool);
  for (const auto& [id, heap] : heaps_) add(heap);
  for (const auto& [id, capture] : captures_) add(capture);
  for (const auto& [id, page] : pages_) {
    add(page.created);
    for (const std::uint64_t at : page.mappings) add(mappings_.at(at));
    if (page.lease) add(*page.lease);
  }
  for (const auto& [address, block] : blocks_) add(block);
  return events;
}

}  // namespace weir
