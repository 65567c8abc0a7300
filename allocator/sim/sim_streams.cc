// SPDX-License-Identifier: Apache-2.0
#include "sim/sim_streams.h"

#include <algorithm>
#include <string>
#include <utility>

#include "sim/text.h"

namespace weir::sim {
namespace {

constexpr std::uint64_t kLegacyHandle = 1;  // CUDA's CU_STREAM_LEGACY, another name for null
constexpr int kHandleShift = 12;            // above CUDA's special handles, 0 to 2

std::uint64_t value_of(const void* handle) { return Address::of(handle).value; }

void* handle_of(std::uint64_t id) {
  return id == kDefaultStreamId ? nullptr : Address{id << kHandleShift}.pointer();
}

}  // namespace

void PeerSet::add(const std::shared_ptr<SimPeers>& peers, std::uint64_t number) {
  for (Wait& wait : waits_) {
    if (wait.peers != peers) continue;
    wait.number = std::max(wait.number, number);
    return;
  }
  waits_.push_back({peers, number});
}

void PeerSet::join(const PeerSet& other) {
  for (const Wait& wait : other.waits_) add(wait.peers, wait.number);
}

void PeerSet::forget_those_there() {
  std::erase_if(waits_, [](const Wait& wait) { return wait.peers->are_there(wait.number); });
}

Status PeerSet::await() const {
  for (const Wait& wait : waits_) {
    if (Status there = wait.peers->await(wait.number); !there) return there;
  }
  return {};
}

Stream Streams::add(ContextIndex context) {
  const std::uint64_t id = streams_.size() + 1;
  streams_.push_back(std::make_unique<StreamState>());
  streams_.back()->index = checker_.add_stream(id, context);
  streams_.back()->context = context;
  return {.handle = handle_of(id), .id = id};
}

Status Streams::destroy(Stream stream, Nanoseconds now) {
  StreamState* state = find(stream);
  if (state == nullptr || stream.id == kDefaultStreamId) {
    return Error(ErrorCode::invalid_argument,
                 "destroy_stream: no stream " + std::to_string(stream.id) + " that can go");
  }
  state->alive = false;
  checker_.end_stream(state->index);
  destroyed_.push_back(stream.id);
  std::erase_if(destroyed_, [&](std::uint64_t id) {
    StreamState& over = *streams_[id - 1];
    over.peers.forget_those_there();
    if (over.tail > now || !over.peers.empty()) return false;
    streams_[id - 1] = nullptr;
    return true;
  });
  return {};
}

Result<Stream> Streams::of_handle(void* handle) const {
  const std::uint64_t value = value_of(handle);
  const std::uint64_t id = value <= kLegacyHandle ? kDefaultStreamId : value >> kHandleShift;
  const Stream stream{.handle = handle_of(id), .id = id};
  const bool known = value <= kLegacyHandle || value_of(stream.handle) == value;
  if (!known || find(stream) == nullptr) {
    return Error(ErrorCode::device,
                 "stream: invalid handle: no stream " + text(Address::of(handle)));
  }
  return stream;
}

Stream Streams::named(Stream stream) const {
  if (!stream.is_of_captured()) return stream;
  const Result<Stream> known = of_handle(stream.handle);
  return known.ok() ? *known : stream;
}

const StreamState* Streams::find(Stream stream) const {
  if (stream.id == 0 || stream.id > streams_.size()) return nullptr;
  const StreamState* const state = streams_[stream.id - 1].get();
  return state != nullptr && state->alive ? state : nullptr;
}

bool Streams::is_destroyed(Stream asked) const {
  const std::uint64_t id =
      asked.is_of_captured() ? value_of(asked.handle) >> kHandleShift : asked.id;
  if (id == 0 || id > streams_.size()) return false;
  const StreamState* const state = streams_[id - 1].get();
  return state == nullptr || !state->alive;
}

StreamState* Streams::find(Stream stream) {
  return const_cast<StreamState*>(std::as_const(*this).find(stream));
}

EventHandle Streams::create_event() {
  const EventHandle event{next_event_++};
  events_.emplace(event.value, EventState{});
  return event;
}

const EventState* Streams::find(EventHandle event) const {
  const auto it = events_.find(event.value);
  return it == events_.end() ? nullptr : &it->second;
}

EventState* Streams::find(EventHandle event) {
  return const_cast<EventState*>(std::as_const(*this).find(event));
}

void Streams::launch(StreamState& stream, Nanoseconds duration, Nanoseconds now) {
  stream.tail = std::max(stream.tail, now) + duration;
}

void Streams::record(EventState& event, StreamState& stream, Nanoseconds now) {
  event.recorded = true;
  event.captured = {};
  event.done_at = std::max(stream.tail, now);
  event.mark = checker_.mark(stream.index);
  stream.peers.forget_those_there();
  event.peers = stream.peers;
}

void Streams::record_all(EventState& event, std::span<const ContextIndex> contexts,
                         Nanoseconds now) {
  event.recorded = true;
  event.captured = {};
  event.done_at = now;
  event.mark = checker_.mark_all(contexts);
  event.peers = {};
  for (const auto& stream : streams_) {
    if (stream == nullptr) continue;
    if (std::find(contexts.begin(), contexts.end(), stream->context) == contexts.end()) continue;
    event.done_at = std::max(event.done_at, stream->tail);
    stream->peers.forget_those_there();
    event.peers.join(stream->peers);
  }
}

void Streams::wait(StreamState& stream, const EventState& event, Nanoseconds now) {
  if (!event.recorded) return;
  checker_.wait(stream.index, event.mark);
  stream.peers.join(event.peers);
  const Nanoseconds idle_from = std::max(stream.tail, now);
  if (event.done_at <= idle_from) return;
  stream.waited += event.done_at - idle_from;
  stream.tail = event.done_at;
}

Nanoseconds Streams::all_done_at() const {
  Nanoseconds last;
  for (const auto& stream : streams_) {
    if (stream != nullptr) last = std::max(last, stream->tail);
  }
  return last;
}

}  // namespace weir::sim
