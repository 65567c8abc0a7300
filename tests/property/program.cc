// SPDX-License-Identifier: Apache-2.0
#include "tests/property/program.h"

#include <algorithm>
#include <array>
#include <bit>
#include <sstream>

#include "tests/splitmix.h"

namespace weir::test {
namespace {

using Kind = Operation::Kind;

class Random : public SplitMix {
 public:
  using SplitMix::SplitMix;
  // From 1 to `most`, every power of two as likely as the next.
  std::uint64_t log_uniform(std::uint64_t most) {
    const auto bits = static_cast<std::uint64_t>(std::bit_width(most));
    const std::uint64_t top = std::uint64_t{1} << below(bits);
    return std::min(most, top + next() % top);
  }
};

Bytes random_size(Random& random, Bytes memory) {
  const std::array odd = {0_B,         1_B,           511_B,      512_B,
                          513_B,       1_MiB,         2_MiB,      2_MiB - 1_B,
                          2_MiB + 1_B, 4_MiB + 512_B, memory / 2, memory - 2_MiB,
                          memory,      memory + 1_B,  4_TiB};
  if (random.chance(6)) return odd[random.below(odd.size())];
  return {random.log_uniform(std::min(256_MiB, memory / 3).count)};
}

// How often each kind comes, out of the sum.
struct Weight {
  Kind kind;
  std::uint32_t weight;
};
constexpr std::array kWeights = {Weight{Kind::allocate, 300},   Weight{Kind::launch, 260},
                                 Weight{Kind::fence, 60},       Weight{Kind::record_stream, 30},
                                 Weight{Kind::deallocate, 250}, Weight{Kind::misuse, 10},
                                 Weight{Kind::trim, 15},        Weight{Kind::set_limit, 10},
                                 Weight{Kind::retire, 8},       Weight{Kind::advance, 57}};

// Of a program that sleeps, out of the sum above and these.
constexpr std::uint32_t kSleeps = 30, kWakes = 60;

Kind random_kind(Random& random, const ProgramShape& shape) {
  const bool retires = shape.retires;
  std::uint32_t sum = 0;
  for (const Weight& w : kWeights) sum += w.weight;
  if (shape.sleeps && random.below(sum + kSleeps + kWakes) >= sum) {
    return random.below(kSleeps + kWakes) < kSleeps ? Kind::sleep : Kind::wake;
  }
  auto at = static_cast<std::uint32_t>(random.below(sum));
  for (const Weight& w : kWeights) {
    if (at < w.weight) return w.kind == Kind::retire && !retires ? Kind::advance : w.kind;
    at -= w.weight;
  }
  return Kind::advance;
}

// Which blocks the program believes to be live: all that it allocated and did not deallocate.
class LiveIds {
 public:
  std::uint32_t add() { return live_.push_back(next_), next_++; }
  bool empty() const { return live_.empty(); }
  std::uint32_t pick(std::uint64_t n) const { return live_[n % live_.size()]; }
  void remove(std::uint32_t id) { std::erase(live_, id); }

