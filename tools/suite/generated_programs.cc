// SPDX-License-Identifier: Apache-2.0
#include "suite/generated_programs.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

namespace weir::suite {
namespace {

using bench::HistoryLength;

constexpr std::int64_t kCallUs = 10;             // from one call to the next
constexpr std::int64_t kUseUs = 100;             // that another stream works on a block
constexpr std::int64_t kBetweenPhases = 10'000;  // microseconds

// Adds calls to a program, and keeps time.
class Calls {
 public:
  explicit Calls(Program& program) : program_(program) {}

  std::uint32_t allocate(std::uint64_t bytes, unsigned stream, unsigned pool = 0) {
    blocks_.push_back({bytes, stream, static_cast<std::uint8_t>(pool)});
    const auto block = static_cast<std::uint32_t>(blocks_.size() - 1);
    push(ProgramCall::Kind::allocate, block);
    program_.streams = std::max(program_.streams, stream + 1);
    program_.pools = std::max(program_.pools, pool);
    return block;
  }
  void use(std::uint32_t block, unsigned user) {
    push(ProgramCall::Kind::use, block);
    program_.calls.back().user = user;
    program_.calls.back().until_us = time_us_ + kUseUs;
    program_.streams = std::max(program_.streams, user + 1);
  }
  void free(std::uint32_t block) { push(ProgramCall::Kind::free, block); }
  void free_all(std::vector<std::uint32_t>& blocks) {
    for (const std::uint32_t block : blocks) free(block);
    blocks.clear();
  }
  void trim() { program_.calls.push_back({.time_us = time_us_ += kCallUs}); }
  void end_phase() { time_us_ += kBetweenPhases; }
  void finish() {
    program_.blocks = static_cast<std::uint32_t>(blocks_.size());
    program_.end_us = time_us_;
  }

 private:
  struct Block {
    std::uint64_t bytes;
    std::uint32_t stream;
    std::uint8_t pool;
  };

  void push(ProgramCall::Kind kind, std::uint32_t block) {
    time_us_ += kCallUs;
    program_.calls.push_back({.kind = kind,
                              .pool = blocks_[block].pool,
                              .stream = blocks_[block].stream,
                              .block = block,
                              .bytes = blocks_[block].bytes,
                              .time_us = time_us_});
  }

  Program& program_;
  std::vector<Block> blocks_;
  std::int64_t time_us_ = 0;
};

class Random {
 public:
  explicit Random(std::uint64_t seed) : random_(seed) {}
  std::uint32_t below(std::uint32_t n) { return static_cast<std::uint32_t>(random_() % n); }
  // Log-uniform, to the byte. (The library's distributions differ between systems.)
  std::uint64_t size(Bytes least, Bytes most) {
    const double unit = static_cast<double>(random_() >> 11) * 0x1p-53;
    const auto low = static_cast<double>(least.count);
    const double octaves = std::log2(static_cast<double>(most.count) / low);
    return static_cast<std::uint64_t>(low * std::exp2(octaves * unit));
  }
  std::vector<std::uint64_t> sizes(unsigned count, Bytes least, Bytes most) {
    std::vector<std::uint64_t> sizes(count);
    for (std::uint64_t& each : sizes) each = size(least, most);
    return sizes;
  }
  // Takes a random one out of `blocks`.
  std::uint32_t take(std::vector<std::uint32_t>& blocks) {
    std::swap(blocks[below(static_cast<std::uint32_t>(blocks.size()))], blocks.back());
    const std::uint32_t block = blocks.back();
    blocks.pop_back();
    return block;
  }

