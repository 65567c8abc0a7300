// SPDX-License-Identifier: Apache-2.0
// Which bytes of the home row are free, used, or without memory: chunks that tile its addresses,
// region by region.
//
// A free chunk stands in a list of chunks of like size (Masmano et al. 2004, "TLSF: a New Dynamic
// Memory Allocator for Real-Time Systems"), so one that fits is found in a few steps, however many
// there are. Neighbours of one state, in one region, are merged at once, but for used ones: each is
// what one request took.
//
// Knows addresses, and who freed what; neither pages nor CUDA. Not thread-safe.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/granule_index.h"
#include "core/base/range.h"
#include "core/base/thread_annotations.h"
#include "core/time/freed_ranges.h"
#include "weir/types.h"

namespace weir {

struct Chunk {
  enum class State : std::uint8_t {
    vacant,  // no memory is mapped
    free,
    used,
  };

  Address begin;
  Bytes size;
  State state = State::vacant;
  bool begins_region = false;
  FreedRanges freed;        // free: who used it last; used: fences that it had when it was taken
  Chunk* before = nullptr;  // by address
  Chunk* after = nullptr;
  Chunk* previous = nullptr;  // in its list; `next` also of spare ones
  Chunk* next = nullptr;

  Range range() const { return {begin, size}; }
  Address end() const { return begin + size; }
  // Are these bytes free, of which the first is the chunk's?
  bool has_free(Range bytes) const { return state == State::free && bytes.end() <= end(); }
  friend Address begin_of(const Chunk& chunk) { return chunk.begin; }
};

// Lists of chunks by size: 32 for each doubling, the last added first. Not thread-safe.
class ChunkBins {
 public:
  void add(Chunk* chunk);
  // Its size is what it was when it was added.
  void remove(Chunk* chunk);

  // Calls visit(Chunk&) for chunks of at least `size`, smaller lists first, until it returns false.
  // (The first list has smaller chunks, too: it is left after kMostSmaller of them.)
  template <class Visitor>
  void visit_fitting(Bytes size, Visitor&& visit) const WEIR_NO_THREAD_ANALYSIS {
    for (std::uint64_t bin = next_bin(bin_of(size)); bin < kBins; bin = next_bin(bin + 1)) {
      int smaller = 0;
      for (Chunk* at = first_[bin]; at != nullptr && smaller < kMostSmaller; at = at->next) {
        if (at->size < size) {
          ++smaller;
        } else if (!visit(*at)) {
          return;
        }
      }
    }
  }
  // The same for all chunks, larger lists first.
  template <class Visitor>
  void visit_down(Visitor&& visit) const WEIR_NO_THREAD_ANALYSIS {
    for (std::uint64_t bin = previous_bin(kBins); bin < kBins; bin = previous_bin(bin)) {
      for (Chunk* at = first_[bin]; at != nullptr; at = at->next) {
        if (!visit(*at)) return;
      }
    }
  }
  std::size_t count() const { return count_; }
  // Broken rules, named.
  std::vector<std::string> validate() const;

 private:
  friend struct TestAccess;
  static constexpr int kMostSmaller = 32;
  static constexpr std::uint64_t kSteps = 32;
  static constexpr std::uint64_t kBins = kSteps * 37;  // sizes below 2^50

  static std::uint64_t bin_of(Bytes size) {
    const std::uint64_t grains = size / kGrain;
    if (grains < kSteps) return grains;
    const auto doublings = static_cast<std::uint64_t>(std::bit_width(grains)) - 6;
    return doublings * kSteps + (grains >> doublings);
  }
  // The first bin from `bin` on that is not empty; kBins: none is.
  std::uint64_t next_bin(std::uint64_t bin) const {
    for (std::uint64_t word = bin / 64; word < filled_.size(); bin = ++word * 64) {
      if (const std::uint64_t bits = filled_[word] >> bin % 64; bits != 0) {
        return bin + static_cast<std::uint64_t>(std::countr_zero(bits));
      }
    }
    return kBins;
  }
  // The last bin before `bin` that is not empty; kBins: none is.
  std::uint64_t previous_bin(std::uint64_t bin) const {
    for (std::uint64_t word = (bin + 63) / 64; word-- > 0;) {
      std::uint64_t bits = filled_[word];
      if (bin < (word + 1) * 64) bits &= (std::uint64_t{1} << bin % 64) - 1;
      if (bits != 0) return word * 64 + 63 - static_cast<std::uint64_t>(std::countl_zero(bits));
    }
    return kBins;
  }

