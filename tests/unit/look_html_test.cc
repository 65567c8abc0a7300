// SPDX-License-Identifier: Apache-2.0
// What a page is made of. What it does in a browser: tests/browser.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "look/block_lifetimes.h"
#include "look/html.h"
#include "look/html_data.h"
#include "look/page_sources.h"
#include "tests/events_of.h"
#include "tests/temporary_folder.h"
#include "tests/unit/look_recordings.h"

namespace weir {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string data_of(const Recording& recording) {
  return html_data(Loaded{recording, {}}, Paths::cut);
}

// What the page's recording.js does.
struct Decoded {
  explicit Decoded(const std::string& data) {
    std::size_t size = 0;
    for (std::size_t i = 0; i < 4; ++i)
      size |= std::size_t{static_cast<unsigned char>(data[i])} << (8 * i);
    header = nlohmann::json::parse(data.substr(4, size));
    std::size_t place = 4 + size;
    for (const auto& column : header["columns"]) {
      const std::size_t length = column[1];
      columns[column[0]] = numbers(data.substr(place, length));
      place += length;
    }
    complete = place == data.size();
  }

  static std::vector<std::uint64_t> numbers(const std::string& bytes) {
    std::vector<std::uint64_t> out;
    std::uint64_t number = 0;
    int shift = 0;
    for (const char c : bytes) {
      number |= std::uint64_t{static_cast<unsigned char>(c) & 0x7fU} << shift;
      shift += 7;
      if ((static_cast<unsigned char>(c) & 0x80U) != 0) continue;
      out.push_back(number);
      number = 0;
      shift = 0;
    }
    return out;
  }

