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
    EXPECT_EQ(device_.live().graphs, 0u);
    EXPECT_EQ(device_.live().executables, 0u);
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

TEST(Goldens, OfTheBalancedPolicyUnderALimit) {
  EXPECT_EQ(figures_of({.options = {.limit = 176_MiB}}),
            "reserved 184549376, leased 184549376, mapped 3317694464, live 167763456\n"
            "1340 blocks, 55 pages, 951 mappings, 951 unmapped, 532 waits, 122 failures\n"
            "8576 calls, 164388011 ns, digests 2555efb2ab7db545 78b89273c749752d");
}

TEST(Goldens, OfGraphPoolsWhereUsesAreNotToldAndCallsOfTheDeviceFail) {
  EXPECT_EQ(figures_of({.options = {.trust = Trust::context},
                        .pools = true,
                        .tells = false,
                        .faults_percent = 30}),
            "reserved 1073741824, leased 241172480, mapped 1937768448, live 213785088\n"
            "1380 blocks, 949 pages, 1084 mappings, 1084 unmapped, 199 waits, 1045 failures\n"
            "49475 calls, 244975837 ns, digests 4e9c93c01ea18d7c 8875e812eff1a1e8");
}

TEST(Goldens, OfGraphPoolsAndSleepWhereCallsOfTheDeviceFail) {
  EXPECT_EQ(figures_of({.pools = true, .sleeps = true, .faults_percent = 30}),
            "reserved 253755392, leased 243269632, mapped 975175680, live 215998976\n"
            "2000 blocks, 2546 pages, 7322 mappings, 7322 unmapped, 489 waits, 23 failures\n"
            "52881 calls, 676694776 ns, digests 99721f2a9fba9091 11f329b0e957e47a");
}

// Whatever they come to: the heap is sound after each round, no use races with another, and all
// memory goes back.
TEST(Programs, OfEverySettingAreSound) {
  const Settings small{
      .most_live = 24_MiB, .largest = 2_MiB, .small_percent = 95, .rounds = 2, .steps = 1500};
  Settings small_under_a_limit = small;
  small_under_a_limit.options.limit = 26_MiB;
  const Settings all[] = {
      {.options = {.most_mappings = 120}},
      {.options = {.reuse = ReusePolicy::wait}},
      {.options = {.limit = 200_MiB, .reuse = ReusePolicy::no_wait}, .faults_percent = 60},
      small,
      small_under_a_limit,
      {.most_live = 900_MiB, .largest = 120_MiB, .rounds = 2, .steps = 1500},
      {.options = {.trust = Trust::context}, .tells = false, .faults_percent = 30},
      {.options = {.trust = Trust::context, .context_events = false}, .tells = false},
      {.options = {.memory = MemoryKind::plain}},
      {.options = {.limit = 200_MiB, .memory = MemoryKind::plain}, .faults_percent = 60},
      {.options = {.limit = 240_MiB}, .pools = true},
      {.sleeps = true}};
  for (const Settings& settings : all) {
    SCOPED_TRACE(&settings - all);
    (void)figures_of(settings);
  }
}

}  // namespace
}  // namespace weir
