// SPDX-License-Identifier: Apache-2.0
#include "suite/torch_model.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "replay/units.h"

namespace weir::suite {
namespace {

// Source: c10/cuda/CUDACachingAllocator.cpp, PyTorch 2.11.
constexpr Bytes kSmallRequest = 1_MiB, kSmallSegment = 2_MiB;
constexpr Bytes kMiddleRequest = 10_MiB, kMiddleSegment = 20_MiB;
constexpr Bytes kMostOverSplit = 20_MiB;  // what a block of `max_split` or more may waste

class TorchModel final : public SuiteAllocator {
 public:
  explicit TorchModel(const TorchSettings& settings) : settings_(settings) {}

  Result<void*> allocate(const ProgramCall& call) override {
    end_uses(call.time_us);
    const Bytes bytes = round_up(Bytes{call.bytes}, kGrain);
    Cache& cache = cache_of(call, bytes);
    auto fit = find(cache, bytes);
    for (bool retried = false; fit == ranges_.end(); retried = true) {
      const Bytes more = growth(cache, bytes);
      if (held_ + more <= settings_.limit) {
        fit = grow(cache, more);
      } else if (retried) {
        return Error(ErrorCode::out_of_memory,
                     "out of memory: " + in_words(bytes) + " more than " + in_words(held_));
      } else {
        release();
        fit = find(cache, bytes);
      }
    }
    cut(fit, bytes);
    return fit->first.pointer();
  }

  Status use(void* block, const ProgramCall& call) override {
    std::int64_t& until = ranges_.at(Address::of(block)).used_until_us;
    until = std::max(until, call.until_us);
    return {};
  }

  Status free(void* block, const ProgramCall& call) override {
    const auto range = ranges_.find(Address::of(block));
    if (range->second.used_until_us > call.time_us) {
      pending_.emplace(range->second.used_until_us, range->first);
    } else {
      give_back(range);
    }
    return {};
  }

  Status trim() override {
    release();
    return {};
  }

  AllocatorFigures figures() const override {
    return {.held = held_.count, .driver_calls = {}, .waits = {}};
  }

 private:
  struct Cache {
    bool small = false;
    std::set<std::pair<std::uint64_t, Address>> free;  // bytes, address
    Address begin, end;                                // of the expandable segment: what is mapped
  };
  struct Range {
    Bytes bytes;
    Address segment;  // what it is part of begins there
    Cache* cache = nullptr;
    bool is_free = true;
    std::int64_t used_until_us = 0;
  };
  using Ranges = std::map<Address, Range>;

  // Requests of one stream, pool and kind share memory.
  Cache& cache_of(const ProgramCall& call, Bytes bytes) {
    const bool small = bytes <= kSmallRequest;
    const auto [known, added] = caches_.try_emplace({call.stream, call.pool, small});
    Cache& cache = known->second;
    if (added) {
      cache.small = small;
      if (settings_.expandable_segments) {
        cache.begin = cache.end = Address{std::uint64_t{caches_.size()} << 44};
      }
    }
    return cache;
  }

  // The smallest free range that is large enough; of an expandable segment the growing end last.
  Ranges::iterator find(Cache& cache, Bytes bytes) {
    auto fit = cache.free.lower_bound({bytes.count, Address{}});
    if (fit != cache.free.end() && settings_.expandable_segments &&
        fit->second + Bytes{fit->first} == cache.end && std::next(fit) != cache.free.end()) {
      ++fit;
    }
    if (fit == cache.free.end()) return ranges_.end();
    const Bytes found{fit->first};
    if (bytes < settings_.max_split && found >= settings_.max_split) return ranges_.end();
    if (bytes >= settings_.max_split && found >= bytes + kMostOverSplit) return ranges_.end();
    return ranges_.find(fit->second);
  }

  Bytes unit(const Cache& cache) const { return cache.small ? kSmallSegment : kMiddleSegment; }

  // The last range of an expandable segment, if it is free.
  Ranges::iterator tail(const Cache& cache) {
    const auto after = ranges_.lower_bound(cache.end);
    if (after == ranges_.begin()) return ranges_.end();
    const auto last = std::prev(after);
    const bool ends_there = last->second.is_free && last->first >= cache.begin &&
                            last->first + last->second.bytes == cache.end;
    return ends_there ? last : ranges_.end();
  }

  // How much more the driver must give for a request.
  Bytes growth(const Cache& cache, Bytes bytes) {
    if (settings_.expandable_segments) {
      const auto last = tail(cache);
      const Bytes there = last == ranges_.end() ? 0_B : last->second.bytes;
      return round_up(bytes - std::min(bytes, there), unit(cache));
    }
    return bytes < kMiddleRequest ? unit(cache) : round_up(bytes, kDriverPage);
  }

