// SPDX-License-Identifier: Apache-2.0
// Reports on recordings made by hand, whose answers are known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "look/block_lifetimes.h"
#include "look/report.h"
#include "observe/recorded_state.h"
#include "replay/report_table.h"
#include "tests/events_of.h"
#include "tests/unit/look_recordings.h"

namespace weir {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

constexpr std::uint64_t kPage = 2 << 20;
constexpr std::uint64_t kKiB = 1024;

Bytes cause(const Moment& moment, Cause why) { return moment.causes[static_cast<int>(why)]; }

Bytes sum_of_causes(const Moment& moment) {
  Bytes sum;
  for (const Bytes bytes : moment.causes) sum += bytes;
  return sum;
}

// The latest event is of that stack.
HandMade& with_stack(HandMade& made, std::uint32_t stack) {
  test::change_last_event(made.recording, [stack](Event& last) { last.stack = stack; });
  return made;
}

// Whether it happened in the recording or before makes no difference to what the program loses.
TEST(Report, WhyEventsOfTheContextWereGivenUpIsShown) {
  for (const bool before : {false, true}) {
    HandMade made;
    made.add({.kind = EventKind::context_events_lost, .stream = 9, .other = 1});
    if (before) made.recording.initial = made.recording.events.size();
    const Report report = report_of(made.recording);
    EXPECT_THAT(report_text(report),
                AllOf(HasSubstr("Events of the whole context were given up"),
                      HasSubstr("a stream was captured, and no capture had been announced"),
                      HasSubstr("capture with torch.cuda.graph")));
    EXPECT_THAT(report_json(report), HasSubstr("\"unannounced_capture\""));
  }
  EXPECT_THAT(report_text(report_of(HandMade().recording)), Not(HasSubstr("were given up")));
}

TEST(Report, CallsToTheDriverAreThoseThatTheRecordingEndsWith) {
  HandMade made;
  EXPECT_THAT(report_text(report_of(made.recording)), Not(HasSubstr("Calls to it")));
  made.recording.marks = {{{1000}, "driver calls: map 1"},
                          {{2000}, "driver calls: create 20, map 4 (3000000 ns), unmap 4 (99 ns)"}};
  const Report report = report_of(made.recording);
  EXPECT_THAT(report_text(report), HasSubstr("Calls to it: 4 map in 3.00 ms, 4 unmap in 99 ns, 20 "
                                             "create; in all 3.00 ms of the host's time"));
  EXPECT_EQ(nlohmann::json::parse(report_json(report))["driver_calls"],
            nlohmann::json::parse(R"({"create": {"calls": 20, "ns": 0},
                                      "map": {"calls": 4, "ns": 3000000},
                                      "unmap": {"calls": 4, "ns": 99}})"));
}

TEST(Report, EveryByteThatNobodyAskedForHasOneCause) {
  HandMade made;
  made.add({.kind = EventKind::heap_open, .heap = {5}, .stream = 9, .pool = 3});
  for (std::uint32_t page = 0; page < 4; ++page) made.page(page);
  made.map(0, kAt, 0).map(1, kAt + 2 * kPage, 1).map(2, kAt + 4 * kPage, 0);
  made.map(3, kAt + 6 * kPage, 5);
  made.lease(0, 0).lease(1, 1);
  made.allocate(kAt + 512 * kKiB, 1000_B, 7, 0);   // 24 bytes of rounding
  made.allocate(kAt + 768 * kKiB, 256_KiB, 7, 0);  // ends at 1 MiB
  const Report report = report_of(made.recording);

  const Moment& moment = report.end;
  EXPECT_EQ(moment.reserved, 8_MiB);
  EXPECT_EQ(moment.live, 256_KiB + 1_KiB);
  EXPECT_EQ(moment.requested, 256_KiB + 1000_B);
  EXPECT_EQ(cause(moment, Cause::rounding), 24_B);
  EXPECT_EQ(cause(moment, Cause::page_tails), 512_KiB + 1_MiB);  // before the first, after the last
  EXPECT_EQ(cause(moment, Cause::placement), 255_KiB);           // between the two
  EXPECT_EQ(cause(moment, Cause::stream_partition), 2_MiB);      // page 1
  EXPECT_EQ(cause(moment, Cause::idle_pages), 2_MiB);            // page 2
  EXPECT_EQ(cause(moment, Cause::pool_partition), 2_MiB);        // page 3
  EXPECT_EQ(moment.unplaced, 0_B);
  EXPECT_EQ(sum_of_causes(moment), moment.reserved - moment.requested);
}

TEST(Report, PlainMemoryIsToldApart) {
  HandMade made;
  made.page(0).map(0, kAt).lease(0, 0).allocate(kAt, 1_MiB);
  EXPECT_EQ(report_of(made.recording).end.plain.segments, 0u);
  EXPECT_THAT(report_text(report_of(made.recording)), Not(HasSubstr("plain memory")));
  for (std::uint32_t page = 1; page < 4; ++page) {
    made.page(page);
    test::change_last_event(made.recording, [](Event& last) { last.plain = true; });
    made.map(page, kAt + 16 * page * kPage);
  }
  made.lease(1, 0).lease(2, 0);
  made.allocate(kAt + 16 * kPage, 1_MiB).allocate(kAt + 32 * kPage, 1536_KiB);
  const Report report = report_of(made.recording);
  EXPECT_EQ(report.end.plain.segments, 3u);
  EXPECT_EQ(report.end.plain.reserved, 6_MiB);
  EXPECT_EQ(report.end.plain.leased, 4_MiB);
  EXPECT_EQ(report.end.plain.live, 2560_KiB);
  EXPECT_THAT(report_text(report),
              HasSubstr("Of it plain memory: 6.00 MiB in 3 segments: 2.50 MiB live, 1.50 MiB free "
                        "within segments in use,\n2.00 MiB idle."));
}

TEST(Report, BlockThroughAnAliasUsesTheSamePage) {
  HandMade made;
  made.page(0).page(1).map(0, kAt).map(1, kAt + kPage);
  made.map(1, kAt + 8 * kPage).map(0, kAt + 9 * kPage).lease(0, 0).lease(1, 0);
  made.allocate(kAt, 1_MiB);                             // page 0, its first half
  made.allocate(kAt + 9 * kPage - 512 * kKiB, 512_KiB);  // page 1, its end, through the alias
  made.allocate(kAt + 9 * kPage + kPage / 2, 1_MiB);     // page 0, its second half
  const Moment moment = report_of(made.recording).end;
  EXPECT_EQ(cause(moment, Cause::page_tails), 1536_KiB);  // of page 1
  EXPECT_EQ(cause(moment, Cause::placement), 0_B);
  EXPECT_EQ(sum_of_causes(moment), moment.reserved - moment.requested);
  EXPECT_EQ(moment.leased, 4_MiB);
}

// Whatever a reader makes of events that contradict each other, the parts add up.
TEST(Report, PartsAddUpWhateverTheEvents) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    const auto any = [&](std::uint64_t most) { return random() % (most + 1); };
    HandMade made;
    RecordedState state;
    for (int i = 0; i < 300; ++i) {
      constexpr std::array kKinds = {
          EventKind::create,   EventKind::release,    EventKind::map,       EventKind::unmap,
          EventKind::lease,    EventKind::unlease,    EventKind::allocate,  EventKind::allocate,
          EventKind::allocate, EventKind::deallocate, EventKind::heap_open, EventKind::keep};
      Event event{.kind = kKinds[any(kKinds.size() - 1)]};
      event.heap = {static_cast<std::uint32_t>(any(3))};
      event.page = {static_cast<std::uint32_t>(any(5))};
      event.stream = any(3);
      event.pool =
          event.kind == EventKind::heap_open || event.kind == EventKind::create ? any(1) : 0;
      const bool of_block =
          event.kind == EventKind::allocate || event.kind == EventKind::deallocate;
      event.address = {kAt + (of_block ? any(40) * kPage / 4 : any(9) * kPage)};
      event.bytes = of_block ? Bytes{512 * (1 + any(8000))} : Bytes{kPage * (1 + any(1))};
      event.requested = event.bytes - Bytes{any(511)};
      state.accept(event, [&made](const Event& each) { made.add(each); });
    }
    const Report report = report_of(
        made.recording, {.at = events_until(made.recording, made.recording.begin() + 150_us)});
    for (const Moment* moment :
         {&report.peak_live, &report.peak_reserved, &report.end, &*report.at}) {
      EXPECT_EQ(moment->requested + sum_of_causes(*moment), moment->reserved + moment->unplaced)
          << "seed " << seed << ", after event " << moment->events;
    }
  }
}

