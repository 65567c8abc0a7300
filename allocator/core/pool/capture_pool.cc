// SPDX-License-Identifier: Apache-2.0
#include "core/pool/capture_pool.h"

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

CapturePool::CapturePool(std::uint64_t id, std::string tag, Pool::Shared shared, Pool& eager,
                         const HeapOptions& options)
    : OnPoolDevice{PoolDevice(shared.device)},
      Pool(
          id, std::move(tag), device_, shared, options,
          [this](Bytes wanted, Bytes most) -> std::vector<PageHeap::UnmappedPage> {
            if (!shares_pages()) return {};
            StreamHeap::give_back_all(eager_->caching_heaps());
            return eager_->pages().give_up(wanted, most);
          },
          &eager) {
  say(EventKind::pool_open);
}

Address CapturePool::allocate(Bytes bytes, Stream stream, std::uint64_t capture, Status& status,
                              PageHeap::Create create) {
  const MutexLock lock(mutex_);
  note_touched();
  // A capture that is not into the pool, and takes memory of it: it is the graph's as well.
  // (One that is paused may be asking again, though no binding leads here.)
  const bool is_own = capturing_ && capture == served_capture_;
  const bool is_guest = !is_told() && capture != 0 && !is_own && (!capturing_ || may_be_replaced());
  if (is_guest && capturing_) end_capture_locked();
  const bool captured = capture != 0 && !is_guest;
  if (is_told() && captured != capturing_) {
    status = Error(ErrorCode::invalid_argument,
                   "graph pool " + std::to_string(id()) + ": stream " + std::to_string(stream.id) +
                       (captured ? " is being captured, but not into this pool's capture: open the "
                                   "binding with GraphPool::capture(), or begin with CaptureScope"
                                 : " is not being captured, but a capture into the pool is going "
                                   "on: end it before the next warm-up"));
    return {};
  }
  const Result<Pool::Member*> found = member_of(stream);
  if (!found) return status = found.error(), Address{};
  Pool::Member* const member = *found;
  const Stream as = captured ? stream.in_capture() : stream;
  if (captured) {
    note_captured_use(stream);
    served_capture_ = capture;
  }
  if (!captured && is_told()) {
    // Graphs use memory that counts as free here.
    status = timelines().wait(timelines().of(stream), launches_);
    if (!status) return {};
  }
  if (const std::uint32_t epoch = captured ? capture_ : kEager; member->epoch != epoch) {
    member->epoch = epoch;
    member->heap->move_to(as, epoch);
  }
  if (captured && watches_ && capture != watched_capture_) {
    if (status = watch(stream, capture); !status) return {};
  }
  if (is_guest) pages().keep_what_is_used(true);
  const Address at = member->heap->allocate(bytes, as.id, status, create);
  if (is_guest) {
    pages().settle_kept(true);
    has_guests_ = true;
  }
  return at;
}

Result<bool> CapturePool::fence(StreamHeap& heap, Address block, Stream user, UsedIn where) {
  // In another capture no fence can be taken: the block's free takes it.
  if (where == UsedIn::other_capture) return record_stream(heap, block, user, where);
  const bool captured = where == UsedIn::own_capture;
  const TimelineId by = timelines().of(captured ? user.in_capture() : user);
  Result<bool> fenced = heap.fence(block, timelines(), by);
  if (!fenced || !*fenced) return fenced;
  const MutexLock lock(mutex_);
  if (captured) return note_captured_use(user), fenced;
  note_touched();
  if (is_told()) eager_work_.join(timelines().now(by));
  if (capturing_) eager_uses_.insert(block.value);
  return fenced;
}

bool CapturePool::record_stream(StreamHeap& heap, Address block, Stream user, UsedIn where) {
  const bool captured = where == UsedIn::own_capture;
  const TimelineId by = timelines().of(captured ? user.in_capture() : user);
  if (!heap.record_stream(block, timelines(), by)) return false;
  const MutexLock lock(mutex_);
  if (captured) return note_captured_use(user), true;
  note_touched();
  if (std::find(users_.begin(), users_.end(), by) == users_.end()) users_.push_back(by);
  if (capturing_) eager_uses_.insert(block.value);
  return true;
}

void CapturePool::note_captured_use(Stream stream) {
  if (used_on_ == 0) used_on_ = stream.id;
  several_streams_ = several_streams_ || used_on_ != stream.id;
}

