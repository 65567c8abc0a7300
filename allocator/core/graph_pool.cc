#include "core/graph_pool.h"

#include <algorithm>
#include <utility>

namespace weir {
namespace {

constexpr Bytes kEverything{~std::uint64_t{0}};

}  // namespace

PoolHeap::PoolHeap(std::uint64_t id, Home home, const HeapOptions& options)
    : id_(id),
      home_(std::move(home)),
      device_(home_.device),
      timelines_(device_, home_.observer),
      pages_(device_, timelines_, home_.observer, home_.addresses, home_.budget, options,
             home_.source) {
  say(EventKind::pool_open);
}

Result<StreamHeap*> PoolHeap::heap_of(Stream stream) {
  if (const auto known = heaps_.find(stream.id); known != heaps_.end()) return known->second;
  const auto spare = std::find_if(retired_.begin(), retired_.end(),
                                  [&](StreamHeap* heap) { return heap->adopt(stream); });
  Result<StreamHeap*> heap =
      spare == retired_.end() ? home_.new_heap(*this, stream) : Result<StreamHeap*>(*spare);
  if (!heap) return heap;
  if (spare != retired_.end()) {
    retired_.erase(spare);
    (*heap)->announce(id());
  }
  heaps_[stream.id] = *heap;
  streams_.push_back(stream);
  return heap;
}

Address PoolHeap::allocate(Bytes bytes, Stream stream, bool captured, Status& status) {
  const MutexLock lock(mutex_);
  if (captured != capturing_) {
    status = Error(ErrorCode::invalid_argument,
                   "graph pool " + std::to_string(id()) + ": stream " + std::to_string(stream.id) +
                       (captured ? " is being captured, but not into this pool's capture"
                                 : " is not being captured, but a capture into the pool is going "
                                   "on: end it before the next warm-up"));
    return {};
  }
  Result<StreamHeap*> heap = heap_of(stream);
  if (!heap) {
    status = std::move(heap).error();
    return {};
  }
  const Stream as = captured ? PoolDevice::captured(stream) : stream;
  if (!captured) {
    // Graphs use memory that counts as free here.
    Result<std::uint32_t> waited = timelines_.wait(timelines_.of(stream), launches_);
    if (!waited) return status = std::move(waited).error(), Address{};
  }
  (*heap)->move_to(as);
  const Address at = (*heap)->allocate(bytes, as.id, status);
  if (at != Address{} && captured) in_this_capture_.insert(at.value);
  note_reserved();
  return at;
}

Result<bool> PoolHeap::fence(StreamHeap& heap, Address block, Stream user, bool captured) {
  const TimelineId by = timelines_.of(captured ? PoolDevice::captured(user) : user);
  Result<bool> fenced = heap.fence(block, by);
  if (captured || !fenced || !*fenced) return fenced;
  const MutexLock lock(mutex_);
  eager_.join(timelines_.now(by));
  return fenced;
}

bool PoolHeap::record_stream(StreamHeap& heap, Address block, Stream user, bool captured) {
  const TimelineId by = timelines_.of(captured ? PoolDevice::captured(user) : user);
  if (!heap.record_stream(block, by)) return false;
  const MutexLock lock(mutex_);
  if (!captured && std::find(users_.begin(), users_.end(), by) == users_.end())
    users_.push_back(by);
  return true;
}

Result<bool> PoolHeap::deallocate(StreamHeap& heap, Address block) {
  const MutexLock lock(mutex_);
  if (deferred_.contains(block.value)) return false;
  if (capturing_ && in_this_capture_.erase(block.value) == 0) {
    if (!heap.has(block)) return false;
    deferred_[block.value] = &heap;
    return true;
  }
  if (!capturing_) note_eager_work(heap, block);
  Result<bool> done = heap.deallocate(block);
  if (capturing_ && !done) in_this_capture_.insert(block.value);  // it is live still
  if (closed_ && !capturing_) (void)give_back_pages_locked();
  return done;
}

Status PoolHeap::begin_capture() {
  const MutexLock lock(mutex_);
  if (capturing_) {
    return Error(ErrorCode::invalid_argument,
                 "graph pool " + std::to_string(id()) +
                     ": a capture into it is going on; end that first, or use another pool");
  }
  // What is waited for below is all work up to now: nothing that was freed before may go back
  // later.
  for (const auto& [stream, heap] : heaps_) (void)heap->give_back_at_hand();
  FenceSet before = eager_;
  before.join(launches_);
  // What is seen to be done need not be waited for, on a stream that is captured just now.
  if (Result<bool> done = timelines_.complete(before); !done) return std::move(done).error();
  if (Status waited = timelines_.host_wait(before); !waited) return waited;
  // So that the capture can have them, however fast the device is.
  if (Status waited = home_.pages.wait_for_idle_pages(); !waited) return waited;
  capturing_ = true;
  say(EventKind::capture_begin);
  device_.begin();
  pages_.keep_what_is_used(true);
  return {};
}

// All that was captured is past.
void PoolHeap::forget_captured_time() {
  device_.end();
  for (const Stream stream : streams_) heaps_[stream.id]->move_to(stream);
  const FenceSet captured = timelines_.all(PoolDevice::is_captured);
  (void)timelines_.complete(captured);
}

void PoolHeap::end_capture(bool keep) {
  const MutexLock lock(mutex_);
  if (!capturing_) return;
  forget_captured_time();
  capturing_ = false;
  say(EventKind::capture_end);
  pages_.settle_kept(keep);
  graphs_ += keep ? 1 : 0;
  in_this_capture_.clear();
  for (const auto& [block, heap] : std::exchange(deferred_, {})) {
    note_eager_work(*heap, Address{block});
    (void)heap->deallocate(Address{block});
  }
  (void)give_back_pages_locked();
}

bool PoolHeap::capturing() const {
  const MutexLock lock(mutex_);
  return capturing_;
}

// The block is about to be free: who may use it still?
void PoolHeap::note_eager_work(const StreamHeap& heap, Address block) {
  const std::optional<Stream> stream = heap.stream_of(block);
  if (!stream) return;
  eager_.join(timelines_.now(timelines_.of(*stream)));
  for (const TimelineId user : users_) eager_.join(timelines_.now(user));
}

Status PoolHeap::wait_for_eager_work(Stream stream) {
  const MutexLock lock(mutex_);
  Result<std::uint32_t> waited = timelines_.wait(timelines_.of(stream), eager_);
  if (!waited) return std::move(waited).error();
  return {};
}

void PoolHeap::settle() {
  const MutexLock lock(mutex_);
  if (capturing_) return;  // it did so itself
  for (const auto& [stream, heap] : heaps_) (void)heap->give_back_at_hand();
  // What just went back is as of now; and what is recorded below covers it.
  for (const Fence fence : FenceSet(eager_)) eager_.join(timelines_.now(fence.timeline));
  timelines_.settle();
}

void PoolHeap::note_launch(Stream stream) {
  const MutexLock lock(mutex_);
  launches_.join(timelines_.now(timelines_.of(stream)));
}

void PoolHeap::release_graph() {
  const MutexLock lock(mutex_);
  if (graphs_ > 0) --graphs_;
  if (graphs_ > 0 || capturing_) return;
  pages_.let_go(launches_);
  (void)give_back_pages_locked();
}

Status PoolHeap::retire(Stream stream) {
  const MutexLock lock(mutex_);
  if (Status status = timelines_.retire(timelines_.of(stream)); !status) return status;
  const auto known = heaps_.find(stream.id);
  if (known == heaps_.end()) return {};
  known->second->close();
  retired_.push_back(known->second);
  heaps_.erase(known);
  std::erase(streams_, stream);
  return {};
}

void PoolHeap::close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  say(EventKind::pool_close);
  if (!capturing_) (void)give_back_pages_locked();
}

