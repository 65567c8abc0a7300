// SPDX-License-Identifier: Apache-2.0
// What every worker of a soak can do: random choices, calls that may be made to fail and are then
// made again, blocks that are used by the rules.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/soak/world.h"

namespace weir::soak {

// One thread's part. Everything that it chooses follows from its seed and from what the calls say.
// Threads: step() in the worker's own; the rest, while nobody is in step(), in any.
class Worker {
 public:
  Worker(World& world, std::string name, std::uint64_t seed)
      : world_(world), name_(std::move(name)), random_(seed) {}
  virtual ~Worker() = default;
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  virtual void step() = 0;
  // Gives everything back.
  virtual void drop_all() = 0;
  // Adds its live blocks.
  virtual void list(std::vector<const Block*>& blocks) const = 0;
  // All memory slept, and is awake again.
  virtual void woke() {}

  const std::string& name() const { return name_; }
  std::uint64_t faults() const { return faults_.load(std::memory_order_relaxed); }

 protected:
  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  bool chance(unsigned percent) { return below(100) < percent; }
  template <class T>
  T& any(std::vector<T>& of) {
    return of[below(of.size())];
  }
  Nanoseconds delay() {
    return chance(60) ? 0_ns : Nanoseconds{static_cast<std::int64_t>(below(20'000))};
  }
  void complain(const std::string& what) { world_.complain(name_, what); }
  // Complains unless it went well.
  template <class Outcome>
  bool expect(const char* call, const Outcome& outcome) {
    if (outcome.ok()) return true;
    complain(std::string(call) + ": " + outcome.error().message());
    return false;
  }

  // Makes the call; now and then a call of the device within it fails. Where that was so and the
  // call failed, it is made again: it has changed nothing.
  template <class Call>
  auto attempt(Call&& call) -> decltype(call()) {
    for (int tries = 0;; ++tries) {
      std::optional<LedgerDevice::Fault> fault;
      if (world_.faults && tries < 3 && below(50) == 0) fault.emplace(1 + below(8));
      auto outcome = call();
      if (!fault || !fault->hit()) return outcome;
      faults_.fetch_add(1, std::memory_order_relaxed);
      if (outcome.ok()) return outcome;
    }
  }

  // 1 B to 16 MiB, small ones most often, and the sizes about which policies change.
  Bytes random_size();
  // None: out of memory, as the limit may be low. The block is written.
  std::optional<Block> allocate(Bytes bytes, Stream stream, const AllocateOptions& options = {});
  void write(Block& block, Stream stream);
  void check(const Block& block, Stream stream);
  // After what `earlier` has so far comes what `later` has from now on.
  void order(Stream earlier, Stream later);
  // Fences for its users, and the block goes back.
  void fence_users(Block& block);
  void free(Block block);
  void forget(const Block& block) { world_.ranges.erase(block); }
  std::optional<Stream> new_stream();
  void end_stream(Stream stream);

  // Tags sleep, and wake. `meanwhile` is called while they sleep. False: a stream is being
  // captured, or the host has no memory: they did not sleep.
  template <class Meanwhile>
  bool sleep_and_wake(const SleepOptions& options, Meanwhile&& meanwhile) {
    if (!fall_asleep(options)) return false;
    meanwhile();
    wake(options.tags);
    return true;
  }
  // What a block holds once its tag slept with these contents.
  static void note_slept(Block& block, SleepContents contents);
  SleepContents contents_of(const std::string& tag) const;

  World& world_;

 private:
  bool fall_asleep(const SleepOptions& options);
  void wake(const std::vector<std::string>& tags);

  const std::string name_;
  std::mt19937_64 random_;
  std::atomic<std::uint64_t> faults_ = 0;
};

}  // namespace weir::soak