Result<bool> CapturePool::deallocate(StreamHeap& heap, Address block, StreamHeap::Gone gone) {
  const MutexLock lock(mutex_);
  note_touched();
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

Error CapturePool::capture_goes_on() const {
  return {ErrorCode::invalid_argument,
          "graph pool " + std::to_string(id()) +
              ": a capture into it is going on; end that first, or use another pool"};
}

// So that the capture can have the memory, however fast the device is.
Status CapturePool::wait_for_eager_work() {
  FenceSet before;
  {
    const MutexLock lock(mutex_);
    if (capturing_) return capture_goes_on();
    // What is waited for below is all work up to now: nothing that was freed before may go back
    // later.
    give_back_cached();
    before = eager_work_;
    before.join(launches_);
  }
  for (const Fence fence : before) {
    FenceSet one;
    one.join(fence);
    // What is seen to be done need not be waited for, on a stream that is captured just now.
    const Result<bool> done = timelines().complete(one);
    if (done && *done) continue;
    Status waited = done ? timelines().host_wait(one) : Status(done.error());
    if (!waited && waited.error().code() != ErrorCode::capture) return waited;
  }
  return eager_->pages().wait_for_idle_pages();
}

// But for what can't be waited for, as its stream is captured just now: the capture won't have that
// memory.
Result<bool> CapturePool::is_eager_work_done() {
  for (const Fence fence : eager_work_) {
    FenceSet one;
    one.join(fence);
    const Result<bool> done = timelines().complete(one);
    if (!done && done.error().code() != ErrorCode::capture) return done.error();
    if (done && !*done) return false;
  }
  return true;
}

bool CapturePool::resume_capture(std::uint64_t number) {
  const MutexLock lock(mutex_);
  if (!paused_ || number_ != number) return false;
  paused_ = false;
  return true;
}

Status CapturePool::begin_capture(std::uint64_t number, bool watches) {
  if (resume_capture(number)) return {};
  while (true) {
    if (is_told()) {
      if (Status waited = wait_for_eager_work(); !waited) return waited;
    }
    const MutexLock lock(mutex_);
    if (capturing_ && !may_be_replaced()) return capture_goes_on();
    if (pages().is_asleep()) return PageHeap::asleep_error();
    if (capturing_) end_capture_locked();
    give_back_cached();
    if (const Result<bool> done = is_eager_work_done(); !done) {
      return done.error();
    } else if (!*done) {
      continue;  // another thread used the pool meanwhile
    }
    capturing_ = true;
    number_ = number;
    used_on_ = 0;
    served_capture_ = 0;
    several_streams_ = false;
    watches_ = watches && is_told();
    watched_capture_ = 0;
    if (++capture_ == kEager) ++capture_;
    say(EventKind::capture_begin);
    device_.begin();
    pages().keep_what_is_used(true);
    return {};
  }
}

// All that was captured is past.
void CapturePool::forget_captured_time() {
  device_.end();
  for_each_member([](Pool::Member& member) {
    member.epoch = kEager;
    member.heap->move_to(member.stream, kEager);
  });
  const FenceSet captured = timelines().all([](Stream stream) { return stream.is_in_capture(); });
  (void)timelines().complete(captured);
}

// Until it has ended, its memory stays: whoever goes on with it finds all as it was.
void CapturePool::pause_capture(std::uint64_t number, bool keep, int graphs) {
  const MutexLock lock(mutex_);
  note_touched();
  graphs_ += static_cast<std::uint64_t>(graphs);
  if (!capturing_ || number_ != number) return;
  paused_ = true;
  keeps_ = keep;
}

void CapturePool::end_capture(std::uint64_t number) {
  const MutexLock lock(mutex_);
  if (capturing_ && number_ == number) end_capture_locked();
}

void CapturePool::end_capture_locked() {
  note_touched();
  forget_captured_time();
  capturing_ = paused_ = false;
  eager_uses_.clear();
  say(EventKind::capture_end);
  pages().settle_kept(keeps_);
  has_unwatched_ = has_unwatched_ || (keeps_ && watches_ && watched_capture_ == 0);
  free_deferred_locked();
  lingers_ = false;
  if (graphs_ == 0) begin_to_linger();  // the last graph may have gone meanwhile
  (void)give_back_pages_locked();
}

// What can't be freed, as a fence that record_stream asked for could not be taken, stays for the
// next time.
void CapturePool::free_deferred_locked() {
  std::erase_if(deferred_, [&](const auto& waiting) WEIR_REQUIRES(mutex_) {
    const auto& [block, heap] = waiting;
    note_eager_work(*heap, Address{block});
    return heap->deallocate(Address{block}, StreamHeap::Gone::behind_all).ok();
  });
}

void CapturePool::free_deferred() {
  const MutexLock lock(mutex_);
  if (capturing_ || deferred_.empty()) return;
  note_touched();
  free_deferred_locked();
  if (closed_) (void)give_back_pages_locked();
}

bool CapturePool::capturing() const {
  const MutexLock lock(mutex_);
  return capturing_;
}

bool CapturePool::is_capturing(std::uint64_t number) const {
  const MutexLock lock(mutex_);
  return capturing_ && number_ == number;
}

bool CapturePool::refuses_warm_ups() const {
  const MutexLock lock(mutex_);
  return capturing_ && (is_told() || !paused_);
}

// The block is about to be free: who may use it still?
void CapturePool::note_eager_work(const StreamHeap& heap, Address block) {
  if (!is_told()) return;  // the program orders graphs and eager work
  const std::optional<Stream> stream = heap.stream_of(block);
  if (!stream) return;
  eager_work_.join(timelines().now(timelines().of(*stream)));
  for (const TimelineId user : users_) eager_work_.join(timelines().now(user));
}

void CapturePool::settle() {
  enter_as_sparing();  // what its heaps had cached was given back
  const MutexLock lock(mutex_);
  if (capturing_ || settled_) return;  // a capture that goes on did so itself
  // What the heaps cache goes back as of now, and what is recorded below covers it.
  give_back_cached();
  for (const Fence fence : FenceSet(eager_work_)) eager_work_.join(timelines().now(fence.timeline));
  settled_ = timelines().settle();
}

Status CapturePool::retire(Stream stream) {
  const MutexLock lock(mutex_);
  // What was captured on it is past, unless a capture goes on: then it is not of that, or it could
  // not go. Its other name would be settled for ever, an event for each such stream.
  if (const Stream captured = stream.in_capture(); !capturing_ && timelines().has_met(captured)) {
    if (Status status = timelines().retire(timelines().of(captured)); !status) return status;
  }
  if (!timelines().has_met(stream)) return {};
  note_touched();
  return Pool::retire(stream);
}

void CapturePool::close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  say(EventKind::pool_close);
  if (std::exchange(has_guests_, false) && graphs_ == 0) begin_to_linger();
  if (!capturing_) (void)give_back_pages_locked();
}

