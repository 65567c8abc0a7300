// SPDX-License-Identifier: Apache-2.0
// Sleep and wake of tags (HeapTags::sleep()): which pools sleep, what is refused, and in which
// order (docs/decisions.md, 028). How the bytes of a page heap go and come is the
// Sleeper's.
//
// Threads: self-synchronised. One sleep and one wake go on at a time, of different pools; their
// locks come before every other lock of the core.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/callbacks.h"
#include "core/pool/page_exchange.h"
#include "core/pool/pools.h"
#include "core/sleep/sleeper.h"
#include "weir/heap_tags.h"
#include "weir/sleep.h"

namespace weir {

class TagSleep final : public HeapTags {
 public:
  // Makes a graph pool of that tag.
  using MakePool = std::function<std::shared_ptr<GraphPool>(const std::string& tag)>;
  // Both must outlive this.
  TagSleep(Pools& pools, PageExchange& exchange, MakePool make_pool)
      : pools_(pools), exchange_(exchange), make_pool_(std::move(make_pool)) {}

  Result<SleepReport> sleep(const SleepOptions& options) override;
  Result<SleepReport> wake(const WakeOptions& options) override;
  std::vector<TagInfo> list() override;
  Status set_contents(const std::string& tag, SleepContents contents) override;
  Status declare_changed(const std::string& tag) override;
  Result<GraphPool*> pool(const std::string& tag) override;
  Result<std::uint64_t> hold(const void* block, std::string holder) override;
  void release_hold(std::uint64_t hold) override;
  Result<std::vector<HostPart>> host_copy(const void* pointer, Bytes bytes) override;
  Status read_asleep(const void* pointer, Bytes bytes, void* to) override;
  void on_sleep(HeldCallback callback) override { others_.add(std::move(callback)); }
  Residue residue() override;
  // The device heap is about to go.
  void close_pools() { tag_pools_.clear(); }

 private:
  using ToSleep = std::vector<std::shared_ptr<Pool>>;
  struct Tag {
    SleepContents contents = SleepContents::backup;
    std::uint64_t changed = 0;  // how often it was declared so
  };

  // The pools of these tags, in their order; none: of all. Errors: invalid_argument (there is no
  // such tag).
  Result<ToSleep> pools_of(const std::vector<std::string>& tags, const char* call) const;
  // What is refused is refused before anything is touched. Leaves in `pools` those that sleep.
  Status may_sleep(ToSleep& pools, const SleepOptions& options, std::vector<Sleeper::Job>& jobs,
                   SleepReport& report);
  Status no_capture_goes_on();
  // Memory of the pool that can't sleep; its pages are added to `pages`.
  std::vector<HeldMemory> held_in(const Pool& pool, std::set<PageId>& pages) const;
  std::vector<HeldMemory> held_by_others();
  static void set_asleep(Pool& pool, bool asleep);
  Status sleep_pools(const ToSleep& pools, const std::vector<Sleeper::Job>& jobs,
                     SleepReport& report);
  bool make_room_to_wake(Bytes wanted, std::uint64_t& sleeps);
  Error no_room_to_wake(const Error& error, Pool& pool) const;
  Result<std::vector<HostPart>> copies_of(const void* pointer, Bytes bytes, const char* call) const;
  Tag tag_of(const std::string& name) const;
  Sleeper::Version version_of(const Pool& pool) const;
  TagInfo info_of(const std::shared_ptr<Pool>& pool) const;

  Pools& pools_;
  PageExchange& exchange_;
  const MakePool make_pool_;
  Device& device_ = pools_.shared().device;
  Callbacks<HeldCallback> others_;

  // Held by a sleep, and by a wake, while it goes on. Whoever looks takes both.
  std::mutex sleep_mutex_, wake_mutex_;
  Sleeper sleeper_{device_, pools_.own().timelines()};  // guarded by either
  // How often a sleep began or ended: odd while one goes on.
  std::atomic<std::uint64_t> sleeps_{0};
  struct Hold {
    const void* block = nullptr;
    std::string holder;
  };
  mutable std::mutex tags_mutex_;  // of what follows; no other lock is taken under it
  std::map<std::string, Tag> tags_;
  std::map<std::uint64_t, Hold> holds_;
  std::uint64_t last_hold_ = 0;
  std::mutex tag_pools_mutex_;
  std::map<std::string, std::shared_ptr<GraphPool>> tag_pools_;  // guarded by tag_pools_mutex_
};

}  // namespace weir
