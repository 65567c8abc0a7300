// SPDX-License-Identifier: Apache-2.0
#include "core/sleep/sleeper.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace weir {
namespace {

bool copies_bytes(SleepContents contents) {
  return contents == SleepContents::backup || contents == SleepContents::immutable;
}

}  // namespace

// (Each slab was pinned by itself: the driver takes no copy across two.)
Status Sleeper::Copies::add(Range at, const HostStore::Piece& host) {
  const bool beside = at_.size > 0_B && at_.end() == at.begin && host_.slab == host.slab &&
                      (Address::of(host_.memory) + at_.size).pointer() == host.memory;
  if (beside && at_.size + at.size <= kAtATime) {
    at_.size += at.size;
    return {};
  }
  if (Status flushed = flush(); !flushed) return flushed;
  at_ = at;
  host_ = host;
  return {};
}

Status Sleeper::Copies::flush() {
  if (at_.size == 0_B) return {};
  const Result<Stream> stream = device_.copy_stream(direction_);
  if (!stream) return stream.error();
  Status queued = direction_ == Device::Direction::to_host
                      ? device_.copy_to_host(host_.memory, at_.begin, at_.size, *stream)
                      : device_.copy_to_device(at_.begin, host_.memory, at_.size, *stream);
  if (!queued) return queued;
  report_.copied += at_.size;
  ++report_.copies;
  at_ = {};
  return {};
}

Sleeper::Heap* Sleeper::find(const std::shared_ptr<Pool>& pool) const {
  const std::lock_guard lock(heaps_mutex_);
  const auto known = heaps_.find(pool);
  return known == heaps_.end() ? nullptr : &known->second;
}

Sleeper::Heap& Sleeper::of(const std::shared_ptr<Pool>& pool) {
  const std::lock_guard lock(heaps_mutex_);
  Heap& heap = heaps_[pool];
  heap.heap = &pool->pages();
  return heap;
}

void Sleeper::forget_gone() {
  const std::lock_guard lock(heaps_mutex_);
  for (auto next = heaps_.begin(); next != heaps_.end();) {
    const auto at = next++;
    if (!at->first.expired()) continue;
    for (auto& [id, page] : at->second.pages) drop_copies(page);
    heaps_.erase(at);
  }
}

Status Sleeper::shrink(Bytes keep_host) {
  forget_gone();
  return store_.shrink(keep_host);
}

bool Sleeper::has_away(const std::shared_ptr<Pool>& pool) const {
  const Heap* const known = find(pool);
  return known != nullptr && std::any_of(known->pages.begin(), known->pages.end(),
                                         [](const auto& page) { return !page.second.filled; });
}

bool Sleeper::sleeps_wholly(const std::shared_ptr<Pool>& pool) const {
  const Heap* const known = find(pool);
  return known == nullptr || known->whole;  // it has nothing that could be there
}

Bytes Sleeper::copied_bytes(const std::shared_ptr<Pool>& pool) const {
  Bytes bytes;
  const Heap* const known = find(pool);
  if (known == nullptr) return {};
  for (const auto& [id, page] : known->pages) {
    for (const Copy& copy : page.copies) bytes += copy.home.size;
  }
  return bytes;
}

void Sleeper::drop_copies(Sleeping& page) {
  for (const Copy& copy : page.copies) store_.give(copy.host);
  page.copies.clear();
  page.is_copied = false;
}

std::vector<HostPart> Sleeper::copies_of(const std::shared_ptr<Pool>& pool,
                                         const std::vector<Range>& home) const {
  std::vector<HostPart> parts;
  const Heap* const known = find(pool);
  if (known == nullptr) return parts;
  std::map<Address, const Copy*> copies;  // by home address
  for (const auto& [id, page] : known->pages) {
    if (!page.is_copied) continue;
    for (const Copy& copy : page.copies) copies[copy.home.begin] = &copy;
  }
  Bytes offset;
  for (Range left : home) {
    while (left.size > 0_B) {
      const auto after = copies.upper_bound(left.begin);
      if (after == copies.begin()) return {};
      const Copy& copy = *std::prev(after)->second;
      if (copy.home.end() <= left.begin) return {};
      const Bytes skip = left.begin - copy.home.begin;
      const Bytes size = std::min(left.size, copy.home.size - skip);
      parts.push_back({(Address::of(copy.host.memory) + skip).pointer(), offset, size});
      offset += size;
      left = {left.begin + size, left.size - size};
    }
  }
  return parts;
}

