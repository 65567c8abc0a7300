// SPDX-License-Identifier: Apache-2.0
// Programs that never repeat: sizes from a continuous range, blocks freed at random, several
// streams and threads, over a long history. A recorded program repeats its steps, so an allocator
// that remembers past requests serves most of a recorded program from memory of itself; it serves
// none of these that way.
//
// A family is one kind of program. Its calls follow from the family, a seed and a length alone, not
// from the allocator or the machine, so every benchmark and every allocator runs the same calls.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "weir/types.h"

namespace weir::bench {

inline constexpr std::uint64_t kIrregularSeed = 20261123;

// Which block is replaced next.
enum class Order : std::uint8_t {
  random,
  queue,    // the one allocated longest ago; the first stream uses it, the others allocate
  stack,    // the newest ones are freed, up to half of all; then as many others are allocated
  growing,  // a random one, by a larger one, which is allocated first: a cache that is appended to
};

struct Family {
  const char* name;    // in results; unique
  const char* title;   // for tables
  Bytes least, most;   // of a block; log-uniform between them, to the byte
  unsigned streams;    // of each thread; no two threads share a stream
  std::uint32_t live;  // most live blocks of each thread
  unsigned sizes = 0;  // distinct sizes, drawn once from the range; 0: any size
  unsigned threads = 1;
  double used_elsewhere = 0;  // share of blocks that another stream of the thread uses
  // Zero: the history itself is measured. Otherwise "turns" are, after a history that is not: one
  // block of this size is allocated, used by another stream and freed, again and again.
  Bytes turn = 0_B;
  Order order = Order::random;
  // Where not 1: sizes are drawn from this share of the octaves, which moves up and down the range.
  double window = 1;

  unsigned all_streams() const { return streams * threads; }
};

std::span<const Family> families();
const Family* find_family(std::string_view name);  // null: there is none

struct HistoryLength {
  unsigned phases = 30;  // measured ones; results show the first apart from the others
  // Allocations and frees of a phase, of all threads together. A phase of turns has an eighth.
  unsigned pairs = 4096;
};

// One call that a program makes of its allocator.
struct Call {
  enum class Kind : std::uint8_t {
    allocate,
    use,  // work queued so far on `user` uses the block, which the next call frees
    free,
  };
  Kind kind;
  std::uint8_t stream;  // the block's own
  std::uint8_t user;    // another one; without meaning unless `kind` is use
  std::uint32_t slot;   // which block: its place in an array of History::slots() blocks
  std::uint64_t bytes;  // of the block
  friend bool operator==(const Call&, const Call&) = default;
};

// The calls of one thread. A phase draws how many blocks are live in it (three quarters of
// Family::live to all of it), allocates or frees random blocks until that many are, and then
// replaces blocks in the family's order.
class ThreadProgram {
 public:
  ThreadProgram(const Family& family, unsigned thread, std::uint64_t seed,
                std::span<const std::uint64_t> sizes);

  void add_phase(unsigned pairs, std::vector<Call>& calls);
  void add_turns(unsigned turns, std::vector<Call>& calls);
  void add_frees(std::vector<Call>& calls);  // of all live blocks

 private:
  struct Block {
    std::uint64_t bytes;
    std::uint8_t stream;
    std::uint8_t user;  // == stream: no other stream uses it
  };

  Block draw_block();
  std::uint64_t draw_size();
  // Each returns how many pairs that were.
  unsigned replace_newest(unsigned most, std::vector<Call>& calls);
  unsigned grow_one(std::vector<Call>& calls);
  unsigned replace_one(std::vector<Call>& calls);
  std::uint8_t stream_number(unsigned stream) const;
  std::uint32_t place(std::uint32_t slot) const;  // among the slots of all threads
  void allocate(std::uint32_t slot, const Block& block, std::vector<Call>& calls);
  void free(std::uint32_t slot, std::vector<Call>& calls) const;

  const Family& family_;
  const unsigned thread_;
  const std::span<const std::uint64_t> sizes_;
  std::mt19937_64 random_;
  std::vector<Block> blocks_;  // by slot of this thread
  // Slots: the first live_ are those of live blocks. The last is free, for who needs one more.
  std::vector<std::uint32_t> order_;
  std::uint32_t live_ = 0;
  std::uint32_t oldest_ = 0;  // in order_, of a queue
  unsigned phase_ = 0;
};

// A program of the family, phase by phase.
class History {
 public:
  using Calls = std::vector<std::vector<Call>>;  // by thread

  History(const Family& family, std::uint64_t seed, HistoryLength length);

  const Family& family() const { return family_; }
  std::size_t slots() const;
  unsigned phases() const;          // with those before the first that is measured
  unsigned first_measured() const;  // 0, but for families of turns

  // The calls of the next phase, of phases() in all. Valid until the next call of next().
  const Calls& next();
  const Calls& calls() const { return calls_; }  // those that next() or frees() gave last
  // Frees what is live, once the phases are over.
  const Calls& frees();

  // Most bytes that were live at once so far, as asked for. Threads count as if they took turns, a
  // call each.
  Bytes peak_live() const { return {peak_live_}; }

 private:
  template <class Add>
  const Calls& collect(Add add);

  const Family& family_;
  const HistoryLength length_;
  std::vector<std::uint64_t> sizes_;  // the distinct ones; empty: any
  std::vector<ThreadProgram> threads_;
  Calls calls_;
  unsigned next_phase_ = 0;
  std::uint64_t live_ = 0, peak_live_ = 0;
};

// Half the allocations and frees of all threads.
double pairs_of(const History::Calls& calls);

// The calls of all threads in one row: each thread's first call, each one's second, and so on.
std::vector<Call> taking_turns(const History::Calls& calls);

}  // namespace weir::bench
