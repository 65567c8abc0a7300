#include "core/pool/graph_pool.h"

#include <algorithm>
#include <utility>

namespace weir {
namespace {

constexpr Bytes kEverything{~std::uint64_t{0}};

using SizesByAddress = std::unordered_map<std::uint64_t, Bytes>;

SizesByAddress sizes_of(std::span<const PlacedBlock> blocks) {
  SizesByAddress sizes;
  for (const PlacedBlock& block : blocks) sizes.emplace(block.address.value, block.bytes);
  return sizes;
}

bool is_in(const SizesByAddress& blocks, const PlacedBlock& block) {
  const auto found = blocks.find(block.address.value);
  return found != blocks.end() && found->second == block.bytes;
}

}  // namespace

PoolHeap::PoolHeap(std::uint64_t id, Home home, const HeapOptions& options)
    : id_(id),
      home_(std::move(home)),
      device_(home_.device),
      timelines_(device_, home_.observer, home_.captures, options.trust),
      pages_(device_, timelines_, home_.observer, home_.addresses, home_.budget, options,
             home_.source) {
  say(EventKind::pool_open);
}

PoolHeap::Member* PoolHeap::member_of(Stream stream, Status& status) {
  if (const auto known = heaps_.find(stream.id); known != heaps_.end()) return &known->second;
  if (timelines_.retired(timelines_.of(stream))) {
    return status =
               Error(ErrorCode::invalid_argument,
                     "stream " + std::to_string(stream.id) +
                         " was retired: allocate for it before retire(), or for another stream"),
           nullptr;
  }
  const auto spare = std::find_if(retired_.begin(), retired_.end(),
                                  [&](StreamHeap* heap) { return heap->adopt(stream); });
  Result<StreamHeap*> heap =
      spare == retired_.end() ? home_.new_heap(*this, stream) : Result<StreamHeap*>(*spare);
  if (!heap) return status = std::move(heap).error(), nullptr;
  if (spare != retired_.end()) {
    retired_.erase(spare);
    (*heap)->announce(id());
  }
  return &(heaps_[stream.id] = {.stream = stream, .heap = *heap});
}

Address PoolHeap::allocate(Bytes bytes, Stream stream, std::uint64_t capture, Status& status) {
  const MutexLock lock(mutex_);
  settled_ = false;
  // A capture that is not into the pool, and takes memory of it: it is the graph's as well.
  const bool is_guest = !is_told() && capture != 0 && !capturing_;
  const bool captured = capture != 0 && !is_guest;
  if (is_told() && captured != capturing_) {
    status = Error(ErrorCode::invalid_argument,
                   "graph pool " + std::to_string(id()) + ": stream " + std::to_string(stream.id) +
                       (captured ? " is being captured, but not into this pool's capture: open the "
                                   "route with GraphPool::capture(), or begin with CaptureScope"
                                 : " is not being captured, but a capture into the pool is going "
                                   "on: end it before the next warm-up"));
    return {};
  }
  Member* const member = member_of(stream, status);
  if (member == nullptr) return {};
  const Stream as = captured ? stream.in_capture() : stream;
  if (!captured && is_told()) {
    // Graphs use memory that counts as free here.
    status = timelines_.wait_for(timelines_.of(stream), launches_);
    if (!status) return {};
  }
  if (const std::uint32_t epoch = captured ? capture_ : kEager; member->epoch != epoch) {
    member->epoch = epoch;
    member->heap->move_to(as, epoch);
  }
  if (captured && watches_ && capture != watched_capture_) {
    if (status = watch(stream, capture); !status) return {};
  }
  if (is_guest) pages_.keep_what_is_used(true);
  const Address at = member->heap->allocate(bytes, as.id, status);
  if (is_guest) {
    pages_.settle_kept(true);
    has_guests_ = true;
  }
  note_reserved();
  return at;
}

Result<bool> PoolHeap::fence(StreamHeap& heap, Address block, Stream user, bool captured) {
  const TimelineId by = timelines_.of(captured ? user.in_capture() : user);
  Result<bool> fenced = heap.fence(block, by);
  if (captured || !fenced || !*fenced) return fenced;
  const MutexLock lock(mutex_);
  settled_ = false;
  if (is_told()) eager_.join(timelines_.now(by));
  if (capturing_) eager_uses_.insert(block.value);
  return fenced;
}

bool PoolHeap::record_stream(StreamHeap& heap, Address block, Stream user, bool captured) {
  const TimelineId by = timelines_.of(captured ? user.in_capture() : user);
  if (!heap.record_stream(block, by)) return false;
  if (captured) return true;
  const MutexLock lock(mutex_);
  settled_ = false;
  if (std::find(users_.begin(), users_.end(), by) == users_.end()) users_.push_back(by);
  if (capturing_) eager_uses_.insert(block.value);
  return true;
}

Result<bool> PoolHeap::deallocate(StreamHeap& heap, Address block, StreamHeap::Gone gone) {
  const MutexLock lock(mutex_);
  settled_ = false;
  if (deferred_.contains(block.value)) return false;
  if (capturing_) {
    const std::optional<std::uint32_t> epoch = heap.epoch_of(block);
    if (!epoch) return false;
    if (*epoch != capture_ || eager_uses_.contains(block.value)) {
      deferred_[block.value] = &heap;
      return true;
    }
  } else {
    note_eager_work(heap, block);
  }
  Result<bool> done = heap.deallocate(block, gone);
  if (closed_ && !capturing_) (void)give_back_pages_locked();
  return done;
}

Error PoolHeap::capture_goes_on() const {
  return {ErrorCode::invalid_argument,
          "graph pool " + std::to_string(id()) +
              ": a capture into it is going on; end that first, or use another pool"};
}

// So that the capture can have the memory, however fast the device is.
Status PoolHeap::wait_for_eager_work() {
  FenceSet before;
  {
    const MutexLock lock(mutex_);
    if (capturing_) return capture_goes_on();
    // What is waited for below is all work up to now: nothing that was freed before may go back
    // later.
    for (const auto& [stream, member] : heaps_) (void)member.heap->give_back_cached();
    before = eager_;
    before.join(launches_);
  }
  // What is seen to be done need not be waited for, on a stream that is captured just now.
  if (Result<bool> done = timelines_.complete(before); !done) return std::move(done).error();
  if (Status waited = timelines_.host_wait(before); !waited) return waited;
  return home_.pages.wait_for_idle_pages();
}

Status PoolHeap::begin_capture(bool watches) {
  while (true) {
    if (is_told()) {
      if (Status waited = wait_for_eager_work(); !waited) return waited;
    }
    const MutexLock lock(mutex_);
    if (capturing_) return capture_goes_on();
    for (const auto& [stream, member] : heaps_) (void)member.heap->give_back_cached();
    if (Result<bool> done = timelines_.complete(eager_); !done) {
      return std::move(done).error();
    } else if (!*done) {
      continue;  // another thread used the pool meanwhile
    }
    capturing_ = true;
    watches_ = watches && is_told();
    watched_capture_ = 0;
    capture_ = capture_ + 1 < Block::kEpochs ? capture_ + 1 : kEager + 1;
    say(EventKind::capture_begin);
    device_.begin();
    pages_.keep_what_is_used(true);
    return {};
  }
}

// All that was captured is past.
void PoolHeap::forget_captured_time() {
  device_.end();
  for (auto& [stream, member] : heaps_) {
    member.epoch = kEager;
    member.heap->move_to(member.stream, kEager);
  }
  const FenceSet captured = timelines_.all([](Stream stream) { return stream.is_in_capture(); });
  (void)timelines_.complete(captured);
}

void PoolHeap::end_capture(bool keep) {
  const MutexLock lock(mutex_);
  settled_ = false;
  if (!capturing_) return;
  forget_captured_time();
  capturing_ = false;
  eager_uses_.clear();
  say(EventKind::capture_end);
  pages_.settle_kept(keep);
  graphs_ += keep ? 1 : 0;
  has_unwatched_ = has_unwatched_ || (keep && watches_ && watched_capture_ == 0);
  free_deferred_locked();
  lingers_ = false;
  if (graphs_ == 0) begin_to_linger();  // the last graph may have gone meanwhile
  (void)give_back_pages_locked();
}

// What can't be freed, as a fence that record_stream asked for could not be taken, stays for the
// next time.
void PoolHeap::free_deferred_locked() {
  std::erase_if(deferred_, [&](const auto& waiting) WEIR_REQUIRES(mutex_) {
    const auto& [block, heap] = waiting;
    note_eager_work(*heap, Address{block});
    return heap->deallocate(Address{block}, StreamHeap::Gone::behind_all).ok();
  });
}

void PoolHeap::free_deferred() {
  const MutexLock lock(mutex_);
  if (capturing_ || deferred_.empty()) return;
  settled_ = false;
  free_deferred_locked();
  if (closed_) (void)give_back_pages_locked();
}

bool PoolHeap::capturing() const {
  const MutexLock lock(mutex_);
  return capturing_;
}

// The block is about to be free: who may use it still?
void PoolHeap::note_eager_work(const StreamHeap& heap, Address block) {
  if (!is_told()) return;  // the program orders graphs and eager work
  const std::optional<Stream> stream = heap.stream_of(block);
  if (!stream) return;
  eager_.join(timelines_.now(timelines_.of(*stream)));
  for (const TimelineId user : users_) eager_.join(timelines_.now(user));
}

void PoolHeap::settle() {
  const MutexLock lock(mutex_);
  if (capturing_ || settled_) return;  // a capture that goes on did so itself
  for (const auto& [stream, member] : heaps_) (void)member.heap->give_back_cached();
  // What just went back is as of now; and what is recorded below covers it.
  for (const Fence fence : FenceSet(eager_)) eager_.join(timelines_.now(fence.timeline));
  settled_ = timelines_.settle();
}

Status PoolHeap::retire(Stream stream) {
  const MutexLock lock(mutex_);
  settled_ = false;
  if (Status status = timelines_.retire(timelines_.of(stream)); !status) return status;
  const auto known = heaps_.find(stream.id);
  if (known == heaps_.end()) return {};
  known->second.heap->close();
  retired_.push_back(known->second.heap);
  heaps_.erase(known);
  return {};
}

void PoolHeap::close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  say(EventKind::pool_close);
  if (std::exchange(has_guests_, false) && graphs_ == 0) begin_to_linger();
  if (!capturing_) (void)give_back_pages_locked();
}

