// Aliases that a program has no more use for: without an end to them a program whose sizes never
// repeat adds some for ever, and each costs a little whenever bytes of its page come or go.
#include <algorithm>
#include <utility>

#include "core/page_heap.h"

namespace weir {
namespace {

// So many mappings a page are kept in any case. (Recorded programs that repeat themselves have up
// to 12.5: they lose none.)
constexpr std::size_t kMappingsAPage = 16;
constexpr std::size_t kMappingsLeast = 256;
// When there are more, one in so many goes, with what is beyond.
constexpr std::size_t kShareRetired = 8;
// Only what was not used while so many runs were placed: else a program whose rounds need more
// would lose in each round what it needs in the next.
constexpr std::uint32_t kLongUnused = 8192;
// Retired aliases are unmapped so many requests later. By then their work is done, on a slow
// machine as on a fast one: what is known complete then makes no difference to placement.
constexpr std::uint64_t kRequestsRetired = 1024;
// So often it is looked whether there are too many: each look costs a little.
constexpr std::uint64_t kRequestsBetween = 64;
// Driver calls in one request.
constexpr int kUnmapsAtATime = 2;

}  // namespace

void PageHeap::shed_aliases(const Owner& owner) {
  if (keeps_used_) return;  // nothing while a capture goes on
  if (!retired_.at.empty()) {
    unmap_retired();
    return;
  }
  const std::size_t most = std::max(kMappingsLeast, kMappingsAPage * table_.pages().size());
  if (table_.mappings() <= most) {
    shed_next_ = requests_ + kRequestsBetween;
    return;
  }
  retire_aliases(owner, table_.mappings() - most + most / kShareRetired);
  shed_next_ = requests_ + kRequestsRetired;
}

// The longest unused first. Each page keeps the first of its mappings.
std::vector<PageMapping> PageHeap::long_unused(HeapId heap) const {
  std::vector<PageMapping> unused;
  for (const auto& [id, page] : table_.pages()) {
    if (use_of(page).kept != PageUse::Kept::no || (page.lease && *page.lease != heap)) continue;
    for (std::size_t i = 1; i < page.mappings.size(); ++i) {
      const Mapping& mapping = page.mappings[i];
      if (mapping.used_grains > 0 || mapping.retired()) continue;
      if (table_.uses() - mapping.used_at > kLongUnused) unused.push_back({mapping, page.id});
    }
  }
  std::sort(unused.begin(), unused.end(), [](const PageMapping& a, const PageMapping& b) {
    return std::pair(a.used_at, a.at) < std::pair(b.used_at, b.at);
  });
  return unused;
}

void PageHeap::retire_aliases(const Owner& owner, std::size_t most) {
  const Fence own = timelines_.release_point(owner.timeline);
  FenceSet recorded, refused;
  // One event a stream, now: who asks later asks about the work until now, and no more.
  const auto record = [&](Fence user) {
    const auto is_users = [&](Fence fence) { return fence.timeline == user.timeline; };
    if (std::any_of(recorded.begin(), recorded.end(), is_users)) return true;
    if (std::any_of(refused.begin(), refused.end(), is_users)) return false;
    const Result<Fence> event = timelines_.record(user.timeline);
    (event ? recorded : refused).join(event ? *event : user);
    return event.ok();
  };
  for (const PageMapping& alias : long_unused(owner.id)) {
    if (retired_.at.size() == most) break;
    // Whoever used the page before its holder was waited for, or is still on the page's list.
    FenceSet users = held_by(alias.page);
    if (table_.page(alias.page).lease) users.join(own);
    // What a stream used that is captured just now, or is no more, stays.
    if (!std::all_of(users.begin(), users.end(), record)) continue;
    table_.retire(alias.at);
    retired_.at.push_back(alias.at);
  }
  retired_.users = std::move(recorded);
}

void PageHeap::unmap_retired() {
  const Result<bool> complete = timelines_.complete(retired_.users);
  if (complete && !*complete) {
    shed_next_ = requests_ + kRequestsRetired;
    return;
  }
  for (int i = 0; i < kUnmapsAtATime && !retired_.at.empty(); ++i) {
    const Address at = retired_.at.back();
    retired_.at.pop_back();
    if (!table_.is_retired(at)) continue;
    // Where nobody can say whether its users are done, it had better stay.
    if (!complete || !unmap(at)) table_.restore(at);
  }
}

}  // namespace weir
