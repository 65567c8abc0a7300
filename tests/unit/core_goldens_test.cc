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
      EXPECT_TRUE(heap_.tags().wake().ok());
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
    const auto tell = [&] {
      return fences ? heap_.fence(block.at, user) : heap_.record_stream(block.at, user);
    };
    while (!call(tell)) {  // a use that was not told is the program's own race
    }
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
    note(call([&] { return heap_.tags().sleep(options); }));
    const auto wakes = [&] { return heap_.tags().wake({.tags = {}, .keep_host = 32_MiB}); };
    for (Result<SleepReport> woken = call(wakes);; woken = call(wakes)) {
      note(woken);
      if (woken) return;  // after a failure some of it may sleep yet
    }
  }
  void note(const Result<SleepReport>& report) {
    if (!report) return;
    digest_.add(
        {report->given_back.count, report->copied.count, report->copies, report->host.count});
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
            "reserved 203423744, leased 203423744, mapped 3229614080, live 167778304\n"
            "1486 blocks, 60 pages, 948 mappings, 948 unmapped, 575 waits, 0 failures\n"
            "8840 calls, 164211880 ns, digests dc0ae6a5e53f385 a254904f52784a89");
  EXPECT_EQ(figures_of({.options = {.limit = 176_MiB}}),
            "reserved 184549376, leased 184549376, mapped 3317694464, live 167763456\n"
            "1340 blocks, 55 pages, 951 mappings, 951 unmapped, 532 waits, 122 failures\n"
            "8576 calls, 164388011 ns, digests 2555efb2ab7db545 78b89273c749752d");
  EXPECT_EQ(figures_of({.options = {.most_mappings = 120}}),
            "reserved 201326592, leased 201326592, mapped 459276288, live 167778304\n"
            "1486 blocks, 213 pages, 1513 mappings, 1513 unmapped, 604 waits, 0 failures\n"
            "12104 calls, 245484287 ns, digests dc0ae6a5e53f385 21c4b3696eab191d");
}

TEST(Goldens, OfTheOtherPolicies) {
  EXPECT_EQ(figures_of({.options = {.reuse = ReusePolicy::wait}}),
            "reserved 203423744, leased 203423744, mapped 2736783360, live 167778304\n"
            "1486 blocks, 60 pages, 803 mappings, 803 unmapped, 680 waits, 0 failures\n"
            "8772 calls, 159398724 ns, digests dc0ae6a5e53f385 29f0e03fffa0756c");
  EXPECT_EQ(figures_of({.options = {.limit = 200_MiB, .reuse = ReusePolicy::no_wait}}),
            "reserved 209715200, leased 207618048, mapped 1002438656, live 167778304\n"
            "1486 blocks, 216 pages, 1407 mappings, 1407 unmapped, 0 waits, 0 failures\n"
            "14524 calls, 248046563 ns, digests dc0ae6a5e53f385 e1c0b48b4cc456b6");
}

TEST(Goldens, OfSmallBlocks) {
  EXPECT_EQ(figures_of({.most_live = 24_MiB, .largest = 2_MiB, .small_percent = 95, .steps = 1500}),
            "reserved 46137344, leased 46137344, mapped 119537664, live 25208320\n"
            "4531 blocks, 21 pages, 55 mappings, 55 unmapped, 526 waits, 0 failures\n"
            "10126 calls, 283290889 ns, digests 3f4afa8a7fa5df65 ce074c17baeece6");
  EXPECT_EQ(figures_of({.options = {.limit = 26_MiB},
                        .most_live = 24_MiB,
                        .largest = 2_MiB,
                        .small_percent = 95,
                        .steps = 1500}),
            "reserved 27262976, leased 27262976, mapped 27262976, live 24669696\n"
            "3592 blocks, 12 pages, 12 mappings, 12 unmapped, 358 waits, 958 failures\n"
            "9961 calls, 260349555 ns, digests a5a876982ecc9b65 906241c7bcde2d89");
}

// Beside so much, a little more costs nothing.
TEST(Goldens, OfLargeHeaps) {
  EXPECT_EQ(figures_of({.most_live = 900_MiB, .largest = 120_MiB, .steps = 1500}),
            "reserved 1035993088, leased 1035993088, mapped 43138416640, live 943725056\n"
            "4444 blocks, 456 pages, 10557 mappings, 10557 unmapped, 1483 waits, 0 failures\n"
            "49052 calls, 550492418 ns, digests c7e99aff09828705 62ed7ba05f78e7bf");
}

TEST(Goldens, WhereUsesAreNotTold) {
  EXPECT_EQ(figures_of({.options = {.trust = Trust::context}, .tells = false}),
            "reserved 201326592, leased 201326592, mapped 3409969152, live 167763968\n"
            "1475 blocks, 56 pages, 938 mappings, 938 unmapped, 384 waits, 0 failures\n"
            "11829 calls, 161430891 ns, digests aec2f4ce4a910705 fa93c2c6ed51d");
  EXPECT_EQ(
      figures_of({.options = {.trust = Trust::context, .context_events = false}, .tells = false}),
      "reserved 635437056, leased 220200960, mapped 3347054592, live 167763968\n"
      "1475 blocks, 177 pages, 919 mappings, 919 unmapped, 96 waits, 0 failures\n"
      "12720 calls, 163522334 ns, digests aec2f4ce4a910705 1e89041e1da52fc6");
}

