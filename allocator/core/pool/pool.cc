// SPDX-License-Identifier: Apache-2.0
#include "core/pool/pool.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

namespace weir {
namespace {

void add(PoolLayout& all, const PoolLayout& one) {
  all.placements += one.placements;
  all.hash += one.hash;
}

}  // namespace

Pool::Pool(std::uint64_t id, std::string tag, EventCalls& events, Shared shared,
           const HeapOptions& options, PageHeap::Source source, Pool* eager)
    : shared_(shared),
      eager_(eager),
      id_(id),
      tag_(std::move(tag)),
      timelines_(events, shared.observer, shared.captures, options.trust,
                 options.addresses == Addresses::any ? Polls::yes : Polls::no),
      pages_(shared.device, timelines_, shared.remote_work, shared.observer,
             shared.registry.index(), shared.budget, shared.addresses, options, std::move(source),
             eager != nullptr) {}

Result<StreamHeap*> Pool::heap_of(Stream stream) {
  if (StreamHeap* const heap = find(stream.id)) return heap;
  const std::unique_lock lock(mutex_);
  const Result<Member*> made = make(stream);
  return made ? Result<StreamHeap*>((*made)->heap) : made.error();
}

Result<Pool::Member*> Pool::member_of(Stream stream) {
  {
    const std::shared_lock lock(mutex_);
    if (Member* const member = known(stream)) return member;
  }
  const std::unique_lock lock(mutex_);
  return make(stream);
}

Pool::Member* Pool::known(Stream stream) {
  const auto known = by_stream_.find(stream.id);
  return known == by_stream_.end() ? nullptr : &known->second;
}

Result<Pool::Member*> Pool::make(Stream stream) {
  if (Member* const member = known(stream)) return member;  // another thread was first
  if (timelines_.retired(stream) || (eager_ != nullptr && eager_->timelines().retired(stream))) {
    return Error(ErrorCode::invalid_argument,
                 "stream " + std::to_string(stream.id) +
                     " was retired: allocate for it before retire(), or for another stream");
  }
  // A heap whose stream is gone serves the next one: programs make streams without end.
  const StreamHeap::PoolParts parts{.pages = &pages_,
                                    .timelines = &timelines_,
                                    .caching_heaps = &caching_heaps_,
                                    .id = id_,
                                    .streams = ++streams_};
  const auto spare = std::find_if(retired_.begin(), retired_.end(),
                                  [&](StreamHeap* heap) { return heap->adopt(parts, stream); });
  StreamHeap* heap = nullptr;
  if (spare != retired_.end()) {
    heap = *spare;
    retired_.erase(spare);
  } else {
    heap = &shared_.registry.add(parts, stream, shared_.observer);
  }
  Member& member = by_stream_[stream.id] = {.stream = stream, .heap = heap};
  members_.push_back(&member);
  return &member;
}

PoolLayout Pool::layout() const {
  const std::shared_lock lock(mutex_);
  PoolLayout all = layout_of_retired_;
  for (const Member* const member : members_) add(all, member->heap->layout());
  all.pool = id_;
  return all;
}

StreamHeap* Pool::find(std::uint64_t stream) const {
  const std::shared_lock lock(mutex_);
  const auto known = by_stream_.find(stream);
  return known == by_stream_.end() ? nullptr : known->second.heap;
}

bool Pool::has_retired() const {
  const std::shared_lock lock(mutex_);
  return !retired_.empty();
}

StreamHeap* Pool::heap_with(Address block) const {
  StreamHeap* const heap = shared_.registry.owner_of(block);
  const bool has = heap != nullptr && heap->pool() == id_ && heap->live(block);
  return has ? heap : nullptr;
}

Status Pool::retire(Stream stream) {
  if (Status status = timelines_.retire(timelines_.of(stream)); !status) return status;
  const std::unique_lock lock(mutex_);
  const auto known = by_stream_.find(stream.id);
  if (known == by_stream_.end()) return {};
  StreamHeap* const heap = known->second.heap;
  heap->close();
  retired_.push_back(heap);
  add(layout_of_retired_, heap->layout());
  std::erase(members_, &known->second);
  by_stream_.erase(known);
  return {};
}

void Pool::disband() {
  const std::unique_lock lock(mutex_);
  std::vector<StreamHeap*> heaps = std::exchange(retired_, {});
  for (const Member* const member : members_) heaps.push_back(member->heap);
  members_.clear();
  by_stream_.clear();
  // The first made is the first to serve again.
  std::sort(heaps.begin(), heaps.end(),
            [](const StreamHeap* a, const StreamHeap* b) { return a->id().value > b->id().value; });
  shared_.registry.take_back(heaps);
}

void Pool::give_back_cached() const {
  for_each_member([](const Member& member) { (void)member.heap->give_back_cached(); });
}

std::vector<std::string> Pool::validate(const std::vector<Range>& runs) const {
  std::vector<std::string> broken = pages_.listing()->validate(runs);
  for (const std::string& one : timelines_.validate()) broken.push_back(one);
  for (const auto& [stream, member] : by_stream_) {
    // (In a capture it goes by another name.)
    const bool serves =
        eager_ != nullptr || member.heap->stream_locked() == std::pair(stream, true);
    if (member.heap->pool() != id_ || !serves) {
      broken.push_back("stream " + std::to_string(stream) + ": its heap serves another");
    }
  }
  return broken;
}

}  // namespace weir
