#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "look/exporters.h"

namespace weir {
namespace {

// What is there, as the events that made it so. Ordered by what identifies each thing, so that the
// same recording gives the same moment.
struct State {
  struct Page {
    Event create;
    std::map<std::uint64_t, Event> mappings;  // by address
    std::vector<Event> lease;                 // at most one
  };
  struct Block {
    Event allocate;
    std::vector<Event> fences;
  };
  std::map<std::uint64_t, Event> pools;
  std::map<std::uint32_t, Event> heaps;
  std::map<std::uint32_t, Page> pages;
  std::map<std::uint64_t, Block> blocks;  // by address

  void apply(const Event& event);
  void apply_to_page(const Event& event);
  std::vector<Event> events() const;
};

void State::apply(const Event& event) {
  switch (event.kind) {
    case EventKind::pool_open:
      pools[event.pool] = event;
      break;
    case EventKind::pool_close:
      pools.erase(event.pool);
      break;
    case EventKind::heap_open:
      heaps[event.heap.value] = event;
      break;
    case EventKind::create:
      pages[event.page.value].create = event;
      break;
    case EventKind::release:
      pages.erase(event.page.value);
      break;
    case EventKind::allocate:
      blocks[event.address.value] = {event, {}};
      break;
    case EventKind::deallocate:
      blocks.erase(event.address.value);
      break;
    case EventKind::fence: {
      const auto block = blocks.find(event.address.value);
      if (block != blocks.end()) block->second.fences.push_back(event);
      break;
    }
    default:
      apply_to_page(event);
  }
}

void State::apply_to_page(const Event& event) {
  const auto found = pages.find(event.page.value);
  if (found == pages.end()) return;
  Page& page = found->second;
  if (event.kind == EventKind::map) page.mappings[event.address.value] = event;
  if (event.kind == EventKind::unmap) page.mappings.erase(event.address.value);
  if (event.kind == EventKind::lease) page.lease = {event};
  if (event.kind == EventKind::unlease) page.lease.clear();
}

std::vector<Event> State::events() const {
  std::vector<Event> all;
  for (const auto& [id, open] : pools) all.push_back(open);
  for (const auto& [id, open] : heaps) all.push_back(open);
  for (const auto& [id, page] : pages) {
    all.push_back(page.create);
    for (const auto& [address, map] : page.mappings) all.push_back(map);
    all.insert(all.end(), page.lease.begin(), page.lease.end());
  }
  for (const auto& [address, block] : blocks) {
    all.push_back(block.allocate);
    all.insert(all.end(), block.fences.begin(), block.fences.end());
  }
  return all;
}

}  // namespace

Recording moment_of(const Recording& recording, Nanoseconds time) {
  State state;
  for (std::size_t i = 0; i < recording.events.size(); ++i) {
    if (recording.events[i].time > time && i >= recording.initial) break;
    state.apply(recording.events[i]);
  }
  Recording moment;
  moment.source = recording.source;
  moment.program = recording.program;
  moment.device = recording.device;
  moment.device_bytes = recording.device_bytes;
  moment.events = state.events();
  for (Event& event : moment.events) event.time = time;
  moment.initial = moment.events.size();
  moment.frames = recording.frames;
  moment.stacks = recording.stacks;
  moment.damage = recording.damage;
  return moment;
}

}  // namespace weir