bool CapturePool::give_back_pages() {
  const MutexLock lock(mutex_);
  return !capturing_ && give_back_pages_locked();
}

bool CapturePool::call_in() {
  const MutexLock lock(mutex_);
  return !capturing_ && (shares_pages() || closed_) && give_back_pages_locked();
}

Result<Bytes> CapturePool::give_to_device(Bytes wanted) {
  const MutexLock lock(mutex_);
  if (capturing_) return 0_B;
  let_go_of_launches();
  give_back_cached();
  return pages().give_to_device(wanted);
}

Result<Bytes> CapturePool::try_give_to_device(Bytes wanted) {
  if (shares_pages() || !mutex_.try_lock()) return 0_B;
  Result<Bytes> gone = capturing_ ? 0_B : pages().try_give_to_device(wanted);
  mutex_.unlock();
  return gone;
}

void CapturePool::note_touched() {
  settled_ = false;
  enter_as_sparing();
}

void CapturePool::enter_as_sparing() {
  if (!shares_pages() || may_spare_.load(std::memory_order_relaxed)) return;
  if (!may_spare_.exchange(true)) shared_.sparing.enter(id(), weak_from_this());
}

std::vector<PageHeap::UnmappedPage> CapturePool::try_spare(Bytes wanted) {
  may_spare_.store(false);  // before it looks: what becomes idle meanwhile enters it again
  std::vector<PageHeap::UnmappedPage> spare;
  if (!mutex_.try_lock()) return enter_as_sparing(), spare;
  bool more = false;
  if (!capturing_) {
    if (is_done_lingering() && pages().try_let_go(launches_)) lingers_ = false;
    spare = pages().try_give_up(wanted, more);
    more = more || lingers_;
  }
  mutex_.unlock();
  if (more) enter_as_sparing();
  return spare;
}

void CapturePool::let_go_of_launches() {
  if (!is_done_lingering()) return;
  pages().let_go(launches_);
  lingers_ = false;
}

bool CapturePool::give_back_pages_locked() {
  let_go_of_launches();
  give_back_cached();
  if (!shares_pages()) {
    const Result<Bytes> gone = pages().give_to_device(kEverything);
    return gone && *gone > 0_B;
  }
  const std::vector<PageHeap::UnmappedPage> idle = pages().give_up(kEverything);
  if (idle.empty()) return false;
  eager_->pages().take_in(idle);
  return true;
}

