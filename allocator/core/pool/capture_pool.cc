// SPDX-License-Identifier: Apache-2.0
#include "core/pool/capture_pool.h"

#include <utility>

namespace weir {
namespace {

Error capture_goes_on(std::uint64_t id) {
  return {ErrorCode::invalid_argument,
          "graph pool " + std::to_string(id) +
              ": a capture into it is going on; end that first, or use another pool"};
}

}  // namespace

CapturePool::CapturePool(std::uint64_t id, std::string tag, Pool::Shared shared, Pool& eager,
                         const HeapOptions& options, std::optional<GraphScratch> scratch)
    : OnPoolEvents{PoolEvents(shared.device, &eager.timelines())},
      Pool(
          id, std::move(tag), events_, shared, options,
          [this](Bytes wanted, Bytes most) -> std::vector<PageHeap::UnmappedPage> {
            FenceSet pending;
            return scratch_.pages_of_others(wanted, most, pending);
          },
          &eager),
      graphs_(shared_.device, *this, eager,
              options.addresses == Addresses::any ? Polls::yes : Polls::no),
      scratch_(*this, eager, options, scratch) {
  shared_.observer.emit({.kind = EventKind::pool_open, .pool = id});
}

Address CapturePool::allocate(Bytes bytes, Stream stream, std::uint64_t capture, Status& status,
                              PageHeap::Create create) {
  const MutexLock lock(mutex_);
  if (status = scratch_.take_back(); !status) return {};
  note_touched();
  // A capture that is not into the pool, and takes memory of it: it is the graph's as well.
  // (One that is paused may be asking again, though no binding leads here.)
  const bool is_own = capture_ && capture == capture_->served;
  const bool is_guest =
      !is_told() && capture != 0 && !is_own && (!capture_ || capture_->may_be_replaced(is_told()));
  if (is_guest && capture_) end_capture_locked();
  const bool captured = capture != 0 && !is_guest;
  if (is_told() && captured != capture_.has_value()) {
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
    capture_->note_use(stream);
    capture_->served = capture;
  } else if (is_told()) {
    // Graphs use memory that counts as free here.
    status = timelines().wait(timelines().of(stream), graphs_.launches());
    if (!status) return {};
  }
  if (const std::uint32_t epoch = captured ? capture_->epoch : kEager; member->epoch != epoch) {
    member->epoch = epoch;
    member->heap->move_to(as, epoch);
  }
  if (captured && capture_->watches && capture != capture_->watched) {
    if (status = graphs_.watch(stream); !status) return {};
    capture_->watched = capture;
  }
  if (is_guest) pages().idle()->keep_what_is_used();
  const Address at = member->heap->allocate(bytes, as.id, status, create);
  if (is_guest) {
    pages().idle()->settle_kept(true);
    has_guests_ = true;
  }
  return at;
}

Result<bool> CapturePool::note_use(StreamHeap& heap, Address block, Stream user, UsedIn where,
                                   LiveBlock::Fenced fenced) {
  // In another capture no fence can be taken: the block's free takes it.
  if (where == UsedIn::other_capture) fenced = LiveBlock::Fenced::at_free;
  const bool captured = where == UsedIn::own_capture;
  const TimelineId by = timelines().of(captured ? user.in_capture() : user);
  const MutexLock lock(mutex_);
  if (const LiveBlock live = heap.live(block, &timelines()); !live) {
    return false;
  } else if (Status noted = live.note_use(by, fenced); !noted) {
    return std::move(noted).error();
  }
  if (captured) {
    if (capture_) capture_->note_use(user);
    if (fenced == LiveBlock::Fenced::now) return true;
    // What outlives the capture the stream may use after it, too.
    if (capture_) {
      capture_->users.emplace_back(block, user);
    } else {
      note_user_after(block, user);  // it ended just now
    }
    return true;
  }
  note_touched();
  if (fenced == LiveBlock::Fenced::now) {
    graphs_.note_eager(by);
  } else {
    graphs_.note_user(by);
  }
  if (capture_) eager_uses_.insert(block.value);
  return true;
}

Result<bool> CapturePool::deallocate(StreamHeap& heap, Address block, StreamHeap::Gone gone) {
  const MutexLock lock(mutex_);
  note_touched();
  if (deferred_.contains(block.value)) return false;
  if (capture_) {
    std::optional<std::uint32_t> epoch;
    if (const LiveBlock live = heap.live(block)) epoch = live.epoch();
    if (!epoch) return false;
    const bool is_captured =
        *epoch == capture_->epoch || (capture_->began_idle && *epoch != kEager);
    if (!is_captured || eager_uses_.contains(block.value)) {
      deferred_.emplace(block.value, &heap);
      return true;
    }
  } else {
    graphs_.note_free(heap, block);
  }
  Result<bool> done = heap.deallocate(block, gone);
  if (capture_ && !done && done.error().code() == ErrorCode::capture) {
    deferred_.emplace(block.value, &heap);
    return true;
  }
  if (closed_ && !capture_) (void)give_back_pages_locked();
  return done;
}

Status CapturePool::begin_capture(std::uint64_t number, bool watches, bool goes_on) {
  {
    const MutexLock lock(mutex_);
    if (capture_ && capture_->paused && capture_->number == number) {
      capture_->paused = false;
      return {};
    }
  }
  while (true) {
    if (is_told()) {
      // The capture can have all memory that is free now, however fast the device is.
      FenceSet before;
      {
        const MutexLock lock(mutex_);
        if (capture_) return capture_goes_on(id());
        // What is waited for below is all work up to now: nothing that was freed before may go
        // back later.
        give_back_cached();
        before = graphs_.eager_work();
        before.join(graphs_.launches());
      }
      if (Status waited = GraphOrder::wait_for(timelines(), before); !waited) return waited;
      if (Status waited = eager_->pages().wait_for_idle_pages(); !waited) return waited;
    }
    const MutexLock lock(mutex_);
    if (Status back = scratch_.take_back(); !back) return back;
    if (capture_ && !capture_->may_be_replaced(is_told())) return capture_goes_on(id());
    if (pages().is_asleep()) {
      return Error(ErrorCode::asleep, "graph pool " + std::to_string(id()) + ": its tag '" + tag() +
                                          "' sleeps: wake it before the capture begins");
    }
    if (capture_) end_capture_locked();
    give_back_cached();
    if (const Result<bool> done = graphs_.is_eager_work_done(); !done) {
      return done.error();
    } else if (!*done) {
      continue;  // another thread used the pool meanwhile
    }
    // What earlier captures used on other streams serves this one too, if no eager work is left.
    std::optional<Sequence> over;
    if (!is_told() && !goes_on) {  // (else to ask would break it)
      const Fence all = timelines().release_point(TimelineId{});
      if (timelines().is_seen_complete(all)) {
        over = all.sequence;
        scratch_.look_at_launches();
      }
    }
    if (++last_epoch_ == kEager) ++last_epoch_;
    capture_ = Capture{.number = number,
                       .epoch = last_epoch_,
                       .watches = watches && is_told(),
                       .untold = watches,
                       .began_idle = over.has_value()};
    shared_.observer.emit({.kind = EventKind::capture_begin, .pool = id()});
    events_.begin();
    pages().idle()->keep_what_is_used(over);
    return {};
  }
}

// Until it has ended, its memory stays: whoever goes on with it finds all as it was.
void CapturePool::pause_capture(std::uint64_t number, bool keep, int graphs) {
  const MutexLock lock(mutex_);
  note_touched();
  graphs_.add(graphs);
  if (!capture_ || capture_->number != number) return;
  capture_->paused = true;
  capture_->keeps = keep;
}

void CapturePool::end_capture(std::uint64_t number) {
  const MutexLock lock(mutex_);
  if (capture_ && capture_->number == number) end_capture_locked();
}

void CapturePool::end_capture_locked() {
  note_touched();
  // All that was captured is past.
  events_.end();
  for_each_member([](Pool::Member& member) {
    member.epoch = kEager;
    member.heap->move_to(member.stream, kEager);
  });
  const FenceSet captured = timelines().all([](Stream stream) { return stream.is_in_capture(); });
  (void)timelines().complete(captured);
  for (const Fence fence : captured) {
    // Retired before the pool heard that the capture is over: retire() left its other name.
    const Stream stream = timelines().stream(fence.timeline).outside_capture();
    if (timelines().retired(stream)) (void)timelines().retire(fence.timeline);
  }
  const Capture ended = *std::exchange(capture_, std::nullopt);
  eager_uses_.clear();
  shared_.observer.emit({.kind = EventKind::capture_end, .pool = id()});
  pages().idle()->settle_kept(ended.keeps);
  if (ended.keeps) scratch_.note_graph(ended.untold);
  if (ended.keeps && ended.watches && ended.watched == 0) graphs_.note_unwatched();
  for (const auto& [block, user] : ended.users) note_user_after(block, user);
  free_deferred();
  graphs_.end_lingering();
  if (graphs_.count() == 0) graphs_.begin_to_linger();  // the last graph may have gone meanwhile
  (void)give_back_pages_locked();
}

// What can't be freed, as a fence that record_stream asked for could not be taken, is tried again
// as any such block.
void CapturePool::free_deferred() {
  for (const auto& [block, heap] : std::exchange(deferred_, {})) {
    graphs_.note_free(*heap, Address{block});
    if (heap->deallocate(Address{block}, StreamHeap::Gone::behind_all)) continue;
    shared_.waiting.add(*heap, Address{block}, 0);
  }
}

std::uint64_t CapturePool::capture() const {
  const MutexLock lock(mutex_);
  return capture_ ? capture_->number : 0;
}

bool CapturePool::refuses_warm_ups() const {
  const MutexLock lock(mutex_);
  return capture_ && (is_told() || !capture_->paused);
}

void CapturePool::settle() {
  enter_as_sparing();  // what its heaps had cached was given back
  const MutexLock lock(mutex_);
  if (capture_ || settled_) return;  // a capture that goes on did so itself
  // What the heaps cache goes back as of now, and what is recorded below covers it.
  give_back_cached();
  graphs_.renew();
  settled_ = timelines().settle();
}

Status CapturePool::retire(Stream stream) {
  const MutexLock lock(mutex_);
  // What was captured on it is past, unless a capture goes on: then it is not of that, or it could
  // not go. Its other name would be settled for ever, an event for each such stream.
  if (const Stream captured = stream.in_capture(); !capture_ && timelines().has_met(captured)) {
    if (Status status = timelines().retire(timelines().of(captured)); !status) return status;
  }
  if (!timelines().has_met(stream)) return {};
  note_touched();
  return Pool::retire(stream);
}

void CapturePool::release_graph() {
  const MutexLock lock(mutex_);
  if (graphs_.count() > 0) graphs_.add(-1);
  if (graphs_.count() > 0 || capture_) return;
  note_touched();
  graphs_.begin_to_linger();
  (void)give_back_pages_locked();
}

bool CapturePool::lingers(bool hopes) const {
  const MutexLock lock(mutex_);
  return graphs_.lingers(hopes);
}

bool CapturePool::begin_to_wait_for_graphs() {
  const MutexLock lock(mutex_);
  if (graphs_.lingers()) graphs_.begin_to_wait();
  return graphs_.lingers();
}

void CapturePool::note_lingers_on(bool leaked) {
  const MutexLock lock(mutex_);
  if (!capture_) graphs_.note_lingers_on(leaked);
}

void CapturePool::close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  shared_.observer.emit({.kind = EventKind::pool_close, .pool = id()});
  if (std::exchange(has_guests_, false) && graphs_.count() == 0) {
    note_touched();
    graphs_.begin_to_linger();
  }
  if (!capture_) (void)give_back_pages_locked();
}

