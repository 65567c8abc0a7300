// SPDX-License-Identifier: Apache-2.0
// What random programs come to, to the last call and byte: what the heap asks of the device, what
// it says that happened, and where each block lies. Other tests say what must hold; these notice
// each change of what is placed where. A failure prints the new figures: they are entered with a
// change that means to alter placement, and show that another change altered it unmeant. Everything
// is simulated, so the figures are the same on every machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/splitmix.h"
#include "weir/device_heap.h"
#include "weir/graph_pool.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

using test::SplitMix;
using testing::IsEmpty;

// FNV-1a, over numbers.
class Digest {
 public:
  void add(std::initializer_list<std::uint64_t> numbers) {
    for (const std::uint64_t number : numbers) {
      for (int shift = 0; shift < 64; shift += 8) {
        value_ = (value_ ^ (number >> shift & 0xff)) * 0x100000001b3;
      }
    }
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325;
};

// Counts events by kind, and digests all that they say.
class Events final : public EventSink {
 public:
  void on_event(const Event& e) override {
    ++counts_[static_cast<std::size_t>(e.kind)];
    digest_.add({static_cast<std::uint64_t>(e.kind), e.plain, e.heap.value, e.page.value,
                 static_cast<std::uint64_t>(e.time.count), e.stream, e.other, e.address.value,
                 e.bytes.count, e.requested.count, e.sequence.value,
                 static_cast<std::uint64_t>(e.duration.count), e.pool});
  }
  std::uint64_t of(EventKind kind) const { return counts_[static_cast<std::size_t>(kind)]; }
  std::uint64_t digest() const { return digest_.value(); }

 private:
  std::array<std::uint64_t, kEventKinds> counts_{};
  Digest digest_;
};

struct Settings {
  HeapOptions options;
  Bytes most_live = 160_MiB;
  Bytes largest = 24_MiB;
  std::uint32_t small_percent = 40;
  int rounds = 6;  // of which two after each other are the same program
  int steps = 500;
  bool pools = false;                // captures, launches
  bool sleeps = false;               // a tag that sleeps and wakes
  bool tells = true;                 // all uses on other streams are told
  std::uint32_t faults_percent = 0;  // of the heap's calls, in which a call of the device may fail
};

// A program of random calls, and what it came to.
class Program {
 public:
  explicit Program(const Settings& settings) : settings_(settings) {
    for (Stream& stream : streams_) stream = device_.new_stream();
    if (settings.pools) pool_.emplace(heap_, GraphPoolOptions{.tag = "graphs"});
  }

  // One line of figures for each thing that is counted.
  std::string run() {
    for (int round = 0; round < settings_.rounds; ++round) {
      random_ = SplitMix(7 + static_cast<std::uint64_t>(round) / 2);
      for (int i = 0; i < settings_.steps; ++i) step();
      EXPECT_THAT(heap_.validate(), IsEmpty());
    }
    ends_ = true;
    if (settings_.sleeps) {
      EXPECT_TRUE(heap_.wake().ok());
    }
    while (!live_.empty()) give_back(live_.size() - 1);
    graphs_.clear();
    pool_.reset();
    device_.advance(100_ms);
    const Result<Bytes> gone = heap_.trim(0_B, Trim::waits);
    EXPECT_TRUE(gone.ok());
    EXPECT_THAT(heap_.validate(), IsEmpty());
    EXPECT_EQ(device_.race_count(), 0u);
    return figures();
  }

 private:
  struct Block {
    void* at;
    Bytes bytes;
    Stream stream;
  };

