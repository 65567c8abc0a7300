// SPDX-License-Identifier: Apache-2.0
// SplitMix64 (Steele, Lea & Flood 2014): the same numbers everywhere, unlike <random>'s
// distributions.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace weir::test {

class SplitMix {
 public:
  explicit SplitMix(std::uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 1) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  std::uint32_t below(std::uint64_t n) { return static_cast<std::uint32_t>(next() % n); }
  bool chance(std::uint32_t percent) { return below(100) < percent; }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[below(values.size())];
  }
  template <class Container>
  const typename Container::value_type& pick(const Container& container) {
    return container[below(container.size())];
  }

 private:
  std::uint64_t state_;
};

}  // namespace weir::test