bool PoolHeap::give_back_pages() {
  const MutexLock lock(mutex_);
  return !capturing_ && give_back_pages_locked();
}

std::vector<PageHeap::UnmappedPage> PoolHeap::try_spare(Bytes wanted) {
  if (!mutex_.try_lock()) return {};
  std::vector<PageHeap::UnmappedPage> pages;
  if (!capturing_) {
    if (is_done_lingering() && pages_.try_let_go(launches_)) lingers_ = false;
    pages = pages_.try_give_up(wanted);
  }
  mutex_.unlock();
  return pages;
}

bool PoolHeap::give_back_pages_locked() {
  if (is_done_lingering()) {
    pages_.let_go(launches_);
    lingers_ = false;
  }
  for (const auto& [stream, member] : heaps_) (void)member.heap->give_back_cached();
  const std::vector<PageHeap::UnmappedPage> pages = pages_.give_up(kEverything);
  if (pages.empty()) return false;
  home_.pages.take_in(pages);
  return true;
}

std::vector<PlacedBlock> PoolHeap::blocks() const {
  const MutexLock lock(mutex_);
  std::vector<PlacedBlock> blocks;
  for (const auto& [stream, member] : heaps_) member.heap->list_placed(blocks);
  for (const StreamHeap* heap : retired_) heap->list_placed(blocks);
  std::sort(blocks.begin(), blocks.end(),
            [](const PlacedBlock& a, const PlacedBlock& b) { return a.address < b.address; });
  return blocks;
}

