// SPDX-License-Identifier: Apache-2.0
#include "core/memory/chunks.h"

#include <cassert>
#include <utility>

namespace weir {

void ChunkBins::add(Chunk* chunk) {
  const std::uint64_t bin = bin_of(chunk->size);
  chunk->previous = nullptr;
  chunk->next = first_[bin];
  if (chunk->next != nullptr) chunk->next->previous = chunk;
  first_[bin] = chunk;
  filled_[bin / 64] |= std::uint64_t{1} << bin % 64;
  ++count_;
}

void ChunkBins::remove(Chunk* chunk) {
  if (chunk->next != nullptr) chunk->next->previous = chunk->previous;
  --count_;
  if (chunk->previous != nullptr) {
    chunk->previous->next = chunk->next;
    return;
  }
  const std::uint64_t bin = bin_of(chunk->size);
  first_[bin] = chunk->next;
  if (chunk->next == nullptr) filled_[bin / 64] &= ~(std::uint64_t{1} << bin % 64);
}

std::vector<std::string> ChunkBins::validate() const {
  std::vector<std::string> broken;
  std::size_t count = 0;
  for (std::uint64_t bin = 0; bin < kBins; ++bin) {
    const bool has = (filled_[bin / 64] >> bin % 64 & 1) != 0;
    if (has != (first_[bin] != nullptr)) broken.emplace_back("bins: a bit is wrong");
    const Chunk* before = nullptr;
    for (const Chunk* at = first_[bin]; at != nullptr; before = at, at = at->next) {
      if (++count > count_) return broken.emplace_back("bins: more chunks than counted"), broken;
      if (at->state != Chunk::State::free) broken.emplace_back("bins: a chunk that is not free");
      if (bin_of(at->size) != bin) broken.emplace_back("bins: a chunk of another size");
      if (at->previous != before) broken.emplace_back("bins: a list is linked wrong");
    }
  }
  if (count != count_) broken.emplace_back("bins: fewer chunks than counted");
  return broken;
}

Chunk* Chunks::take_record() {
  if (spare_ == nullptr) {
    batches_.push_back(std::make_unique<Chunk[]>(kBatch));
    for (std::size_t i = 0; i < kBatch; ++i) give_back_record(&batches_.back()[i]);
  }
  Chunk* const chunk = spare_;
  spare_ = chunk->next;
  *chunk = Chunk{};
  return chunk;
}

void Chunks::give_back_record(Chunk* chunk) {
  chunk->next = spare_;
  spare_ = chunk;
}

void Chunks::list(Chunk* chunk) {
  if (chunk->state == State::free) free_.add(chunk);
  if (chunk->state != State::vacant) return;
  chunk->previous = nullptr;
  chunk->next = vacant_;
  if (vacant_ != nullptr) vacant_->previous = chunk;
  vacant_ = chunk;
}

void Chunks::unlist(Chunk* chunk) {
  if (chunk->state == State::free) free_.remove(chunk);
  if (chunk->state != State::vacant) return;
  if (chunk->next != nullptr) chunk->next->previous = chunk->previous;
  (chunk->previous == nullptr ? vacant_ : chunk->previous->next) = chunk->next;
}

void Chunks::add_region(Range region) {
  Chunk* const chunk = take_record();
  chunk->begin = region.begin;
  chunk->size = region.size;
  chunk->begins_region = true;
  index_.insert_after(index_.last_at(region.begin), chunk);
  list(chunk);
}

void Chunks::remove_region(Range region) {
  Chunk* const chunk = at(region.begin);
  assert(chunk != nullptr && chunk->range() == region && chunk->state != State::used);
  unlist(chunk);
  chunk->freed.clear(pool_);
  index_.remove(chunk);
  give_back_record(chunk);
}

Chunk* Chunks::add_behind(Chunk* chunk, Address at) {
  Chunk* const behind = take_record();
  behind->begin = at;
  behind->size = chunk->end() - at;
  behind->state = chunk->state;
  chunk->size = at - chunk->begin;
  index_.insert_after(chunk, behind);
  return behind;
}

Chunk* Chunks::split(Chunk* chunk, Address at) {
  Chunk* const behind = add_behind(chunk, at);
  chunk->freed.split(pool_, at, behind->freed);
  return behind;
}

Chunk* Chunks::cut(Chunk* chunk, Range range) {
  if (chunk->begin < range.begin) {
    Chunk* const rest = chunk;
    chunk = split(chunk, range.begin);
    list(rest);
  }
  if (range.end() < chunk->end()) list(split(chunk, range.end()));
  return chunk;
}

void Chunks::absorb_next(Chunk* chunk) {
  Chunk* const next = chunk->after;
  chunk->size += next->size;
  index_.remove(next);
  give_back_record(next);
}

// Do the two, side by side in order, become one?
bool Chunks::merges(const Chunk* chunk, const Chunk* next) {
  return chunk != nullptr && next != nullptr && chunk->state == next->state &&
         chunk->end() == next->begin && !next->begins_region;
}

void Chunks::merge_with_before(Chunk* chunk) {
  if (Chunk* const before = chunk->before; merges(before, chunk)) {
    unlist(before);
    before->freed.append(pool_, chunk->freed);
    absorb_next(before);
    chunk = before;
  }
  list(chunk);
}

void Chunks::merge_and_list(Chunk* chunk) {
  if (Chunk* const next = chunk->after; merges(chunk, next)) {
    unlist(next);
    chunk->freed.append(pool_, next->freed);
    absorb_next(chunk);
  }
  merge_with_before(chunk);
}

void Chunks::fill(Range range) {
  Chunk* chunk = at(range.begin);
  unlist(chunk);
  chunk = cut(chunk, range);
  chunk->state = State::free;
  merge_and_list(chunk);
}

void Chunks::vacate(Range range) {
  Chunk* chunk = at(range.begin);
  unlist(chunk);
  chunk = cut(chunk, range);
  chunk->freed.clear(pool_);
  chunk->state = State::vacant;
  merge_and_list(chunk);
}

void Chunks::use(Chunk* chunk, Range range) {
  unlist(chunk);
  if (range == chunk->range()) {
    chunk->freed.clear(pool_);
    chunk->state = State::used;
  } else if (range.begin == chunk->begin) {
    chunk->freed.drop_before(pool_, range.end());
    Chunk* const rest = add_behind(chunk, range.end());
    std::swap(rest->freed, chunk->freed);
    chunk->state = State::used;
    free_.add(rest);
  } else if (range.end() == chunk->end()) {
    chunk->freed.drop_from(pool_, range.begin);
    add_behind(chunk, range.begin)->state = State::used;
    free_.add(chunk);
  } else {
    chunk = cut(chunk, range);
    chunk->freed.clear(pool_);
    chunk->state = State::used;
  }
}

void Chunks::release(Chunk* chunk, const LastUse& use) {
  if (!chunk->freed.empty()) [[unlikely]] {
    LastUse all = use;
    (void)chunk->freed.visit(chunk->range(), [&](const FreedRange& added) {
      all.fences.join(added.use.fences);
      return true;
    });
    chunk->freed.clear(pool_);
    return release(chunk, all);
  }
  const Range range = chunk->range();
  chunk->state = State::free;
  if (Chunk* const next = chunk->after; merges(chunk, next)) {
    free_.remove(next);
    std::swap(chunk->freed, next->freed);
    absorb_next(chunk);
  }
  chunk->freed.prepend(pool_, range, use);
  merge_with_before(chunk);
}

void Chunks::add_fences(Range range, const FenceSet& fences) {
  for (Chunk* chunk = at(range.begin); chunk != nullptr && chunk->begin < range.end();
       chunk = chunk->after) {
    if (chunk->state == State::used && chunk->freed.empty()) {
      chunk->freed.append(pool_, chunk->range(), {});
    }
    chunk->freed.add_fences(range, fences);
  }
}

std::vector<std::string> Chunks::validate() const {
  std::vector<std::string> broken = free_.validate();
  if (!index_.consistent()) broken.emplace_back("chunks: the index by address is wrong");
  std::size_t free = 0, vacant = 0, listed = 0;
  for (const Chunk* at = index_.first(); at != nullptr; at = at->after) {
    if (at->size == 0_B) broken.emplace_back("chunks: one is empty");
    free += at->state == State::free ? 1 : 0;
    vacant += at->state == State::vacant ? 1 : 0;
    if (at->state == State::vacant && !at->freed.empty()) {
      broken.emplace_back("chunks: what has no memory has users");
    }
    if (const auto wrong = at->freed.validate(at->range())) broken.push_back("chunks: " + *wrong);
    const Chunk* const after = at->after;
    if (after == nullptr) break;
    if (after->before != at || after->begin < at->end()) {
      broken.emplace_back("chunks: they overlap, or are linked wrong");
      break;  // there may be no end
    }
    if (after->begin == at->end() && after->state == at->state && !after->begins_region &&
        at->state != State::used) {
      broken.emplace_back("chunks: neighbours of one state were not merged");
    }
  }
  if (free != free_.count()) broken.emplace_back("chunks: the free ones are listed wrong");
  for (const Chunk* at = vacant_; at != nullptr && listed <= vacant; at = at->next) {
    if (at->state != State::vacant) broken.emplace_back("chunks: one listed as vacant is not");
    ++listed;
  }
  if (listed != vacant) broken.emplace_back("chunks: the vacant ones are listed wrong");
  return broken;
}

}  // namespace weir
