// SPDX-License-Identifier: Apache-2.0
#include "suite/irregular_families.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <numeric>
#include <utility>

namespace weir::bench {
namespace {

constexpr unsigned kTurnsShare = 8;  // a phase of turns has an eighth of a phase's pairs
constexpr std::uint64_t kThreadStep = 0x9e3779b97f4a7c15;  // seeds of threads lie far apart

constexpr std::array kFamilies = {
    Family{.name = "256K-32M",
           .title = "256 KiB to 32 MiB, 4 streams, 512 live",
           .least = 256_KiB,
           .most = 32_MiB,
           .streams = 4,
           .live = 512},
    Family{.name = "256K-32M.used",
           .title = "the same, 20 % used by another stream",
           .least = 256_KiB,
           .most = 32_MiB,
           .streams = 4,
           .live = 512,
           .used_elsewhere = 0.2},
    Family{.name = "64K-4M",
           .title = "64 KiB to 4 MiB, 8 streams, 2,048 live",
           .least = 64_KiB,
           .most = 4_MiB,
           .streams = 8,
           .live = 2048},
    Family{.name = "2M-128M",
           .title = "2 MiB to 128 MiB, 2 streams, 128 live",
           .least = 2_MiB,
           .most = 128_MiB,
           .streams = 2,
           .live = 128},
    Family{.name = "1M-64M.sizes",
           .title = "40 sizes of 1 MiB to 64 MiB, 6 streams, 256 live",
           .least = 1_MiB,
           .most = 64_MiB,
           .streams = 6,
           .live = 256,
           .sizes = 40},
    Family{.name = "1K-200K",
           .title = "1 KiB to 200 KiB, 3 streams, 4,096 live",
           .least = 1_KiB,
           .most = 200_KiB,
           .streams = 3,
           .live = 4096},
    Family{.name = "300K-3M.threads8",
           .title = "300 KiB to 3 MiB, 8 threads, a stream and 64 live each",
           .least = 300_KiB,
           .most = 3_MiB,
           .streams = 1,
           .live = 64,
           .threads = 8},
    Family{.name = "300K-3M.threads16",
           .title = "300 KiB to 3 MiB, 16 threads, a stream and 64 live each",
           .least = 300_KiB,
           .most = 3_MiB,
           .streams = 1,
           .live = 64,
           .threads = 16},
    Family{.name = "8M.turns",
           .title = "8 MiB, used by another stream, free: after 256 KiB to 32 MiB",
           .least = 256_KiB,
           .most = 32_MiB,
           .streams = 4,
           .live = 512,
           .used_elsewhere = 0.2,
           .turn = 8_MiB},
    Family{.name = "100M-900M",
           .title = "100 MiB to 900 MiB, 2 streams, 24 live",
           .least = 100_MiB,
           .most = 900_MiB,
           .streams = 2,
           .live = 24},
    Family{.name = "1M-128M.drift",
           .title = "1 MiB to 128 MiB that drift, 4 streams, 256 live",
           .least = 1_MiB,
           .most = 128_MiB,
           .streams = 4,
           .live = 256,
           .window = 0.25},
    Family{.name = "1M-64M.queue",
           .title = "a queue of 1 MiB to 64 MiB, made on 4 streams, used on a fifth, 64 live",
           .least = 1_MiB,
           .most = 64_MiB,
           .streams = 5,
           .live = 64,
           .used_elsewhere = 1,
           .order = Order::queue},
    Family{.name = "1M-256M.growing",
           .title = "caches that grow from 1 MiB to 256 MiB, 1 stream, 64 live",
           .least = 1_MiB,
           .most = 256_MiB,
           .streams = 1,
           .live = 64,
           .order = Order::growing},
    Family{.name = "1M-64M.stack",
           .title = "1 MiB to 64 MiB, a stack, 1 stream, 128 live",
           .least = 1_MiB,
           .most = 64_MiB,
           .streams = 1,
           .live = 128,
           .order = Order::stack},
    Family{
        .name = "300K-3M.threads8x2",
        .title = "300 KiB to 3 MiB, 8 threads, 2 streams and 64 live each, 20 % used by the other",
        .least = 300_KiB,
        .most = 3_MiB,
        .streams = 2,
        .live = 64,
        .threads = 8,
        .used_elsewhere = 0.2},
};

// From 0 to 1, of 53 random bits: the library's distributions differ between systems.
double unit(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1p-53; }

std::uint32_t below(std::mt19937_64& random, std::uint32_t n) {
  return static_cast<std::uint32_t>(random() % n);
}

// `above`, `share`: the part of the range's octaves that it lies in.
std::uint64_t draw_size(const Family& family, std::mt19937_64& random, double above = 0,
                        double share = 1) {
  const auto least = static_cast<double>(family.least.count);
  const double octaves = std::log2(static_cast<double>(family.most.count) / least);
  return static_cast<std::uint64_t>(least * std::exp2(octaves * (above + share * unit(random))));
}

// One more than there are live blocks: the last is for turns.
std::uint32_t slots_of_thread(const Family& family) { return family.live + 1; }

}  // namespace

std::span<const Family> families() { return kFamilies; }

const Family* find_family(std::string_view name) {
  const auto found =
      std::ranges::find_if(kFamilies, [&](const Family& family) { return family.name == name; });
  return found == kFamilies.end() ? nullptr : &*found;
}

ThreadProgram::ThreadProgram(const Family& family, unsigned thread, std::uint64_t seed,
                             std::span<const std::uint64_t> sizes)
    : family_(family),
      thread_(thread),
      sizes_(sizes),
      random_(seed + kThreadStep * (thread + 1)),
      blocks_(slots_of_thread(family)),
      order_(slots_of_thread(family)) {
  std::iota(order_.begin(), order_.end(), 0U);
}

void ThreadProgram::add_phase(unsigned pairs, std::vector<Call>& calls) {
  const std::uint32_t fewest = family_.live - family_.live / 4;
  const std::uint32_t target = fewest + below(random_, family_.live - fewest + 1);
  while (live_ < target) allocate(order_[live_++], draw_block(), calls);
  while (live_ > target) {
    std::swap(order_[below(random_, live_)], order_[live_ - 1]);
    free(order_[--live_], calls);
  }
  for (unsigned made = 0; made < pairs;) {
    switch (family_.order) {
      case Order::random:
      case Order::queue:
        made += replace_one(calls);
        break;
      case Order::stack:
        made += replace_newest(pairs - made, calls);
        break;
      case Order::growing:
        made += grow_one(calls);
        break;
    }
  }
  ++phase_;
}

unsigned ThreadProgram::replace_one(std::vector<Call>& calls) {
  const bool is_queue = family_.order == Order::queue;
  const std::uint32_t slot = order_[is_queue ? oldest_++ % live_ : below(random_, live_)];
  free(slot, calls);
  allocate(slot, draw_block(), calls);
  return 1;
}

unsigned ThreadProgram::replace_newest(unsigned most, std::vector<Call>& calls) {
  const std::uint32_t count = std::min(most, 1 + below(random_, live_ / 2));
  const std::uint32_t all = live_;
  while (live_ > all - count) free(order_[--live_], calls);
  while (live_ < all) allocate(order_[live_++], draw_block(), calls);
  return count;
}

unsigned ThreadProgram::grow_one(std::vector<Call>& calls) {
  std::uint32_t& slot = order_[below(random_, live_)];
  Block larger = draw_block();
  // By an eighth to a quarter; a cache that is full makes place for another.
  const std::uint64_t bytes = blocks_[slot].bytes;
  const std::uint64_t grown = bytes + bytes / 8 + random_() % (bytes / 8);
  if (grown <= family_.most.count) larger.bytes = grown;
  allocate(order_.back(), larger, calls);
  free(slot, calls);
  std::swap(slot, order_.back());
  return 1;
}

void ThreadProgram::add_turns(unsigned turns, std::vector<Call>& calls) {
  using Kind = Call::Kind;
  for (unsigned i = 0; i < turns; ++i) {
    for (const Kind kind : {Kind::allocate, Kind::use, Kind::free}) {
      calls.push_back(
          {kind, stream_number(0), stream_number(1), place(family_.live), family_.turn.count});
    }
  }
}

void ThreadProgram::add_frees(std::vector<Call>& calls) {
  while (live_ > 0) free(order_[--live_], calls);
}

ThreadProgram::Block ThreadProgram::draw_block() {
  Block block{};
  block.bytes = sizes_.empty() ? draw_size()
                               : sizes_[below(random_, static_cast<std::uint32_t>(sizes_.size()))];
  if (family_.order == Order::queue) {
    block.stream = stream_number(1 + below(random_, family_.streams - 1));
    block.user = stream_number(0);
    return block;
  }
  const unsigned stream = below(random_, family_.streams);
  block.stream = block.user = stream_number(stream);
  if (unit(random_) < family_.used_elsewhere) {
    block.user =
        stream_number((stream + 1 + below(random_, family_.streams - 1)) % family_.streams);
  }
  return block;
}

std::uint64_t ThreadProgram::draw_size() {
  constexpr unsigned kPhasesUp = 16;  // and as many down
  const double position = std::abs(1.0 - (phase_ % (2 * kPhasesUp)) / double{kPhasesUp});
  return bench::draw_size(family_, random_, (1 - family_.window) * (1 - position), family_.window);
}

std::uint8_t ThreadProgram::stream_number(unsigned stream) const {
  return static_cast<std::uint8_t>(thread_ * family_.streams + stream);
}

std::uint32_t ThreadProgram::place(std::uint32_t slot) const {
  return thread_ * slots_of_thread(family_) + slot;
}

void ThreadProgram::allocate(std::uint32_t slot, const Block& block, std::vector<Call>& calls) {
  blocks_[slot] = block;
  calls.push_back({Call::Kind::allocate, block.stream, block.user, place(slot), block.bytes});
}

void ThreadProgram::free(std::uint32_t slot, std::vector<Call>& calls) const {
  const Block& block = blocks_[slot];
  if (block.user != block.stream) {
    calls.push_back({Call::Kind::use, block.stream, block.user, place(slot), block.bytes});
  }
  calls.push_back({Call::Kind::free, block.stream, block.user, place(slot), block.bytes});
}

History::History(const Family& family, std::uint64_t seed, HistoryLength length)
    : family_(family), length_(length), calls_(family.threads) {
  std::mt19937_64 random(seed);
  for (unsigned i = 0; i < family.sizes; ++i) sizes_.push_back(draw_size(family, random));
  for (unsigned thread = 0; thread < family.threads; ++thread) {
    threads_.emplace_back(family, thread, seed, sizes_);
  }
}

std::size_t History::slots() const {
  return std::size_t{family_.threads} * slots_of_thread(family_);
}

unsigned History::phases() const { return first_measured() + length_.phases; }

unsigned History::first_measured() const { return family_.turn == 0_B ? 0 : length_.phases; }

const History::Calls& History::next() {
  assert(next_phase_ < phases());
  const bool turns = family_.turn != 0_B && next_phase_ >= first_measured();
  ++next_phase_;
  const unsigned pairs = std::max(1U, length_.pairs / family_.threads);
  return collect([&](ThreadProgram& thread, std::vector<Call>& calls) {
    if (turns) {
      thread.add_turns(std::max(1U, pairs / kTurnsShare), calls);
    } else {
      thread.add_phase(pairs, calls);
    }
  });
}

const History::Calls& History::frees() {
  return collect([](ThreadProgram& thread, std::vector<Call>& calls) { thread.add_frees(calls); });
}

template <class Add>
const History::Calls& History::collect(Add add) {
  for (std::size_t thread = 0; thread < threads_.size(); ++thread) {
    calls_[thread].clear();
    add(threads_[thread], calls_[thread]);
  }
  for (const Call& call : taking_turns(calls_)) {
    if (call.kind == Call::Kind::allocate) live_ += call.bytes;
    if (call.kind == Call::Kind::free) live_ -= call.bytes;
    peak_live_ = std::max(peak_live_, live_);
  }
  return calls_;
}

double pairs_of(const History::Calls& calls) {
  std::ptrdiff_t counted = 0;
  for (const std::vector<Call>& each : calls) {
    counted +=
        std::ranges::count_if(each, [](const Call& call) { return call.kind != Call::Kind::use; });
  }
  return static_cast<double>(counted) / 2;
}

std::vector<Call> taking_turns(const History::Calls& calls) {
  std::vector<Call> row;
  std::size_t longest = 0;
  for (const std::vector<Call>& each : calls) longest = std::max(longest, each.size());
  for (std::size_t i = 0; i < longest; ++i) {
    for (const std::vector<Call>& each : calls) {
      if (i < each.size()) row.push_back(each[i]);
    }
  }
  return row;
}

}  // namespace weir::bench