  Bytes size() {
    if (random_.chance(settings_.small_percent)) return Bytes{1 + random_.below(200'000)};
    if (random_.chance(50)) return 512_KiB * (1 + random_.below(8));
    return Bytes{1 + random_.below(settings_.largest.count)};
  }
  void step() {
    const std::uint32_t kind = random_.below(100);
    const Stream stream = streams_[random_.below(streams_.size())];
    if (kind < 50) {
      take(size(), stream);
    } else if (kind < 74) {
      if (!live_.empty()) give_back(random_.below(live_.size()));
    } else if (kind < 88) {
      if (!live_.empty()) use(live_[random_.below(live_.size())], stream);
    } else if (kind < 94) {
      device_.advance(Nanoseconds{20'000 * (1 + random_.below(20))});
    } else if (kind < 96) {
      (void)call([&] { return heap_.trim(Bytes{random_.below(settings_.most_live.count)}); });
    } else if (kind < 97) {
      replace(streams_[random_.below(streams_.size())]);
    } else if (kind < 98 && settings_.sleeps) {
      sleep();
    } else if (settings_.pools) {
      capture();
    }
  }
  void take(Bytes bytes, Stream stream) {
    while (in_use_ + bytes > settings_.most_live) give_back(live_.size() / 2);
    const Result<void*> block = call([&] { return heap_.allocate(bytes, stream); });
    if (!block) return;
    ASSERT_TRUE(device_.launch(stream, Writes(*block, bytes), 60_us).ok());
    live_.push_back({*block, bytes, stream});
    in_use_ += bytes;
  }
  void give_back(std::size_t i) {
    if (!call([&] { return heap_.deallocate(live_[i].at); })) return;
    in_use_ -= live_[i].bytes;
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  // Another stream uses the block, behind what its own has done so far; the heap is told, or the
  // block's own stream waits for it.
  void use(const Block& block, Stream user) {
    order(block.stream, user);
    const Nanoseconds duration = {10'000 * (1 + random_.below(60))};
    ASSERT_TRUE(device_.launch(user, Reads(block.at, block.bytes), duration).ok());
    if (!settings_.tells && random_.chance(50)) return order(user, block.stream);
    const bool fences = settings_.tells && random_.chance(70);
    (void)call(
        [&] { return fences ? heap_.fence(block.at, user) : heap_.record_stream(block.at, user); });
  }
  void replace(Stream& stream) {
    if (std::any_of(live_.begin(), live_.end(),
                    [&](const Block& block) { return block.stream == stream; })) {
      return;
    }
    if (call([&] { return heap_.retire(stream); })) stream = device_.new_stream();
  }
  // On two streams, with blocks that are freed on the way; the last outputs stay for a while.
  void capture() {
    const Stream main = device_.new_stream(), side = device_.new_stream();
    if (graphs_.size() > 2) graphs_.erase(graphs_.begin());
    Result<CaptureScope> scope = call([&] { return CaptureScope::begin(*pool_, main); });
    if (!scope) return;
    std::vector<Block> mine;
    order(main, side);
    for (int i = 0; i < 12; ++i) {
      const Stream stream = random_.chance(60) ? main : side;
      const Bytes bytes = size();
      if (const Result<void*> block = call([&] { return heap_.allocate(bytes, stream); })) {
        ASSERT_TRUE(device_.launch(stream, Writes(*block, bytes), 30_us).ok());
        mine.push_back({*block, bytes, stream});
        digest_.add({Address::of(*block).value});
      }
      if (mine.size() > 3) {
        if (call([&] { return heap_.deallocate(mine.front().at); })) mine.erase(mine.begin());
      }
    }
    for (const Block& block : mine) {
      while (!call([&] { return heap_.deallocate(block.at); })) {
      }
    }
    order(side, main);
    Result<Graph> graph = call([&] { return scope->end(); });
    if (!graph) return;
    for (int i = 0; i < 2; ++i) (void)call([&] { return graph->launch(streams_[0]); });
    graphs_.push_back(*std::move(graph));
  }
  void order(Stream earlier, Stream later) {
    const EventHandle event = *device_.create_event();
    ASSERT_TRUE(device_.record(event, earlier).ok());
    ASSERT_TRUE(device_.wait(later, event).ok());
    ASSERT_TRUE(device_.destroy_event(event).ok());
  }
  void sleep() {
    SleepOptions options;
    options.contents = random_.one_of({SleepContents::backup, SleepContents::discard,
                                       SleepContents::zero, SleepContents::immutable});
    if (random_.chance(40)) options.backup_folder = "/a";
    for (const bool sleeps : {true, false}) {
      const Result<SleepReport> report = call([&] {
        return sleeps ? heap_.sleep(options) : heap_.wake({.tags = {}, .keep_host = 32_MiB});
      });
      if (!report) continue;
      digest_.add({report->given_back.count, report->copied.count, report->copies,
                   report->host.count, report->file.count});
    }
  }

  // Calls the heap, and notes what came of it.
  template <class Call>
  std::invoke_result_t<Call> call(const Call& of_heap) {
    if (!ends_ && random_.chance(settings_.faults_percent)) {
      const std::uint64_t nth = 1 + random_.below(3);
      // The goldens are of a time when there was one call more, after the nineteenth.
      const std::uint32_t i = random_.below(kDeviceCalls + 1);
      device_.fail(static_cast<DeviceCall>(i < 19 ? i : i - 1), nth);
    }
    auto outcome = of_heap();
    (void)device_.forget_faults();
    digest_.add({outcome.ok() ? 0 : 1 + static_cast<std::uint64_t>(outcome.error().code())});
    failures_ += outcome.ok() ? 0 : 1;
    return outcome;
  }
  std::string figures() const {
    const Statistics all = heap_.statistics();
    std::ostringstream text;
    text << "reserved " << all.reserved_bytes.peak << ", leased " << all.leased_bytes.peak
         << ", mapped " << all.mapped_bytes.peak << ", live " << all.live_bytes.peak << "\n"
         << events_.of(EventKind::allocate) << " blocks, " << events_.of(EventKind::create)
         << " pages, " << events_.of(EventKind::map) << " mappings, "
         << events_.of(EventKind::unmap) << " unmapped, " << events_.of(EventKind::stream_wait)
         << " waits, " << failures_ << " failures\n";
    std::uint64_t calls = 0;
    for (int i = 0; i < kDeviceCalls; ++i) calls += device_.calls(static_cast<DeviceCall>(i));
    text << calls << " calls, " << device_.now().count << " ns, digests " << std::hex
         << digest_.value() << " " << events_.digest();
    return text.str();
  }

  const Settings settings_;
  SimDevice device_{{.memory = 1_GiB}};
  Events events_;
  DeviceHeap heap_{device_, settings_.options, &events_};
  std::optional<GraphPool> pool_;
  std::vector<Graph> graphs_;
  std::array<Stream, 4> streams_;
  std::vector<Block> live_;
  Bytes in_use_;
  Digest digest_;
  SplitMix random_{0};
  bool ends_ = false;
  std::uint64_t failures_ = 0;
};

std::string figures_of(const Settings& settings) { return Program(settings).run(); }

TEST(Goldens, OfTheBalancedPolicy) {
  EXPECT_EQ(figures_of({}),
            "reserved 203423744, leased 203423744, mapped 3548381184, live 167778304\n"
            "1486 blocks, 61 pages, 1058 mappings, 1058 unmapped, 595 waits, 0 failures\n"
            "9196 calls, 167908554 ns, digests dc0ae6a5e53f385 97393de2a7cc0f83");
  EXPECT_EQ(figures_of({.options = {.limit = 176_MiB}}),
            "reserved 184549376, leased 184549376, mapped 2726297600, live 167723520\n"
            "1340 blocks, 56 pages, 810 mappings, 810 unmapped, 492 waits, 140 failures\n"
            "7926 calls, 157153904 ns, digests b4dccf218fd4e125 2ed89a9242314249");
  EXPECT_EQ(figures_of({.options = {.most_mappings = 120}}),
            "reserved 197132288, leased 197132288, mapped 459276288, live 167775744\n"
            "1475 blocks, 194 pages, 1411 mappings, 1411 unmapped, 590 waits, 1 failures\n"
            "11418 calls, 242670833 ns, digests 3c3e5fab58756524 62d889edaac69d97");
}

TEST(Goldens, OfTheOtherPolicies) {
  EXPECT_EQ(figures_of({.options = {.reuse = ReusePolicy::wait}}),
            "reserved 201326592, leased 201326592, mapped 3403677696, live 167778304\n"
            "1486 blocks, 60 pages, 1006 mappings, 1006 unmapped, 735 waits, 0 failures\n"
            "9600 calls, 166197630 ns, digests dc0ae6a5e53f385 6404bc0bbce59b94");
  EXPECT_EQ(figures_of({.options = {.limit = 200_MiB, .reuse = ReusePolicy::no_wait}}),
            "reserved 209715200, leased 209715200, mapped 952107008, live 167778304\n"
            "1486 blocks, 269 pages, 1508 mappings, 1508 unmapped, 0 waits, 0 failures\n"
            "22555 calls, 251553276 ns, digests dc0ae6a5e53f385 2cd829315bbfe818");
}

TEST(Goldens, OfSmallBlocks) {
  EXPECT_EQ(figures_of({.most_live = 24_MiB, .largest = 2_MiB, .small_percent = 95, .steps = 1500}),
            "reserved 46137344, leased 46137344, mapped 111149056, live 25208320\n"
            "4531 blocks, 20 pages, 47 mappings, 47 unmapped, 515 waits, 0 failures\n"
            "10040 calls, 281933788 ns, digests 3f4afa8a7fa5df65 fc424e9971f3698b");
  EXPECT_EQ(figures_of({.options = {.limit = 26_MiB},
                        .most_live = 24_MiB,
                        .largest = 2_MiB,
                        .small_percent = 95,
                        .steps = 1500}),
            "reserved 27262976, leased 27262976, mapped 27262976, live 24109056\n"
            "3311 blocks, 12 pages, 12 mappings, 12 unmapped, 377 waits, 1224 failures\n"
            "10299 calls, 258759555 ns, digests f12a7b768dd743a5 e295342bfbf850d3");
}

// Beside so much, a little more costs nothing.
TEST(Goldens, OfLargeHeaps) {
  EXPECT_EQ(figures_of({.most_live = 900_MiB, .largest = 120_MiB, .steps = 1500}),
            "reserved 1029701632, leased 1023410176, mapped 24800919552, live 943725056\n"
            "4444 blocks, 708 pages, 10296 mappings, 10296 unmapped, 1480 waits, 0 failures\n"
            "48374 calls, 547333636 ns, digests c7e99aff09828705 a5192d4eb039b770");
}

TEST(Goldens, WhereUsesAreNotTold) {
  EXPECT_EQ(figures_of({.options = {.trust = Trust::context}, .tells = false}),
            "reserved 205520896, leased 205520896, mapped 2810183680, live 167763968\n"
            "1475 blocks, 56 pages, 750 mappings, 750 unmapped, 361 waits, 0 failures\n"
            "11147 calls, 155131078 ns, digests aec2f4ce4a910705 23358b0346b3d0fc");
  EXPECT_EQ(
      figures_of({.options = {.trust = Trust::context, .context_events = false}, .tells = false}),
      "reserved 622854144, leased 226492416, mapped 3246391296, live 167763968\n"
      "1475 blocks, 172 pages, 885 mappings, 885 unmapped, 98 waits, 0 failures\n"
      "13172 calls, 162354898 ns, digests aec2f4ce4a910705 c77315a8feb4a25f");
}

TEST(Goldens, OfPlainMemory) {
  EXPECT_EQ(figures_of({.options = {.memory = MemoryKind::plain}}),
            "reserved 371195904, leased 341835776, mapped 371195904, live 167778304\n"
            "1486 blocks, 19 pages, 19 mappings, 19 unmapped, 308 waits, 0 failures\n"
            "4669 calls, 133425990 ns, digests dc0ae6a5e53f385 e1245309f7f7c8c2");
  EXPECT_EQ(figures_of({.options = {.limit = 240_MiB, .memory = MemoryKind::plain}}),
            "reserved 251658240, leased 251658240, mapped 251658240, live 167773696\n"
            "1470 blocks, 21 pages, 21 mappings, 21 unmapped, 311 waits, 22 failures\n"
            "4293 calls, 217060303 ns, digests a156fe3701f2785 8c343677432ed0b1");
}

TEST(Goldens, OfGraphPools) {
  EXPECT_EQ(figures_of({.pools = true}),
            "reserved 274726912, leased 247463936, mapped 1893728256, live 220811776\n"
            "2311 blocks, 174 pages, 1492 mappings, 1492 unmapped, 690 waits, 0 failures\n"
            "33148 calls, 265208316 ns, digests c4baad545815a3cb 9fa439bc8bc0efda");
  EXPECT_EQ(figures_of({.options = {.limit = 240_MiB}, .pools = true}),
            "reserved 251658240, leased 251658240, mapped 1893728256, live 228249600\n"
            "2254 blocks, 158 pages, 1005 mappings, 1005 unmapped, 459 waits, 178 failures\n"
            "38934 calls, 260925803 ns, digests 2efc7a389e491ee7 1a80b7423a1c05ea");
  EXPECT_EQ(figures_of({.options = {.trust = Trust::context}, .pools = true, .tells = false}),
            "reserved 1073741824, leased 262144000, mapped 2424307712, live 234270720\n"
            "1373 blocks, 967 pages, 1112 mappings, 1112 unmapped, 236 waits, 979 failures\n"
            "42996 calls, 251298114 ns, digests 3bd2e29119baea4c dc7f116c65b57a04");
}

TEST(Goldens, OfSleep) {
  EXPECT_EQ(figures_of({.sleeps = true}),
            "reserved 203423744, leased 203423744, mapped 887095296, live 167772160\n"
            "1487 blocks, 1853 pages, 6146 mappings, 6146 unmapped, 570 waits, 0 failures\n"
            "33367 calls, 1719794256 ns, digests 4810c85fbcea84cc b2227267485a6e61");
  EXPECT_EQ(figures_of({.pools = true, .sleeps = true}),
            "reserved 251658240, leased 243269632, mapped 1472200704, live 218047488\n"
            "1802 blocks, 2053 pages, 7381 mappings, 7381 unmapped, 613 waits, 0 failures\n"
            "42785 calls, 1779381594 ns, digests 1e66cc45ba9e2655 f24c2f1fa8b38948");
}

// What the device refuses leaves everything as it was, or is made up for.
TEST(Goldens, WhereCallsOfTheDeviceFail) {
  EXPECT_EQ(figures_of({.faults_percent = 30}),
            "reserved 203423744, leased 203423744, mapped 2973761536, live 167774208\n"
            "1464 blocks, 55 pages, 813 mappings, 813 unmapped, 478 waits, 9 failures\n"
            "7638 calls, 163132524 ns, digests 563fc1b90f415601 fdeb0ce3bafd6a96");
  EXPECT_EQ(figures_of({.options = {.limit = 176_MiB, .reuse = ReusePolicy::no_wait},
                        .faults_percent = 60}),
            "reserved 184549376, leased 184549376, mapped 838860800, live 167771648\n"
            "1343 blocks, 180 pages, 1038 mappings, 1038 unmapped, 0 waits, 101 failures\n"
            "20663 calls, 242614752 ns, digests 2c8e8ac5b2a79784 b9bd49ddd13d58f6");
  EXPECT_EQ(figures_of(
                {.options = {.limit = 200_MiB, .memory = MemoryKind::plain}, .faults_percent = 60}),
            "reserved 209715200, leased 209715200, mapped 209715200, live 167771648\n"
            "1316 blocks, 19 pages, 19 mappings, 19 unmapped, 275 waits, 141 failures\n"
            "4820 calls, 211372939 ns, digests 520f2506413e2fa1 f87db2b4abc3fbf0");
  EXPECT_EQ(
      figures_of({.options = {.trust = Trust::context}, .tells = false, .faults_percent = 30}),
      "reserved 213909504, leased 209715200, mapped 2462056448, live 167823872\n"
      "1463 blocks, 64 pages, 707 mappings, 707 unmapped, 326 waits, 2 failures\n"
      "10587 calls, 163364068 ns, digests 410505ba74081ca5 555de334f4380ac7");
  EXPECT_EQ(figures_of({.pools = true, .faults_percent = 30}),
            "reserved 253755392, leased 245366784, mapped 1283457024, live 217510912\n"
            "2468 blocks, 209 pages, 1269 mappings, 1269 unmapped, 558 waits, 21 failures\n"
            "45021 calls, 252801983 ns, digests 6c037e6852d6ef55 b4f0410574db01e5");
  EXPECT_EQ(figures_of({.options = {.trust = Trust::context},
                        .pools = true,
                        .tells = false,
                        .faults_percent = 30}),
            "reserved 1073741824, leased 236978176, mapped 1782579200, live 212684288\n"
            "1343 blocks, 974 pages, 941 mappings, 941 unmapped, 193 waits, 1043 failures\n"
            "41192 calls, 239655060 ns, digests f49096fea7ebe03e d2ca52a92057c81c");
  EXPECT_EQ(figures_of({.pools = true, .sleeps = true, .faults_percent = 30}),
            "reserved 255852544, leased 228589568, mapped 1151336448, live 205170176\n"
            "2019 blocks, 2518 pages, 6580 mappings, 6580 unmapped, 530 waits, 20 failures\n"
            "51329 calls, 1727605640 ns, digests 64f0841073baad0b 9bd7b6cddfc2274b");
}

}  // namespace
}  // namespace weir