TEST(Report, PeakMayBeWhatWasThereAtTheBeginning) {
  HandMade made;
  made.page(0).map(0, kAt).lease(0, 0).allocate(kAt, 1_MiB).initial();
  made.deallocate(kAt).unlease(0, 0).release(0);
  const Report report = report_of(made.recording);
  EXPECT_EQ(report.peak_live.live, 1_MiB);
  EXPECT_EQ(report.peak_reserved.reserved, 2_MiB);
  EXPECT_EQ(report.end.reserved, 0_B);
  EXPECT_EQ(report.totals.allocations, 0U);  // what was there is no allocation of the recording
  EXPECT_EQ(report.totals.pages_created, 0U);
  EXPECT_EQ(report.totals.pages_released, 1U);
}

// Two pages of pool 7's at once at most, of which the second stays with its borrower.
TEST(Report, SaysHowMuchScratchAGraphPoolLentAndToWhat) {
  HandMade made;
  made.recording.frames = {{"validate", "train.py", 42}};
  made.recording.stacks = {{}, {0}};
  const auto at = [](std::uint32_t page) { return kAt + page * kPage; };
  const auto lent = [&](std::uint32_t page, std::uint64_t pool, std::uint64_t where) {
    made.add({.kind = EventKind::create, .page = {page}, .bytes = 2_MiB, .pool = pool});
    made.map(page, where);
  };
  const std::uint64_t between = at(4) + kPage / 2;
  lent(0, 7, between);
  made.allocate(between, 1_MiB, 1).deallocate(between).unmap(0, between).release(0);
  lent(1, 7, at(1));
  lent(2, 7, at(2));
  with_stack(made.allocate(at(1), 4_MiB, 4), 1);
  made.add({.kind = EventKind::keep, .page = {2}, .bytes = 2_MiB, .pool = 7});
  made.deallocate(at(1));
  for (int i = 0; i < 3; ++i) made.allocate(at(2), 2_MiB, 1).deallocate(at(2));  // no loan any more
  for (int i = 0; i < 3; ++i) {
    made.allocate(at(1), 2_MiB, 2).deallocate(at(1));
    test::change_events(made.recording,
                        [](auto& events) { (events.end() - 2)->pool = 7; });  // a launch
  }
  lent(4, 9, at(4));
  made.allocate(between + kPage / 4, 512_KiB, 5);
  lent(6, 11, at(6));
  made.page(5).map(5, at(5)).allocate(at(5), 2_MiB, 1);
  const Report report = report_of(made.recording);
  EXPECT_THAT(
      report_text(report),
      HasSubstr("\n\nGraph pool 7 lent 4.00 MiB of its scratch at most, most of it to blocks of "
                "stream 4 allocated in\nvalidate (train.py:42).\nGraph pool 9 lent 2.00 MiB of "
                "its scratch at most, most of it to blocks of stream 5 allocated in\nunknown.\n"
                "Graph pool 11 lent 2.00 MiB of its scratch at most.\n"));
  const auto json = nlohmann::json::parse(report_json(report))["lent"];
  EXPECT_EQ(json[0]["most_bytes"], 4 << 20);
  EXPECT_EQ(json[0]["stream"], 4);
  EXPECT_FALSE(json[2].contains("stream"));
  EXPECT_THAT(report_text(report_of(HandMade().page(0).recording)), Not(HasSubstr("lent")));
}

