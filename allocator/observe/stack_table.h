// SPDX-License-Identifier: Apache-2.0
// Stacks as words, each numbered once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

namespace weir {

// Threads: self-synchronised. Two stacks are the same when a hash of 64 bits is.
class StackTable {
 public:
  using Words = std::span<const std::uintptr_t>;
  struct Known {
    std::uint64_t hash = 0;
    std::uint32_t number = 0;
  };
  // What one thread remembers, to find without a lock: a thread asks for few stacks again and
  // again.
  using Memory = std::array<Known, 256>;

  // From 1 on; 0: there are too many. `on_new` is called for a stack that has no number yet, with
  // no lock held, before it has one; of threads that meet, by each.
  template <class OnNew>
  std::uint32_t number_of(Words words, Memory& memory, OnNew&& on_new) {
    const std::uint64_t hash = hash_of(words);
    Known& known = memory[hash % memory.size()];
    if (known.hash == hash) return known.number;
    std::uint32_t number = find(hash);
    if (number == 0) {
      on_new();
      number = add(hash, words);
    }
    known = {hash, number};
    return number;
  }

  // Nothing, for no number of a stack.
  std::vector<std::uintptr_t> words_of(std::uint32_t number) const {
    const std::lock_guard lock(mutex_);
    if (number == 0 || number > stacks_.size()) return {};
    return stacks_[number - 1];
  }

  // Past this many different stacks, new ones are unknown.
  static constexpr std::size_t kMost = std::size_t{1} << 20;

 private:
  static std::uint64_t hash_of(Words words) {
    std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, a word at a time, then mixed
    for (const std::uintptr_t word : words) {
      hash = (hash ^ word) * 0x100000001b3;
      hash ^= hash >> 29;
    }
    return hash == 0 ? 1 : hash;
  }

  std::uint32_t find(std::uint64_t hash) const {
    const std::lock_guard lock(mutex_);
    const auto found = numbers_.find(hash);
    return found == numbers_.end() ? 0 : found->second;
  }

  std::uint32_t add(std::uint64_t hash, Words words) {
    const std::lock_guard lock(mutex_);
    if (const auto found = numbers_.find(hash); found != numbers_.end()) return found->second;
    if (stacks_.size() >= kMost) return 0;
    stacks_.emplace_back(words.begin(), words.end());
    return numbers_[hash] = static_cast<std::uint32_t>(stacks_.size());
  }

  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::uint32_t> numbers_;  // by hash; guarded by mutex_
  std::vector<std::vector<std::uintptr_t>> stacks_;           // guarded by mutex_
};

}  // namespace weir