 private:
  std::mt19937_64 random_;
};

Program irregular(const GeneratedFamily& family, std::uint64_t seed, HistoryLength length) {
  Program program;
  bench::History history(*bench::find_family(family.name), seed, length);
  Calls calls(program);
  std::vector<std::uint32_t> blocks(history.slots());
  const auto add = [&](const bench::History::Calls& phase) {
    for (const bench::Call& call : bench::taking_turns(phase)) {
      switch (call.kind) {
        case bench::Call::Kind::allocate:
          blocks[call.slot] = calls.allocate(call.bytes, call.stream);
          break;
        case bench::Call::Kind::use:
          calls.use(blocks[call.slot], call.user);
          break;
        case bench::Call::Kind::free:
          calls.free(blocks[call.slot]);
          break;
      }
    }
    calls.end_phase();
  };
  for (unsigned phase = 0; phase < history.phases(); ++phase) add(history.next());
  add(history.frees());
  calls.finish();
  return program;
}

// A model of which each phase has another shape: a forward pass keeps activations, a backward pass
// frees them, last one first; temporaries live for a few calls. Weights stay.
void phases(Calls& calls, Random& random, HistoryLength length) {
  constexpr unsigned kWeights = 64, kLayers = 48, kTemporaries = 3;
  std::vector<std::uint32_t> weights;
  for (unsigned i = 0; i < kWeights; ++i) {
    weights.push_back(calls.allocate(random.size(256_KiB, 64_MiB), 0));
  }
  const auto temporaries = [&](std::uint64_t bytes) {
    std::vector<std::uint32_t> some;
    for (unsigned i = 0; i < kTemporaries; ++i) some.push_back(calls.allocate(bytes >> i, 0));
    calls.free_all(some);
  };
  for (unsigned phase = 0; phase < length.phases; ++phase) {
    const unsigned layers = kLayers / 2 + random.below(kLayers);
    const std::vector<std::uint64_t> sizes = random.sizes(layers, 1_MiB, 96_MiB);
    const unsigned steps = std::max(1U, length.pairs / (layers * (1 + 2 * kTemporaries)));
    for (unsigned step = 0; step < steps; ++step) {
      std::vector<std::uint32_t> activations;
      for (const std::uint64_t bytes : sizes) {
        activations.push_back(calls.allocate(bytes, 0));
        temporaries(bytes);
      }
      for (unsigned layer = layers; layer-- > 0;) {
        temporaries(sizes[layer]);
        calls.free(activations[layer]);
      }
    }
    calls.end_phase();
  }
  calls.free_all(weights);
}

// Sessions with a pool each: a session's blocks are of its own sizes, grow in number, and go
// together. What is outside of pools is replaced at random meanwhile.
void pools(Calls& calls, Random& random, HistoryLength length) {
  constexpr unsigned kPools = 8, kShared = 128, kMostBlocks = 96;
  struct Session {
    std::vector<std::uint32_t> blocks;
    std::vector<std::uint64_t> sizes;
    unsigned wants = 0;
  };
  std::vector<Session> sessions(kPools);
  std::vector<std::uint32_t> shared;
  for (unsigned i = 0; i < kShared; ++i) {
    shared.push_back(calls.allocate(random.size(64_KiB, 16_MiB), 0));
  }
  for (unsigned phase = 0; phase < length.phases; ++phase) {
    for (unsigned pair = 0; pair < length.pairs; ++pair) {
      const unsigned pool = random.below(kPools + 1);
      if (pool == 0) {
        calls.free(random.take(shared));
        shared.push_back(calls.allocate(random.size(64_KiB, 16_MiB), 0));
        continue;
      }
      Session& session = sessions[pool - 1];
      if (session.blocks.size() == session.wants) {
        calls.free_all(session.blocks);
        session.wants = 8 + random.below(kMostBlocks);
        session.sizes = random.sizes(4, 128_KiB, 32_MiB);
      }
      const std::uint64_t bytes = session.sizes[random.below(4)];
      session.blocks.push_back(calls.allocate(bytes, 1 + (pool - 1) % 4, pool));
    }
    calls.end_phase();
  }
  for (Session& session : sessions) calls.free_all(session.blocks);
  calls.free_all(shared);
}

// Engines that share a GPU, one awake at a time. One that goes to sleep frees its weights and
// cache, keeps a few small blocks, and asks that idle memory goes back; it wakes with the same
// weights.
void sleepers(Calls& calls, Random& random, HistoryLength length) {
  constexpr unsigned kEngines = 3, kResidents = 24, kCache = 48;
  struct Engine {
    std::vector<std::uint64_t> weights;                 // sizes
    std::vector<std::uint32_t> awake, cache, resident;  // blocks
  };
  std::vector<Engine> engines(kEngines);
  for (Engine& engine : engines) {
    engine.weights = random.sizes(64 + random.below(64), 1_MiB, 64_MiB);
  }
  for (unsigned phase = 0; phase < length.phases; ++phase) {
    const unsigned stream = phase % kEngines;
    Engine& engine = engines[stream];
    for (const std::uint64_t bytes : engine.weights) {
      engine.awake.push_back(calls.allocate(bytes, stream));
    }
    for (unsigned pair = 0; pair < length.pairs; ++pair) {
      if (engine.cache.size() == kCache) calls.free(random.take(engine.cache));
      engine.cache.push_back(calls.allocate(random.size(256_KiB, 48_MiB), stream));
      // Its state, which it takes with it: blocks that lie between those that it gives up.
      if (pair % (length.pairs / kResidents + 1) == 0) {
        if (engine.resident.size() == kResidents) calls.free(random.take(engine.resident));
        engine.resident.push_back(calls.allocate(random.size(4_KiB, 256_KiB), stream));
      }
    }
    calls.free_all(engine.cache);
    calls.free_all(engine.awake);
    calls.trim();
    calls.end_phase();
  }
  for (Engine& engine : engines) calls.free_all(engine.resident);
}

// Set-up on a stream that is not used again, then training steps on another: what the first one
// freed serves them, or is lost. (As reported of Megatron-LM, in half the size: 20.5 GiB of 221.)
void side_stream(Calls& calls, Random& random, HistoryLength length) {
  constexpr unsigned kBuffers = 38, kLayers = 48, kWeights = 6;
  std::vector<std::uint32_t> buffers, weights;
  for (unsigned i = 0; i < kBuffers; ++i) {
    buffers.push_back(calls.allocate(random.size(128_MiB, 512_MiB), 1));
  }
  calls.free_all(buffers);
  for (unsigned i = 0; i < kLayers * kWeights; ++i) {
    weights.push_back(calls.allocate(random.size(64_MiB, 512_MiB), 0));
  }
  const std::vector<std::uint64_t> sizes = random.sizes(kLayers, 256_MiB, 2_GiB);
  for (unsigned phase = 0; phase < length.phases; ++phase) {
    for (unsigned step = 0; step < std::max(1U, length.pairs / (2 * kLayers)); ++step) {
      std::vector<std::uint32_t> activations;
      for (const std::uint64_t bytes : sizes) activations.push_back(calls.allocate(bytes, 0));
      for (; !activations.empty(); activations.pop_back()) {
        const std::uint32_t gradient = calls.allocate(sizes[activations.size() - 1], 0);
        calls.free(activations.back());
        calls.free(gradient);
      }
    }
    calls.end_phase();
  }
  calls.free_all(weights);
}

// A model is loaded in a pool that stays, and each layer's weights are then replaced by slightly
// larger ones. (As reported of vLLM's sleep mode: the pool ends with 71 GiB that nothing can use.)
void converted(Calls& calls, Random& random, HistoryLength length) {
  constexpr unsigned kLayers = 94, kWeights = 8, kScratch = 4;
  for (unsigned phase = 0; phase < length.phases; ++phase) {
    std::vector<std::uint32_t> weights;
    const std::vector<std::uint64_t> sizes = random.sizes(kWeights, 32_MiB, 192_MiB);
    for (unsigned i = 0; i < kLayers * kWeights; ++i) {
      weights.push_back(calls.allocate(sizes[i % kWeights], 0, 1));
    }
    for (std::uint32_t& weight : weights) {
      const std::uint64_t bytes = sizes[(&weight - weights.data()) % kWeights];
      std::vector<std::uint32_t> scratch;
      for (unsigned i = 0; i < kScratch; ++i) scratch.push_back(calls.allocate(bytes / 4, 0, 1));
      const std::uint32_t padded = calls.allocate(bytes + bytes / 32, 0, 1);
      calls.free(std::exchange(weight, padded));
      calls.free_all(scratch);
    }
    calls.free_all(weights);
    calls.end_phase();
  }
}

// The program that `kMakeCalls` makes the calls of.
template <void (*kMakeCalls)(Calls&, Random&, HistoryLength)>
Program of_calls(const GeneratedFamily&, std::uint64_t seed, HistoryLength length) {
  Program program;
  Calls calls(program);
  Random random(seed);
  kMakeCalls(calls, random, length);
  calls.finish();
  return program;
}

std::vector<GeneratedFamily> all_families() {
  std::vector<GeneratedFamily> families;
  for (const bench::Family& family : bench::families()) {
    families.push_back({family.name, family.title, &irregular});
  }
  families.push_back({"phases", "weights, and layers whose number and sizes change with each phase",
                      &of_calls<phases>});
  families.push_back(
      {"pools", "8 sessions, a pool each that goes as a whole, 5 streams", &of_calls<pools>});
  families.push_back(
      {"sleepers", "3 engines that sleep in turns, a stream each", &of_calls<sleepers>});
  families.push_back({"side-stream",
                      "set-up on a stream that is used once, then training on another",
                      &of_calls<side_stream>});
  families.push_back(
      {"converted", "weights in a pool, each replaced by a larger one", &of_calls<converted>});
  return families;
}

}  // namespace

std::span<const GeneratedFamily> generated_families() {
  static const std::vector<GeneratedFamily> kFamilies = all_families();
  return kFamilies;
}

Program generate(const GeneratedFamily& family, std::uint64_t seed, HistoryLength length) {
  Program program = family.generate(family, seed, length);
  program.name = family.name + ":" + std::to_string(seed);
  program.family = family.name;
  program.title = family.title;
  program.seed = seed;
  add_needs(program);
  return program;
}

}  // namespace weir::suite