TEST(Report, LiveMemoryIsTakenApartByStreamPoolSizeAndStack) {
  HandMade made;
  made.recording.frames = {
      {"forward", "/src/model.py", 42}, {"main", "train.py", 7}, {"_start", "", 0}};
  made.recording.stacks = {{}, {0, 1, 2}};
  made.add({.kind = EventKind::heap_open, .heap = {1}, .stream = 9, .pool = 3});
  made.page(0).page(1).map(0, kAt).map(1, kAt + kPage, 1).lease(0, 0).lease(1, 1);
  with_stack(made.allocate(kAt, 1_MiB, 7, 0), 1);
  with_stack(made.allocate(kAt + kPage / 2, 513_KiB, 7, 0), 1);
  made.allocate(kAt + kPage, 100_B, 9, 1);
  test::change_last_event(made.recording, [](Event& last) { last.pool = 3; });
  const Moment moment = report_of(made.recording).peak_live;

  const auto is = [](const char* name, std::uint64_t blocks, Bytes bytes) {
    return AllOf(Field(&Share::name, name), Field(&Share::blocks, blocks),
                 Field(&Share::bytes, bytes));
  };
  EXPECT_THAT(moment.by_stream, ElementsAre(is("7", 2, 1537_KiB), is("9", 1, 512_B)));
  EXPECT_THAT(moment.by_pool, ElementsAre(is("none", 2, 1537_KiB), is("3", 1, 512_B)));
  EXPECT_THAT(moment.by_size,
              ElementsAre(is("512 KiB - 1 MiB", 2, 1537_KiB), is("up to 512 B", 1, 512_B)));
  EXPECT_THAT(moment.by_stack,
              ElementsAre(is("forward (model.py:42) < main (train.py:7)", 2, 1537_KiB),
                          is("unknown", 1, 512_B)));
}