  Ranges::iterator grow(Cache& cache, Bytes more) {
    const Address at = settings_.expandable_segments ? cache.end : next_;
    held_ += more;
    if (settings_.expandable_segments) {
      cache.end = cache.end + more;
    } else {
      next_ = next_ + more;
      segments_[at] = more;
    }
    const Address segment = settings_.expandable_segments ? cache.begin : at;
    const auto made =
        ranges_.insert_or_assign(at, Range{.bytes = more, .segment = segment, .cache = &cache});
    return give_back(made.first);
  }

  // Takes the first `bytes` of a free range; the rest stays free if it is worth it.
  void cut(Ranges::iterator range, Bytes bytes) {
    Range& taken = range->second;
    Cache& cache = *taken.cache;
    cache.free.erase({taken.bytes.count, range->first});
    taken.is_free = false;
    taken.used_until_us = 0;
    const Bytes rest = taken.bytes - bytes;
    const bool splits = cache.small || settings_.expandable_segments
                            ? rest >= kGrain
                            : bytes < settings_.max_split && rest > kSmallRequest;
    if (!splits) return;
    taken.bytes = bytes;
    const Address at = range->first + bytes;
    ranges_[at] = {.bytes = rest, .segment = taken.segment, .cache = &cache};
    cache.free.emplace(rest.count, at);
  }

  // Returns the free range that it is part of from now on.
  Ranges::iterator give_back(Ranges::iterator range) {
    range->second.is_free = true;
    if (const auto next = std::next(range); next != ranges_.end()) join(range, next);
    if (range != ranges_.begin()) {
      if (const auto before = std::prev(range); join(before, range)) range = before;
    }
    range->second.cache->free.emplace(range->second.bytes.count, range->first);
    return range;
  }

  // Makes one range of two neighbours that are both free, one of which is not among the free ones.
  bool join(Ranges::iterator low, Ranges::iterator high) {
    Range &first = low->second, &second = high->second;
    if (!first.is_free || !second.is_free || first.segment != second.segment ||
        low->first + first.bytes != high->first) {
      return false;
    }
    first.cache->free.erase({first.bytes.count, low->first});
    first.cache->free.erase({second.bytes.count, high->first});
    first.bytes += second.bytes;
    ranges_.erase(high);
    return true;
  }

  void end_uses(std::int64_t now_us) {
    while (!pending_.empty() && pending_.begin()->first <= now_us) {
      const Address block = pending_.begin()->second;
      pending_.erase(pending_.begin());
      give_back(ranges_.find(block));
    }
  }

  // Gives back whole segments, and whole units of expandable ones, that are free.
  void release() {
    end_uses(INT64_MAX);  // the host waits for them
    for (auto each = ranges_.begin(); each != ranges_.end();) {
      const auto range = each++;
      if (!range->second.is_free) continue;
      if (settings_.expandable_segments) {
        unmap(range);
      } else if (const auto segment = segments_.find(range->first);
                 segment != segments_.end() && segment->second == range->second.bytes) {
        held_ -= segment->second;
        segments_.erase(segment);
        range->second.cache->free.erase({range->second.bytes.count, range->first});
        ranges_.erase(range);
      }
    }
  }

  // What is unmapped within a segment is not mapped again: later growth is at its end.
  void unmap(Ranges::iterator range) {
    Cache& cache = *range->second.cache;
    const Address begin = range->first, end = begin + range->second.bytes;
    const Address from = cache.begin + round_up(begin - cache.begin, unit(cache));
    const Address to = cache.begin + round_down(end - cache.begin, unit(cache));
    if (to <= from) return;
    held_ -= to - from;
    cache.free.erase({range->second.bytes.count, begin});
    const Range rest = range->second;
    ranges_.erase(range);
    const auto keep = [&](Address at, Address until) {
      if (until <= at) return;
      ranges_[at] = {.bytes = until - at, .segment = rest.segment, .cache = &cache};
      cache.free.emplace((until - at).count, at);
    };
    keep(begin, from);
    keep(to, end);
    if (to == cache.end) cache.end = from;
  }

  const TorchSettings settings_;
  std::map<std::tuple<std::uint32_t, std::uint8_t, bool>, Cache> caches_;
  Ranges ranges_;                                 // every byte of the segments is in one
  std::map<Address, Bytes> segments_;             // but for expandable ones
  std::multimap<std::int64_t, Address> pending_;  // freed, and used until then
  Address next_{std::uint64_t{1} << 40};
  Bytes held_;
};

}  // namespace

AllocatorKind torch_model_kind(const TorchSettings& settings) {
  return {.name = settings.expandable_segments ? "torch-expandable-model" : "torch-model",
          .title = "a model of PyTorch's caching allocator",
          .has_host_time = false,
          .make = [settings](const Program&, Purpose) -> Result<std::unique_ptr<SuiteAllocator>> {
            return std::unique_ptr<SuiteAllocator>(std::make_unique<TorchModel>(settings));
          }};
}

}  // namespace weir::suite
