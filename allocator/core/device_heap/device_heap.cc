// SPDX-License-Identifier: Apache-2.0
#include "weir/device_heap.h"

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <utility>

#include "core/base/format.h"
#include "core/device_heap/device_heap_impl.h"

namespace weir {
namespace {

// The limit is the budget's, which pools share.
HeapOptions of_pages(HeapOptions options) {
  options.limit = 0_B;
  return options;
}

Bytes total_memory(Device& device, Bytes unknown) {
  const Result<MemoryInfo> info = device.memory_info();
  return info ? info->total : unknown;
}

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

namespace {

constexpr std::size_t kKnownStreams = 16;
// CUDA's CU_STREAM_PER_THREAD.
constexpr Address kPerThreadHandle{2};
thread_local constinit std::array<KnownStream, kKnownStreams> known_streams;

}  // namespace

// Streams meet in a place now and then: the last one stays.
inline KnownStream& DeviceHeap::Impl::known(Stream stream) {
  return known_streams[stream.id % kKnownStreams];
}
inline bool DeviceHeap::Impl::knows(const KnownStream& known, Stream stream) const {
  return known.stream == stream.id && known.device_heap == number_;
}
DeviceHeap::Impl::Impl(Device& device, const HeapOptions& options, EventSink* sink)
    : number_(next_number()),
      device_(device),
      options_(options),
      budget_(options.limit),
      observer_(device, sink),
      // Of a capture's stream nothing can be asked: an error is no answer.
      remote_work_([this](const FenceSet& ends) {
        const Result<bool> over = timelines_.looks_complete(ends);
        return over && *over;
      }),
      device_pool_(0, device, {observer_, registry_, budget_, captures_, remote_work_, sparing_},
                   of_pages(options),
                   [this](Bytes wanted, Bytes /*most*/) { return spare_of_pools(wanted); }),
      device_bytes_(total_memory(device, kMostBytes)) {}

Address DeviceHeap::Impl::try_allocate(Bytes bytes, Stream stream, PageHeap::Create create,
                                       Status& status) {
  KnownStream& known = this->known(stream);
  while (true) {
    if (knows(known, stream)) [[likely]] {
      const Address at = known.heap->allocate(bytes, stream.id, status, create);
      if (at != Address{} || !status) [[likely]]
        return at;
    }
    if (status = refuse_all(stream, "allocate"); !status) return {};
    const Result<StreamHeap*> heap = device_pool_.heap_of(stream);
    if (!heap) {
      status = heap.error();
      return {};
    }
    known = {number_, stream.id, *heap};
  }
}

// What is freed at a miss comes before new memory.
[[gnu::cold]] Address DeviceHeap::Impl::call_and_allocate(Bytes bytes, Stream stream,
                                                          Status& status) {
  if (status.error().code() != ErrorCode::out_of_memory) return {};
  status = {};
  call_at_miss();
  return try_allocate(bytes, stream, PageHeap::Create::may, status);
}

Address DeviceHeap::Impl::try_allocate(Bytes bytes, Stream stream, Status& status) {
  const PageHeap::Create create = at_first();
  const Address at = try_allocate(bytes, stream, create, status);
  if (at != Address{} || create == PageHeap::Create::may) return at;
  return call_and_allocate(bytes, stream, status);
}

Address DeviceHeap::Impl::try_allocate(const Request& request, Status& status) {
  const auto& [pool, capture] = request.server;
  return pool == nullptr
             ? try_allocate(request.bytes, request.stream, PageHeap::Create::may, status)
             : pool->allocate(request.bytes, request.stream, capture, status);
}

// The heap is locked, and its fast paths are open: nothing is bound, and nobody records.
[[gnu::noinline]] Result<void*> DeviceHeap::Impl::allocate_after_miss(StreamHeap& heap, Bytes bytes,
                                                                      Stream stream) {
  if (bytes == 0_B || bytes > device_bytes_) [[unlikely]] {
    heap.unlock();
    return allocate_block(bytes, stream);
  }
  Status status;
  const PageHeap::Create create = at_first();
  Address at = heap.allocate_after_miss(bytes, status, create);
  if (at != Address{}) [[likely]]
    return at.pointer();
  if (create != PageHeap::Create::may) at = call_and_allocate(bytes, stream, status);
  if (at != Address{}) return at.pointer();
  return allocate_when_short({bytes, stream, {}}, std::move(status));
}

Result<void*> DeviceHeap::Impl::allocate_block(Bytes bytes, Stream stream) {
  if (bytes == 0_B) return nullptr;
  observer_.note_stack();
  // Refused before anything is rounded or reserved.
  if (bytes > device_bytes_) [[unlikely]]
    return out_of_memory({bytes, stream, {}});
  if (bound()) [[unlikely]] {
    if (Status one = refuse_all(stream, "allocate"); !one) return std::move(one).error();
    if (deferred_.retries()) free_deferred();
    Result<Server> server = server_of(stream);
    if (!server) return std::move(server).error();
    if (server->pool != nullptr) return allocate_of({bytes, stream, *std::move(server)});
  }
  Status status;
  const Address at = try_allocate(bytes, stream, status);
  if (at != Address{}) [[likely]]
    return at.pointer();
  return allocate_when_short({bytes, stream, {}}, std::move(status));
}

Result<void*> DeviceHeap::Impl::allocate_of(const Request& request) {
  Status status;
  const Address at = try_allocate(request, status);
  if (at != Address{}) [[likely]]
    return at.pointer();
  return allocate_when_short(request, std::move(status));
}

Result<void*> DeviceHeap::Impl::allocate_in(std::shared_ptr<CapturePool> pool, Bytes bytes,
                                            Stream stream) {
  if (bytes == 0_B) return nullptr;
  observer_.note_stack();
  if (bytes > device_bytes_) return out_of_memory({bytes, stream, {}});
  Result<Server> server = server_in(std::move(pool), stream);
  if (!server) return std::move(server).error();
  return allocate_of({bytes, stream, *std::move(server)});
}

Result<void*> DeviceHeap::Impl::take_free_in(std::shared_ptr<CapturePool> pool, Bytes bytes,
                                             Stream stream) {
  if (bytes == 0_B) return nullptr;
  observer_.note_stack();
  const Result<Server> server = server_in(std::move(pool), stream);
  if (!server) return server.error();
  Status status;
  // (More than the device has is refused before anything is rounded.)
  if (bytes <= device_bytes_) {
    const Address at =
        server->pool->allocate(bytes, stream, server->capture, status, PageHeap::Create::never);
    if (at != Address{}) return at.pointer();
    if (status.error().code() != ErrorCode::out_of_memory) return std::move(status).error();
  }
  return Error(ErrorCode::out_of_memory,
               "graph pool " + std::to_string(server->pool->id()) + " has no " + format(bytes) +
                   " free for stream " + std::to_string(stream.id) +
                   ": deallocate blocks of it, or let it grow with GraphPool::allocate()");
}

Result<DeviceHeap::Impl::Server> DeviceHeap::Impl::server_in(std::shared_ptr<CapturePool> pool,
                                                             Stream stream) {
  if (Status one = refuse_all(stream, "allocate"); !one) return std::move(one).error();
  if (deferred_.retries()) free_deferred();
  const Result<CaptureInfo> info = device_.capture_info(stream);
  if (!info) return info.error();
  const bool captured = info->status != CaptureInfo::Status::none;
  // It may be the pool's own that is over.
  if (bindings_.end_past(captured ? info->id : 0)) free_deferred();
  return Server{std::move(pool), captured ? info->id : 0};
}

void DeviceHeap::Impl::call_at_miss() {
  std::vector<MissCallback> callbacks;
  {
    const std::lock_guard lock(callbacks_mutex_);
    callbacks = miss_callbacks_;
  }
  for (const MissCallback& callback : callbacks) callback();
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

Status DeviceHeap::Impl::record_stream(void* block, Stream user) {
  if (Status one = refuse_all(user, "record_stream"); !one) return one;
  StreamHeap* const heap = owner_of(Address::of(block));
  if (heap == nullptr) return unknown(block, "record_stream");
  Result<bool> recorded = record_stream_in_its_epoch(*heap, Address::of(block), user);
  if (!recorded) return std::move(recorded).error();
  return *recorded ? Status{} : unknown(block, "record_stream");
}

Status DeviceHeap::Impl::deallocate(void* block) {
  if (block == nullptr) return {};
  StreamHeap* const heap = owner_of(Address::of(block));
  if (heap == nullptr) [[unlikely]]
    return unknown(block, "deallocate");
  Result<bool> done = deallocate_in_its_epoch(*heap, Address::of(block));
  if (!done) [[unlikely]]
    return std::move(done).error();
  if (!*done) [[unlikely]]
    return unknown(block, "deallocate");
  if (pages_.over_limit()) [[unlikely]]
    keep_to_limit();
  return {};
}

// Wherever what is idle lies: work may have ended that used it when the limit was lowered. Waits
// for no lock that others hold while they wait for the device: who is at work is asked the next
// time.
void DeviceHeap::Impl::keep_to_limit() {
  StreamHeap::give_back_all(device_pool_.caching_heaps());
  pages_.keep_to_limit();
  if (const Bytes excess = budget_.excess(); excess > 0_B) pages_.take_in(spare_of_pools(excess));
  if (budget_.excess() > 0_B) have_pools_keep_to_limit();
}

Result<Bytes> DeviceHeap::Impl::trim(Bytes keep, Trim how) {
  free_deferred();
  registry_.give_back_cached();
  (void)call_in_pools();
  if (how == Trim::waits) {
    if (Status waited = wait_for_idle_pages(); !waited) return std::move(waited).error();
  }
  const auto excess = [&] { return budget_.held() - std::min(budget_.held(), keep); };
  Result<Bytes> own = pages_.give_to_device(excess());
  Result<Bytes> of_pools = give_to_device(excess(), nullptr);
  tidy();
  return together(std::move(own), std::move(of_pools));
}

void DeviceHeap::Impl::tidy() {
  pages_.tidy();
  for (const std::shared_ptr<CapturePool>& pool : pools()) pool->tidy();
  const std::unique_lock lock(pools_mutex_);
  drop_gone_pools(closed_.size());
}

void DeviceHeap::Impl::set_limit(Bytes limit) {
  budget_.set_limit(limit);
  if (!pages_.over_limit()) return;
  registry_.give_back_cached();
  pages_.keep_to_limit();
  if (pages_.over_limit()) (void)call_in_pools();
  if (const Bytes excess = budget_.excess(); excess > 0_B) (void)give_to_device(excess, nullptr);
}

std::optional<BlockInfo> DeviceHeap::Impl::find(Address address) const {
  const StreamHeap* heap = owner_of(address);
  return heap == nullptr ? std::nullopt : heap->find(address);
}

// Where uses are told, such events are of little use, and nobody misses them.
void DeviceHeap::Impl::note_context_events_lost(ContextEventsLost why, std::uint64_t stream) {
  if (!is_untold()) return;
  observer_.emit({.kind = EventKind::context_events_lost,
                  .heap = kNoHeap,
                  .stream = stream,
                  .other = static_cast<std::uint64_t>(why)});
  const std::lock_guard lock(lost_mutex_);
  for (const ContextEventsLostCallback& callback : lost_callbacks_) callback(why);
}

void DeviceHeap::Impl::on_context_events_lost(ContextEventsLostCallback callback) {
  const std::lock_guard lock(lost_mutex_);
  lost_callbacks_.push_back(std::move(callback));
}

void DeviceHeap::Impl::on_out_of_memory(OutOfMemoryCallback callback) {
  const std::lock_guard lock(callbacks_mutex_);
  callbacks_.push_back(std::move(callback));
}

void DeviceHeap::Impl::on_miss(MissCallback callback) {
  const std::lock_guard lock(callbacks_mutex_);
  miss_callbacks_.push_back(std::move(callback));
  has_miss_callbacks_.store(true, std::memory_order_relaxed);
}

DeviceHeap::DeviceHeap(Device& device, HeapOptions options, EventSink* sink)
    : impl_(std::make_unique<Impl>(device, options, sink)) {}
DeviceHeap::~DeviceHeap() { impl_->close_tags(); }

Result<void*> DeviceHeap::allocate(Bytes bytes, Stream stream) {
  const KnownStream& known = impl_->known(stream);
  if (impl_->knows(known, stream)) [[likely]] {
    bool misses = false;
    if (const Address at = known.heap->allocate_cached(bytes, stream.id, misses); at != Address{})
        [[likely]]
      return at.pointer();
    if (misses) return impl_->allocate_after_miss(*known.heap, bytes, stream);
  }
  return impl_->allocate_block(bytes, stream);
}

Status DeviceHeap::deallocate(void* block) {
  const Address at = Address::of(block);
  if (const Tile* const tile = impl_->find_tile(at)) [[likely]] {
    StreamHeap* const heap = tile->heap.load(std::memory_order_acquire);
    if (heap != nullptr && heap->keep_in_cache(at, tile)) [[likely]]
      return {};
  }
  return impl_->deallocate(block);
}

Result<std::uint64_t> DeviceHeap::pool_serving(Stream stream) {
  return impl_->pool_serving(stream);
}
Status DeviceHeap::fence(std::span<void* const> blocks, Stream user) {
  return impl_->fence(blocks, user);
}
Result<Fence> DeviceHeap::take_fence(std::span<void* const> blocks, Stream user) {
  return impl_->take_fence(blocks, user);
}
Result<Fence> DeviceHeap::take_fence_around(std::span<const void* const> pointers, Stream user) {
  return impl_->take_fence_around(pointers, user);
}
Status DeviceHeap::wait(Stream waiter, Fence fence) { return impl_->wait(waiter, fence); }
Status DeviceHeap::order(Stream earlier, Stream later) { return impl_->order(earlier, later); }
Result<bool> DeviceHeap::attach(Stream captured, CaptureAttachment attachment) {
  return impl_->attach(captured, std::move(attachment));
}
Status DeviceHeap::record_stream(void* block, Stream user) {
  return block == nullptr ? Status{} : impl_->record_stream(block, user);
}
std::optional<BlockInfo> DeviceHeap::find(const void* pointer) const {
  return impl_->find(Address::of(pointer));
}
Status DeviceHeap::retire(Stream stream) { return impl_->retire(stream); }
void DeviceHeap::meet(Stream stream) { impl_->meet(stream); }
void DeviceHeap::forgo_context_events(ContextEventsLost why, std::uint64_t stream) {
  impl_->forgo_context_events(why, stream);
}
void DeviceHeap::on_context_events_lost(ContextEventsLostCallback callback) {
  if (callback) impl_->on_context_events_lost(std::move(callback));
}
void DeviceHeap::assume_graphs_leak() { impl_->assume_graphs_leak(); }
Result<Bytes> DeviceHeap::trim(Bytes keep, Trim how) { return impl_->trim(keep, how); }
Result<Stream> DeviceHeap::stream(void* handle) {
  if (Address::of(handle) == kPerThreadHandle) [[unlikely]]
    return impl_->per_thread_stream(handle);
  if (impl_->bound() || impl_->is_untold()) return impl_->stream_in_a_capture(handle);
  return impl_->device().stream(handle);
}
Status DeviceHeap::renew_access() { return impl_->renew_access(); }
bool DeviceHeap::owns(const void* pointer) const {
  return impl_->has_region_around(Address::of(pointer));
}
std::vector<PagePart> DeviceHeap::parts(const void* block) const { return impl_->parts(block); }
void DeviceHeap::set_limit(Bytes limit) { impl_->set_limit(limit); }
Bytes DeviceHeap::limit() const { return impl_->limit(); }
ReusePolicy DeviceHeap::reuse() const { return impl_->reuse(); }
Trust DeviceHeap::trust() const { return impl_->trust(); }
void DeviceHeap::on_out_of_memory(OutOfMemoryCallback callback) {
  if (callback) impl_->on_out_of_memory(std::move(callback));
}
void DeviceHeap::on_miss(MissCallback callback) {
  if (callback) impl_->on_miss(std::move(callback));
}
Statistics DeviceHeap::statistics() const { return impl_->statistics(); }
void DeviceHeap::reset_peaks() { impl_->reset_peaks(); }
void DeviceHeap::note_waited(Stream waiter, Fence fence) { impl_->note_waited(waiter, fence); }
void DeviceHeap::note_remote_work(Stream stream) { impl_->note_remote_work(stream); }
Bytes DeviceHeap::free_bytes_used_by(std::span<const Stream> users) const {
  return impl_->free_bytes_used_by(users);
}
HeapSnapshot DeviceHeap::snapshot() const { return impl_->snapshot(); }
void DeviceHeap::start_recording(EventSink& sink) { impl_->start_recording(sink); }
bool DeviceHeap::stop_recording(EventSink& sink) { return impl_->stop_recording(sink); }
Result<SleepReport> DeviceHeap::sleep(const SleepOptions& options) { return impl_->sleep(options); }
Result<SleepReport> DeviceHeap::wake(const WakeOptions& options) { return impl_->wake(options); }
std::vector<TagInfo> DeviceHeap::tags() const { return impl_->tags(); }
Status DeviceHeap::set_contents(const std::string& tag, SleepContents contents) {
  return impl_->set_contents(tag, contents);
}
Status DeviceHeap::declare_changed(const std::string& tag) { return impl_->declare_changed(tag); }
Result<GraphPool*> DeviceHeap::tag_pool(const std::string& tag) {
  return impl_->tag_pool(*this, tag);
}
Result<std::uint64_t> DeviceHeap::hold(const void* block, std::string holder) {
  return impl_->hold(block, std::move(holder));
}
void DeviceHeap::release_hold(std::uint64_t hold) { impl_->release_hold(hold); }
Result<std::vector<HostPart>> DeviceHeap::host_copy(const void* pointer, Bytes bytes) const {
  return impl_->host_copy({Address::of(pointer), bytes});
}
Status DeviceHeap::read_asleep(const void* pointer, Bytes bytes, void* to) const {
  return impl_->read_asleep({Address::of(pointer), bytes}, to);
}
void DeviceHeap::on_sleep(HeldCallback callback) {
  if (callback) impl_->on_sleep(std::move(callback));
}
Residue DeviceHeap::residue() const { return impl_->residue(); }
std::vector<std::string> DeviceHeap::validate() const { return impl_->validate(); }

}  // namespace weir