 private:
  std::vector<std::uint32_t> live_;
  std::uint32_t next_ = 0;
};

void name_block(Operation& operation, LiveIds& live, std::uint64_t choice) {
  if (operation.kind == Kind::allocate) {
    operation.id = live.add();
    return;
  }
  if (live.empty()) {
    operation.kind = Kind::advance;
    return;
  }
  operation.id = live.pick(choice);
  if (operation.kind == Kind::deallocate) live.remove(operation.id);
}

const char* name_of_kind(Kind kind) {
  static constexpr std::array<const char*, Operation::kKinds> kNames = {
      "allocate", "launch",    "fence",  "record_stream", "deallocate", "misuse",
      "trim",     "set_limit", "retire", "advance",       "sleep",      "wake"};
  return kNames[static_cast<std::size_t>(kind)];
}

}  // namespace

std::string describe(const Operation& operation) {
  std::ostringstream text;
  text << name_of_kind(operation.kind) << " block=" << operation.id
       << " stream=" << operation.stream << " bytes=" << operation.bytes.count
       << " ns=" << operation.duration.count << (operation.write ? " write" : "")
       << (operation.all ? " all" : "");
  return text.str();
}

std::string describe(const Program& program) {
  std::ostringstream text;
  text << "seed " << program.seed << ": " << program.streams << " streams, memory "
       << program.memory.count << ", limit " << program.limit.count << ", reuse "
       << static_cast<int>(program.reuse) << ", mappings " << program.most_mappings << ", "
       << program.operations.size() << " operations"
       << (program.kind == MemoryKind::plain ? ", plain memory" : "") << "\n";
  for (const Operation& operation : program.operations) text << "  " << describe(operation) << "\n";
  return text.str();
}

Program random_program(std::uint64_t seed, const ProgramShape& shape) {
  Random random(seed);
  Program program;
  program.seed = seed;
  program.kind = shape.kind;
  program.streams = static_cast<std::uint32_t>(1 + random.below(shape.most_streams));
  const std::uint64_t least = shape.least_memory / 2_MiB;
  const std::uint64_t room = shape.most_memory / 2_MiB - least;
  program.memory = 2_MiB * (least + random.log_uniform(room + 1) - 1);
  if (random.chance(50)) program.limit = program.memory * (30 + random.below(80)) / 100;
  program.reuse = random.below(2) == 0 ? ReusePolicy::wait : ReusePolicy::balanced;
  // At times so few that they are reached.
  const std::uint64_t pages = program.memory / 2_MiB;
  if (random.chance(25)) program.most_mappings = 4 + random.below(pages);

  LiveIds live;
  while (program.operations.size() < shape.operations) {
    Operation operation;
    operation.kind = random_kind(random, shape);
    operation.stream = static_cast<std::uint32_t>(random.below(program.streams));
    operation.write = random.chance(60);
    operation.all = random.chance(30);
    operation.duration = {static_cast<std::int64_t>(random.log_uniform(5'000'000))};
    if (operation.kind == Kind::allocate) operation.bytes = random_size(random, program.memory);
    if (operation.kind == Kind::trim && random.chance(50)) {
      operation.bytes = {random.next() % program.memory.count};
    }
    if (operation.kind == Kind::set_limit && random.chance(80)) {
      operation.bytes = program.memory * (20 + random.below(90)) / 100;
    }
    const bool names_block = operation.kind <= Kind::misuse;
    if (names_block) name_block(operation, live, random.next());
    program.operations.push_back(operation);
  }
  return program;
}

Program decode_program(std::span<const std::uint8_t> bytes) {
  constexpr std::size_t kHeader = 3, kOperation = 4;
  Program program;
  program.memory = 64_MiB;
  if (bytes.size() < kHeader) return program;
  program.streams = 1 + bytes[0] % 6;
  program.memory = 2_MiB * (8 + bytes[1]);
  program.reuse = bytes[2] % 2 == 0 ? ReusePolicy::wait : ReusePolicy::balanced;
  if (bytes[2] & 0x80) program.limit = program.memory * 3 / 4;

  // Four bytes an operation: kind, stream and flags, a number in eight bits of exponent and eight
  // of fraction. Far fewer programs than can be written down, but each byte means something.
  LiveIds live;
  for (bytes = bytes.subspan(kHeader); bytes.size() >= kOperation;
       bytes = bytes.subspan(kOperation)) {
    Operation operation;
    operation.kind = static_cast<Kind>(bytes[0] % Operation::kKindsAwake);
    operation.stream = (bytes[1] & 0x0f) % program.streams;
    operation.write = (bytes[1] & 0x10) != 0;
    operation.all = (bytes[1] & 0x20) != 0;
    const std::uint64_t number = (std::uint64_t{256} + bytes[3]) << (bytes[2] % 24) >> 4;
    operation.duration = {static_cast<std::int64_t>(number)};
    operation.bytes = {(bytes[1] & 0x40) != 0 ? number / 512 * 512 : number};
    if ((bytes[1] & 0x80) != 0) operation.bytes = {};
    if (operation.kind == Kind::set_limit && operation.bytes > 0_B) operation.bytes += 8_MiB;
    if (operation.kind <= Kind::misuse) name_block(operation, live, bytes[2] * 256u + bytes[3]);
    program.operations.push_back(operation);
  }
  return program;
}

}  // namespace weir::test
