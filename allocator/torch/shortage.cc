// SPDX-License-Identifier: Apache-2.0
#include "torch/shortage.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

namespace weir::pytorch {
namespace {

// Of pools, as many are named.
constexpr std::size_t kMostNamed = 4;

// As PyTorch writes sizes in its own message.
std::string size_text(Bytes bytes) {
  const auto count = static_cast<double>(bytes.count);
  if (bytes <= 1_KiB) return fmt::format("{} bytes", bytes.count);
  if (bytes <= 1_MiB) return fmt::format("{:.2f} KiB", count / 1024);
  if (bytes <= 1_GiB) return fmt::format("{:.2f} MiB", count / (1024 * 1024));
  return fmt::format("{:.2f} GiB", count / (1024 * 1024 * 1024));
}

Bytes difference(Bytes a, Bytes b) { return a - std::min(a, b); }

struct PoolShare {
  Bytes held, live;
};

// The snapshot, summed up.
struct Sums {
  Bytes idle;                                // pages without bytes in use, outside pools
  Bytes in_between;                          // free bytes of pages in use, outside pools
  std::map<std::uint64_t, PoolShare> pools;  // by GraphPool::id()
  PoolShare of_pools;
};

Sums sums_of(const HeapSnapshot& held) {
  std::unordered_map<std::uint32_t, std::uint64_t> pool_of;
  for (const HeapInfo& heap : held.heaps) pool_of[heap.heap.value] = heap.pool;
  Sums sums;
  for (const PageInfo& page : held.pages) {
    // A pool's page is mapped for the pool's heaps alone.
    std::uint64_t pool = 0;
    if (page.lease) {
      pool = pool_of[page.lease->value];
    } else if (!page.mapped_at.empty()) {
      pool = pool_of[page.mapped_at.front().heap.value];
    }
    if (pool != 0) {
      sums.pools[pool].held += page.bytes;
      sums.of_pools.held += page.bytes;
    } else if (!page.lease) {
      sums.idle += page.bytes;
    } else {
      sums.in_between += difference(page.bytes, page.used);
    }
  }
  for (const BlockInfo& block : held.blocks) {
    if (block.pool == 0) continue;
    sums.pools[block.pool].live += block.bytes;
    sums.of_pools.live += block.bytes;
  }
  return sums;
}

// " Memory pools: a, b and 3 more.", the largest first.
std::string pools_text(const Shortage& shortage, const Sums& sums) {
  if (sums.pools.empty()) return "";
  std::vector<std::pair<std::uint64_t, PoolShare>> all(sums.pools.begin(), sums.pools.end());
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.second.held > b.second.held; });
  const std::size_t others = all.size() - std::min(all.size(), kMostNamed);
  all.resize(all.size() - others);
  std::string text, separator = " Memory pools: ";
  for (const auto& [id, share] : all) {
    const PoolId name = shortage.pool_of(id);
    const std::string who = name == PoolId{0, 0}
                                ? fmt::format("one that was released (pool {})", id)
                                : fmt::format("({}, {})", name.first, name.second);
    text += fmt::format("{}{} holds {}, {} of it live", std::exchange(separator, ", "), who,
                        size_text(share.held), size_text(share.live));
  }
  return text + (others > 0 ? fmt::format(" and {} more.", others) : ".");
}

// What this request could do with; nothing, if only what every program can do would help.
std::vector<std::string> remedies(const Shortage& shortage, const Sums& sums) {
  if (shortage.memory.total > 0_B && shortage.asked > shortage.memory.total) {
    return {"none: this is more than the whole GPU has"};
  }
  std::vector<std::string> all;
  const Bytes reserved{shortage.held.statistics.reserved_bytes.current};
  const Bytes missing = difference(shortage.asked, sums.idle);
  const bool limit_is_in_the_way =
      shortage.limit > 0_B && difference(shortage.limit, reserved) < missing;
  if (limit_is_in_the_way && shortage.memory.free >= missing) {
    all.push_back(
        fmt::format("the GPU has room, and the limit of {} stands in the way: raise WEIR_LIMIT, or "
                    "torch.cuda.set_per_process_memory_fraction()",
                    size_text(shortage.limit)));
  }
  const Bytes known = shortage.memory.free + reserved + shortage.of_other_sources;
  const Bytes of_others = difference(shortage.memory.total, known);
  if (!limit_is_in_the_way && of_others >= std::max(missing, shortage.memory.total / 16)) {
    all.push_back(fmt::format(
        "{} of the GPU are neither free nor Weir's: other processes (nvidia-smi lists them), or "
        "what CUDA and its libraries hold in this one",
        size_text(of_others)));
  }
  const Bytes idle_in_pools = difference(sums.of_pools.held, sums.of_pools.live);
  if (idle_in_pools > 0_B && idle_in_pools >= missing) {
    all.push_back(fmt::format(
        "memory pools keep {} that is not live: drop CUDA graphs and pools that are needed no more",
        size_text(idle_in_pools)));
  }
  if (shortage.reuse != ReusePolicy::wait && sums.in_between > 0_B && sums.in_between >= missing) {
    all.emplace_back("WEIR_REUSE=wait, which takes free memory before it takes new memory");
  }
  return all;
}

}  // namespace

std::string message_of(const Shortage& shortage) {
  const Sums sums = sums_of(shortage.held);
  const Statistics& now = shortage.held.statistics;
  const Bytes live{now.live_bytes.current};
  const std::string allowed =
      shortage.limit > 0_B ? fmt::format("{} allowed; ", size_text(shortage.limit)) : "";
  const std::string in_pools =
      sums.of_pools.live > 0_B
          ? fmt::format("with {} allocated in private pools (e.g., CUDA Graphs), ",
                        size_text(sums.of_pools.live))
          : "";
  std::string text = fmt::format(
      "CUDA out of memory. Tried to allocate {}. GPU {} has a total capacity of {} of which {} is "
      "free. {}Of the allocated memory {} is allocated by PyTorch, {}and {} is reserved by PyTorch "
      "but unallocated. Weir: {}",
      size_text(shortage.asked), shortage.device, size_text(shortage.memory.total),
      size_text(shortage.memory.free), allowed, size_text(live), in_pools,
      size_text(difference({now.reserved_bytes.current}, live)), shortage.error);
  if (sums.in_between > 0_B) {
    text += fmt::format(" {} is free within pages in use, in pieces that this request cannot use.",
                        size_text(sums.in_between));
  }
  text += pools_text(shortage, sums);
  if (shortage.of_other_sources > 0_B) {
    text += fmt::format(" Memory pools with an allocator of their own hold {}.",
                        size_text(shortage.of_other_sources));
  }
  const std::vector<std::string> helps = remedies(shortage, sums);
  if (!helps.empty()) text += fmt::format(" What else helps: {}.", fmt::join(helps, "; "));
  return text;
}

}  // namespace weir::pytorch
