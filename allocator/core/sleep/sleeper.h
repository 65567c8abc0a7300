// SPDX-License-Identifier: Apache-2.0
// Puts the pages of pools to sleep, and wakes them: their bytes go to the host and back, page by
// page, while pages before and behind are unmapped or mapped.
//
// A page is in one of these states:
//   there     it has its memory, and its bytes
//   away      some of its memory or mappings are gone
//   unfilled  it has memory, and it is not known that its bytes are there again
// there -> away -> unfilled -> there, and unfilled -> away. An error leaves each page in the state
// that it has reached; sleep() and wake() both go on from there.
//
// Threads: one sleep() and one wake() at a time, of different pools; nothing else meanwhile, but
// for host().
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
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
  // `device` must outlive this.
  explicit Sleeper(Device& device) : device_(device), store_(device) {}
  // All copies are done.
  ~Sleeper();

  using Version = std::pair<std::uint64_t, std::uint64_t>;
  struct Job {
    std::shared_ptr<Pool> pool;
    SleepContents contents = SleepContents::backup;
    bool kept_whole = true;  // PageSleep::pages_to_sleep()
    std::set<PageId> stay;   // pages that keep their memory
    // Changes whenever the bytes of an immutable tag may have.
    Version version;
  };
  // The pools are asleep (PageSleep::set_asleep()), and the device is done with all work. Copies
  // that are good stay where they are. Errors: device; out_of_memory (of the host).
  Status sleep(const std::vector<Job>& jobs, SleepReport& report);
  // Called where the device has too little memory, with the bytes of the page, until it says that
  // there will not be more.
  using MakeRoom = std::function<bool(Bytes)>;
  // On success the pool may be awake again. Errors: out_of_memory; device.
  Status wake(const std::shared_ptr<Pool>& pool, const MakeRoom& make_room, SleepReport& report);

  // Has a page lost memory, and not got its bytes back?
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
  enum class State : std::uint8_t { there, away, unfilled };
  struct Sleeping {
    State state = State::there;
    Range home;
    SleepContents contents = SleepContents::backup;
    std::vector<Copy> copies;
    bool is_copied = false;  // known to be
  };
  using Pages = std::map<std::uint32_t, Sleeping>;  // by PageId
  struct Heap {
    PageHeap* heap = nullptr;
    Pages pages;
    Version version;
    bool whole = false;  // sleeps_wholly()
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
  template <class Drop>
  void drop_if(Pages& pages, Drop&& drop);
  Status queue(Heap& heap, const PageSleep::SleepingPage& page, Copies& copies,
               SleepReport& report);
  Status end_batch(Copies& copies, SleepReport& report);
  Status finish_first(SleepReport& report);
  Status take(Heap& heap, PageId page, SleepReport& report);
  // Waits for what is queued: it is not to be used any more.
  void abandon_queued(const std::vector<Job>& jobs);
  Status renew(Heap& heap, PageId page, const MakeRoom& make_room, SleepReport& report,
               bool& is_there);
  Status queue_back(Sleeping& page, Copies& copies);
  Result<EventHandle> have_event();
  // With an event that is among `events` then, if the device will not destroy it.
  Status wait_for(Stream stream, std::vector<EventHandle>& events);
  void destroy(std::vector<EventHandle>& events);

  Device& device_;
  HostStore store_;
  mutable std::mutex heaps_mutex_;  // of the map; what is in it stays where it is
  // (By who owns them: another pool may come to lie where one was.)
  using Heaps = std::map<std::weak_ptr<Pool>, Heap, std::owner_less<>>;
  mutable Heaps heaps_;
  // Of sleep().
  Queued batch_;                     // has no event yet
  std::vector<Queued> queued_;       // the first first
  std::vector<EventHandle> events_;  // that are not in use
  // Of wake(), which may run beside a sleep() of other heaps.
  std::vector<EventHandle> of_wakes_;
};

}  // namespace weir
