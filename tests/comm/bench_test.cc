// SPDX-License-Identifier: Apache-2.0
// `weir comm bench`: sizes and options, definitions, and runs on simulated ranks.
#include "comm/bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>

namespace weir {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using enum BenchOperation;

OpenRanks sim_ranks(int ranks = 2, std::function<void(SimWorld&)> opened = {},
                    int host_timeout = 60) {
  return [ranks, host_timeout, opened = std::move(opened)](const RanksOptions& options) {
    SimRanksOptions of;
    of.ranks = ranks;
    of.host_timeout = Nanoseconds{std::int64_t{host_timeout} * 1'000'000'000};
    of.opened = opened;
    return open_sim_ranks(of, options);
  };
}
BenchOptions small() {
  BenchOptions options;
  options.least = 64_KiB;
  options.most = 256_KiB;
  options.factor = 4;
  options.iterations = 4;
  return options;
}
BenchReport run(const BenchOptions& options, const OpenRanks& open = sim_ranks()) {
  Result<BenchReport> report = run_bench(open, options);
  EXPECT_TRUE(report.ok()) << (report.ok() ? "" : report.error().message());
  return report.ok() ? *std::move(report) : BenchReport{};
}
template <class Parsed>
void expect_bad(const Parsed& parsed, const std::string& says, const std::string& remedy) {
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.error().code(), ErrorCode::invalid_argument);
  EXPECT_THAT(parsed.error().message(), AllOf(HasSubstr(says), HasSubstr(remedy)));
}

TEST(BenchSizes, AreBytesOrHaveAUnit) {
  const std::pair<const char*, Bytes> sizes[] = {
      {"0", 0_B},      {"8", 8_B},         {"64K", 64_KiB}, {"64KiB", 64_KiB},
      {"32M", 32_MiB}, {"1.5M", 1536_KiB}, {"4G", 4_GiB},   {"0.5G", 512_MiB}};
  for (const auto& [text, bytes] : sizes) {
    const Result<Bytes> size = parse_size("--minbytes", text);
    ASSERT_TRUE(size.ok()) << text;
    EXPECT_EQ(*size, bytes) << text;
  }
}

TEST(BenchSizes, ThatAreNoneAreNamedWithWhatIsTaken) {
  for (const char* const text :
       {"", "M", "-8", "8X", "8mib", "1e30", "nan", "inf", "1e18", "1000000000000000000"}) {
    expect_bad(parse_size("--maxbytes", text), "--maxbytes '" + std::string(text) + "'",
               "such as 8, 64K, 32M or 4G");
  }
}

TEST(BenchSizes, GrowByAFactorOrAStepUpToTheLast) {
  BenchOptions options;
  options.least = 8_B;
  options.most = 100_B;
  options.factor = 2;
  EXPECT_THAT(sizes_of(options), ElementsAre(8_B, 16_B, 32_B, 64_B));
  options.factor = 1;
  options.step = 46_B;
  EXPECT_THAT(sizes_of(options), ElementsAre(8_B, 54_B, 100_B));
  options.factor = ~std::uint64_t{0};  // does not overflow
  EXPECT_THAT(sizes_of(options), ElementsAre(8_B));
}

TEST(BenchOptionsTyped, AreNamedWithARemedyWhereTheyAreWrong) {
  expect_bad(parse_operations("allreduce"), "--operation 'allreduce'", "all_reduce, all_gather");
  expect_bad(parse_operations("broadcast"), "--operation 'broadcast'", "nccl-tests");
  const auto with = [](auto change) {
    BenchOptions options = small();
    change(options);
    return check(options);
  };
  expect_bad(with([](auto& o) { o.least = 1_GiB; }), "--minbytes", "--maxbytes");
  expect_bad(with([](auto& o) { o.factor = 1, o.step = 0_B; }), "--stepbytes 0", "--stepfactor 2");
  expect_bad(with([](auto& o) { o.least = 0_B; }), "--minbytes 0", "--stepbytes");
  expect_bad(with([](auto& o) { o.factor = 1, o.step = 1_B, o.most = 4_GiB; }), "--stepbytes 1",
             "more than 100000 sizes");
  EXPECT_TRUE(with([](auto&) {}).ok());
}

// A graph is held in memory as a whole: a number that has a few digits too many would take all
// there is.
TEST(BenchOptionsTyped, AGraphEndsWhereMemoryWould) {
  const auto with = [](auto change) {
    BenchOptions options = small();
    change(options);
    return check(options);
  };
  const auto graph = [](auto& o) { o.iterations = 50'000, o.aggregated = 3; };
  expect_bad(with([&](auto& o) { graph(o), o.graph_launches = 1; }), "--cudagraph 1",
             "--iters 50000 times --agg_iters 3 operations: at most 100000");
  EXPECT_TRUE(with(graph).ok());  // eager: no graph
  EXPECT_TRUE(with([](auto& o) { o.iterations = kMostTimes, o.aggregated = kMostInGroup; }).ok());
  EXPECT_TRUE(with([](auto& o) { o.iterations = 100'000, o.graph_launches = kMostTimes; }).ok());
}

TEST(BenchOptionsTyped, TakeNcclTestsNamesAndAll) {
  EXPECT_THAT(*parse_operations("alltoall"), ElementsAre(all_to_all));
  EXPECT_THAT(*parse_operations("all"), SizeIs(kBenchOperations));
  EXPECT_THAT(*parse_operations("sendrecv"), ElementsAre(send_receive));
}

// By hand, from nccl-tests' doc/PERFORMANCE.md: 1 GB in 10 ms is 100 GB/s; of 4 ranks.
TEST(BenchBandwidth, IsWhatNcclTestsDefine) {
  constexpr std::uint64_t kWhole = 250'000'000;  // of float32: 10^9 bytes
  const auto bus = [](BenchOperation operation, std::uint64_t count) {
    const Bandwidth bandwidth = bandwidth_of(operation, count, 0.01, 4);
    EXPECT_DOUBLE_EQ(bandwidth.algorithm, 100) << name_of(operation);
    return bandwidth.bus;
  };
  EXPECT_DOUBLE_EQ(bus(all_reduce, kWhole), 150);  // 2 * 3 / 4
  for (const BenchOperation operation : {all_gather, reduce_scatter, all_to_all}) {
    EXPECT_DOUBLE_EQ(bus(operation, kWhole / 4), 75) << name_of(operation);  // count is a rank's
  }
  EXPECT_DOUBLE_EQ(bus(send_receive, kWhole), 100);
}

TEST(BenchShapes, CutTheArrayInPartsOfWholeSixteenBytes) {
  const BenchShape gathered = shape_of(all_gather, 1000_B, 3);
  EXPECT_EQ(gathered.count, 80u);  // 250 / 3 = 83, down to a multiple of 4
  EXPECT_EQ(gathered.send, 320_B);
  EXPECT_EQ(gathered.receive, 960_B);
  EXPECT_EQ(gathered.size(), 960_B);
  EXPECT_EQ(gathered.send_offset, 320_B);
  EXPECT_EQ(gathered.receive_offset, 0_B);
  const BenchShape scattered = shape_of(reduce_scatter, 1000_B, 3);
  EXPECT_EQ(scattered.count, 80u);
  EXPECT_EQ(scattered.send, 960_B);
  EXPECT_EQ(scattered.receive, 320_B);
  EXPECT_EQ(scattered.receive_offset, 320_B);
  EXPECT_EQ(scattered.send_offset, 0_B);
  const BenchShape exchanged = shape_of(all_to_all, 1000_B, 3);
  EXPECT_EQ(exchanged.send, 960_B);
  EXPECT_EQ(exchanged.receive, 960_B);
  EXPECT_EQ(exchanged.send_offset + exchanged.receive_offset, 0_B);
  EXPECT_EQ(shape_of(all_reduce, 1001_B, 3).count, 250u);
  EXPECT_EQ(shape_of(all_gather, 8_B, 2).count, 0u);  // as nccl-tests
}

TEST(BenchShapes, InPlaceUseTheRanksPartOfWhatIsReceived) {
  std::byte send[64], receive[64];
  const BenchShape shape = shape_of(all_gather, 64_B, 4);
  const auto in_place = operations_of(all_gather, shape, true, 2, 4, send, receive);
  ASSERT_THAT(in_place, SizeIs(1));
  EXPECT_EQ(in_place[0].send, receive + 32);
  EXPECT_EQ(in_place[0].receive, receive);
  const auto out = operations_of(all_gather, shape, false, 2, 4, send, receive);
  EXPECT_EQ(out[0].send, send);
}

TEST(BenchShapes, SendToTheNextRankAndReceiveFromTheOneBefore) {
  std::byte memory[64];
  const BenchShape shape = shape_of(send_receive, 64_B, 4);
  const auto pair = operations_of(send_receive, shape, false, 0, 4, memory, memory);
  ASSERT_THAT(pair, SizeIs(2));
  EXPECT_EQ(pair[0].kind, OperationKind::send);
  EXPECT_EQ(pair[0].peer, 1);
  EXPECT_EQ(pair[1].kind, OperationKind::receive);
  EXPECT_EQ(pair[1].peer, 3);
}

TEST(BenchShapes, MoveThroughTheMemoryAndStayInIt) {
  const BenchShape shape = shape_of(all_reduce, 1_MiB, 2);
  EXPECT_EQ(shift_of(shape, 3_MiB, 0), 0_B);
  EXPECT_EQ(shift_of(shape, 3_MiB, 2), 2_MiB);
  EXPECT_EQ(shift_of(shape, 3_MiB, 3), 0_B);
  EXPECT_EQ(shift_of(shape, 1_MiB, 7), 0_B);
  EXPECT_EQ(shift_of(BenchShape{}, 1_MiB, 7), 0_B);
}

TEST(BenchRuns, MeasureEveryOperationEagerlyAndInGraphs) {
  for (const int launches : {0, 3}) {
    BenchOptions options = small();
    options.operations = *parse_operations("all");
    options.graph_launches = launches;
    options.aggregated = 2;
    const BenchReport report = run(options, sim_ranks(3));
    EXPECT_THAT(report.problems, IsEmpty());
    EXPECT_THAT(report.rows, SizeIs(2 * kBenchOperations));
    EXPECT_TRUE(report.sound());
    for (const BenchRow& row : report.rows) {
      EXPECT_GT(row.out_of_place.timed.bandwidth.bus, 0) << name_of(row.operation);
      EXPECT_GT(row.in_place.timed.seconds, 15e-6);      // the simulated NCCL's latency
      EXPECT_FALSE(row.out_of_place.wrong.has_value());  // nothing moves: nobody looked
    }
  }
}

// 15 us and 300 bytes a nanosecond: 64 MiB take 238.7 us.
TEST(BenchRuns, TimeWhatTheSimulatedNcclTakes) {
  BenchOptions options;
  options.least = options.most = 64_MiB;
  const BenchReport report = run(options);
  ASSERT_THAT(report.rows, SizeIs(1));
  EXPECT_NEAR(report.rows[0].out_of_place.timed.seconds, 238.7e-6, 1e-6);
  EXPECT_NEAR(report.average_bus_bandwidth(all_reduce), 281, 2);
}

TEST(BenchRuns, ThroughNcclAloneCostTheHostLess) {
  BenchOptions options = small();
  options.path = BenchPath::both;
  for (const int launches : {0, 2}) {
    options.graph_launches = launches;
    for (const BenchRow& row : run(options).rows) {
      ASSERT_TRUE(row.in_place.raw.has_value());
      EXPECT_GT(row.in_place.timed.host_seconds, row.in_place.raw->host_seconds);
    }
  }
  options.path = BenchPath::raw;
  options.operations = *parse_operations("all");
  EXPECT_THAT(run(options).rows, SizeIs(2 * kBenchOperations));
}

TEST(BenchRuns, ThatNcclFailsAreErrorsOfThatRank) {
  const auto opened = [](SimWorld& world) { world.fail(1, NcclCall::enqueue, 3); };
  // The other waits for it, in vain.
  const Result<BenchReport> report = run_bench(sim_ranks(2, opened, 2), small());
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.error().message(), AllOf(HasSubstr("rank 1"), HasSubstr("made to fail")));
}

TEST(BenchRuns, ThatHangAreErrors) {
  const auto opened = [](SimWorld& world) { world.hang(0, 3); };
  const Result<BenchReport> report = run_bench(sim_ranks(2, opened), small());
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.error().message(), AllOf(HasSubstr("rank 0"), HasSubstr("has not ended")));
}

TEST(BenchRuns, OfRanksOrSizesThatCannotBeAreRefused) {
  EXPECT_FALSE(open_sim_ranks({.ranks = 0}, {}).ok());
  EXPECT_FALSE(open_sim_ranks({.ranks = 65}, {}).ok());
  BenchOptions options = small();
  options.least = 1_GiB;
  expect_bad(run_bench(sim_ranks(), options), "--minbytes", "--maxbytes");
}

TEST(BenchRuns, ShowEachRowOnceItIsMeasured) {
  BenchOptions options = small();
  options.operations = {all_reduce, send_receive};
  std::string text;
  std::vector<std::string> seen;
  const Result<BenchReport> report =
      run_bench(sim_ranks(), options, [&](const BenchReport& so_far) -> Status {
        text += bench_text_so_far(so_far);
        if (so_far.rows.empty()) return {};
        const BenchRow& row = so_far.rows.back();
        seen.push_back(std::string(name_of(row.operation)) + " " + std::to_string(row.shape.count));
        return {};
      });
  ASSERT_TRUE(report.ok());
  EXPECT_GT(report->average_bus_bandwidth(send_receive), 0);
  EXPECT_THAT(seen, ElementsAre("all_reduce 16384", "all_reduce 65536", "sendrecv 16384",
                                "sendrecv 65536"));
  // The average of an operation follows its rows.
  const std::size_t average = text.find("# all_reduce: average"), next = text.find("# sendrecv\n");
  ASSERT_NE(next, std::string::npos);
  EXPECT_LT(average, next);
  EXPECT_THAT(bench_text_end(*report), HasSubstr("# sendrecv: average bus bandwidth "));
}

TEST(BenchRuns, EndWithTheFirstRowThatCannotBeShown) {
  std::size_t shown = 0;
  const auto watcher = [&](const BenchReport& so_far) -> Status {
    shown = so_far.rows.size();
    if (shown == 0) return {};
    return Error(ErrorCode::device, "nobody looks");
  };
  const auto begin = std::chrono::steady_clock::now();
  const Result<BenchReport> report = run_bench(sim_ranks(), small(), watcher);
  ASSERT_FALSE(report.ok());
  EXPECT_THAT(report.error().message(), HasSubstr("nobody looks"));
  EXPECT_EQ(shown, 1u);
  // At once: not when the other rank has lost its host_timeout with rank 0, after a minute.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(BenchText, HasNcclTestsColumnsAndTheAverage) {
  BenchOptions options = small();
  options.operations = {all_reduce, all_to_all};
  options.path = BenchPath::both;
  std::string text;
  const Result<BenchReport> report =
      run_bench(sim_ranks(), options, [&](const BenchReport& so_far) -> Status {
        text += bench_text_so_far(so_far);
        return {};
      });
  ASSERT_TRUE(report.ok());
  EXPECT_THAT(text, AllOf(HasSubstr("out-of-place"), HasSubstr("in-place"), HasSubstr("algbw"),
                          HasSubstr("busbw"), HasSubstr("#wrong"), HasSubstr("redop"),
                          HasSubstr("N/A"), HasSubstr("added")));
  EXPECT_THAT(text, HasSubstr("65536         16384     float32     sum     -1"));
  EXPECT_THAT(text, HasSubstr("65536          8192     float32    none     -1"));
  EXPECT_THAT(text + bench_text_end(*report), HasSubstr("# alltoall: average bus bandwidth "));
}

TEST(BenchJson, HasEveryRow) {
  BenchOptions options = small();
  options.path = BenchPath::both;
  const auto json = nlohmann::json::parse(bench_json(run(options)));
  EXPECT_EQ(json["ranks"], 2);
  EXPECT_EQ(json["through"], "both");
  ASSERT_EQ(json["rows"].size(), 2u);
  const auto& row = json["rows"][1];
  EXPECT_EQ(row["operation"], "all_reduce");
  EXPECT_EQ(row["size"], 262144);
  EXPECT_EQ(row["count"], 65536);
  for (const char* const place : {"out_of_place", "in_place"}) {
    EXPECT_TRUE(row[place]["wrong"].is_null());
    for (const char* const figure : {"time_us", "host_ns", "algbw_gbs", "busbw_gbs"}) {
      EXPECT_TRUE(row[place][figure].is_number()) << figure;
      EXPECT_TRUE(row[place]["raw"][figure].is_number()) << figure;
    }
    EXPECT_GT(row[place]["added_host_ns"], 0);
  }
  EXPECT_GT(json["average_busbw_gbs"]["all_reduce"], 0);
  EXPECT_TRUE(json["problems"].empty());
}

}  // namespace
}  // namespace weir