TEST(Report, StacksThatDifferBeyondTheCallsOfARowAreToldApart) {
  HandMade made;
  made.recording.frames = {{"linear", "nn.py", 4},     {"forward", "mlp.py", 5},
                           {"forward", "block.py", 6}, {"layer", "model.py", 7},
                           {"encode", "run.py", 8},    {"decode", "run.py", 9}};
  made.recording.stacks = {{}, {0, 1, 2, 3, 4}, {0, 1, 2, 3, 5}, {0, 1, 2, 3}};
  made.page(0).map(0, kAt).lease(0, 0);
  for (std::uint32_t i = 1; i <= 3; ++i) {
    with_stack(made.allocate(kAt + i * kKiB * 64, Bytes{65536 - i * 1024}), i);
  }
  std::vector<std::string> names;
  for (const Share& share : report_of(made.recording).peak_live.by_stack) {
    names.push_back(share.name);
  }
  const std::string calls = "linear (nn.py:4) < forward (mlp.py:5) < forward (block.py:6)";
  EXPECT_THAT(names, ElementsAre(calls + " < ... < encode (run.py:8)",
                                 calls + " < ... < decode (run.py:9)", calls));
}

TEST(Report, RowsBeyondTheTopAreSummedUp) {
  HandMade made;
  made.page(0).map(0, kAt).lease(0, 0);
  for (std::uint64_t i = 0; i < 5; ++i) made.allocate(kAt + i * kKiB, Bytes{1024 - i}, i + 1);
  const Moment moment = report_of(made.recording, {.top = 3}).peak_live;
  ASSERT_THAT(moment.by_stream, SizeIs(3));
  EXPECT_EQ(moment.by_stream[2].name, "others");
  EXPECT_EQ(moment.by_stream[2].blocks, 3U);
  EXPECT_EQ(moment.by_stream[2].requested, Bytes{1022 + 1021 + 1020});
}

