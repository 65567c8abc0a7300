// SPDX-License-Identifier: Apache-2.0
// SimDevice's host memory, and copies between it and the device.
#include <string>
#include <utility>
#include <vector>

#include "sim/sim_device_impl.h"

namespace weir {

void SimDevice::Impl::host_uses(const Access& access) {
  if (!options.check_races) return;
  checker.host_touches(host.stamps, access.address.value, (access.address + access.bytes).value,
                       access, now());
}

// What the device's bytes are known to hold goes with the copy as it is queued: whatever they hold
// later than that is a race.
template <class Move>
Status SimDevice::Impl::copy(DeviceCall call, Access access, const void* at_host, Stream stream,
                             Move&& move) {
  if (at_host != nullptr) {
    if (Status there = host.check(call, at_host, access.bytes); !there) return there;
  }
  const Nanoseconds duration = time_for(access.bytes, options.costs.copy_per_mib);
  const std::uint64_t write = last_write;
  if (Status launched = launch(stream, std::span(&access, 1), duration); !launched) {
    return sim::refused(call, launched.error().message());
  }
  last_write = write;
  if (at_host != nullptr && options.check_races) {
    const bool reads = access.kind == Access::Kind::write;
    const Access of_host = reads ? Reads(at_host, access.bytes) : Writes(at_host, access.bytes);
    checker.touch(host.stamps, of_host.address.value, (of_host.address + of_host.bytes).value,
                  checker.begin(streams.find(stream)->index, of_host, now()));
  }
  memory.for_each_part(access.address, access.bytes,
                       [&](sim::Mapping& mapping, Bytes offset, Bytes done, Bytes part) {
                         move(mapping.page->contents, offset.count, done.count, part);
                       });
  return {};
}

Status SimDevice::copy_to_host(void* to, Address from, Bytes size, Stream stream) {
  const auto move = [&](sim::Contents& page, std::uint64_t offset, std::uint64_t done, Bytes part) {
    impl_->host.contents.take(Address::of(to).value + done, part, page, offset);
  };
  return impl_->call(DeviceCall::copy_to_host, &CostModel::queue_copy, [&](Impl& sim) {
    return sim.copy(DeviceCall::copy_to_host, {Access::Kind::read, from, size}, to, stream, move);
  });
}

Status SimDevice::copy_to_device(Address to, const void* from, Bytes size, Stream stream) {
  const auto move = [&](sim::Contents& page, std::uint64_t offset, std::uint64_t done, Bytes part) {
    page.take(offset, part, impl_->host.contents, Address::of(from).value + done);
  };
  return impl_->call(DeviceCall::copy_to_device, &CostModel::queue_copy, [&](Impl& sim) {
    return sim.copy(DeviceCall::copy_to_device, {Access::Kind::write, to, size}, from, stream,
                    move);
  });
}

Status SimDevice::fill_with_zeros(Address at, Bytes size, Stream stream) {
  const auto move = [](sim::Contents& page, std::uint64_t offset, std::uint64_t, Bytes part) {
    page.set(offset, offset + part.count, SimContent::kZeros, 0);
  };
  return impl_->call(DeviceCall::fill_with_zeros, &CostModel::queue_copy, [&](Impl& sim) {
    return sim.copy(DeviceCall::fill_with_zeros, {Access::Kind::write, at, size}, nullptr, stream,
                    move);
  });
}

Result<Stream> SimDevice::copy_stream(Direction direction) {
  return impl_->call(DeviceCall::copy_stream, [&](Impl& sim) -> Result<Stream> {
    std::optional<Stream>& stream =
        sim.contexts[number_].copy_streams[direction == Direction::to_host ? 0 : 1];
    if (!stream) stream = sim.streams.add(static_cast<sim::ContextIndex>(number_));
    return *stream;
  });
}

Result<void*> SimDevice::allocate_host(Bytes size) {
  return impl_->call(DeviceCall::allocate_host, [&](Impl& sim) {
    Result<void*> memory = sim.host.allocate(size);
    if (memory) {
      sim.charge(DeviceCall::allocate_host, size, sim.options.costs.allocate_host_per_mib);
    }
    return memory;
  });
}

Status SimDevice::free_host(void* memory, Bytes size) {
  return impl_->call(DeviceCall::free_host, &CostModel::free_host, [&](Impl& sim) {
    Status freed = sim.host.free(memory, size);
    if (freed) sim.host_uses(Writes(memory, size));
    return freed;
  });
}

// Bytes of one write that lie side by side are one.
std::vector<SimContent> SimDevice::contents(Address address, Bytes bytes) const {
  std::vector<SimContent> found;
  const auto add = [&](SimContent next) {
    if (!found.empty()) {
      SimContent& last = found.back();
      const bool goes_on =
          last.offset + last.bytes == next.offset && last.write == next.write &&
          (next.write == SimContent::kZeros || last.first + last.bytes.count == next.first);
      if (goes_on) {
        last.bytes += next.bytes;
        return;
      }
    }
    found.push_back(next);
  };
  const std::scoped_lock lock(impl_->mutex);
  impl_->memory.for_each_part(
      address, bytes, [&](const sim::Mapping& mapping, Bytes offset, Bytes done, Bytes part) {
        mapping.page->contents.visit(
            offset.count, (offset + part).count,
            [&](std::uint64_t b, std::uint64_t e, std::uint64_t w, std::uint64_t f) {
              add({done + (Bytes{b} - offset), Bytes{e - b}, w, f});
            });
      });
  return found;
}

}  // namespace weir