bool CapturePool::give_back_pages(bool if_useful) {
  const MutexLock lock(mutex_);
  if (capture_ || (if_useful && !shares_pages() && !closed_)) return false;
  return give_back_pages_locked();
}

Result<Bytes> CapturePool::give_to_driver(Bytes wanted) {
  const MutexLock lock(mutex_);
  if (capture_) return 0_B;
  graphs_.let_go(/*waits_for_lock=*/true);
  give_back_cached();
  return pages().idle()->give_to_driver(wanted);
}

Result<Bytes> CapturePool::try_give_to_driver(Bytes wanted) {
  if (shares_pages() || !mutex_.try_lock()) return 0_B;
  const auto idle = pages().idle(std::try_to_lock);
  Result<Bytes> gone = capture_ || !idle ? 0_B : idle->give_to_driver(wanted);
  mutex_.unlock();
  return gone;
}

void CapturePool::note_touched() {
  settled_ = false;
  enter_as_sparing();
}

// (If there is another block by now, its free takes a fence for nothing.)
void CapturePool::note_user_after(Address block, Stream user) {
  const TimelineId later = timelines().of(user);
  graphs_.note_user(later);
  StreamHeap* const heap = heap_with(block);
  if (heap == nullptr) return;
  if (const LiveBlock live = heap->live(block, &timelines())) live.add_user(later);
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
  if (!capture_) {
    graphs_.let_go(/*waits_for_lock=*/false);
    const auto idle = pages().idle(std::try_to_lock);
    if (idle) spare = idle->give_to_pool(wanted);
    more = !idle || idle->any() || graphs_.lingers();
  }
  mutex_.unlock();
  if (more) enter_as_sparing();
  return spare;
}

