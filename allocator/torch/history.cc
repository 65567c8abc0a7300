// SPDX-License-Identifier: Apache-2.0
#include "torch/history.h"

#include <c10/util/ApproximateClock.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace weir::pytorch {

using native::RecordContext;
using native::TraceEntry;

ThreadNotes& thread_notes() {
  thread_local ThreadNotes notes;
  return notes;
}

namespace {

thread_local const History::Context* the_cause = nullptr;

History::Context origin() { return the_cause == nullptr ? nullptr : *the_cause; }

}  // namespace

History::Cause::Cause(const Context& context) : before_(std::exchange(the_cause, &context)) {}
History::Cause::~Cause() { the_cause = before_; }

void History::set(const Options& options, bool clear) {
  TORCH_CHECK(options.when == RecordContext::NEVER || options.context != nullptr,
              "recordHistory: stacks are wanted, and there is nothing to gather them with");
  std::vector<Action> skipped;
  for (const std::string& action : options.skip_actions) {
    skipped.push_back(native::parseTraceEntryAction(action));
  }
  {
    const std::lock_guard lock(mutex_);
    options_ = options;
    options_.most_entries = std::max<std::size_t>(options.most_entries, 1);
    skipped_ = std::move(skipped);
    if (!options.enabled || clear) {
      entries_.clear();
      annotations_.clear();
    }
    if (!options.enabled) {
      contexts_.clear();
      for (auto& [address, segment] : segments_) segment.context = nullptr;
    }
  }
  listen();
}

void History::track(native::AllocatorTraceTracker tracker) {
  {
    const std::lock_guard lock(mutex_);
    trackers_.push_back(std::move(tracker));
  }
  listen();
}

// Events of mappings are had from the heap only while somebody wants them: they cost time.
void History::listen() {
  const std::lock_guard listening(listening_mutex_);
  std::unique_lock lock(mutex_);
  const bool wanted = options_.enabled || !trackers_.empty();
  lock.unlock();
  if (wanted == wants_entries_.exchange(wanted, std::memory_order_relaxed)) return;
  if (wanted) {
    heap_.start_recording(*this);
  } else {
    (void)heap_.stop_recording(*this);
  }
}

// Before any other lock is taken: it may need Python's.
History::Context History::gather(RecordContext least) const {
  std::unique_lock lock(mutex_);
  const bool is_wanted = options_.enabled && options_.when >= least;
  const native::CreateContextFn gather = options_.context;
  lock.unlock();
  return is_wanted && gather != nullptr ? gather() : nullptr;
}

void History::note(Action action, Address at, Bytes bytes, Stream stream, c10::MempoolId_t pool,
                   Context context, const std::string* metadata) {
  const std::lock_guard lock(mutex_);
  if (action == TraceEntry::ALLOC && options_.enabled) contexts_[at.pointer()] = context;
  if (action == TraceEntry::FREE_REQUESTED || action == TraceEntry::FREE_COMPLETED) {
    const auto known = contexts_.find(at.pointer());
    if (context == nullptr && known != contexts_.end()) context = known->second;
    if (action == TraceEntry::FREE_COMPLETED && known != contexts_.end()) contexts_.erase(known);
  }
  if (action == TraceEntry::SEGMENT_ALLOC) {
    segments_[at] = {bytes, {}, origin()};
    context = origin();
  }
  if (action == TraceEntry::SEGMENT_FREE) context = take_segment(at).context;
  add(action, at, bytes, stream.handle, pool, std::move(context), metadata);
}

void History::annotate(const std::vector<std::pair<std::string, std::string>>& metadata) {
  const std::lock_guard lock(mutex_);
  if (!options_.enabled) return;
  native::AnnotationEntry entry(device_, c10::getApproximateTime());
  for (const auto& [name, value] : metadata) entry.recordUserMetadata(name, value);
  annotations_.push_back(std::move(entry));
  if (annotations_.size() > options_.most_entries) annotations_.pop_front();
}

void History::on_start(std::span<const Event> initial) {
  const std::lock_guard lock(mutex_);
  contexts_.clear();
  segments_.clear();
  lenders_.clear();
  for (const Event& event : initial) note_owners(event);
}

