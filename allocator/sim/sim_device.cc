// SPDX-License-Identifier: Apache-2.0
#include "weir/sim_device.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "sim/sim_device_impl.h"
#include "sim/text.h"

namespace weir {
namespace {

using sim::no_stream;
using sim::refused;
using sim::text;

Error no_event(DeviceCall call, EventHandle event) {
  return refused(call, "invalid handle: no event " + std::to_string(event.value));
}
const char* verb(Access::Kind kind) { return kind == Access::Kind::read ? "reads " : "writes "; }

}  // namespace

std::string Race::describe() const {
  const auto access_text = [](const Access& access, Nanoseconds time) {
    return verb(access.kind) + sim::range_text(access.address, access.bytes) + " (launched at " +
           std::to_string(time.count) + " ns)";
  };
  const std::string earlier = "stream " + std::to_string(first_stream);
  if (kind == Kind::unmapped_in_use) {
    return "the mapping of " + sim::range_text(second.address, second.bytes) + " goes at " +
           std::to_string(second_time.count) + " ns, but the host has not waited for " + earlier +
           ", which " + access_text(first, first_time);
  }
  if (kind == Kind::host) {
    return "the host itself " + access_text(second, second_time) + ", and has not waited for " +
           earlier + ", which " + access_text(first, first_time);
  }
  return "stream " + std::to_string(second_stream) + " " + access_text(second, second_time) +
         ", and nothing orders that after " + earlier + ", which " + access_text(first, first_time);
}

Status SimDevice::Impl::check_mapped(std::string_view call, const Access& access) {
  if (access.bytes.count > ~access.address.value) {
    return Error(ErrorCode::invalid_argument,
                 std::string(call) + ": " + verb(access.kind) + sim::text(access.bytes) + " at " +
                     text(access.address) + ", beyond the last address");
  }
  const Address end = access.address + access.bytes;
  for (Address at = access.address; at < end;) {
    const sim::Mapping* mapping = memory_.find(at);
    if (mapping == nullptr || !mapping->accessible) {
      return Error(ErrorCode::invalid_argument,
                   std::string(call) + ": " + verb(access.kind) +
                       sim::range_text(access.address, access.bytes) + ", but " + text(at) +
                       (mapping == nullptr ? " is not mapped" : " lacks set_access"));
    }
    at = mapping->end();
  }
  return {};
}

void SimDevice::Impl::stamp(const sim::StreamState& stream, const Access& access) {
  const sim::Stamp stamp = checker_.begin(stream.index, access, now());
  const Address end = access.address + access.bytes;
  for (Address at = access.address; at < end;) {
    sim::Mapping& mapping = *memory_.find(at);
    const Address part_end = std::min(end, mapping.end());
    checker_.touch(mapping.page->stamps, (at - mapping.address).count,
                   (part_end - mapping.address).count, stamp);
    sim::RaceChecker::use(mapping.uses, stamp);
    at = part_end;
  }
}

Status SimDevice::Impl::launch(Stream stream, std::span<const Access> accesses,
                               Nanoseconds duration, const SimRendezvous& rendezvous) {
  sim::StreamState* state = streams_.find(stream);
  if (state == nullptr) {
    return Error(ErrorCode::invalid_argument, "launch: no stream " + std::to_string(stream.id));
  }
  for (const Access& access : accesses) {
    if (Status mapped = check_mapped("launch", access); !mapped) return mapped;
  }
  const bool captured = captures_.capturing(stream);
  if (captured) {
    if (Status active = captures_.check_active("launch", stream); !active) return active;
  }
  advance(options_.costs.launch);
  if (captured) {
    captures_.launch(stream, accesses, duration, now(), rendezvous);
    return {};
  }
  sim::Streams::launch(*state, duration, now());
  state->meet(rendezvous);
  for (const Access& access : accesses) note_write(access);
  if (!options_.check_races) return {};
  for (const Access& access : accesses) stamp(*state, access);
  return {};
}

Result<bool> SimDevice::Impl::query(EventHandle event, sim::EventState& seen) {
  const sim::EventState* state = streams_.find(event);
  if (state == nullptr) return no_event(DeviceCall::query, event);
  if (state->captured.capture != 0) return captures_.asked_of(DeviceCall::query, state->captured);
  if (state->done_at > now()) return false;
  note_seen(*state, seen);
  return true;
}

Status SimDevice::Impl::synchronize(EventHandle event, sim::EventState& seen) {
  const sim::EventState* state = streams_.find(event);
  if (state == nullptr) return no_event(DeviceCall::synchronize, event);
  if (state->captured.capture != 0)
    return captures_.asked_of(DeviceCall::synchronize, state->captured);
  if (state->done_at > now()) {
    ++host_waits_;
    charge(DeviceCall::synchronize, state->done_at - now());
  }
  note_seen(*state, seen);
  return {};
}

// Without the lock: peers may take a while to come.
Status SimDevice::Impl::meet_peers(const sim::EventState& seen) {
  if (seen.peers.empty()) return {};
  if (Status there = seen.peers.await(); !there) return there;
  const std::scoped_lock lock(mutex_);
  host_saw(seen);
  return {};
}

Status SimDevice::Impl::record_context(std::size_t device, EventHandle event) {
  sim::EventState* state = streams_.find(event);
  if (state == nullptr) return no_event(DeviceCall::record_context, event);
  const std::vector<sim::ContextIndex>& covers = contexts_[device].covers;
  const auto is_covered = [&](std::uint64_t stream) {
    return std::find(covers.begin(), covers.end(), streams_.find({.id = stream})->context) !=
           covers.end();
  };
  const std::string why = "an event of the whole context was recorded while a stream is captured";
  if (captures_.break_those(is_covered, why)) {
    return Error(ErrorCode::capture, "record_context: " + why);
  }
  streams_.record_all(*state, covers, now());
  return {};
}

sim::EventState SimDevice::Impl::synchronize_context(std::size_t device) {
  sim::EventState all;
  streams_.record_all(all, contexts_[device].covers, now());
  if (all.done_at > now()) {
    ++host_waits_;
    charge(DeviceCall::synchronize_context, all.done_at - now());
  }
  sim::EventState seen;
  note_seen(all, seen);
  return seen;
}

Status SimDevice::Impl::record(EventHandle event, Stream asked) {
  note_use(asked);
  const Stream stream = streams_.named(asked);
  sim::EventState* event_state = streams_.find(event);
  if (event_state == nullptr) return no_event(DeviceCall::record, event);
  sim::StreamState* stream_state = streams_.find(stream);
  if (stream_state == nullptr) return no_stream(DeviceCall::record, stream);
  if (captures_.capturing(stream)) {
    Result<sim::CapturedMark> mark = captures_.mark(stream);
    if (!mark) return std::move(mark).error();
    event_state->captured = *std::move(mark);
    return {};
  }
  streams_.record(*event_state, *stream_state, now());
  return {};
}

Status SimDevice::Impl::wait(Stream asked, EventHandle event) {
  note_use(asked);
  const Stream stream = streams_.named(asked);
  sim::StreamState* stream_state = streams_.find(stream);
  if (stream_state == nullptr) return no_stream(DeviceCall::wait, stream);
  const sim::EventState* event_state = streams_.find(event);
  if (event_state == nullptr) return no_event(DeviceCall::wait, event);
  if (captures_.concerns(stream, *event_state)) return captures_.wait(stream, *event_state);
  streams_.wait(*stream_state, *event_state, now());
  return {};
}

Status SimDevice::Impl::set_access(Address address, Bytes size) {
  Result<std::uint64_t> covered = memory_.set_access(address, size);
  if (!covered) return std::move(covered).error();
  const auto others = static_cast<std::int64_t>(*covered) - 1;  // one is charged already
  charge(DeviceCall::set_access, {options_.costs.set_access_per_mapping.count * others});
  return {};
}

Status SimDevice::Impl::unmap(Address address, Bytes size) {
  const sim::Mapping* mapping = memory_.find(address);
  const sim::LastUses uses = mapping != nullptr ? mapping->uses : sim::LastUses{};
  if (Status done = memory_.unmap(address, size); !done) return done;
  checker_.unmap(uses, address, size, now());
  return {};
}

Status SimDevice::Impl::release(PhysicalHandle handle) {
  Result<Bytes> released = memory_.release(handle);
  if (!released) return std::move(released).error();
  const auto mib = static_cast<std::int64_t>(*released / 1_MiB);
  charge(DeviceCall::release, {options_.costs.release_per_mib.count * mib});
  return {};
}

Status SimDevice::Impl::free_segment(std::size_t device, Address address, Bytes size) {
  if (Status there = memory_.check_segment(address, size); !there) return there;
  (void)synchronize_context(device);
  const sim::LastUses uses = memory_.find(address)->uses;
  memory_.free_segment(address);
  checker_.unmap(uses, address, size, now());
  return {};
}

SimDevice::SimDevice(SimOptions options) : impl_(std::make_shared<Impl>(options)) {}
SimDevice::~SimDevice() = default;

std::unique_ptr<SimDevice> SimDevice::new_device() {
  const std::scoped_lock lock(impl_->mutex_);
  impl_->add_context();
  return std::unique_ptr<SimDevice>(new SimDevice(impl_, impl_->contexts_.size() - 1));
}

void SimDevice::add_peer(const SimDevice& peer) {
  const std::scoped_lock lock(impl_->mutex_);
  impl_->contexts_[number_].covers.push_back(static_cast<sim::ContextIndex>(peer.number_));
}

const void* SimDevice::context() const {
  const std::scoped_lock lock(impl_->mutex_);
  return &impl_->contexts_[number_];
}

std::vector<const void*> SimDevice::peer_contexts() const {
  const std::scoped_lock lock(impl_->mutex_);
  std::vector<const void*> peers;
  for (const sim::ContextIndex covered : impl_->contexts_[number_].covers) {
    if (covered != number_) peers.push_back(&impl_->contexts_[covered]);
  }
  return peers;
}

Stream SimDevice::new_stream() {
  const std::scoped_lock lock(impl_->mutex_);
  return impl_->streams_.add(static_cast<sim::ContextIndex>(number_));
}

Status SimDevice::destroy_stream(Stream stream) {
  const std::scoped_lock lock(impl_->mutex_);
  return impl_->destroy_stream(stream);
}

Status SimDevice::launch(Stream stream, std::span<const Access> accesses, Nanoseconds duration,
                         const SimRendezvous& rendezvous) {
  const std::scoped_lock lock(impl_->mutex_);
  return impl_->launch(stream, accesses, duration, rendezvous);
}

void SimDevice::advance(Nanoseconds duration) {
  const std::scoped_lock lock(impl_->mutex_);
  impl_->advance(duration);
}

void SimDevice::advance_to(Nanoseconds time) {
  const std::scoped_lock lock(impl_->mutex_);
  impl_->set_now(std::max(time, impl_->now()));
}

void SimDevice::finish() {
  const std::scoped_lock lock(impl_->mutex_);
  impl_->set_now(std::max(impl_->streams_.all_done_at(), impl_->now()));
  impl_->checker_.host_saw_everything();
}

bool SimDevice::finished(EventHandle event) const {
  sim::PeerSet peers;
  {
    const std::scoped_lock lock(impl_->mutex_);
    const sim::EventState* state = std::as_const(impl_->streams_).find(event);
    if (state == nullptr || state->captured.capture != 0) return false;
    if (state->done_at > impl_->now()) return false;
    peers = state->peers;
  }
  return peers.await().ok();
}

void SimDevice::fail(DeviceCall call, std::uint64_t nth, ErrorCode code) {
  const std::scoped_lock lock(impl_->mutex_);
  impl_->tallies_[static_cast<std::size_t>(call)].faults.push_back({nth, code});
}

std::uint64_t SimDevice::forget_faults() {
  const std::scoped_lock lock(impl_->mutex_);
  std::uint64_t forgotten = 0;
  for (auto& tally : impl_->tallies_) {
    forgotten += tally.faults.size();
    tally.faults.clear();
  }
  return forgotten;
}

std::vector<Race> SimDevice::races() const {
  const std::scoped_lock lock(impl_->mutex_);
  return impl_->checker_.races();
}

std::uint64_t SimDevice::race_count() const {
  const std::scoped_lock lock(impl_->mutex_);
  return impl_->checker_.race_count();
}

std::uint64_t SimDevice::host_waits() const {
  const std::scoped_lock lock(impl_->mutex_);
  return impl_->host_waits_;
}

std::uint64_t SimDevice::uses_of_destroyed_streams() const {
  const std::scoped_lock lock(impl_->mutex_);
  return impl_->uses_of_destroyed_;
}

std::uint64_t SimDevice::calls(DeviceCall call) const {
  const std::scoped_lock lock(impl_->mutex_);
  return impl_->tallies_[static_cast<std::size_t>(call)].calls;
}

Nanoseconds SimDevice::time_in(DeviceCall call) const {
  const std::scoped_lock lock(impl_->mutex_);
  return impl_->tallies_[static_cast<std::size_t>(call)].time;
}

Nanoseconds SimDevice::stream_waited(Stream stream) const {
  const std::scoped_lock lock(impl_->mutex_);
  const sim::StreamState* state = std::as_const(impl_->streams_).find(stream);
  return state == nullptr ? Nanoseconds{} : state->waited;
}

Bytes SimDevice::physical_bytes() const {
  const std::scoped_lock lock(impl_->mutex_);
  return impl_->memory_.physical();
}

Bytes SimDevice::physical_peak() const {
  const std::scoped_lock lock(impl_->mutex_);
  return impl_->memory_.physical_peak();
}

std::uint64_t SimDevice::live_handles() const {
  const std::scoped_lock lock(impl_->mutex_);
  return impl_->memory_.handles();
}

std::uint64_t SimDevice::live_mappings() const {
  const std::scoped_lock lock(impl_->mutex_);
  return impl_->memory_.mappings();
}

std::uint64_t SimDevice::live_events() const {
  const std::scoped_lock lock(impl_->mutex_);
  return impl_->streams_.events();
}

std::uint64_t SimDevice::live_reservations() const {
  const std::scoped_lock lock(impl_->mutex_);
  return impl_->memory_.reservations();
}

std::vector<SimPage> SimDevice::pages() const {
  const std::scoped_lock lock(impl_->mutex_);
  return impl_->memory_.pages();
}

std::vector<Segment> SimDevice::translate(Address address, Bytes bytes) const {
  const std::scoped_lock lock(impl_->mutex_);
  return impl_->memory_.translate(address, bytes);
}

std::string SimDevice::name() const { return "simulated device"; }
Bytes SimDevice::granularity() const { return impl_->options_.granularity; }
Nanoseconds SimDevice::now() const { return impl_->now(); }

Result<Stream> SimDevice::stream(void* handle) {
  const std::scoped_lock lock(impl_->mutex_);
  if (number_ != 0 && handle == nullptr) {
    return Error(ErrorCode::device, "stream: the device has no default stream");
  }
  Result<Stream> stream = std::as_const(impl_->streams_).of_handle(handle);
  if (stream.ok() && impl_->captures_.capturing(*stream)) {
    return impl_->captures_.asked_for_id(*stream);
  }
  return stream;
}

Result<MemoryInfo> SimDevice::memory_info() {
  return impl_->call(DeviceCall::memory_info, impl_->options_.costs.memory_info,
                     [&]() -> Result<MemoryInfo> {
                       const Bytes total = impl_->memory_.total();
                       return MemoryInfo{.free = total - impl_->memory_.physical(), .total = total};
                     });
}

Result<Address> SimDevice::reserve(Bytes size, Bytes alignment) {
  return impl_->call(DeviceCall::reserve, impl_->options_.costs.reserve,
                     [&] { return impl_->memory_.reserve(size, alignment); });
}

Status SimDevice::unreserve(Address address, Bytes size) {
  return impl_->call(DeviceCall::unreserve, impl_->options_.costs.unreserve,
                     [&] { return impl_->memory_.unreserve(address, size); });
}

Result<PhysicalHandle> SimDevice::create(Bytes size) {
  return impl_->call(DeviceCall::create, impl_->options_.costs.create,
                     [&] { return impl_->memory_.create(size); });
}

Status SimDevice::map(Address address, Bytes size, PhysicalHandle handle) {
  return impl_->call(DeviceCall::map, impl_->options_.costs.map,
                     [&] { return impl_->memory_.map(address, size, handle); });
}

Status SimDevice::set_access(Address address, Bytes size) {
  return impl_->call(DeviceCall::set_access, impl_->options_.costs.set_access_per_mapping,
                     [&] { return impl_->set_access(address, size); });
}

Status SimDevice::unmap(Address address, Bytes size) {
  return impl_->call(DeviceCall::unmap, impl_->options_.costs.unmap_per_mapping,
                     [&] { return impl_->unmap(address, size); });
}

Status SimDevice::release(PhysicalHandle handle) {
  return impl_->call(DeviceCall::release, impl_->options_.costs.release,
                     [&] { return impl_->release(handle); });
}

Result<Address> SimDevice::allocate_segment(Bytes size) {
  return impl_->call(DeviceCall::allocate_segment, impl_->options_.costs.allocate_segment,
                     [&] { return impl_->memory_.allocate_segment(size); });
}

Status SimDevice::free_segment(Address address, Bytes size) {
  return impl_->call(DeviceCall::free_segment, impl_->options_.costs.free_segment,
                     [&] { return impl_->free_segment(number_, address, size); });
}

Result<EventHandle> SimDevice::create_event() {
  return impl_->call(DeviceCall::create_event, impl_->options_.costs.create_event,
                     [&]() -> Result<EventHandle> { return impl_->streams_.create_event(); });
}

Status SimDevice::destroy_event(EventHandle event) {
  return impl_->call(DeviceCall::destroy_event, impl_->options_.costs.destroy_event,
                     [&]() -> Status {
                       if (impl_->streams_.destroy_event(event)) return {};
                       return no_event(DeviceCall::destroy_event, event);
                     });
}

Status SimDevice::record(EventHandle event, Stream stream) {
  return impl_->call(DeviceCall::record, impl_->options_.costs.record,
                     [&] { return impl_->record(event, stream); });
}

Status SimDevice::wait(Stream stream, EventHandle event) {
  return impl_->call(DeviceCall::wait, impl_->options_.costs.wait,
                     [&] { return impl_->wait(stream, event); });
}

Result<bool> SimDevice::query(EventHandle event) {
  sim::EventState seen;
  Result<bool> done = impl_->call(DeviceCall::query, impl_->options_.costs.query,
                                  [&] { return impl_->query(event, seen); });
  if (!done || !*done) return done;
  return impl_->meet_peers(seen).ok();
}

Status SimDevice::synchronize(EventHandle event) {
  sim::EventState seen;
  Status waited = impl_->call(DeviceCall::synchronize, impl_->options_.costs.synchronize,
                              [&] { return impl_->synchronize(event, seen); });
  if (!waited) return waited;
  const Status there = impl_->meet_peers(seen);
  if (there) return {};
  return refused(DeviceCall::synchronize, "it would wait for ever: " + there.error().message());
}

Status SimDevice::record_context(EventHandle event) {
  return impl_->call(DeviceCall::record_context, impl_->options_.costs.record_context,
                     [&] { return impl_->record_context(number_, event); });
}

Status SimDevice::synchronize_context() {
  sim::EventState seen;
  Status waited = impl_->call(DeviceCall::synchronize_context,
                              impl_->options_.costs.synchronize_context, [&]() -> Status {
                                seen = impl_->synchronize_context(number_);
                                return {};
                              });
  if (!waited) return waited;
  const Status there = impl_->meet_peers(seen);
  if (there) return {};
  return refused(DeviceCall::synchronize_context,
                 "it would wait for ever: " + there.error().message());
}

}  // namespace weir
