// SPDX-License-Identifier: Apache-2.0
// The textbook's best fit (Knuth, The Art of Computer Programming, vol. 1, 2.5): of the free ranges
// that are large enough the smallest, lowest address first; what is left of it stays free, and free
// neighbours are joined. Where none is large enough, memory of the driver's is added. It goes back
// only when the program asks for that.
//
// A range remembers the streams that used it. A request of another stream waits for these on the
// GPU, so the memory is the same as if there were one stream.
#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "suite/allocator.h"

namespace weir::suite {
namespace {

class BestFit final : public SuiteAllocator {
 public:
  Result<void*> allocate(const ProgramCall& call) override {
    const Bytes bytes = round_up(Bytes{call.bytes}, kGrain);
    auto fit = free_.lower_bound({bytes.count, 0});
    if (fit == free_.end()) fit = add_segment(round_up(bytes, kDriverPage));
    const Address at{fit->second};
    free_.erase(fit);
    Range& range = ranges_.at(at);
    const Bytes rest = range.bytes - bytes;
    if (rest > 0_B) {
      ranges_[at + bytes] = {.bytes = rest, .segment = range.segment, .streams = range.streams};
      free_.emplace(rest.count, (at + bytes).value);
    }
    for (const std::uint32_t stream : range.streams) waits_ += stream != call.stream;
    range = {.bytes = bytes, .segment = range.segment, .is_free = false, .streams = {call.stream}};
    return at.pointer();
  }

  Status use(void* block, const ProgramCall& call) override {
    ranges_.at(Address::of(block)).streams.insert(call.user);
    return {};
  }

  Status free(void* block, const ProgramCall&) override {
    auto range = ranges_.find(Address::of(block));
    range->second.is_free = true;
    if (const auto next = std::next(range); next != ranges_.end()) join(range, next);
    if (range != ranges_.begin()) {
      if (const auto before = std::prev(range); join(before, range)) range = before;
    }
    free_.emplace(range->second.bytes.count, range->first.value);
    return {};
  }

  Status trim() override {
    for (auto each = ranges_.begin(); each != ranges_.end();) {
      const auto& [at, range] = *each;
      const auto segment = segments_.find(at);
      if (range.is_free && segment != segments_.end() && segment->second == range.bytes) {
        free_.erase({range.bytes.count, at.value});
        held_ -= range.bytes;
        ++driver_calls_;
        segments_.erase(segment);
        each = ranges_.erase(each);
      } else {
        ++each;
      }
    }
    return {};
  }

  AllocatorFigures figures() const override {
    return {.held = held_.count, .driver_calls = driver_calls_, .waits = waits_};
  }

 private:
  struct Range {
    Bytes bytes;
    Address segment;  // what it is part of begins there
    bool is_free = true;
    std::set<std::uint32_t> streams = {};  // that used it
  };
  using Ranges = std::map<Address, Range>;
  using Free = std::set<std::pair<std::uint64_t, std::uint64_t>>;  // bytes, address

  Free::iterator add_segment(Bytes bytes) {
    const Address at = next_;
    next_ = next_ + bytes;
    held_ += bytes;
    ++driver_calls_;
    segments_[at] = bytes;
    ranges_[at] = {.bytes = bytes, .segment = at};
    return free_.emplace(bytes.count, at.value).first;
  }

  // Makes one range of two neighbours that are both free, one of which is not in `free_`.
  bool join(Ranges::iterator low, Ranges::iterator high) {
    Range &first = low->second, &second = high->second;
    if (!first.is_free || !second.is_free || first.segment != second.segment) return false;
    free_.erase({first.bytes.count, low->first.value});
    free_.erase({second.bytes.count, high->first.value});
    first.bytes += second.bytes;
    first.streams.merge(second.streams);
    ranges_.erase(high);
    return true;
  }

  Ranges ranges_;                      // every byte of the segments is in one
  Free free_;                          // the free ones
  std::map<Address, Bytes> segments_;  // that the driver gave
  Address next_{std::uint64_t{1} << 40};
  Bytes held_;
  std::uint64_t driver_calls_ = 0, waits_ = 0;
};

}  // namespace

AllocatorKind best_fit_kind() {
  return {.name = "best-fit",
          .title = "a textbook best fit over the driver's memory",
          .make = [](const Program&, Purpose) -> Result<std::unique_ptr<SuiteAllocator>> {
            return std::unique_ptr<SuiteAllocator>(std::make_unique<BestFit>());
          }};
}

}  // namespace weir::suite