// With mutex_ held.
void History::note_owners(const Event& event) {
  if (event.kind == EventKind::heap_open) heaps_[event.heap.value] = {event.stream, event.pool};
  if (event.kind == EventKind::create && event.pool != 0) lenders_[event.page] = event.pool;
  if (event.kind == EventKind::release || event.kind == EventKind::keep) lenders_.erase(event.page);
  if (event.kind == EventKind::map) {
    segments_[event.address] = {event.bytes, heaps_[event.heap.value], origin()};
  }
}

// A mapping is what PyTorch calls a segment that is mapped; plain memory is a segment of its own.
void History::on_event(const Event& event) {
  const std::lock_guard lock(mutex_);
  note_owners(event);
  if (event.kind != EventKind::map && event.kind != EventKind::unmap) return;
  const bool comes = event.kind == EventKind::map;
  const Action of_plain = comes ? TraceEntry::SEGMENT_ALLOC : TraceEntry::SEGMENT_FREE;
  const Action of_pages = comes ? TraceEntry::SEGMENT_MAP : TraceEntry::SEGMENT_UNMAP;
  const Segment segment = comes ? segments_[event.address] : take_segment(event.address);
  std::string lent;
  if (const auto lender = lenders_.find(event.page); lender != lenders_.end()) {
    const c10::MempoolId_t pool = pool_(lender->second);
    lent = "scratch lent by pool (" + std::to_string(pool.first) + ", " +
           std::to_string(pool.second) + ")";
  }
  add(event.plain ? of_plain : of_pages, event.address, event.bytes,
      streams_.handle_of(segment.owner.stream), pool_(segment.owner.pool), segment.context,
      lent.empty() ? nullptr : &lent);
}

// With mutex_ held. The segment goes; its context is why, or, where that is not known, whence it
// came.
History::Segment History::take_segment(Address at) {
  Segment gone = std::move(segments_[at]);
  segments_.erase(at);
  if (origin() != nullptr) gone.context = origin();
  return gone;
}

// With mutex_ held.
void History::add(Action action, Address at, Bytes bytes, void* stream, c10::MempoolId_t pool,
                  Context context, const std::string* metadata) {
  if (action != TraceEntry::OOM && options_.when < RecordContext::ALLOC) context = nullptr;
  const ThreadNotes& notes = thread_notes();
  // "N/A": as PyTorch's own says it outside of compilation.
  TraceEntry entry(action, device_, at.value, bytes.count, stream, pool, c10::getApproximateTime(),
                   std::move(context),
                   notes.compile_contexts.empty() ? "N/A" : notes.compile_contexts.back(),
                   metadata == nullptr ? notes.user_metadata : *metadata);
  for (const native::AllocatorTraceTracker& tracker : trackers_) tracker(entry);
  if (!options_.enabled) return;
  if (std::find(skipped_.begin(), skipped_.end(), entry.action_) != skipped_.end()) return;
  entries_.push_back(std::move(entry));
  while (entries_.size() > options_.most_entries) entries_.pop_front();
}

History::Context History::context_of(const void* block) const {
  const std::lock_guard lock(mutex_);
  const auto known = contexts_.find(block);
  return known == contexts_.end() ? nullptr : known->second;
}

History::Context History::context_of_segment(Address address) const {
  const std::lock_guard lock(mutex_);
  const auto after = segments_.upper_bound(address);
  if (after == segments_.begin()) return nullptr;
  const auto& [begin, segment] = *std::prev(after);
  return address < begin + segment.bytes ? segment.context : nullptr;
}

void History::forget(const void* block) {
  const std::lock_guard lock(mutex_);
  contexts_.erase(block);
}

std::vector<native::TraceEntry> History::entries() const {
  const std::lock_guard lock(mutex_);
  return {entries_.begin(), entries_.end()};
}

std::vector<native::AnnotationEntry> History::annotations() const {
  const std::lock_guard lock(mutex_);
  return {annotations_.begin(), annotations_.end()};
}

}  // namespace weir::pytorch
