// SPDX-License-Identifier: Apache-2.0
#include "weir/sim_device.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "sim/sim_device_impl.h"

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
                 std::string(call) + ": " + verb(access.kind) + text(access.bytes) + " at " +
                     text(access.address) + ", beyond the last address");
  }
  const Address end = access.address + access.bytes;
  for (Address at = access.address; at < end;) {
    const sim::Mapping* mapping = memory.find(at);
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

// Each write is one of its own.
void SimDevice::Impl::queue(const sim::StreamState& stream, std::span<const Access> accesses) {
  for (const Access& access : accesses) {
    const bool writes = options.track_contents && access.kind == Access::Kind::write;
    last_write += writes ? 1 : 0;
    const sim::Stamp stamp =
        options.check_races ? checker.begin(stream.index, access, now()) : sim::Stamp{};
    memory.for_each_part(access.address, access.bytes,
                         [&](sim::Mapping& mapping, Bytes offset, Bytes done, Bytes part) {
                           const std::uint64_t begin = offset.count, end = (offset + part).count;
                           if (writes)
                             mapping.page->contents.set(begin, end, last_write, done.count);
                           if (!options.check_races) return;
                           checker.touch(mapping.page->stamps, begin, end, stamp);
                           sim::RaceChecker::use(mapping.uses, stamp);
                         });
  }
}

Status SimDevice::Impl::launch(Stream stream, std::span<const Access> accesses,
                               Nanoseconds duration, const SimRendezvous& rendezvous) {
  sim::StreamState* state = streams.find(stream);
  if (state == nullptr) {
    return Error(ErrorCode::invalid_argument, "launch: no stream " + std::to_string(stream.id));
  }
  for (const Access& access : accesses) {
    if (Status mapped = check_mapped("launch", access); !mapped) return mapped;
  }
  const bool captured = captures.capturing(stream);
  if (captured) {
    if (Status active = captures.check_active("launch", stream); !active) return active;
  }
  advance(options.costs.launch);
  if (captured) {
    captures.launch(stream, accesses, duration, now(), rendezvous);
    return {};
  }
  sim::Streams::launch(*state, duration, now());
  state->meet(rendezvous);
  queue(*state, accesses);
  return {};
}

Status SimDevice::Impl::meet_peers(DeviceCall call, const sim::EventState& seen) {
  if (seen.peers.empty()) return {};
  if (const Status there = seen.peers.await(); !there) {
    return refused(call, "it would wait for ever: " + there.error().message());
  }
  const std::scoped_lock lock(mutex);
  host_saw(seen);
  return {};
}

sim::EventState SimDevice::Impl::synchronize_context(std::size_t device) {
  sim::EventState all;
  streams.record_all(all, contexts[device].covers, now());
  if (all.done_at > now()) {
    ++host_waits;
    charge(DeviceCall::synchronize_context, all.done_at - now());
  }
  sim::EventState seen;
  note_seen(all, seen);
  return seen;
}

SimDevice::SimDevice(SimOptions options) : impl_(std::make_shared<Impl>(options)) {}
SimDevice::~SimDevice() = default;

std::unique_ptr<SimDevice> SimDevice::new_device() {
  const std::scoped_lock lock(impl_->mutex);
  impl_->add_context();
  return std::unique_ptr<SimDevice>(new SimDevice(impl_, impl_->contexts.size() - 1));
}

void SimDevice::add_peer(const SimDevice& peer) {
  const std::scoped_lock lock(impl_->mutex);
  impl_->contexts[number_].covers.push_back(static_cast<sim::ContextIndex>(peer.number_));
}

const void* SimDevice::context() const {
  const std::scoped_lock lock(impl_->mutex);
  return &impl_->contexts[number_];
}

std::vector<const void*> SimDevice::peer_contexts() const {
  const std::scoped_lock lock(impl_->mutex);
  std::vector<const void*> peers;
  for (const sim::ContextIndex covered : impl_->contexts[number_].covers) {
    if (covered != number_) peers.push_back(&impl_->contexts[covered]);
  }
  return peers;
}

Stream SimDevice::new_stream() {
  const std::scoped_lock lock(impl_->mutex);
  return impl_->streams.add(static_cast<sim::ContextIndex>(number_));
}

Status SimDevice::destroy_stream(Stream stream) {
  const std::scoped_lock lock(impl_->mutex);
  if (impl_->captures.capturing(stream)) {
    return Error(ErrorCode::invalid_argument, "destroy_stream: stream " +
                                                  std::to_string(stream.id) +
                                                  " is being captured: end that first");
  }
  return impl_->streams.destroy(stream, impl_->now());
}

Status SimDevice::launch(Stream stream, std::span<const Access> accesses, Nanoseconds duration,
                         const SimRendezvous& rendezvous) {
  const std::scoped_lock lock(impl_->mutex);
  return impl_->launch(stream, accesses, duration, rendezvous);
}

void SimDevice::advance(Nanoseconds duration) {
  const std::scoped_lock lock(impl_->mutex);
  impl_->advance(duration);
}

void SimDevice::advance_to(Nanoseconds time) {
  const std::scoped_lock lock(impl_->mutex);
  impl_->set_now(std::max(time, impl_->now()));
}

void SimDevice::finish() {
  const std::scoped_lock lock(impl_->mutex);
  impl_->set_now(std::max(impl_->streams.all_done_at(), impl_->now()));
  impl_->checker.host_saw_everything();
}

bool SimDevice::finished(EventHandle event) const {
  sim::PeerSet peers;
  {
    const std::scoped_lock lock(impl_->mutex);
    const sim::EventState* state = std::as_const(impl_->streams).find(event);
    if (state == nullptr || state->captured.capture != 0) return false;
    if (state->done_at > impl_->now()) return false;
    peers = state->peers;
  }
  return peers.await().ok();
}

void SimDevice::fail(DeviceCall call, std::uint64_t nth, ErrorCode code) {
  const std::scoped_lock lock(impl_->mutex);
  impl_->calls.fail(call, nth, code);
}

std::uint64_t SimDevice::forget_faults() {
  const std::scoped_lock lock(impl_->mutex);
  return impl_->calls.forget_faults();
}

std::vector<Race> SimDevice::races() const {
  const std::scoped_lock lock(impl_->mutex);
  return impl_->checker.races();
}

std::uint64_t SimDevice::race_count() const {
  const std::scoped_lock lock(impl_->mutex);
  return impl_->checker.race_count();
}

std::uint64_t SimDevice::host_waits() const {
  const std::scoped_lock lock(impl_->mutex);
  return impl_->host_waits;
}

std::uint64_t SimDevice::uses_of_destroyed_streams() const {
  const std::scoped_lock lock(impl_->mutex);
  return impl_->uses_of_destroyed;
}

std::uint64_t SimDevice::calls(DeviceCall call) const {
  const std::scoped_lock lock(impl_->mutex);
  return impl_->calls.calls(call);
}

Nanoseconds SimDevice::time_in(DeviceCall call) const {
  const std::scoped_lock lock(impl_->mutex);
  return impl_->calls.time_in(call);
}

Nanoseconds SimDevice::stream_waited(Stream stream) const {
  const std::scoped_lock lock(impl_->mutex);
  const sim::StreamState* state = std::as_const(impl_->streams).find(stream);
  return state == nullptr ? Nanoseconds{} : state->waited;
}

Bytes SimDevice::physical_bytes() const {
  const std::scoped_lock lock(impl_->mutex);
  return impl_->memory.physical();
}

Bytes SimDevice::physical_peak() const {
  const std::scoped_lock lock(impl_->mutex);
  return impl_->memory.physical_peak();
}

SimLive SimDevice::live() const {
  const std::scoped_lock lock(impl_->mutex);
  return {.handles = impl_->memory.handles(),
          .mappings = impl_->memory.mappings(),
          .events = impl_->streams.events(),
          .reservations = impl_->memory.reservations(),
          .graphs = impl_->graphs.graphs(),
          .executables = impl_->graphs.executables(),
          .host_bytes = impl_->host.held()};
}

std::vector<SimPage> SimDevice::pages() const {
  const std::scoped_lock lock(impl_->mutex);
  return impl_->memory.pages();
}

std::vector<Segment> SimDevice::translate(Address address, Bytes bytes) const {
  const std::scoped_lock lock(impl_->mutex);
  return impl_->memory.translate(address, bytes);
}

std::string SimDevice::name() const { return "simulated device"; }
Bytes SimDevice::granularity() const { return impl_->options.granularity; }
Nanoseconds SimDevice::now() const { return impl_->now(); }

Result<Stream> SimDevice::stream(void* handle) {
  const std::scoped_lock lock(impl_->mutex);
  if (number_ != 0 && handle == nullptr) {
    return Error(ErrorCode::device, "stream: the device has no default stream");
  }
  Result<Stream> stream = std::as_const(impl_->streams).of_handle(handle);
  if (stream.ok() && impl_->captures.capturing(*stream)) {
    return impl_->captures.asked_for_id(*stream);
  }
  return stream;
}

// --- Memory.

Result<MemoryInfo> SimDevice::memory_info() {
  return impl_->call(DeviceCall::memory_info, &CostModel::memory_info,
                     [](Impl& sim) -> Result<MemoryInfo> {
                       const Bytes total = sim.memory.total();
                       return MemoryInfo{.free = total - sim.memory.physical(), .total = total};
                     });
}

Result<Address> SimDevice::reserve(Bytes size, Bytes alignment) {
  return impl_->call(DeviceCall::reserve, &CostModel::reserve,
                     [&](Impl& sim) { return sim.memory.reserve(size, alignment); });
}

Result<Address> SimDevice::reserve_at(Address wanted, Bytes size, Bytes alignment) {
  return impl_->call(DeviceCall::reserve, &CostModel::reserve,
                     [&](Impl& sim) { return sim.memory.reserve(size, alignment, wanted); });
}

Status SimDevice::unreserve(Address address, Bytes size) {
  return impl_->call(DeviceCall::unreserve, &CostModel::unreserve,
                     [&](Impl& sim) { return sim.memory.unreserve(address, size); });
}

Result<PhysicalHandle> SimDevice::create(Bytes size) {
  return impl_->call(DeviceCall::create, &CostModel::create,
                     [&](Impl& sim) { return sim.memory.create(size); });
}

Status SimDevice::map(Address address, Bytes size, PhysicalHandle handle) {
  return impl_->call(DeviceCall::map, &CostModel::map,
                     [&](Impl& sim) { return sim.memory.map(address, size, handle); });
}

Status SimDevice::set_access(Address address, Bytes size) {
  return impl_->call(
      DeviceCall::set_access, &CostModel::set_access_per_mapping, [&](Impl& sim) -> Status {
        Result<std::uint64_t> covered = sim.memory.set_access(address, size);
        if (!covered) return std::move(covered).error();
        const auto others = static_cast<std::int64_t>(*covered) - 1;  // one is charged already
        sim.charge(DeviceCall::set_access,
                   {sim.options.costs.set_access_per_mapping.count * others});
        return {};
      });
}

Status SimDevice::unmap(Address address, Bytes size) {
  return impl_->call(DeviceCall::unmap, &CostModel::unmap_per_mapping, [&](Impl& sim) -> Status {
    const sim::Mapping* const mapping = sim.memory.find(address);
    const sim::LastUses uses = mapping != nullptr ? mapping->uses : sim::LastUses{};
    if (Status done = sim.memory.unmap(address, size); !done) return done;
    sim.checker.unmap(uses, address, size, sim.now());
    return {};
  });
}

Status SimDevice::release(PhysicalHandle handle) {
  return impl_->call(DeviceCall::release, &CostModel::release, [&](Impl& sim) -> Status {
    const Result<Bytes> released = sim.memory.release(handle);
    if (!released) return released.error();
    sim.charge(DeviceCall::release, round_down(*released, 1_MiB),
               sim.options.costs.release_per_mib);
    return {};
  });
}

Result<Address> SimDevice::allocate_segment(Bytes size) {
  return impl_->call(DeviceCall::allocate_segment, &CostModel::allocate_segment,
                     [&](Impl& sim) { return sim.memory.allocate_segment(size); });
}

Status SimDevice::free_segment(Address address, Bytes size) {
  return impl_->call(DeviceCall::free_segment, &CostModel::free_segment, [&](Impl& sim) -> Status {
    if (Status there = sim.memory.check_segment(address, size); !there) return there;
    (void)sim.synchronize_context(number_);
    const sim::LastUses uses = sim.memory.find(address)->uses;
    sim.memory.free_segment(address);
    sim.checker.unmap(uses, address, size, sim.now());
    return {};
  });
}

// --- Events.

Result<EventHandle> SimDevice::create_event() {
  return impl_->call(DeviceCall::create_event, &CostModel::create_event,
                     [](Impl& sim) -> Result<EventHandle> { return sim.streams.create_event(); });
}

Status SimDevice::destroy_event(EventHandle event) {
  return impl_->call(DeviceCall::destroy_event, &CostModel::destroy_event,
                     [&](Impl& sim) -> Status {
                       if (sim.streams.destroy_event(event)) return {};
                       return no_event(DeviceCall::destroy_event, event);
                     });
}

Status SimDevice::record(EventHandle event, Stream asked) {
  return impl_->call(DeviceCall::record, &CostModel::record, [&](Impl& sim) -> Status {
    sim.note_use(asked);
    const Stream stream = sim.streams.named(asked);
    sim::EventState* const event_state = sim.streams.find(event);
    if (event_state == nullptr) return no_event(DeviceCall::record, event);
    sim::StreamState* const stream_state = sim.streams.find(stream);
    if (stream_state == nullptr) return no_stream(DeviceCall::record, stream);
    if (sim.captures.capturing(stream)) {
      Result<sim::CapturedMark> mark = sim.captures.mark(stream);
      if (!mark) return std::move(mark).error();
      event_state->captured = *std::move(mark);
      return {};
    }
    sim.streams.record(*event_state, *stream_state, sim.now());
    return {};
  });
}

Status SimDevice::wait(Stream asked, EventHandle event) {
  return impl_->call(DeviceCall::wait, &CostModel::wait, [&](Impl& sim) -> Status {
    sim.note_use(asked);
    const Stream stream = sim.streams.named(asked);
    sim::StreamState* const stream_state = sim.streams.find(stream);
    if (stream_state == nullptr) return no_stream(DeviceCall::wait, stream);
    const sim::EventState* const event_state = sim.streams.find(event);
    if (event_state == nullptr) return no_event(DeviceCall::wait, event);
    if (sim.captures.concerns(stream, *event_state)) return sim.captures.wait(stream, *event_state);
    sim.streams.wait(*stream_state, *event_state, sim.now());
    return {};
  });
}

Result<bool> SimDevice::query(EventHandle event) {
  sim::EventState seen;
  Result<bool> done =
      impl_->call(DeviceCall::query, &CostModel::query, [&](Impl& sim) -> Result<bool> {
        const sim::EventState* const state = sim.streams.find(event);
        if (state == nullptr) return no_event(DeviceCall::query, event);
        if (state->captured.capture != 0) {
          return sim.captures.asked_of(DeviceCall::query, state->captured);
        }
        if (state->done_at > sim.now()) return false;
        sim.note_seen(*state, seen);
        return true;
      });
  if (!done || !*done) return done;
  return impl_->meet_peers(DeviceCall::query, seen).ok();
}

Status SimDevice::synchronize(EventHandle event) {
  sim::EventState seen;
  Status waited =
      impl_->call(DeviceCall::synchronize, &CostModel::synchronize, [&](Impl& sim) -> Status {
        const sim::EventState* const state = sim.streams.find(event);
        if (state == nullptr) return no_event(DeviceCall::synchronize, event);
        if (state->captured.capture != 0) {
          return sim.captures.asked_of(DeviceCall::synchronize, state->captured);
        }
        if (state->done_at > sim.now()) {
          ++sim.host_waits;
          sim.charge(DeviceCall::synchronize, state->done_at - sim.now());
        }
        sim.note_seen(*state, seen);
        return {};
      });
  return waited ? impl_->meet_peers(DeviceCall::synchronize, seen) : std::move(waited);
}

Status SimDevice::record_context(EventHandle event) {
  return impl_->call(
      DeviceCall::record_context, &CostModel::record_context, [&](Impl& sim) -> Status {
        sim::EventState* const state = sim.streams.find(event);
        if (state == nullptr) return no_event(DeviceCall::record_context, event);
        const std::vector<sim::ContextIndex>& covers = sim.contexts[number_].covers;
        const auto is_covered = [&](std::uint64_t stream) {
          return std::find(covers.begin(), covers.end(),
                           sim.streams.find({.id = stream})->context) != covers.end();
        };
        const std::string why =
            "an event of the whole context was recorded while a stream is captured";
        if (sim.captures.break_those(is_covered, why)) {
          return Error(ErrorCode::capture, "record_context: " + why);
        }
        sim.streams.record_all(*state, covers, sim.now());
        return {};
      });
}

Status SimDevice::synchronize_context() {
  sim::EventState seen;
  Status waited = impl_->call(DeviceCall::synchronize_context, &CostModel::synchronize_context,
                              [&](Impl& sim) -> Status {
                                seen = sim.synchronize_context(number_);
                                return {};
                              });
  return waited ? impl_->meet_peers(DeviceCall::synchronize_context, seen) : std::move(waited);
}

}  // namespace weir