bool CapturePool::give_back_pages_locked() {
  graphs_.let_go(/*waits_for_lock=*/true);
  scratch_.take_back_if_graphs_gone();
  give_back_cached();
  if (!shares_pages()) {
    const Result<Bytes> gone = pages().idle()->give_to_driver(PageHeap::kUnlimited);
    return gone && *gone > 0_B;
  }
  const std::vector<PageHeap::UnmappedPage> idle =
      pages().idle()->give_to_pool(PageHeap::kUnlimited);
  if (pages().idle()->any()) enter_as_sparing();  // what can't go yet
  if (idle.empty()) return false;
  eager_->pages().idle()->take_from_pool(idle);
  return true;
}

void CapturePool::tidy() {
  const MutexLock lock(mutex_);
  if (!capture_) pages().idle()->forget_if_empty(/*complete=*/true);
}

bool CapturePool::end_if_gone() {
  const MutexLock lock(mutex_);
  if (!closed_ || capture_ || graphs_.count() > 0 || pages().is_asleep()) return false;
  std::uint64_t live = 0;
  for_each_heap([&](const StreamHeap& heap) { live += heap.statistics().live_blocks.current; });
  if (live > 0) return false;
  (void)give_back_pages_locked();  // what could not go when it was closed
  if (scratch_.any() || pages().listing()->totals().total > 0_B) return false;
  pages().idle()->give_back_addresses();
  disband();
  shared_.sparing.leave(id());
  shared_.lending.leave(id());
  return true;
}