TEST(Goldens, OfPlainMemory) {
  EXPECT_EQ(figures_of({.options = {.memory = MemoryKind::plain}}),
            "reserved 396361728, leased 348127232, mapped 396361728, live 167778304\n"
            "1486 blocks, 20 pages, 20 mappings, 20 unmapped, 338 waits, 0 failures\n"
            "4673 calls, 133545297 ns, digests dc0ae6a5e53f385 8a2fe10541bc040a");
  EXPECT_EQ(figures_of({.options = {.limit = 240_MiB, .memory = MemoryKind::plain}}),
            "reserved 249561088, leased 249561088, mapped 249561088, live 167773696\n"
            "1464 blocks, 22 pages, 22 mappings, 22 unmapped, 346 waits, 30 failures\n"
            "4525 calls, 203477243 ns, digests e368cc6602491845 6d49f2a7f0beea0a");
}

TEST(Goldens, OfGraphPools) {
  EXPECT_EQ(figures_of({.pools = true}),
            "reserved 283115520, leased 255852544, mapped 1591738368, live 220811776\n"
            "2311 blocks, 161 pages, 1311 mappings, 1311 unmapped, 642 waits, 0 failures\n"
            "32394 calls, 260865517 ns, digests a043057e4fd3dcb8 91a790a987792309");
  EXPECT_EQ(figures_of({.options = {.limit = 240_MiB}, .pools = true}),
            "reserved 251658240, leased 249561088, mapped 1581252608, live 227141120\n"
            "2276 blocks, 161 pages, 921 mappings, 921 unmapped, 443 waits, 144 failures\n"
            "37595 calls, 249387978 ns, digests 31e3cd2f0c98c95c 44f2e352a0642290");
  EXPECT_EQ(figures_of({.options = {.trust = Trust::context}, .pools = true, .tells = false}),
            "reserved 1073741824, leased 270532608, mapped 2380267520, live 234270720\n"
            "1371 blocks, 932 pages, 1160 mappings, 1160 unmapped, 237 waits, 984 failures\n"
            "42937 calls, 251990671 ns, digests d4ad99bef746630e c55e7704b710b7d8");
}

TEST(Goldens, OfSleep) {
  EXPECT_EQ(figures_of({.sleeps = true}),
            "reserved 201326592, leased 201326592, mapped 970981376, live 167749632\n"
            "1470 blocks, 1590 pages, 5516 mappings, 5516 unmapped, 621 waits, 0 failures\n"
            "29712 calls, 544346083 ns, digests 4fba389de42f0d29 c7a37c999cb65088");
  EXPECT_EQ(figures_of({.pools = true, .sleeps = true}),
            "reserved 251658240, leased 243269632, mapped 1193279488, live 210854912\n"
            "1755 blocks, 2405 pages, 8451 mappings, 8451 unmapped, 613 waits, 0 failures\n"
            "45726 calls, 700636759 ns, digests 6bec8b29982abc8d f1606f40a982be6c");
}

// What the device refuses leaves everything as it was, or is made up for.
TEST(Goldens, WhereCallsOfTheDeviceFail) {
  EXPECT_EQ(figures_of({.faults_percent = 30}),
            "reserved 203423744, leased 203423744, mapped 2564816896, live 167778304\n"
            "1459 blocks, 63 pages, 734 mappings, 734 unmapped, 514 waits, 11 failures\n"
            "7640 calls, 160362385 ns, digests e267b9ed3298e3a1 4ae80fd369b8a03d");
  EXPECT_EQ(figures_of({.options = {.limit = 176_MiB, .reuse = ReusePolicy::no_wait},
                        .faults_percent = 60}),
            "reserved 184549376, leased 184549376, mapped 962592768, live 167742464\n"
            "1381 blocks, 165 pages, 1112 mappings, 1112 unmapped, 0 waits, 93 failures\n"
            "12374 calls, 249849285 ns, digests 7bead46bf81b9f01 9ffba4d8ec885688");
  EXPECT_EQ(figures_of(
                {.options = {.limit = 200_MiB, .memory = MemoryKind::plain}, .faults_percent = 60}),
            "reserved 209715200, leased 209715200, mapped 209715200, live 167771648\n"
            "1282 blocks, 16 pages, 16 mappings, 16 unmapped, 268 waits, 168 failures\n"
            "4785 calls, 180067302 ns, digests 64ed479ba11cf3e5 2ccc0f043a251f2a");
  EXPECT_EQ(
      figures_of({.options = {.trust = Trust::context}, .tells = false, .faults_percent = 30}),
      "reserved 228589568, leased 205520896, mapped 1931476992, live 167769088\n"
      "1447 blocks, 64 pages, 558 mappings, 558 unmapped, 288 waits, 12 failures\n"
      "10081 calls, 158078938 ns, digests 7c7575a557cc4f05 670f464d94ff32bd");
  EXPECT_EQ(figures_of({.pools = true, .faults_percent = 30}),
            "reserved 255852544, leased 243269632, mapped 1461714944, live 213843968\n"
            "2489 blocks, 247 pages, 1513 mappings, 1513 unmapped, 559 waits, 13 failures\n"
            "48979 calls, 263892219 ns, digests b933309ba9ba2921 159955bdfaaa2fdc");
  EXPECT_EQ(figures_of({.options = {.trust = Trust::context},
                        .pools = true,
                        .tells = false,
                        .faults_percent = 30}),
            "reserved 1073741824, leased 224395264, mapped 2030043136, live 199386112\n"
            "1420 blocks, 990 pages, 1216 mappings, 1216 unmapped, 229 waits, 943 failures\n"
            "41104 calls, 249577542 ns, digests a23be6ff474af062 5d0583d7e52cf7b7");
  EXPECT_EQ(figures_of({.pools = true, .sleeps = true, .faults_percent = 30}),
            "reserved 253755392, leased 243269632, mapped 975175680, live 215998976\n"
            "2000 blocks, 2544 pages, 7310 mappings, 7310 unmapped, 491 waits, 23 failures\n"
            "52848 calls, 676223561 ns, digests 4a0f7b6187a4f40d 7390077a66305aba");
}

}  // namespace
}  // namespace weir
