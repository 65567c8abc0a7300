// SPDX-License-Identifier: Apache-2.0
#include "weir/event_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "tests/unit/recording_fixture.h"

namespace weir {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

// Any number: small, large, the largest, and one that comes again.
std::uint64_t any(std::mt19937_64& random) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint64_t>::max();
  switch (random() % 4) {
    case 0:
      return random() % 3;
    case 1:
      return random() % 100'000;
    case 2:
      return random();
    default:
      return kMost - random() % 2;
  }
}

// Of all kinds, with whatever numbers; times rise, fall and stay.
std::vector<Event> any_events(std::size_t count) {
  std::mt19937_64 random(5);  // NOLINT: the same events each time
  std::vector<Event> events;
  for (std::size_t i = 0; i < count; ++i) {
    events.push_back({.kind = static_cast<EventKind>(random() % kEventKinds),
                      .plain = random() % 2 == 0,
                      .heap = {static_cast<std::uint32_t>(any(random))},
                      .page = {static_cast<std::uint32_t>(any(random))},
                      .time = {static_cast<std::int64_t>(any(random))},
                      .stream = any(random),
                      .other = any(random),
                      .address = {any(random)},
                      .bytes = {any(random)},
                      .requested = {any(random)},
                      .sequence = {any(random)},
                      .duration = {static_cast<std::int64_t>(any(random))},
                      .pool = any(random),
                      .stack = static_cast<std::uint32_t>(any(random))});
  }
  return events;
}

std::vector<Event> all_of(const EventLog& log) { return {log.begin(), log.end()}; }

TEST(EventLog, GivesBackWhatWasAppended) {
  const std::vector<Event> events = any_events(5000);
  const EventLog log{std::span(events)};
  ASSERT_THAT(log, SizeIs(events.size()));
  EXPECT_EQ(test::texts_of(all_of(log)), test::texts_of(events));
  EXPECT_EQ(test::text_of(log.front()), test::text_of(events.front()));
  EXPECT_EQ(test::text_of(log.back()), test::text_of(events.back()));
  for (std::size_t i = 0; i < events.size(); i += 7) {
    ASSERT_EQ(test::text_of(log[i]), test::text_of(events[i])) << i;
    EXPECT_EQ(log.from(i).index(), i);
    EXPECT_EQ(log.end() - log.from(i), static_cast<std::ptrdiff_t>(events.size() - i));
  }
  EXPECT_EQ(log.from(events.size()), log.end());
}

TEST(EventLog, CountsWhatIsBeforeATime) {
  std::mt19937 random(3);  // NOLINT: the same times each time
  EventLog log;
  std::vector<std::int64_t> times;
  std::int64_t time = 0;
  for (int i = 0; i < 5000; ++i) {
    times.push_back(time += random() % 4 == 0 ? 0 : static_cast<std::int64_t>(random() % 3));
    log.push_back({.time = {time}});
  }
  for (std::int64_t at = -1; at < time + 3; ++at) {
    const auto before = std::lower_bound(times.begin(), times.end(), at) - times.begin();
    ASSERT_EQ(log.count_before({at}), static_cast<std::size_t>(before)) << at;
  }
}

TEST(EventLog, OfNothingIsEmpty) {
  const EventLog log;
  EXPECT_THAT(log, IsEmpty());
  EXPECT_EQ(log.begin(), log.end());
  EXPECT_EQ(log.count_before(1_us), 0u);
}

TEST(EventLog, CopiesGoOnByThemselves) {
  std::vector<Event> events = any_events(2000);
  EventLog first{std::span(events).first(1500)};
  EventLog second = first;
  for (std::size_t i = 1500; i < events.size(); ++i) second.push_back(events[i]);
  first.push_back(events[3]);
  EXPECT_EQ(test::texts_of(all_of(second)), test::texts_of(events));
  EXPECT_EQ(test::text_of(first.back()), test::text_of(events[3]));
  EXPECT_EQ(test::text_of(first[1500]), test::text_of(events[3]));
}

}  // namespace
}  // namespace weir
