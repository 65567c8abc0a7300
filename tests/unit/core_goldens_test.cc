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
      device_.fail(static_cast<DeviceCall>(random_.below(kDeviceCalls)), nth);
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
            "reserved 199229440, leased 199229440, mapped 3892314112, live 167778304\n"
            "1486 blocks, 59 pages, 1162 mappings, 1162 unmapped, 567 waits, 0 failures\n"
            "9467 calls, 171335169 ns, digests dc0ae6a5e53f385 6d52dfaa54aa6e70");
  EXPECT_EQ(figures_of({.options = {.limit = 176_MiB}}),
            "reserved 184549376, leased 184549376, mapped 2795503616, live 167723520\n"
            "1334 blocks, 57 pages, 866 mappings, 866 unmapped, 498 waits, 150 failures\n"
            "8244 calls, 159887760 ns, digests d4523735752f9005 74085f71a769e69b");
  EXPECT_EQ(figures_of({.options = {.most_mappings = 120}}),
            "reserved 201326592, leased 201326592, mapped 467664896, live 167778304\n"
            "1486 blocks, 174 pages, 1423 mappings, 1423 unmapped, 597 waits, 0 failures\n"
            "10925 calls, 239683526 ns, digests dc0ae6a5e53f385 854a8b793bd553d2");
}

TEST(Goldens, OfTheOtherPolicies) {
  EXPECT_EQ(figures_of({.options = {.reuse = ReusePolicy::wait}}),
            "reserved 205520896, leased 205520896, mapped 2998927360, live 167778304\n"
            "1486 blocks, 61 pages, 907 mappings, 907 unmapped, 717 waits, 0 failures\n"
            "9348 calls, 162918594 ns, digests dc0ae6a5e53f385 e7920df6390079cd");
  EXPECT_EQ(figures_of({.options = {.reuse = ReusePolicy::grow}}),
            "reserved 1073741824, leased 224395264, mapped 1073741824, live 167778304\n"
            "1486 blocks, 445 pages, 433 mappings, 433 unmapped, 164 waits, 0 failures\n"
            "17804 calls, 157421722 ns, digests dc0ae6a5e53f385 83ff4e6dc1e0a514");
  EXPECT_EQ(figures_of({.options = {.limit = 200_MiB, .reuse = ReusePolicy::no_wait}}),
            "reserved 209715200, leased 205520896, mapped 922746880, live 167778304\n"
            "1486 blocks, 281 pages, 1573 mappings, 1573 unmapped, 0 waits, 0 failures\n"
            "16601 calls, 251641854 ns, digests dc0ae6a5e53f385 a10cfb97fc3b9462");
}

TEST(Goldens, OfSmallBlocks) {
  EXPECT_EQ(figures_of({.most_live = 24_MiB, .largest = 2_MiB, .small_percent = 95, .steps = 1500}),
            "reserved 46137344, leased 46137344, mapped 132120576, live 25208320\n"
            "4531 blocks, 20 pages, 56 mappings, 56 unmapped, 501 waits, 0 failures\n"
            "10045 calls, 282091522 ns, digests 3f4afa8a7fa5df65 9b0c75abe717281e");
  EXPECT_EQ(figures_of({.options = {.limit = 26_MiB},
                        .most_live = 24_MiB,
                        .largest = 2_MiB,
                        .small_percent = 95,
                        .steps = 1500}),
            "reserved 27262976, leased 27262976, mapped 27262976, live 24109056\n"
            "3311 blocks, 12 pages, 12 mappings, 12 unmapped, 373 waits, 1224 failures\n"
            "10291 calls, 258759555 ns, digests f12a7b768dd743a5 27fb282a59f2e844");
}

// Beside so much, a little more costs nothing.
TEST(Goldens, OfLargeHeaps) {
  EXPECT_EQ(figures_of({.most_live = 900_MiB, .largest = 120_MiB, .steps = 1500}),
            "reserved 1031798784, leased 1023410176, mapped 26587693056, live 943725056\n"
            "4444 blocks, 699 pages, 11070 mappings, 11070 unmapped, 1448 waits, 0 failures\n"
            "50715 calls, 572973412 ns, digests c7e99aff09828705 e3fd99b0362952c9");
}

TEST(Goldens, WhereUsesAreNotTold) {
  EXPECT_EQ(figures_of({.options = {.trust = Trust::context}, .tells = false}),
            "reserved 213909504, leased 213909504, mapped 2474639360, live 167763968\n"
            "1475 blocks, 59 pages, 681 mappings, 681 unmapped, 335 waits, 0 failures\n"
            "10828 calls, 152871820 ns, digests aec2f4ce4a910705 e47478dad1f2a691");
  EXPECT_EQ(
      figures_of({.options = {.trust = Trust::context, .context_events = false}, .tells = false}),
      "reserved 685768704, leased 234881024, mapped 3827302400, live 167763968\n"
      "1475 blocks, 187 pages, 1044 mappings, 1044 unmapped, 91 waits, 0 failures\n"
      "13461 calls, 167966573 ns, digests aec2f4ce4a910705 8d38d8f9d9e66d38");
}

TEST(Goldens, OfPlainMemory) {
  EXPECT_EQ(figures_of({.options = {.memory = MemoryKind::plain}}),
            "reserved 371195904, leased 333447168, mapped 371195904, live 167778304\n"
            "1486 blocks, 19 pages, 19 mappings, 19 unmapped, 281 waits, 0 failures\n"
            "4615 calls, 133422306 ns, digests dc0ae6a5e53f385 6d9feb94dc26692e");
  EXPECT_EQ(figures_of({.options = {.limit = 240_MiB, .memory = MemoryKind::plain}}),
            "reserved 251658240, leased 251658240, mapped 251658240, live 167773696\n"
            "1449 blocks, 18 pages, 18 mappings, 18 unmapped, 321 waits, 25 failures\n"
            "4574 calls, 186864994 ns, digests 887d828210d2524 cc6cec8708bae7b2");
}