Status PoolHeap::restore(std::span<const PlacedBlock> wanted) {
  const auto refuse = [&](const std::string& why) {
    return Error(ErrorCode::invalid_argument,
                 "graph pool " + std::to_string(id()) + " can't go back to that state: " + why);
  };
  for (const PlacedBlock& block : wanted) {
    if (!is_block(block)) {
      return refuse("what lies at " + std::to_string(block.address.value) + " is no block of it");
    }
  }
  const std::vector<PlacedBlock> live = blocks();
  const SizesByAddress sizes_live = sizes_of(live), sizes_wanted = sizes_of(wanted);
  const MutexLock lock(mutex_);
  if (capturing_) return refuse("a capture into it is going on");
  settled_ = false;
  struct Freed {
    PlacedBlock block;
    std::vector<TimelineId> users;
    bool deferred = false;
  };
  std::vector<PlacedBlock> made;
  std::vector<Freed> freed;
  Status status;
  for (const PlacedBlock& block : live) {
    if (is_in(sizes_wanted, block)) continue;
    Freed each{.block = block};
    const StreamHeap* const heap = heap_with(block.address);
    if (heap != nullptr) each.users = heap->users_of(block.address);
    status = free_placed(block);
    if (!status) break;
    each.deferred = deferred_.erase(block.address.value) > 0;
    freed.push_back(std::move(each));
  }
  for (const PlacedBlock& block : wanted) {
    if (!status) break;
    if (is_in(sizes_live, block)) continue;
    status = place(block);
    if (status) {
      made.push_back(block);
    } else if (status.error().code() == ErrorCode::invalid_argument) {
      status = refuse("the block of " + std::to_string(block.bytes.count) + " bytes at " +
                      std::to_string(block.address.value) + ": " + status.error().message());
    }
  }
  if (status) {
    for (const PlacedBlock& block : wanted) deferred_.erase(block.address.value);
    return {};
  }
  // As it was: what was free then is free now, and nobody else has been here.
  for (const PlacedBlock& block : made) (void)free_placed(block);
  // Its stream now waits for what has used it; who uses it on is told again.
  for (const auto& [block, users, deferred] : freed) {
    (void)place(block);
    StreamHeap* const heap = heap_with(block.address);
    if (heap == nullptr) continue;
    if (deferred) deferred_[block.address.value] = heap;
    for (const TimelineId user : users) (void)heap->record_stream(block.address, user);
  }
  return status;
}

