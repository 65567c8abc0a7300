// SPDX-License-Identifier: Apache-2.0
// Puts the pages of pools to sleep, and wakes them: their bytes go to the host and back, page by
// page, while pages before and behind are unmapped or mapped.
//
// A page that has lost memory or mappings is not filled until it is known that its bytes are there
// again. An error leaves each page as far as it has come; sleep() and wake() both go on from there.
//
// Threads: one sleep() and one wake() at a time, each with its pools claimed; nothing else
// meanwhile, but for claim() and host().
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "core/memory/page_heap.h"
#include "core/pool/pool.h"
#include "core/sleep/host_store.h"
#include "weir/device.h"
#include "weir/sleep.h"

namespace weir {

class Sleeper {
 public:
  // Both must outlive this. `timelines`: the device's, which take events that it won't destroy.
  Sleeper(Device& device, Timelines& timelines)
      : device_(device), timelines_(timelines), store_(device) {}

  using Version = std::pair<std::uint64_t, std::uint64_t>;
  struct Job {
    std::shared_ptr<Pool> pool;
    SleepContents contents = SleepContents::backup;
    bool kept_whole = true;  // PageSleep::pages_to_sleep()
    std::set<PageId> stay;   // pages that keep their memory
    // Changes whenever the bytes of an immutable tag may have.
    Version version;
  };
  // What a sleep() or a wake() works on is nobody else's meanwhile: waits until it is free.
  std::unique_lock<std::mutex> claim(const std::shared_ptr<Pool>& pool) {
    return std::unique_lock(of(pool).claimed);
  }
  // The pools are asleep (PageSleep::set_asleep()), and the device is done with all work. Copies
  // that are good stay where they are. Errors: device; out_of_memory (of the host).
  Status sleep(const std::vector<Job>& jobs, SleepReport& report);
  // Called where the device has too little memory, with the bytes of the page, until it says that
  // there will not be more.
  using MakeRoom = std::function<bool(Bytes)>;
  // On success the pool may be awake again. Errors: out_of_memory; device.
  Status wake(const std::shared_ptr<Pool>& pool, const MakeRoom& make_room, SleepReport& report);

  // Has a page lost memory or mappings, and not got its bytes back?
  bool has_away(const std::shared_ptr<Pool>& pool) const;
  // Was the latest call for the pool a sleep() that went through?
  bool sleeps_wholly(const std::shared_ptr<Pool>& pool) const;
  // Bytes of its copies.
  Bytes copied_bytes(const std::shared_ptr<Pool>& pool) const;
  // Where the copies of these home addresses lie, in order. Empty: not all of them have one.
  std::vector<HostPart> copies_of(const std::shared_ptr<Pool>& pool,
                                  const std::vector<Range>& home) const;
  // What is held for no copy goes, but for so much host memory.
  Status shrink(Bytes keep_host);
  Bytes host() const { return store_.held(); }

 private:
  struct Copy {
    Range home;
    HostStore::Piece host;
  };
  struct Sleeping {
    Range home;
    SleepContents contents = SleepContents::backup;
    std::vector<Copy> copies;
    bool is_copied = false;  // known to be
    bool filled = true;
  };
  using Pages = std::map<std::uint32_t, Sleeping>;  // by PageId
  struct Heap {
    PageHeap* heap = nullptr;
    Pages pages;
    Version version;
    bool whole = true;  // sleeps_wholly()
    std::mutex claimed;
  };
  // Copies between pinned memory and the device, queued on the device's stream for their direction.
  // What lies side by side in both is one call: the driver takes longer over many small ones.
  class Copies {
   public:
    Copies(Device& device, Device::Direction direction, SleepReport& report)
        : device_(device), direction_(direction), report_(report) {}
    Status add(Range at, const HostStore::Piece& host);
    // Those that were added are queued, once it has succeeded; until then they stay.
    Status flush();

   private:
    Device& device_;
    const Device::Direction direction_;
    SleepReport& report_;
    Range at_;  // not queued yet; empty: nothing
    HostStore::Piece host_;
  };
  // Pages whose copies were queued, and the event behind them.
  struct Queued {
    std::vector<std::pair<Heap*, PageId>> pages;
    Bytes bytes;
    EventHandle event;
  };
  // So much, or a page, is waited for at a time, and so many times that is being copied.
  static constexpr Bytes kAtATime = 16_MiB;
  static constexpr std::size_t kQueued = 8;

  // Null: nothing is known of it.
  Heap* find(const std::shared_ptr<Pool>& pool) const;
  Heap& of(const std::shared_ptr<Pool>& pool);
  // What is known of pools that are gone goes, copies and all.
  void forget_gone();
  std::vector<PageSleep::SleepingPage> prepare(const Job& job, Heap& heap);
  bool covers(const Sleeping& page, const std::vector<Range>& in_use) const;
  void drop_copies(Sleeping& page);
  void drop(Pages& pages, Pages::iterator page) {
    drop_copies(page->second);
    pages.erase(page);
  }
  Status queue(Heap& heap, const PageSleep::SleepingPage& page, Copies& copies,
               SleepReport& report);
  Status end_batch(Copies& copies, SleepReport& report);
  Status finish_first(SleepReport& report);
  Status take(Heap& heap, PageId id, SleepReport& report);
  // Waits for what is queued: it is not to be used any more.
  void abandon_queued(const std::vector<Job>& jobs);
  // False: the page is gone.
  Result<bool> renew(Heap& heap, PageId id, const MakeRoom& make_room, SleepReport& report);
  Status queue_back(Sleeping& page, Copies& copies);
  // An event of what is queued on the stream of that direction.
  Result<EventHandle> record(Device::Direction direction);
  Status wait_for(Device::Direction direction);
  void end(EventHandle event) {
    if (!device_.destroy_event(event)) timelines_.take_over(event);
  }

  Device& device_;
  Timelines& timelines_;
  HostStore store_;
  mutable std::mutex heaps_mutex_;  // of the map; what is in it stays where it is
  // (By who owns them: another pool may come to lie where one was.)
  using Heaps = std::map<std::weak_ptr<Pool>, Heap, std::owner_less<>>;
  mutable Heaps heaps_;
  // Of sleep().
  Queued batch_;                // has no event yet
  std::vector<Queued> queued_;  // the first first
};

}  // namespace weir