bool PoolHeap::give_back_pages() {
  const MutexLock lock(mutex_);
  return !capturing_ && give_back_pages_locked();
}

std::vector<PageHeap::LoosePage> PoolHeap::try_spare(Bytes wanted) {
  if (!mutex_.try_lock()) return {};
  std::vector<PageHeap::LoosePage> pages;
  if (!capturing_) pages = pages_.try_give_up(wanted);
  mutex_.unlock();
  return pages;
}

bool PoolHeap::give_back_pages_locked() {
  for (const auto& [stream, heap] : heaps_) (void)heap->give_back_at_hand();
  const std::vector<PageHeap::LoosePage> pages = pages_.give_up(kEverything);
  home_.pages.take_in(pages);
  return !pages.empty();
}

std::uint64_t PoolHeap::live_blocks() const {
  std::uint64_t live = 0;
  for (const auto& [stream, heap] : heaps_) live += heap->statistics().live_blocks.current;
  for (const StreamHeap* heap : retired_) live += heap->statistics().live_blocks.current;
  return live;
}

bool PoolHeap::is_gone() const {
  const MutexLock lock(mutex_);
  return closed_ && !capturing_ && graphs_ == 0 && live_blocks() == 0 &&
         pages_.totals().total == 0_B;
}

void PoolHeap::note_reserved() { peak_reserved_ = std::max(peak_reserved_, pages_.totals().total); }

void PoolHeap::reopen(std::uint64_t id, Bytes limit) {
  const MutexLock lock(mutex_);
  id_.store(id, std::memory_order_relaxed);
  closed_ = false;
  peak_reserved_ = 0_B;
  eager_.clear();
  launches_.clear();
  users_.clear();
  pages_.set_limit(limit);
  say(EventKind::pool_open);
  for (const auto& [stream, heap] : heaps_) heap->announce(id);
}

void PoolHeap::say(EventKind kind) const { home_.observer.emit(Event{.kind = kind, .pool = id()}); }

GraphPoolStatistics PoolHeap::statistics() const {
  const MutexLock lock(mutex_);
  GraphPoolStatistics all;
  std::vector<const StreamHeap*> heaps(retired_.begin(), retired_.end());
  for (const auto& [stream, heap] : heaps_) heaps.push_back(heap);
  for (const StreamHeap* heap : heaps) {
    const HeapStatistics one = heap->statistics();
    all.live_blocks += one.live_blocks.current;
    all.live_bytes += Bytes{one.live_bytes.current};
  }
  all.reserved_bytes = pages_.totals().total;
  all.peak_reserved_bytes = std::max(peak_reserved_, all.reserved_bytes);
  all.kept_bytes = pages_.kept();
  all.graphs = graphs_;
  all.deferred = deferred_.size();
  return all;
}

std::vector<std::string> PoolHeap::validate() const {
  const MutexLock lock(mutex_);
  std::vector<std::string> broken = timelines_.validate();
  const std::string name = "graph pool " + std::to_string(id()) + ": ";
  for (const auto& [block, heap] : deferred_) {
    if (!heap->has(Address{block})) broken.push_back(name + "a deferred block is not live");
  }
  if (!capturing_ && !deferred_.empty()) broken.push_back(name + "blocks wait for no capture");
  if (!capturing_ && !in_this_capture_.empty()) broken.push_back(name + "blocks of no capture");
  return broken;
}

}  // namespace weir
