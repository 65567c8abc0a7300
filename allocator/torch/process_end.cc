#include "torch/process_end.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "observe/own_thread.h"

namespace weir::pytorch {
namespace {

constexpr std::uint64_t kNever = ~std::uint64_t{0};

std::atomic<std::uint64_t> used_in{kNever};  // a fork_generation()
std::atomic<bool> exits{false};

}  // namespace

void note_use_of_memory() {
  if (used_in.load(std::memory_order_relaxed) != kNever) [[likely]]
    return;
  std::uint64_t before = kNever;
  if (!used_in.compare_exchange_strong(before, fork_generation())) return;
  (void)std::atexit([] { exits.store(true, std::memory_order_relaxed); });
}

bool memory_is_gone() {
  const std::uint64_t used = used_in.load(std::memory_order_relaxed);
  return exits.load(std::memory_order_relaxed) || (used != kNever && used != fork_generation());
}

}  // namespace weir::pytorch
