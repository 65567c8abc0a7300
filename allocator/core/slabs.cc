#include "core/slabs.h"

#include <cassert>
#include <iterator>

#include "core/mutation.h"

namespace weir {

std::optional<Address> Slabs::allocate(Bytes size) {
  const std::optional<Range> fit = free_.best_fit(size);
  if (!fit) return std::nullopt;
  free_.erase({fit->begin, size});
  std::prev(used_.upper_bound(fit->begin))->second += size;
  return fit->begin;
}

void Slabs::add(Range slab) {
  assert(slab.size == kSlab);
  used_.emplace(slab.begin, 0_B);
  free_.insert({slab.begin, kSlab - kGrain});
}

std::optional<Slabs::Emptied> Slabs::free(Range block, const FenceSet& fences) {
  const auto slab = std::prev(used_.upper_bound(block.begin));
  slab->second -= block.size;
  free_.insert(block);
  fenced_.add(block.begin.value, block.end().value, fences);
  if (slab->second > 0_B) return std::nullopt;

  Emptied emptied{{slab->first, kSlab}, {}};
  collect(emptied.slab, emptied.fences);
  if (mutation::left_out(mutation::Site::fence_goes_with_slab)) emptied.fences.clear();
  fenced_.forget(emptied.slab.begin.value, emptied.slab.end().value);
  free_.erase({slab->first, kSlab - kGrain});
  used_.erase(slab);
  return emptied;
}

std::vector<Range> Slabs::slabs() const {
  std::vector<Range> slabs;
  for (const auto& [begin, used] : used_) slabs.push_back({begin, kSlab});
  return slabs;
}

std::vector<std::string> Slabs::validate(const std::vector<Range>& blocks) const {
  std::vector<std::string> broken;
  if (!free_.consistent()) broken.push_back("slabs: an index of the free bytes is wrong");
  std::map<Address, Bytes> used;
  RangeSet free;
  for (const auto& [begin, size] : used_) {
    used.emplace(begin, 0_B);
    if (free.overlaps({begin, kSlab})) {
      broken.push_back("slabs: two slabs overlap");
      continue;
    }
    free.insert({begin, kSlab - kGrain});
  }
  for (const Range block : blocks) {
    const auto after = used.upper_bound(block.begin);
    if (after == used.begin() || !free.contains(block)) {
      broken.push_back("slabs: a small block lies in no slab, or on another block");
      continue;
    }
    std::prev(after)->second += block.size;
    free.erase(block);
  }
  if (used != used_) broken.push_back("slabs: the bytes in use of a slab are counted wrong");
  if (!(free == free_)) broken.push_back("slabs: the free bytes are not those between the blocks");
  for (const auto& [begin, bytes] : used_) {
    if (bytes == 0_B) broken.push_back("slabs: an empty slab is kept");
  }
  return broken;
}

}  // namespace weir
