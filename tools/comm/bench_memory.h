// What the benchmark sends from and receives into: blocks of the heap, or of a registered pool.
#pragma once

#include <optional>
#include <vector>

#include "comm/ranks.h"
#include "weir/comm/registered_pool.h"

namespace weir {

class BenchMemory {
 public:
  // Twice `most`. Registered: with both communicators. Errors: those of the allocations.
  static Result<BenchMemory> allocate(BenchRank& rank, Bytes most, bool registered);
  BenchMemory(BenchMemory&& other) noexcept;
  ~BenchMemory() { (void)free(); }

  std::byte* send() const { return static_cast<std::byte*>(places_[0]); }
  std::byte* receive() const { return static_cast<std::byte*>(places_[1]); }
  // Nothing uses it any more. Its error, which the end of the scope would not tell.
  Status free();

 private:
  explicit BenchMemory(BenchRank& rank) : rank_(&rank) {}
  Status take_blocks(Bytes most);
  Status take_registered(Bytes most);

  BenchRank* rank_;
  void* places_[2] = {};
  std::optional<RegisteredPool> pool_;
  std::vector<RegistrationHandle> raw_;  // with BenchRank::raw
};

}  // namespace weir