// Could it ever have been one? Its addresses are those of the stream's heap here, or of one whose
// stream was retired.
bool PoolHeap::is_block(const PlacedBlock& block) const {
  const MutexLock lock(mutex_);
  const Address last{block.address.value + block.bytes.count - 1};
  const bool small = block.bytes <= Slabs::kLargest;
  const bool fits = block.requested > 0_B && block.requested <= block.bytes &&
                    Bytes{block.address.value} % kGrain == 0_B &&
                    Bytes{block.run.value} % kGrain == 0_B && block.run <= block.address &&
                    last >= block.address &&
                    (small ? last < block.run + Slab::kSize : block.run == block.address);
  if (!fits || !StreamHeap::is_size_for(block.requested, block.bytes)) return false;
  const bool has_heap = heaps_.contains(block.stream.id) || !retired_.empty();
  return has_heap && pages_.has_addresses({block.run, small ? Slab::kSize : block.bytes});
}

StreamHeap* PoolHeap::heap_with(Address block) const {
  for (const auto& [stream, member] : heaps_) {
    if (member.heap->has(block)) return member.heap;
  }
  const auto retired = std::find_if(retired_.begin(), retired_.end(),
                                    [&](const StreamHeap* heap) { return heap->has(block); });
  return retired == retired_.end() ? nullptr : *retired;
}

Status PoolHeap::free_placed(const PlacedBlock& block) {
  StreamHeap* const heap = heap_with(block.address);
  if (heap == nullptr) return {};
  note_eager_work(*heap, block.address);
  if (Result<bool> done = heap->deallocate(block.address); !done) return std::move(done).error();
  (void)heap->give_back_cached();
  return {};
}

Status PoolHeap::place(const PlacedBlock& block) {
  Status status;
  Member* const member = member_of(block.stream, status);
  return member == nullptr ? std::move(status) : member->heap->allocate_at(block);
}

std::uint64_t PoolHeap::live_blocks() const {
  std::uint64_t live = 0;
  for (const auto& [stream, member] : heaps_) {
    live += member.heap->statistics().live_blocks.current;
  }
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
  watched_.clear();
  has_unwatched_ = false;
  lingers_ = false;
  users_.clear();
  pages_.set_limit(limit);
  say(EventKind::pool_open);
  for (const auto& [stream, member] : heaps_) member.heap->announce(id);
}

void PoolHeap::say(EventKind kind) const { home_.observer.emit(Event{.kind = kind, .pool = id()}); }

GraphPoolStatistics PoolHeap::statistics() const {
  const MutexLock lock(mutex_);
  GraphPoolStatistics all;
  std::vector<const StreamHeap*> heaps(retired_.begin(), retired_.end());
  for (const auto& [stream, member] : heaps_) heaps.push_back(member.heap);
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
  for (const auto& [stream, member] : heaps_) {
    const bool behind =
        capturing_ ? member.epoch != kEager && member.epoch != capture_ : member.epoch != kEager;
    if (behind) broken.push_back(name + "a heap serves a capture that has ended");
  }
  return broken;
}

}  // namespace weir
