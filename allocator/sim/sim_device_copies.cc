// SPDX-License-Identifier: Apache-2.0
// SimDevice's host memory, and copies between it and the device. Host memory has addresses and no
// bytes: what it holds is known by sim::Contents.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "sim/sim_device_impl.h"
#include "sim/text.h"

namespace weir {
namespace {

using sim::refused;
using sim::time_for;

constexpr Bytes kHostUnit = 2_MiB;
constexpr Address kFirstHostAddress{std::uint64_t{1} << 50};

}  // namespace

Result<void*> SimDevice::Impl::allocate_host(Bytes size) {
  if (size == 0_B || size % kHostUnit != 0_B) {
    return refused(DeviceCall::allocate_host, "invalid value: not a multiple of 2 MiB");
  }
  if (options_.host_memory - host_bytes_ < size) {
    return Error(ErrorCode::out_of_memory, "allocate_host: the host has no more memory");
  }
  Address at = kFirstHostAddress;
  for (const auto& [begin, bytes] : host_) {
    if (at + size <= begin) break;
    at = begin + bytes;
  }
  host_[at] = size;
  host_bytes_ += size;
  charge(DeviceCall::allocate_host, time_for(size, options_.costs.allocate_host_per_mib));
  return at.pointer();
}

Status SimDevice::Impl::free_host(void* memory, Bytes size) {
  const auto known = host_.find(Address::of(memory));
  if (known == host_.end() || known->second != size) {
    return refused(DeviceCall::free_host, "invalid value: no host memory of that size is there");
  }
  host_uses({Access::Kind::write, known->first, size});
  host_contents_.clear(known->first.value, (known->first + size).value);
  host_bytes_ -= size;
  host_.erase(known);
  return {};
}

Stream SimDevice::Impl::copy_stream(std::size_t device, Direction direction) {
  std::optional<Stream>& stream =
      contexts_[device].copy_streams[direction == Direction::to_host ? 0 : 1];
  if (!stream) stream = streams_.add(static_cast<sim::ContextIndex>(device));
  return *stream;
}

Status SimDevice::Impl::check_host(DeviceCall call, const void* memory, Bytes size) const {
  const Address at = Address::of(memory);
  auto after = host_.upper_bound(at);
  if (after != host_.begin()) {
    const auto& [begin, bytes] = *std::prev(after);
    if (at + size <= begin + bytes) return {};
  }
  return refused(call, "invalid value: the host memory is not of allocate_host()");
}

void SimDevice::Impl::host_uses(const Access& access) {
  if (!options_.check_races) return;
  checker_.host_touches(host_stamps_, access.address.value, (access.address + access.bytes).value,
                        access, now());
}

// What the device's bytes are known to hold goes with the copy as it is queued: whatever they hold
// later than that is a race.
template <class Move>
Status SimDevice::Impl::copy(DeviceCall call, Access access, const void* host, Stream stream,
                             Move&& move) {
  const Nanoseconds duration = time_for(access.bytes, options_.costs.copy_per_mib);
  const std::uint64_t write = last_write_;
  if (Status launched = launch(stream, std::span(&access, 1), duration, {}); !launched) {
    return Error(ErrorCode::device, std::string(name_of(call)) + ": " + launched.error().message());
  }
  last_write_ = write;
  if (host != nullptr && options_.check_races) {
    const bool reads = access.kind == Access::Kind::write;
    const Access at_host = reads ? Reads(host, access.bytes) : Writes(host, access.bytes);
    checker_.touch(host_stamps_, at_host.address.value, (at_host.address + at_host.bytes).value,
                   checker_.begin(streams_.find(stream)->index, at_host, now()));
  }
  for (Address at = access.address; at < access.address + access.bytes;) {
    sim::Mapping& mapping = *memory_.find(at);
    const Bytes part = std::min(access.address + access.bytes, mapping.end()) - at;
    move(mapping.page->contents, at - mapping.address, at - access.address, part);
    at = at + part;
  }
  return {};
}

Status SimDevice::Impl::copy_to_host(void* to, Address from, Bytes size, Stream stream) {
  if (Status there = check_host(DeviceCall::copy_to_host, to, size); !there) return there;
  const std::uint64_t host = Address::of(to).value;
  return copy(DeviceCall::copy_to_host, {Access::Kind::read, from, size}, to, stream,
              [&](sim::Contents& page, Bytes offset, Bytes done, Bytes part) {
                const std::uint64_t begin = host + done.count;
                host_contents_.clear(begin, begin + part.count);
                page.visit(offset.count, (offset + part).count,
                           [&](std::uint64_t b, std::uint64_t e, std::uint64_t w, std::uint64_t f) {
                             host_contents_.set(begin + (b - offset.count),
                                                begin + (e - offset.count), w, f);
                           });
              });
}

Status SimDevice::Impl::copy_to_device(Address to, const void* from, Bytes size, Stream stream) {
  if (Status there = check_host(DeviceCall::copy_to_device, from, size); !there) return there;
  const std::uint64_t host = Address::of(from).value;
  return copy(DeviceCall::copy_to_device, {Access::Kind::write, to, size}, from, stream,
              [&](sim::Contents& page, Bytes offset, Bytes done, Bytes part) {
                const std::uint64_t begin = host + done.count;
                page.clear(offset.count, (offset + part).count);
                host_contents_.visit(
                    begin, begin + part.count,
                    [&](std::uint64_t b, std::uint64_t e, std::uint64_t w, std::uint64_t f) {
                      page.set(offset.count + (b - begin), offset.count + (e - begin), w, f);
                    });
              });
}

Status SimDevice::Impl::fill_with_zeros(Address at, Bytes size, Stream stream) {
  return copy(DeviceCall::fill_with_zeros, {Access::Kind::write, at, size}, nullptr, stream,
              [&](sim::Contents& page, Bytes offset, Bytes, Bytes part) {
                page.set(offset.count, (offset + part).count, sim::Contents::kZeros, 0);
              });
}

// Each write is one of its own.
void SimDevice::Impl::note_write(const Access& access) {
  if (!options_.track_contents || access.kind == Access::Kind::read) return;
  ++last_write_;
  for (Address at = access.address; at < access.address + access.bytes;) {
    sim::Mapping& mapping = *memory_.find(at);
    const Address end = std::min(access.address + access.bytes, mapping.end());
    mapping.page->contents.set((at - mapping.address).count, (end - mapping.address).count,
                               last_write_, (at - access.address).count);
    at = end;
  }
}

std::vector<SimContent> SimDevice::Impl::contents(Address address, Bytes bytes) {
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
  for (Address at = address; at < address + bytes;) {
    sim::Mapping* const mapping = memory_.find(at);
    if (mapping == nullptr) {
      at = Address{round_down({at.value}, options_.granularity).count} + options_.granularity;
      continue;
    }
    const Address end = std::min(address + bytes, mapping->end());
    mapping->page->contents.visit(
        (at - mapping->address).count, (end - mapping->address).count,
        [&](std::uint64_t b, std::uint64_t e, std::uint64_t w, std::uint64_t f) {
          add({(mapping->address + Bytes{b}) - address, Bytes{e - b}, w, f});
        });
    at = end;
  }
  return found;
}

std::vector<SimContent> SimDevice::contents(Address address, Bytes bytes) const {
  const std::scoped_lock lock(impl_->mutex_);
  return impl_->contents(address, bytes);
}

Bytes SimDevice::host_bytes() const {
  const std::scoped_lock lock(impl_->mutex_);
  return impl_->host_bytes_;
}

Result<void*> SimDevice::allocate_host(Bytes size) {
  return impl_->call(DeviceCall::allocate_host, 0_ns, [&] { return impl_->allocate_host(size); });
}

Status SimDevice::free_host(void* memory, Bytes size) {
  return impl_->call(DeviceCall::free_host, impl_->options_.costs.free_host,
                     [&] { return impl_->free_host(memory, size); });
}

Result<Stream> SimDevice::copy_stream(Direction direction) {
  return impl_->call(DeviceCall::copy_stream, 0_ns,
                     [&]() -> Result<Stream> { return impl_->copy_stream(number_, direction); });
}

Status SimDevice::copy_to_host(void* to, Address from, Bytes size, Stream stream) {
  return impl_->call(DeviceCall::copy_to_host, impl_->options_.costs.queue_copy,
                     [&] { return impl_->copy_to_host(to, from, size, stream); });
}

Status SimDevice::copy_to_device(Address to, const void* from, Bytes size, Stream stream) {
  return impl_->call(DeviceCall::copy_to_device, impl_->options_.costs.queue_copy,
                     [&] { return impl_->copy_to_device(to, from, size, stream); });
}

Status SimDevice::fill_with_zeros(Address at, Bytes size, Stream stream) {
  return impl_->call(DeviceCall::fill_with_zeros, impl_->options_.costs.queue_copy,
                     [&] { return impl_->fill_with_zeros(at, size, stream); });
}

}  // namespace weir
