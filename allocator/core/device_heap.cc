#include "weir/device_heap.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/address_map.h"
#include "core/device_heap_impl.h"
#include "core/format.h"

namespace weir {
namespace {

// No device has more: what is asked where the driver does not say how much there is.
constexpr Bytes kMostBytes = 1024_TiB;

// The limit is the budget's, which pools share.
HeapOptions of_pages(HeapOptions options) {
  options.limit = 0_B;
  return options;
}

Bytes total_memory(Device& device) {
  const Result<MemoryInfo> info = device.memory_info();
  return info ? info->total : kMostBytes;
}

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

namespace {

constexpr std::size_t kKnownStreams = 16;
thread_local constinit std::array<KnownStream, kKnownStreams> known_streams;

}  // namespace

// Streams meet in a place now and then: the last one stays.
inline KnownStream& DeviceHeap::Impl::known(Stream stream) {
  return known_streams[stream.id % kKnownStreams];
}
inline bool DeviceHeap::Impl::knows(const KnownStream& known, Stream stream) const {
  return known.stream == stream.id && known.device_heap == number_;
}
inline StreamHeap* DeviceHeap::Impl::owner_of(Address address) const {
  return owners_[addresses_.owner(address)];
}

DeviceHeap::Impl::Impl(Device& device, const HeapOptions& options, EventSink* sink)
    : number_(next_number()),
      device_(device),
      options_(options),
      budget_(options.limit),
      observer_(device, sink),
      timelines_(device, observer_, &routes_open_),
      pages_(device, timelines_, observer_, addresses_, budget_, of_pages(options),
             [this](Bytes wanted) { return spare_of_pools(wanted); }),
      device_bytes_(total_memory(device)) {
  owners_.reset(static_cast<StreamHeap**>(std::calloc(kMostHeaps + 1, sizeof(void*))));
  if (owners_ == nullptr) throw std::bad_alloc();
}

Result<StreamHeap*> DeviceHeap::Impl::heap_of(Stream stream) {
  {
    const std::shared_lock lock(heaps_mutex_);
    if (const auto known = by_stream_.find(stream.id); known != by_stream_.end()) {
      return known->second;
    }
  }
  const std::unique_lock lock(heaps_mutex_);
  if (const auto known = by_stream_.find(stream.id); known != by_stream_.end()) {
    return known->second;
  }
  if (timelines_.retired(timelines_.of(stream))) {
    return Error(ErrorCode::invalid_argument,
                 "stream " + std::to_string(stream.id) +
                     " was retired: allocate for it before retire(), or for another stream");
  }
  // A heap whose stream is gone serves the next one: its addresses and mappings are not lost.
  for (const std::unique_ptr<StreamHeap>& heap : heaps_) {
    if (heap->pool() == nullptr && heap->adopt(stream)) return by_stream_[stream.id] = heap.get();
  }
  if (heaps_.size() >= kMostHeaps) {
    return Error(ErrorCode::out_of_memory,
                 std::to_string(kMostHeaps) +
                     " streams have memory of their own, the most that one device can serve: "
                     "retire() those that are no longer used");
  }
  const HeapId id{static_cast<std::uint32_t>(heaps_.size())};
  heaps_.push_back(
      std::make_unique<StreamHeap>(id, stream, pages_, timelines_, observer_, hoards_));
  StreamHeap* const heap = heaps_.back().get();
  if (routed()) heap->allow_short_ways(false);
  owners_[AddressMap::owner_of(id)] = heap;
  return by_stream_[stream.id] = heap;
}

Address DeviceHeap::Impl::try_allocate(Bytes bytes, Stream stream, Status& status) {
  KnownStream& known = this->known(stream);
  while (true) {
    if (knows(known, stream)) [[likely]] {
      const Address at = known.heap->allocate(bytes, stream.id, status);
      if (at != Address{} || !status) [[likely]]
        return at;
    }
    Result<StreamHeap*> heap = heap_of(stream);
    if (!heap) {
      status = std::move(heap).error();
      return {};
    }
    known = {number_, stream.id, *heap};
  }
}

Result<void*> DeviceHeap::Impl::allocate_block(Bytes bytes, Stream stream) {
  if (bytes == 0_B) return nullptr;
  // Refused before anything is rounded or reserved.
  if (bytes > device_bytes_) [[unlikely]]
    return out_of_memory(bytes, stream);
  if (routed()) [[unlikely]] {
    Result<Routed> to = route_of(stream);
    if (!to) return std::move(to).error();
    if (to->pool != nullptr) return allocate_in_pool(bytes, stream, *to);
  }
  Status status;
  const Address at = try_allocate(bytes, stream, status);
  if (at != Address{}) [[likely]]
    return at.pointer();
  return allocate_under_pressure(bytes, stream, std::move(status));
}

// What else can be done about `status`, which says why there was no memory.
Result<void*> DeviceHeap::Impl::allocate_under_pressure(Bytes bytes, Stream stream, Status status) {
  Address at;
  const auto settled = [&] {
    return at != Address{} || status.error().code() != ErrorCode::out_of_memory;
  };
  const auto try_again = [&] {
    status = {};
    at = try_allocate(bytes, stream, status);
  };
  // What heaps that were at work kept at hand.
  if (!settled()) {
    free_deferred();
    give_back_at_hand();
    try_again();
  }
  if (!settled() && call_in_pools()) try_again();
  if (!settled() && budget_.shared()) {
    if (Status waited = wait_for_other_heaps(); !waited) return std::move(waited).error();
    try_again();
  }
  // The host need only wait for idle pages where they must be unmapped.
  if (!settled() && pages_.totals().short_of_mappings) {
    if (Status waited = pages_.wait_for_idle_pages(); !waited) return std::move(waited).error();
    if (Result<Bytes> gone = pages_.trim(0_B); !gone) return std::move(gone).error();
    try_again();
  }
  if (!settled() && call_back(bytes)) {
    give_back_at_hand();
    try_again();
  }
  if (at != Address{}) return at.pointer();
  if (!settled()) return out_of_memory(bytes, stream);
  return std::move(status).error();
}

bool DeviceHeap::Impl::give_back_at_hand() const {
  const std::shared_lock lock(heaps_mutex_);
  bool any = false;
  for (const std::unique_ptr<StreamHeap>& heap : heaps_) any = heap->give_back_at_hand() || any;
  return any;
}

bool DeviceHeap::Impl::call_back(Bytes bytes) {
  std::vector<OutOfMemoryCallback> callbacks;
  {
    const std::unique_lock lock(heaps_mutex_);
    callbacks = callbacks_;
  }
  for (const OutOfMemoryCallback& callback : callbacks) callback(bytes);
  return !callbacks.empty();
}

Error DeviceHeap::Impl::out_of_memory(Bytes bytes, Stream stream) {
  give_back_at_hand();  // it is free memory, and not to be named as in use
  observer_.emit(Event{.kind = EventKind::out_of_memory, .stream = stream.id, .requested = bytes});
  const PageHeap::Totals totals = pages_.totals();
  const Bytes limit = budget_.limit();
  std::string message = "out of memory: " + format(bytes) + " asked for on stream " +
                        std::to_string(stream.id) + "; held " + format(totals.total) +
                        (limit > 0_B ? " of a limit of " + format(limit) : " with no limit set");
  if (const Result<MemoryInfo> info = device_.memory_info()) {
    message += ", the device has " + format(info->free) + " free of " + format(info->total);
  }
  message += "; in use " + format(totals.used) + ", idle " + format(totals.total - totals.leased) +
             ", free ends of pages in use " + format(totals.leased - totals.used);
  if (totals.short_of_mappings) {
    message += "; " + std::to_string(totals.mappings) +
               " mappings are held, and HeapOptions::most_mappings allows too few more";
  }
  std::vector<HeapStatistics> heaps = statistics().heaps;
  std::sort(heaps.begin(), heaps.end(), [](const HeapStatistics& a, const HeapStatistics& b) {
    return a.live_bytes.current > b.live_bytes.current;
  });
  for (std::size_t i = 0; i < std::min<std::size_t>(heaps.size(), 3); ++i) {
    message += "; stream " + std::to_string(heaps[i].stream) + " holds " +
               format(Bytes{heaps[i].live_bytes.current}) + " in " +
               std::to_string(heaps[i].live_blocks.current) + " blocks";
  }
  return {ErrorCode::out_of_memory, message + ". Free blocks, raise the limit, or ask for less."};
}

Error DeviceHeap::Impl::unknown(const void* block, const char* call) {
  return {ErrorCode::unknown_pointer,
          std::string(call) + ": " + format(Address::of(block)) +
              " is not the start of a live block of this device heap: it was deallocated already, "
              "or never allocated here"};
}

Result<StreamHeap*> DeviceHeap::Impl::owner_of_block(const void* block, const char* call) const {
  StreamHeap* heap = owner_of(Address::of(block));
  if (heap != nullptr && heap->has(Address::of(block))) return heap;
  return unknown(block, call);
}

Status DeviceHeap::Impl::fence_one(void* block, Stream user) {
  StreamHeap* const heap = owner_of(Address::of(block));
  if (heap == nullptr) return unknown(block, "fence");
  Result<bool> fenced = fence_in_its_world(*heap, Address::of(block), user);
  if (!fenced) return std::move(fenced).error();
  if (!*fenced) return unknown(block, "fence");
  return {};
}

Status DeviceHeap::Impl::fence(std::span<void* const> blocks, Stream user) {
  if (blocks.size() == 1 && blocks[0] != nullptr) return fence_one(blocks[0], user);
  if (routed() || std::any_of(blocks.begin(), blocks.end(), [&](const void* block) {
        const StreamHeap* const heap = owner_of(Address::of(block));
        return heap != nullptr && heap->pool() != nullptr;
      })) {
    return fence_each(blocks, user);
  }
  std::vector<StreamHeap*> owners;
  std::vector<Address> used;
  for (void* const block : blocks) {
    if (block == nullptr) continue;  // what allocate() gives for zero bytes
    used.push_back(Address::of(block));
    Result<StreamHeap*> owner = owner_of_block(block, "fence");
    if (!owner) return std::move(owner).error();
    owners.push_back(*owner);
  }
  if (blocks.empty()) return {};
  // On the blocks' own stream it is implied by deallocate().
  const StreamHeap* const own = [&] {
    const std::shared_lock lock(heaps_mutex_);
    const auto known = by_stream_.find(user.id);
    return known == by_stream_.end() ? nullptr : known->second;
  }();
  const bool implied = std::all_of(owners.begin(), owners.end(),
                                   [&](const StreamHeap* owner) { return owner == own; });
  const TimelineId timeline = timelines_.of(user);
  Result<Fence> fence = implied ? timelines_.now(timeline) : timelines_.record(timeline);
  if (!fence) return std::move(fence).error();
  for (std::size_t i = 0; i < used.size(); ++i) (void)owners[i]->fence(used[i], *fence);
  return {};
}

Status DeviceHeap::Impl::record_stream(void* block, Stream user) {
  StreamHeap* const heap = owner_of(Address::of(block));
  if (heap == nullptr) return unknown(block, "record_stream");
  Result<bool> recorded = record_stream_in_its_world(*heap, Address::of(block), user);
  if (!recorded) return std::move(recorded).error();
  return *recorded ? Status{} : unknown(block, "record_stream");
}

Status DeviceHeap::Impl::deallocate(void* block) {
  if (block == nullptr) return {};
  StreamHeap* const heap = owner_of(Address::of(block));
  if (heap == nullptr) [[unlikely]]
    return unknown(block, "deallocate");
  Result<bool> done = deallocate_in_its_world(*heap, Address::of(block));
  if (!done) [[unlikely]]
    return std::move(done).error();
  if (!*done) [[unlikely]]
    return unknown(block, "deallocate");
  return {};
}

Result<Bytes> DeviceHeap::Impl::trim(Bytes keep, Trim how) {
  free_deferred();
  give_back_at_hand();
  (void)call_in_pools();
  if (how == Trim::waits) {
    if (Status waited = pages_.wait_for_idle_pages(); !waited) return std::move(waited).error();
  }
  return pages_.trim(keep);
}

Status DeviceHeap::Impl::renew_access() {
  if (Status status = pages_.renew_access(); !status) return status;
  for (const std::shared_ptr<PoolHeap>& pool : pools()) {
    if (Status status = pool->pages().renew_access(); !status) return status;
  }
  return {};
}

std::vector<PagePart> DeviceHeap::Impl::parts(const void* block) const {
  StreamHeap* const heap = owner_of(Address::of(block));
  const std::optional<BlockInfo> info =
      heap == nullptr ? std::nullopt : heap->find(Address::of(block));
  if (!info || info->address != Address::of(block)) return {};
  const PageHeap& pages = heap->pool() == nullptr ? pages_ : heap->pool()->pages();
  return pages.parts({info->address, info->bytes});
}

void DeviceHeap::Impl::set_limit(Bytes limit) {
  budget_.set_limit(limit);
  pages_.set_limit(0_B);
  if (pages_.over_limit() && (give_back_at_hand() || call_in_pools())) pages_.set_limit(0_B);
}

std::optional<BlockInfo> DeviceHeap::Impl::find(Address address) const {
  const StreamHeap* heap = owner_of(address);
  return heap == nullptr ? std::nullopt : heap->find(address);
}

Status DeviceHeap::Impl::retire(Stream stream) {
  for (const std::shared_ptr<PoolHeap>& pool : pools()) {
    if (Status status = pool->retire(stream); !status) return status;
  }
  if (Status status = timelines_.retire(timelines_.of(stream)); !status) return status;
  const std::unique_lock lock(heaps_mutex_);
  if (const auto known = by_stream_.find(stream.id); known != by_stream_.end()) {
    known->second->close();
    by_stream_.erase(known);
  }
  return {};
}

void DeviceHeap::Impl::on_out_of_memory(OutOfMemoryCallback callback) {
  const std::unique_lock lock(heaps_mutex_);
  callbacks_.push_back(std::move(callback));
}

// With every heap's lock held: as of one moment.
template <class Function>
void DeviceHeap::Impl::at_one_moment(Function&& function) const WEIR_NO_THREAD_ANALYSIS {
  const std::shared_lock registry(heaps_mutex_);
  const std::vector<StreamHeap*> heaps = heaps_in_order();
  for (StreamHeap* heap : heaps) heap->lock();
  function();
  for (StreamHeap* heap : heaps) heap->unlock();
}

Statistics DeviceHeap::Impl::statistics() const {
  Statistics all;
  at_one_moment([&]() WEIR_NO_THREAD_ANALYSIS {
    std::vector<HeapStatistics> heaps;
    for (const auto& heap : heaps_) heaps.push_back(heap->statistics_locked());
    all = observer_.fold().combine(std::move(heaps));
  });
  return all;
}

void DeviceHeap::Impl::reset_peaks() {
  const std::shared_lock lock(heaps_mutex_);
  for (const std::unique_ptr<StreamHeap>& heap : heaps_) heap->reset_peaks();
  observer_.fold().reset_peaks();
}

HeapSnapshot DeviceHeap::Impl::snapshot() const {
  HeapSnapshot snapshot;
  const std::shared_lock no_new_pools(routes_mutex_);
  at_one_moment([&]() WEIR_NO_THREAD_ANALYSIS {
    for (const auto& heap : heaps_) {
      heap->give_back_kept();
      heap->list_blocks(snapshot.blocks);
    }
    snapshot.pages = pages_.pages();
    for (const std::shared_ptr<PoolHeap>& pool : pools_) {
      const std::vector<PageInfo> more = pool->pages().pages();
      snapshot.pages.insert(snapshot.pages.end(), more.begin(), more.end());
    }
  });
  std::sort(snapshot.pages.begin(), snapshot.pages.end(),
            [](const PageInfo& a, const PageInfo& b) { return a.page < b.page; });
  std::sort(snapshot.blocks.begin(), snapshot.blocks.end(),
            [](const BlockInfo& a, const BlockInfo& b) { return a.address < b.address; });
  return snapshot;
}

namespace {

// Calls look(totals, pages) of all of `heaps` together, while nothing can change them. Pools' come
// last, as their locks are taken before the device heap's own: they are locked from the back.
template <class Look>
void hold_still(std::span<const PageHeap* const> heaps, PageHeap::Totals totals,
                std::vector<PageInfo> pages, Look&& look) {
  if (heaps.empty()) return look(totals, pages);
  heaps.back()->hold_still([&](const PageHeap::Totals& more, const std::vector<PageInfo>& others) {
    totals.total += more.total;
    totals.leased += more.leased;
    totals.used += more.used;
    totals.mappings += more.mappings;
    pages.insert(pages.end(), others.begin(), others.end());
    hold_still(heaps.first(heaps.size() - 1), totals, std::move(pages), look);
  });
}

}  // namespace

std::vector<std::string> DeviceHeap::Impl::validate() const {
  std::vector<std::string> broken;
  const auto add = [&](const std::vector<std::string>& more) {
    broken.insert(broken.end(), more.begin(), more.end());
  };
  const std::shared_lock no_new_pools(routes_mutex_);
  for (const std::shared_ptr<PoolHeap>& pool : pools_) add(pool->validate());
  at_one_moment([&]() WEIR_NO_THREAD_ANALYSIS {
    std::unordered_map<const PoolHeap*, std::vector<Range>> runs;  // null: the device heap's own
    std::vector<HeapStatistics> heaps;
    for (const auto& heap : heaps_) {
      add(heap->validate(runs[heap->pool()]));
      heaps.push_back(heap->statistics_locked());
    }
    add(pages_.validate(runs[nullptr]));
    for (const std::shared_ptr<PoolHeap>& pool : pools_)
      add(pool->pages().validate(runs[pool.get()]));
    add(timelines_.validate());
    add(validate_registry());
    std::vector<const PageHeap*> each{&pages_};
    for (const std::shared_ptr<PoolHeap>& pool : pools_) each.push_back(&pool->pages());
    hold_still(
        each, {}, {}, [&](const PageHeap::Totals& totals, const std::vector<PageInfo>& pages) {
          add(validate_statistics(observer_.fold().combine(std::move(heaps)), totals, pages));
        });
  });
  return broken;
}

std::vector<std::string> DeviceHeap::Impl::validate_registry() const {
  std::vector<std::string> broken;
  for (const auto& [stream, heap] : by_stream_) {
    if (heap->pool() != nullptr || heap->id().value >= heaps_.size() ||
        heaps_[heap->id().value].get() != heap || !heap->serves(stream)) {
      broken.push_back("stream " + std::to_string(stream) + ": its heap serves another");
    }
  }
  for (const auto& heap : heaps_) {
    if (owners_[AddressMap::owner_of(heap->id())] != heap.get()) {
      broken.push_back("heap " + std::to_string(heap->id().value) + ": found by another's number");
    }
  }
  return broken;
}

std::vector<std::string> DeviceHeap::Impl::validate_statistics(const Statistics& all,
                                                               const PageHeap::Totals& totals,
                                                               const std::vector<PageInfo>& pages) {
  std::vector<std::string> broken;
  const auto same = [&](const char* name, std::uint64_t counted, std::uint64_t actual) {
    if (counted == actual) return;
    broken.push_back(std::string("statistics: ") + name + " is " + std::to_string(counted) +
                     ", a recount gives " + std::to_string(actual));
  };
  same("reserved_bytes", all.reserved_bytes.current, totals.total.count);
  same("leased_bytes", all.leased_bytes.current, totals.leased.count);
  same("mappings", all.mappings.current, totals.mappings);
  Bytes mapped;
  for (const PageInfo& page : pages) mapped += page.bytes * page.mappings;
  same("pages", all.pages.current, pages.size());
  same("mapped_bytes", all.mapped_bytes.current, mapped.count);
  Bytes leased;
  for (const HeapStatistics& heap : all.heaps) leased += Bytes{heap.leased_bytes.current};
  same("the sum of the heaps' leased_bytes", leased.count, totals.leased.count);
  return broken;
}

DeviceHeap::DeviceHeap(Device& device, HeapOptions options, EventSink* sink)
    : impl_(std::make_unique<Impl>(device, options, sink)) {}
DeviceHeap::~DeviceHeap() = default;

Result<void*> DeviceHeap::allocate(Bytes bytes, Stream stream) {
  const KnownStream& known = impl_->known(stream);
  if (impl_->knows(known, stream)) [[likely]] {
    if (const Address at = known.heap->allocate_at_hand(bytes, stream.id); at != Address{})
        [[likely]]
      return at.pointer();
  }
  return impl_->allocate_block(bytes, stream);
}

Status DeviceHeap::deallocate(void* block) {
  StreamHeap* const heap = impl_->owner_of(Address::of(block));
  if (heap != nullptr && heap->keep_at_hand(Address::of(block))) [[likely]]
    return {};
  return impl_->deallocate(block);
}

Status DeviceHeap::fence(std::span<void* const> blocks, Stream user) {
  return impl_->fence(blocks, user);
}
Status DeviceHeap::record_stream(void* block, Stream user) {
  return block == nullptr ? Status{} : impl_->record_stream(block, user);
}
std::optional<BlockInfo> DeviceHeap::find(const void* pointer) const {
  return impl_->find(Address::of(pointer));
}
Status DeviceHeap::retire(Stream stream) { return impl_->retire(stream); }
Result<Bytes> DeviceHeap::trim(Bytes keep, Trim how) { return impl_->trim(keep, how); }
Status DeviceHeap::renew_access() { return impl_->renew_access(); }
bool DeviceHeap::owns(const void* pointer) const {
  return impl_->owner_of(Address::of(pointer)) != nullptr;
}
std::vector<PagePart> DeviceHeap::parts(const void* block) const { return impl_->parts(block); }
void DeviceHeap::set_limit(Bytes limit) { impl_->set_limit(limit); }
void DeviceHeap::on_out_of_memory(OutOfMemoryCallback callback) {
  if (callback) impl_->on_out_of_memory(std::move(callback));
}
Statistics DeviceHeap::statistics() const { return impl_->statistics(); }
void DeviceHeap::reset_peaks() { impl_->reset_peaks(); }
HeapSnapshot DeviceHeap::snapshot() const { return impl_->snapshot(); }
std::vector<std::string> DeviceHeap::validate() const { return impl_->validate(); }

}  // namespace weir