  nlohmann::json header;
  std::map<std::string, std::vector<std::uint64_t>> columns;
  bool complete = false;
};

TEST(HtmlData, HasBlocksInOrderWithTheirEnds) {
  const HandMade hand = HandMade()
                            .page(0)
                            .map(0, 0x200000)
                            .lease(0, 0)
                            .allocate(0x200000, 1000_B)
                            .allocate(0x280000, 512_B, 2)
                            .fence(0x200000, 2)
                            .deallocate(0x200000)
                            .allocate(0x200000, 512_B);
  const Decoded data(data_of(hand.recording));
  EXPECT_TRUE(data.complete);
  // Two blocks begin, the one before the last begun ends, a third begins.
  EXPECT_THAT(data.columns.at("step"), ElementsAre(0, 0, 2, 0));
  EXPECT_THAT(data.columns.at("step_time"), ElementsAre(3000, 1000, 2000, 1000));
  EXPECT_THAT(data.columns.at("bytes"), ElementsAre(1024, 512, 512));
  EXPECT_THAT(data.columns.at("slack"), ElementsAre(24, 0, 0));
  EXPECT_THAT(data.columns.at("under"), ElementsAre(0, 1, 0));
  EXPECT_THAT(data.columns.at("fences"), ElementsAre(1, 0, 0));
  EXPECT_THAT(data.columns.at("reused"), ElementsAre(2 * (1 + 2), 0, 0));
  EXPECT_THAT(data.columns.at("page_kind"), ElementsAre(0, 2, 4));
  EXPECT_EQ(data.header["streams"], (nlohmann::json{"1", "2"}));
  EXPECT_EQ(data.header["duration"], 7000);
}

TEST(HtmlData, SaysWhoLendsAPage) {
  HandMade hand;
  hand.add({.kind = EventKind::create, .heap = {5}, .page = {0}, .bytes = 2_MiB});
  hand.add({.kind = EventKind::create, .page = {1}, .bytes = 2_MiB, .pool = 9});
  hand.add({.kind = EventKind::keep, .page = {1}, .bytes = 2_MiB, .pool = 9});
  const Decoded data(data_of(hand.recording));
  EXPECT_THAT(data.columns.at("page_kind"), ElementsAre(0, 0, 6));
  EXPECT_THAT(data.columns.at("page_heap"), ElementsAre(0, 1, 0));
  EXPECT_EQ(data.header["pools"], nlohmann::json{"9"});
}

TEST(HtmlData, TellsApartWhatHappenedAtTheSameTime) {
  HandMade hand = HandMade()
                      .allocate(0x200000, 512_B)
                      .deallocate(0x200000)
                      .allocate(0x200000, 1024_B)
                      .deallocate(0x200000);
  test::change_events(hand.recording, [](auto& events) {
    for (Event& event : events) event.time = 5_us;
  });
  const Decoded data(data_of(hand.recording));
  EXPECT_THAT(data.columns.at("step"), ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(data.columns.at("step_time"), ElementsAre(0, 0, 0, 0));
}

TEST(HtmlData, NumbersStayExactInThePage) {
  HandMade hand;
  hand.allocate(~std::uint64_t{0} - 1000, 512_B, ~std::uint64_t{0});
  const Decoded data(data_of(hand.recording));
  for (const auto& [name, column] : data.columns) {
    for (const std::uint64_t number : column) EXPECT_LT(number, std::uint64_t{1} << 53) << name;
  }
  EXPECT_EQ(data.header["streams"], nlohmann::json{"18446744073709551615"});
}

TEST(HtmlData, HasWaitsAndWhatTheOtherAllocatorHadReserved) {
  HandMade hand = HandMade().allocate(0x200000, 512_B, 4).wait(7, 4).wait(4, 7);
  hand.recording.other_peak_reserved = 3_MiB;
  hand.recording.other_reserved = {{0_ns, 3_MiB}, {1_us, 1_MiB}};
  const Decoded data(data_of(hand.recording));
  EXPECT_EQ(data.header["streams"], (nlohmann::json{"4", "7"}));
  EXPECT_THAT(data.columns.at("wait_time"), ElementsAre(2000, 2000));  // differences, doubled
  EXPECT_THAT(data.columns.at("wait_stream"), ElementsAre(1, 0));
  EXPECT_THAT(data.columns.at("wait_other"), ElementsAre(0, 1));
  EXPECT_EQ(data.header["counts"]["waits"], 2);
  EXPECT_THAT(data.columns.at("other_bytes"), ElementsAre(2 * (3 << 20), 2 * (2 << 20) - 1));
  EXPECT_EQ(data.header["other_peak_reserved"], 3 << 20);
}

// Whatever events there are, the columns fit each other: the page reads them without a check.
TEST(HtmlData, ColumnsFitWhateverTheEvents) {
  for (unsigned seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    Loaded recording;
    std::int64_t time = 0;
    for (unsigned i = random() % 60; i > 0; --i) {
      recording.events.push_back({.kind = static_cast<EventKind>(random() % kEventKinds),
                                  .heap = {static_cast<std::uint32_t>(random() % 3)},
                                  .page = {static_cast<std::uint32_t>(random() % 3)},
                                  .time = {time += static_cast<std::int64_t>(random() % 3)},
                                  .stream = random() % 3,
                                  .other = random() % 3,
                                  .address = {512 * (random() % 4)},
                                  .bytes = {512 * (1 + random() % 4)},
                                  .requested = {random() % 2048},
                                  .pool = random() % 3,
                                  .stack = static_cast<std::uint32_t>(random() % 9)});
    }
    recording.initial = recording.events.empty() ? 0 : random() % recording.events.size();
    const Decoded data(data_of(recording));
    ASSERT_TRUE(data.complete) << "seed " << seed;
    const auto& counts = data.header["counts"];
    const std::size_t blocks = counts["blocks"];
    for (const char* name :
         {"under", "address", "bytes", "slack", "heap", "stack", "flags", "reused", "fences"})
      ASSERT_EQ(data.columns.at(name).size(), blocks) << name << ", seed " << seed;
    for (const char* name : {"page_kind", "page_time", "page_step", "page_id", "page_heap",
                             "page_address", "page_bytes", "page_further"})
      ASSERT_EQ(data.columns.at(name).size(), counts["pages"]) << name << ", seed " << seed;
    ASSERT_EQ(data.columns.at("fence_stream").size(), counts["fences"]);
    const std::vector<std::uint64_t>& calls = data.columns.at("stack_frames");
    ASSERT_EQ(calls.size(), data.header["calls_of_stack"].size());
    ASSERT_EQ(data.columns.at("stack_frame").size(),
              std::accumulate(calls.begin(), calls.end(), std::uint64_t{0}));
    ASSERT_EQ(data.columns.at("step").size(), counts["steps"]);
    for (const char* name : {"wait_time", "wait_stream", "wait_other"})
      ASSERT_EQ(data.columns.at(name).size(), counts["waits"]) << name << ", seed " << seed;
    std::size_t begun = 0;
    std::vector<bool> live(blocks);
    for (const std::uint64_t step : data.columns.at("step")) {
      ASSERT_LE(step, begun) << "seed " << seed;
      const std::size_t block = step == 0 ? begun++ : begun - step;
      ASSERT_EQ(live[block], step != 0) << "seed " << seed;
      live[block] = step == 0;
    }
    ASSERT_EQ(begun, blocks);
    for (const std::uint64_t heap : data.columns.at("heap"))
      ASSERT_LT(heap, data.header["heaps"].size());
  }
}

TEST(HtmlPage, IsOfTwoRecordingsAtMost) {
  const Loaded recording;
  const std::vector<const Loaded*> three(3, &recording);
  const Status page = write_html("/dev/null", three);
  ASSERT_FALSE(page.ok());
  EXPECT_EQ(page.error().code(), ErrorCode::invalid_argument);
}

TEST(HtmlPage, StandsAloneOrNamesThePackageThatIsMissing) {
  const Loaded recording;
  const Loaded* const one[] = {&recording};
  const test::TemporaryFolder folder;
  const Status page = write_html(folder / "page.html", one);
  if (page_source::library().empty()) {
    ASSERT_FALSE(page.ok());
    EXPECT_EQ(page.error().code(), ErrorCode::unavailable);
    EXPECT_THAT(page.error().message(), HasSubstr("apt-get install node-d3"));
    return;
  }
  ASSERT_TRUE(page.ok());
  const std::string text = folder.read("page.html");
  EXPECT_THAT(text, HasSubstr(std::string(page_source::library())));
  EXPECT_THAT(text, HasSubstr(std::string(page_source::script())));
  EXPECT_THAT(text, HasSubstr("default-src 'none'"));
}

}  // namespace
}  // namespace weir