TEST(Report, WaitsAreCountedByPairAndTheHostsByTime) {
  HandMade made;
  made.page(0).map(0, kAt).lease(0, 0);
  made.allocate(kAt, 1_MiB, 1).fence(kAt, 2).fence(kAt, 3).deallocate(kAt);
  made.wait(1, 2).allocate(kAt, 1_MiB, 1).wait(1, 2).wait(4, 1);
  made.add({.kind = EventKind::host_wait, .other = 2, .duration = 3_ms});
  made.add({.kind = EventKind::host_wait, .other = 2, .duration = 5_ms});
  const Report report = report_of(made.recording);
  const auto is = [](std::uint64_t a, std::uint64_t b, std::uint64_t waits, std::uint64_t fences) {
    return AllOf(Field(&WaitPair::waiter, a), Field(&WaitPair::awaited, b),
                 Field(&WaitPair::waits, waits), Field(&WaitPair::fences, fences));
  };
  EXPECT_THAT(report.waits, ElementsAre(is(1, 2, 2, 1), is(4, 1, 1, 0), is(1, 3, 0, 1)));
  EXPECT_EQ(report.totals.stream_waits, 3U);
  EXPECT_EQ(report.totals.fences, 2U);
  EXPECT_EQ(report.totals.host_waits.count, 2U);
  EXPECT_EQ(report.totals.host_waits.time, 8_ms);
  EXPECT_EQ(report.totals.host_waits.longest, 5_ms);
  EXPECT_THAT(report.advice,
              Contains(Field(&Advice::evidence, HasSubstr("waited 2 times for the GPU, 8.00 ms"))));
}

TEST(Report, BlocksWhoseMemoryAnotherStreamWaitedForAreNamed) {
  HandMade made;
  made.page(0).map(0, kAt, 0).map(0, kAt + 8 * kPage, 1).lease(0, 0);
  made.allocate(kAt, 3_KiB, 1, 0).deallocate(kAt).unlease(0, 0);
  made.lease(0, 1).wait(2, 1).allocate(kAt + 8 * kPage, 1_KiB, 2, 1);
  const Report report = report_of(made.recording);
  ASSERT_THAT(report.costly, SizeIs(1));
  EXPECT_EQ(report.costly[0].requested, 3_KiB);
  EXPECT_EQ(report.costly[0].stream, "1");
  EXPECT_EQ(report.costly[0].waits, 1U);
}

TEST(Report, RecordingWithoutEventsIsAReportOfZeros) {
  const Report report = report_of(Recording{.source = "empty.weir"});
  EXPECT_EQ(report.peak_live.live, 0_B);
  EXPECT_EQ(report.peak_reserved.reserved, 0_B);
  EXPECT_THAT(report.advice, IsEmpty());
  EXPECT_THAT(report_text(report), HasSubstr("empty.weir"));
}

TEST(Report, JsonHasTheNumbersAndWithstandsAnyName) {
  HandMade made;
  made.page(0).map(0, kAt).lease(0, 0).allocate(kAt, 1000_B);
  made.recording.program = "bad \xFF \"quoted\" \x1b[31m";
  const Report report = report_of(made.recording);
  const auto json = nlohmann::json::parse(report_json(report));
  EXPECT_EQ(json["peak_live"]["live_bytes"], 1024);
  EXPECT_EQ(json["peak_reserved"]["fragmentation"]["rounding_bytes"], 24);
  EXPECT_EQ(json["end"]["by_stream"][0]["stream"], 1);
  EXPECT_THAT(report_text(report), Not(HasSubstr("\x1b")));
}

TEST(Report, TableThatIsTooWideHasItsLongestTextCut) {
  ReportTable table("rlr");
  table.add({"blocks", "allocated in", "bytes"});
  table.add({"12", std::string(300, 'f'), "1.00 GiB"});
  table.add({"3", "na\xC3\xAFve\n", "512 B"});
  const std::string text = table.text();
  const std::string cut = "      12  " + std::string(77, 'f') + "...  1.00 GiB\n";
  EXPECT_THAT(text, HasSubstr(cut));
  EXPECT_EQ(cut.size(), report_width() + 1);
  // A letter of two bytes is one column, and a line end no line end.
  EXPECT_THAT(text, HasSubstr("       3  na\xC3\xAFve?" + std::string(74, ' ') + "     512 B\n"));
}

}  // namespace
}  // namespace weir