std::vector<PlacedBlock> CapturePool::blocks() const {
  const MutexLock lock(mutex_);
  std::vector<PlacedBlock> blocks;
  for_each_heap([&](const StreamHeap& heap) { heap.list_placed(blocks); });
  std::sort(blocks.begin(), blocks.end(),
            [](const PlacedBlock& a, const PlacedBlock& b) { return a.address < b.address; });
  return blocks;
}

Status CapturePool::restore(std::span<const PlacedBlock> wanted) {
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
  note_touched();
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
    for (const TimelineId user : users) (void)heap->record_stream(block.address, timelines(), user);
  }
  return status;
}

// Could it ever have been one? Its addresses are those of the stream's heap here, or of one whose
// stream was retired.
bool CapturePool::is_block(const PlacedBlock& block) const {
  const MutexLock lock(mutex_);
  const Address last{block.address.value + block.bytes.count - 1};
  const bool small = block.bytes <= Slabs::kLargest;
  const bool run_fits = small ? block.run_bytes == Slab::kSize || block.run_bytes == Slab::kLeast
                              : block.run_bytes == block.bytes;
  const bool fits = run_fits && block.requested > 0_B && block.requested <= block.bytes &&
                    Bytes{block.address.value} % kGrain == 0_B &&
                    Bytes{block.run.value} % kGrain == 0_B && block.run <= block.address &&
                    last >= block.address &&
                    (small ? last < block.run + block.run_bytes : block.run == block.address);
  if (!fits || !StreamHeap::is_size_for(block.requested, block.bytes)) return false;
  const bool has_heap = find(block.stream.id) != nullptr || has_retired();
  return has_heap && pages().has_addresses({block.run, block.run_bytes});
}

Status CapturePool::free_placed(const PlacedBlock& block) {
  StreamHeap* const heap = heap_with(block.address);
  if (heap == nullptr) return {};
  note_eager_work(*heap, block.address);
  if (Result<bool> done = heap->deallocate(block.address); !done) return std::move(done).error();
  (void)heap->give_back_cached();
  return {};
}

Status CapturePool::place(const PlacedBlock& block) {
  const Result<Pool::Member*> member = member_of(block.stream);
  return member ? (*member)->heap->allocate_at(block) : Status(member.error());
}

std::uint64_t CapturePool::live_blocks() const {
  std::uint64_t live = 0;
  for_each_heap([&](const StreamHeap& heap) { live += heap.statistics().live_blocks.current; });
  return live;
}

void CapturePool::tidy() {
  const MutexLock lock(mutex_);
  if (!capturing_) pages().tidy();
}

bool CapturePool::end_if_gone() {
  const MutexLock lock(mutex_);
  if (!closed_ || capturing_ || graphs_ > 0 || live_blocks() > 0 || pages().is_asleep()) {
    return false;
  }
  (void)give_back_pages_locked();  // what could not go when it was closed
  if (pages().totals().total > 0_B) return false;
  pages().give_back_addresses();
  disband();
  shared_.sparing.leave(id());
  return true;
}

void CapturePool::say(EventKind kind) const {
  shared_.observer.emit(Event{.kind = kind, .pool = id()});
}

GraphPoolStatistics CapturePool::statistics() const {
  const MutexLock lock(mutex_);
  GraphPoolStatistics all;
  for_each_heap([&](const StreamHeap& heap) {
    const HeapStatistics one = heap.statistics();
    all.live_blocks += one.live_blocks.current;
    all.live_bytes += Bytes{one.live_bytes.current};
  });
  const PageHeap::Totals totals = pages().totals();
  all.reserved_bytes = totals.total;
  all.peak_reserved_bytes = totals.peak_total;
  all.kept_bytes = pages().kept();
  all.graphs = graphs_;
  all.deferred = deferred_.size();
  return all;
}

std::vector<std::string> CapturePool::validate_captures() const {
  const MutexLock lock(mutex_);
  std::vector<std::string> broken;
  const std::string name = "graph pool " + std::to_string(id()) + ": ";
  for (const auto& [block, heap] : deferred_) {
    if (!heap->has(Address{block})) broken.push_back(name + "a deferred block is not live");
  }
  for_each_member([&](const Pool::Member& member) WEIR_REQUIRES(mutex_) {
    const bool behind =
        capturing_ ? member.epoch != kEager && member.epoch != capture_ : member.epoch != kEager;
    if (behind) broken.push_back(name + "a heap serves a capture that has ended");
  });
  return broken;
}

}  // namespace weir