bool Sleeper::covers(const Sleeping& page, const std::vector<Range>& in_use) const {
  return std::all_of(in_use.begin(), in_use.end(), [&](Range range) {
    // Copies lie in order, and side by side where a piece was too small.
    for (const Copy& copy : page.copies) {
      if (copy.home.begin <= range.begin && range.begin < copy.home.end()) {
        const Bytes covered = std::min(copy.home.end(), range.end()) - range.begin;
        range = {range.begin + covered, range.size - covered};
        if (range.size == 0_B) return true;
      }
    }
    return false;
  });
}

// The pages that have memory to lose, without those that stay. What is known of pages that are
// there is dropped, but for copies that are still good.
std::vector<PageSleep::SleepingPage> Sleeper::prepare(const Job& job, Heap& heap) {
  std::vector<PageSleep::SleepingPage> pages;
  const bool reuses = job.contents == SleepContents::immutable && heap.version == job.version;
  heap.version = job.version;
  heap.whole = false;
  std::set<std::uint32_t> listed;
  for (PageSleep::SleepingPage& page : heap.heap->sleep()->pages_to_sleep(job.kept_whole)) {
    if (job.stay.contains(page.page)) continue;
    listed.insert(page.page.value);
    Sleeping& known = heap.pages[page.page.value];
    if (known.filled) {
      known.home = page.home;
      known.contents = job.contents;
      const bool good = reuses && known.is_copied && covers(known, page.in_use);
      if (!good) drop_copies(known);
    }
    pages.push_back(std::move(page));
  }
  for (auto at = heap.pages.begin(); at != heap.pages.end();) {
    const auto page = at++;
    if (page->second.filled && !listed.contains(page->first)) drop(heap.pages, page);
  }
  return pages;
}

Status Sleeper::sleep(const std::vector<Job>& jobs, SleepReport& report) {
  forget_gone();
  std::vector<std::pair<Heap*, PageSleep::SleepingPage>> pages;
  Bytes to_copy;
  for (const Job& job : jobs) {
    Heap& heap = of(job.pool);
    for (PageSleep::SleepingPage& page : prepare(job, heap)) {
      const Sleeping& known = heap.pages.at(page.page.value);
      const bool copies = known.filled && copies_bytes(job.contents) && known.copies.empty();
      if (!copies) page.in_use.clear();
      for (const Range range : page.in_use) to_copy += range.size;
      pages.emplace_back(&heap, std::move(page));
    }
  }
  Status status = store_.expect(to_copy);
  Copies copies(device_, Device::Direction::to_host, report);
  for (const auto& [heap, page] : pages) {
    if (!status) break;
    status = queue(*heap, page, copies, report);
  }
  if (status) status = end_batch(copies, report);
  while (status && !queued_.empty()) status = finish_first(report);
  if (!status) abandon_queued(jobs);
  store_.settle();
  for (const Job& job : jobs) of(job.pool).whole = status.ok();
  return status;
}

Result<EventHandle> Sleeper::record(Device::Direction direction) {
  const Result<Stream> stream = device_.copy_stream(direction);
  if (!stream) return stream.error();
  Result<EventHandle> event = device_.create_event();
  if (!event) return event;
  Status recorded = device_.record(*event, *stream);
  if (recorded) return event;
  end(*event);
  return std::move(recorded).error();
}

Status Sleeper::wait_for(Device::Direction direction) {
  const Result<EventHandle> event = record(direction);
  if (!event) return event.error();
  Status done = device_.synchronize(*event);
  end(*event);
  return done;
}

// The page's bytes are copied, and behind that its memory goes. What needs no copy goes at once.
Status Sleeper::queue(Heap& heap, const PageSleep::SleepingPage& page, Copies& copies,
                      SleepReport& report) {
  Sleeping& sleeping = heap.pages.at(page.page.value);
  if (page.in_use.empty()) return take(heap, page.page, report);
  for (Range range : page.in_use) {
    while (range.size > 0_B) {
      Result<HostStore::Piece> piece = store_.take(range.size);
      if (!piece) return std::move(piece).error();
      const Range part{range.begin, piece->size};
      sleeping.copies.push_back({part, *piece});
      if (Status added = copies.add(part, *piece); !added) return added;
      batch_.bytes += part.size;
      range = {part.end(), range.size - part.size};
    }
  }
  batch_.pages.emplace_back(&heap, page.page);
  return batch_.bytes < kAtATime ? Status{} : end_batch(copies, report);
}