GraphPoolStatistics CapturePool::statistics() const {
  const MutexLock lock(mutex_);
  GraphPoolStatistics all;
  for_each_heap([&](const StreamHeap& heap) {
    const HeapStatistics one = heap.statistics();
    all.live_blocks += one.live_blocks.current;
    all.live_bytes += Bytes{one.live_bytes.current};
  });
  const PageListing::Totals totals = pages().listing()->totals();
  all.reserved_bytes = totals.total;
  all.peak_reserved_bytes = totals.peak_total;
  all.kept_bytes = pages().listing()->kept();
  all.lent_bytes = scratch_.lent();
  all.graphs = graphs_.count();
  all.deferred = deferred_.size();
  return all;
}

CapturePool::Held CapturePool::hold() const {
  std::unique_lock lock(mutex_);
  return {std::move(lock), id(), capture_.has_value(), closed_};
}

std::vector<std::string> CapturePool::validate_captures() const {
  const MutexLock lock(mutex_);
  std::vector<std::string> broken;
  const std::string name = "graph pool " + std::to_string(id()) + ": ";
  for (const auto& [block, heap] : deferred_) {
    if (!heap->live(Address{block})) broken.push_back(name + "a deferred block is not live");
  }
  for_each_member([&](const Pool::Member& member) WEIR_REQUIRES(mutex_) {
    if (member.epoch == kEager || (capture_ && member.epoch == capture_->epoch)) return;
    broken.push_back(name + "a heap serves a capture that has ended");
  });
  return broken;
}

}  // namespace weir