TEST(Goldens, OfGraphPools) {
  EXPECT_EQ(figures_of({.pools = true}),
            "reserved 285212672, leased 249561088, mapped 2080374784, live 220811776\n"
            "2311 blocks, 171 pages, 1475 mappings, 1475 unmapped, 637 waits, 0 failures\n"
            "32947 calls, 263650403 ns, digests 369cc3f1940f5f59 f9ffd0b25840a1e3");
  EXPECT_EQ(figures_of({.options = {.limit = 240_MiB}, .pools = true}),
            "reserved 251658240, leased 247463936, mapped 1558183936, live 225719808\n"
            "2275 blocks, 169 pages, 919 mappings, 919 unmapped, 410 waits, 197 failures\n"
            "42122 calls, 252529933 ns, digests 3a105406fa3186ed 92e5660065925ac");
  EXPECT_EQ(figures_of({.options = {.trust = Trust::context}, .pools = true, .tells = false}),
            "reserved 1073741824, leased 270532608, mapped 2260729856, live 234270720\n"
            "1372 blocks, 937 pages, 1059 mappings, 1059 unmapped, 212 waits, 971 failures\n"
            "40004 calls, 249056476 ns, digests 8bfac8c1004629f ffed817508bb6e7b");
}

TEST(Goldens, OfSleep) {
  EXPECT_EQ(figures_of({.sleeps = true}),
            "reserved 201326592, leased 201326592, mapped 899678208, live 167772160\n"
            "1487 blocks, 1839 pages, 5993 mappings, 5993 unmapped, 584 waits, 0 failures\n"
            "33032 calls, 1717265942 ns, digests 842858e6ac40bea5 5769eee7aa62ae80");
  EXPECT_EQ(figures_of({.pools = true, .sleeps = true}),
            "reserved 255852544, leased 255852544, mapped 1241513984, live 218047488\n"
            "1802 blocks, 2091 pages, 7575 mappings, 7575 unmapped, 609 waits, 0 failures\n"
            "43600 calls, 1787093330 ns, digests e53e2374e974d6da 8843372587ae1cb4");
}

// What the device refuses leaves everything as it was, or is made up for.
TEST(Goldens, WhereCallsOfTheDeviceFail) {
  EXPECT_EQ(figures_of({.faults_percent = 30}),
            "reserved 205520896, leased 205520896, mapped 2822766592, live 167779840\n"
            "1439 blocks, 58 pages, 805 mappings, 805 unmapped, 466 waits, 12 failures\n"
            "7742 calls, 162409374 ns, digests 7bdbfd6dd4d11a65 51634557d1bba989");
  EXPECT_EQ(figures_of({.options = {.limit = 176_MiB, .reuse = ReusePolicy::no_wait},
                        .faults_percent = 60}),
            "reserved 184549376, leased 184549376, mapped 868220928, live 167776256\n"
            "1356 blocks, 158 pages, 1017 mappings, 1017 unmapped, 0 waits, 104 failures\n"
            "12975 calls, 249959708 ns, digests 4a29ad673f7cf345 10c26c36a8f1a1b2");
  EXPECT_EQ(figures_of(
                {.options = {.limit = 200_MiB, .memory = MemoryKind::plain}, .faults_percent = 60}),
            "reserved 209715200, leased 209715200, mapped 209715200, live 167771648\n"
            "1264 blocks, 22 pages, 22 mappings, 22 unmapped, 200 waits, 189 failures\n"
            "4609 calls, 203101615 ns, digests fd3fcd17d51940e4 55b9ea1a9c9102ac");
  EXPECT_EQ(
      figures_of({.options = {.trust = Trust::context}, .tells = false, .faults_percent = 30}),
      "reserved 216006656, leased 205520896, mapped 2193620992, live 167851008\n"
      "1463 blocks, 64 pages, 634 mappings, 634 unmapped, 306 waits, 3 failures\n"
      "10439 calls, 157533943 ns, digests ca486e9385704641 d472401787670c70");
  EXPECT_EQ(figures_of({.pools = true, .faults_percent = 30}),
            "reserved 251658240, leased 234881024, mapped 1182793728, live 206934528\n"
            "2353 blocks, 237 pages, 1438 mappings, 1438 unmapped, 554 waits, 21 failures\n"
            "39396 calls, 256461308 ns, digests 9df10ab60b83b723 e2fa6700ddba897a");
  EXPECT_EQ(figures_of({.options = {.trust = Trust::context},
                        .pools = true,
                        .tells = false,
                        .faults_percent = 30}),
            "reserved 1073741824, leased 239075328, mapped 1723858944, live 212684288\n"
            "1370 blocks, 966 pages, 975 mappings, 975 unmapped, 198 waits, 989 failures\n"
            "40233 calls, 243096732 ns, digests b9129ae473cdda05 97ba59e078ec706d");
  EXPECT_EQ(figures_of({.pools = true, .sleeps = true, .faults_percent = 30}),
            "reserved 253755392, leased 232783872, mapped 855638016, live 209879040\n"
            "2156 blocks, 2707 pages, 6692 mappings, 6692 unmapped, 499 waits, 20 failures\n"
            "61288 calls, 1858180662 ns, digests 9bdd625268164003 746e5eed884b1b60");
}

}  // namespace
}  // namespace weir
