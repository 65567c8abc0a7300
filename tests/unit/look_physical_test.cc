// SPDX-License-Identifier: Apache-2.0
// Who had which physical byte, and at which address it is visible: against models that keep each
// grain apart.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "look/physical.h"
#include "look/visible_mapping.h"

namespace weir {
namespace {

constexpr std::uint64_t kGrains = 16, kPages = 4, kPlaces = 12;
constexpr std::uint64_t kPageBytes = kGrains * 512;

// Pages mapped at random at a few places side by side, and blocks taken across them.
class World {
 public:
  explicit World(std::uint64_t seed) : random_(seed) {}

  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  std::uint64_t at(std::uint64_t place) const { return (place + 1) * kPageBytes; }

  std::array<int, kPlaces> page_at = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};

 private:
  std::mt19937_64 random_;
};

TEST(PhysicalOwners, AgreeWithAModelOfEachGrain) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    World world(seed);
    PhysicalOwners owners;
    std::map<std::pair<int, std::uint64_t>, std::uint32_t> model;  // (page, grain) -> block
    std::vector<std::uint32_t> before;
    for (std::uint32_t step = 0; step < 300; ++step) {
      const std::uint64_t place = world.below(kPlaces);
      if (world.page_at[place] < 0) {
        world.page_at[place] = static_cast<int>(world.below(kPages));
        owners.map({world.at(place)}, {kPageBytes},
                   {static_cast<std::uint32_t>(world.page_at[place])});
      } else if (world.below(8) == 0) {
        world.page_at[place] = -1;
        owners.unmap({world.at(place)});
      }
      const std::uint64_t begin = world.at(0) / 512 + world.below(kPlaces * kGrains);
      const std::uint64_t end = begin + 1 + world.below(2 * kGrains);
      before.clear();
      owners.take({begin * 512}, {(end - begin) * 512}, step, before);
      std::set<std::uint32_t> expected;
      std::map<std::pair<int, std::uint64_t>, std::uint32_t> taken;
      for (std::uint64_t grain = begin; grain < end; ++grain) {
        const std::uint64_t where = grain * 512 / kPageBytes - 1;
        if (where >= kPlaces || world.page_at[where] < 0) continue;
        const std::pair<int, std::uint64_t> physical{world.page_at[where], grain % kGrains};
        if (const auto owner = model.find(physical); owner != model.end()) {
          expected.insert(owner->second);
        }
        taken[physical] = step;
      }
      for (const auto& [physical, block] : taken) model[physical] = block;
      std::set<std::uint32_t> found(before.begin(), before.end());
      found.erase(step);  // a page that the block covers twice
      ASSERT_EQ(found, expected) << "seed " << seed << " step " << step;
    }
  }
}

Event event_of(EventKind kind, std::uint64_t at, std::uint64_t bytes, int page) {
  Event event;
  event.kind = kind;
  event.address = {at};
  event.bytes = {bytes};
  event.page = {static_cast<std::uint32_t>(page)};
  return event;
}

TEST(VisibleMapping, ShowsEachMappedByteOnceAndEveryTakenOneWhereItWasTaken) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    World world(seed);
    VisibleMapping visible;
    std::vector<VisibleRangeChange> changes;
    std::set<std::uint64_t> grains;  // that are visible, as the changes say
    for (int step = 0; step < 300; ++step) {
      const std::uint64_t place = world.below(kPlaces);
      changes.clear();
      std::uint64_t begin = 0, end = 0;
      if (world.page_at[place] < 0) {
        world.page_at[place] = static_cast<int>(world.below(kPages));
        visible.on_event(
            event_of(EventKind::map, world.at(place), kPageBytes, world.page_at[place]), changes);
      } else if (world.below(4) == 0) {
        visible.on_event(
            event_of(EventKind::unmap, world.at(place), kPageBytes, world.page_at[place]), changes);
        world.page_at[place] = -1;
      } else {
        begin = world.at(place) / 512 + world.below(kGrains - 1);
        end = begin + 1 + world.below(world.at(place + 1) / 512 - begin - 1);
        visible.on_event(event_of(EventKind::allocate, begin * 512, (end - begin) * 512, -1),
                         changes);
      }
      for (const VisibleRangeChange& change : changes) {
        for (std::uint64_t b = 0; b < change.range.bytes.count; b += 512) {
          const std::uint64_t grain = (change.range.at.value + b) / 512;
          ASSERT_EQ(change.visible ? grains.insert(grain).second : grains.erase(grain) == 1, true)
              << "seed " << seed << " step " << step;
        }
      }
      for (std::uint64_t grain = begin; grain < end; ++grain) ASSERT_TRUE(grains.contains(grain));
      std::set<std::pair<int, std::uint64_t>> physical;
      for (const std::uint64_t grain : grains) {
        const int page = world.page_at[grain * 512 / kPageBytes - 1];
        ASSERT_GE(page, 0);
        ASSERT_TRUE(physical.emplace(page, grain % kGrains).second);
      }
      const std::set<int> mapped(world.page_at.begin(), world.page_at.end());
      ASSERT_EQ(physical.size(), kGrains * (mapped.size() - mapped.count(-1)));
      std::uint64_t total = 0;
      for (const VisibleRange& range : visible.ranges()) total += range.bytes.count;
      ASSERT_EQ(total, physical.size() * 512);
    }
  }
}

}  // namespace
}  // namespace weir