Status Sleeper::end_batch(Copies& copies, SleepReport& report) {
  if (batch_.pages.empty()) return {};
  if (Status flushed = copies.flush(); !flushed) return flushed;
  const Result<EventHandle> event = record(Device::Direction::to_host);
  if (!event) return event.error();
  batch_.event = *event;
  queued_.push_back(std::exchange(batch_, {}));
  return queued_.size() > kQueued ? finish_first(report) : Status{};
}

Status Sleeper::finish_first(SleepReport& report) {
  if (Status done = device_.synchronize(queued_.front().event); !done) return done;
  const Queued first = std::move(queued_.front());
  queued_.erase(queued_.begin());
  end(first.event);
  for (const auto& [heap, page] : first.pages) heap->pages.at(page.value).is_copied = true;
  for (const auto& [heap, page] : first.pages) {
    if (Status taken = take(*heap, page, report); !taken) return taken;
  }
  return {};
}

Status Sleeper::take(Heap& heap, PageId id, SleepReport& report) {
  Sleeping& page = heap.pages.at(id.value);
  Status taken = heap.heap->sleep()->take_memory(id);
  if (taken) report.given_back += page.home.size;
  page.filled = page.filled && heap.heap->sleep()->has_memory(id);
  return taken;
}

// Pages that are there may be written to again, and their copies are dropped: nothing may read the
// ones or write the others any more. There may be copies that no event is behind.
void Sleeper::abandon_queued(const std::vector<Job>& jobs) {
  if (!device_.synchronize_context()) (void)wait_for(Device::Direction::to_host);
  for (const Queued& queued : queued_) end(queued.event);
  queued_.clear();
  batch_ = {};
  for (const Job& job : jobs) {
    for (auto& [id, page] : of(job.pool).pages) {
      if (page.filled && !page.is_copied) drop_copies(page);
    }
  }
}

Result<bool> Sleeper::renew(Heap& heap, PageId id, const MakeRoom& make_room, SleepReport& report) {
  const Bytes size = heap.pages.at(id.value).home.size;
  if (heap.heap->sleep()->has_memory(id)) return true;
  Result<bool> renewed = heap.heap->sleep()->renew_memory(id);
  while (!renewed && renewed.error().code() == ErrorCode::out_of_memory && make_room(size)) {
    renewed = heap.heap->sleep()->renew_memory(id);
  }
  if (renewed && *renewed) report.given_back += size;
  return renewed;
}

Status Sleeper::queue_back(Sleeping& page, Copies& copies) {
  if (page.contents == SleepContents::zero) {
    const Result<Stream> stream = device_.copy_stream(Device::Direction::to_device);
    if (!stream) return stream.error();
    return device_.fill_with_zeros(page.home.begin, page.home.size, *stream);
  }
  if (!copies_bytes(page.contents)) return {};
  for (const Copy& copy : page.copies) {
    if (Status added = copies.add(copy.home, copy.host); !added) return added;
  }
  return {};
}

Status Sleeper::wake(const std::shared_ptr<Pool>& pool, const MakeRoom& make_room,
                     SleepReport& report) {
  Heap* const known = find(pool);
  if (known == nullptr) return {};
  Pages& pages = known->pages;
  known->whole = false;
  std::vector<std::uint32_t> filled;
  Copies copies(device_, Device::Direction::to_device, report);
  bool queued = false;
  Status status;
  for (auto next = pages.begin(); next != pages.end() && status;) {
    const auto at = next++;
    auto& [id, page] = *at;
    if (page.filled) continue;
    const Result<bool> renewed = renew(*known, PageId{id}, make_room, report);
    if (!renewed) {
      status = renewed.error();
    } else if (!*renewed) {
      drop(pages, at);
    } else {
      queued = queued || !page.copies.empty() || page.contents == SleepContents::zero;
      status = queue_back(page, copies);
      if (status) filled.push_back(id);
    }
  }
  // Also where an error came between: those that are filled by then need not be again.
  if (queued) {
    Status done = copies.flush();
    if (done) done = wait_for(Device::Direction::to_device);
    if (!done) {
      filled.clear();
      if (status) status = std::move(done);
    }
  }
  for (const std::uint32_t id : filled) pages.at(id).filled = true;
  for (auto next = pages.begin(); next != pages.end();) {
    const auto at = next++;
    const bool is_kept = at->second.contents == SleepContents::immutable;
    if (at->second.filled && !is_kept) drop(pages, at);
  }
  return status;
}

}  // namespace weir