  std::size_t count_ = 0;
  std::array<std::uint64_t, (kBins + 63) / 64> filled_{};  // a bit for each list with a chunk
  std::array<Chunk*, kBins> first_{};
};

class Chunks {
 public:
  Chunks() = default;
  Chunks(const Chunks&) = delete;
  Chunks& operator=(const Chunks&) = delete;

  // Addresses that were just reserved: vacant.
  void add_region(Range region);
  // They are one free or vacant chunk, and gone afterwards.
  void remove_region(Range region);
  // If there is no region left, what finds chunks by their addresses gives back its memory.
  void shrink() { index_.shrink(); }
  // Memory was mapped in a part of a vacant chunk: free, and never used.
  void fill(Range range);
  // A part of a free chunk has no memory any more.
  void vacate(Range range);
  // A part of a free chunk is one used chunk now. Its freed ranges are forgotten.
  void use(Chunk* chunk, Range range);
  void use(Range range) { use(at(range.begin), range); }
  // A used chunk is free now.
  void release(Chunk* chunk, const LastUse& use);
  void release(Range range, const LastUse& use) { release(at(range.begin), use); }
  // Who gets these bytes waits for `fences` too. What was never used is left out.
  void add_fences(Range range, const FenceSet& fences);

  // The chunk that `address` lies in; null: it is in no region.
  Chunk* at(Address address) const {
    Chunk* const chunk = index_.last_at(address);
    return chunk == nullptr || address >= chunk->end() ? nullptr : chunk;
  }
  bool is_free(Range range) const {
    const Chunk* const chunk = at(range.begin);
    return chunk != nullptr && chunk->has_free(range);
  }
  const ChunkBins& free() const { return free_; }
  // The vacant chunks, in no order, linked by `next`.
  const Chunk* vacant() const { return vacant_; }
  Chunk* first() const { return index_.first(); }
  // Calls visit(const FreedRange&) for those of the free chunk around `range` that share a byte
  // with it, until it returns false. Returns whether all were visited.
  template <class Visitor>
  bool visit_freed(Range range, Visitor&& visit) const WEIR_NO_THREAD_ANALYSIS {
    const Chunk* const chunk = at(range.begin);
    return chunk == nullptr || chunk->freed.visit(range, visit);
  }

  // Broken rules, named.
  std::vector<std::string> validate() const;

 private:
  friend struct TestAccess;
  using State = Chunk::State;

  Chunk* take_record();
  void give_back_record(Chunk* chunk);
  // Puts the chunk in the list of its state; takes it out.
  void list(Chunk* chunk);
  void unlist(Chunk* chunk);
  // Cuts `range` out of the chunk around it, which is on no list; what is left of it is listed
  // again. The chunk that is `range` is on no list.
  Chunk* cut(Chunk* chunk, Range range);
  // The part from `at` on becomes a chunk of its own, on no list, with its freed ranges; without
  // them. Returns it.
  Chunk* split(Chunk* chunk, Address at);
  Chunk* add_behind(Chunk* chunk, Address at);
  // Merges the chunk, on no list, with neighbours of its state, and lists it.
  void merge_and_list(Chunk* chunk);
  void merge_with_before(Chunk* chunk);
  static bool merges(const Chunk* chunk, const Chunk* next);
  // Without its freed ranges.
  void absorb_next(Chunk* chunk);

  GranuleIndex<Chunk> index_;
  ChunkBins free_;
  Chunk* vacant_ = nullptr;
  FreedRangePool pool_;
  static constexpr std::size_t kBatch = 32;
  std::vector<std::unique_ptr<Chunk[]>> batches_;
  Chunk* spare_ = nullptr;
};

}  // namespace weir
