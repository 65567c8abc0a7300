// SPDX-License-Identifier: Apache-2.0
// Recordings made by hand.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "weir/recording.h"

namespace weir {

inline constexpr std::uint64_t kAt = 0x10000000;  // an address like any other

// One event a call, each a microsecond after the last.
class HandMade {
 public:
  static constexpr Bytes kPage = 2_MiB;

  HandMade& page(std::uint32_t id, Bytes bytes = kPage) {
    return add({.kind = EventKind::create, .page = {id}, .bytes = bytes});
  }
  HandMade& release(std::uint32_t id, Bytes bytes = kPage) {
    return add({.kind = EventKind::release, .page = {id}, .bytes = bytes});
  }
  HandMade& map(std::uint32_t id, std::uint64_t at, std::uint32_t heap = 0, Bytes bytes = kPage) {
    return add(
        {.kind = EventKind::map, .heap = {heap}, .page = {id}, .address = {at}, .bytes = bytes});
  }
  HandMade& unmap(std::uint32_t id, std::uint64_t at, Bytes bytes = kPage) {
    return add({.kind = EventKind::unmap, .page = {id}, .address = {at}, .bytes = bytes});
  }
  HandMade& lease(std::uint32_t id, std::uint32_t heap) {
    return add({.kind = EventKind::lease, .heap = {heap}, .page = {id}, .bytes = kPage});
  }
  HandMade& unlease(std::uint32_t id, std::uint32_t heap) {
    return add({.kind = EventKind::unlease, .heap = {heap}, .page = {id}, .bytes = kPage});
  }
  HandMade& allocate(std::uint64_t at, Bytes bytes, std::uint64_t stream = 1,
                     std::uint32_t heap = 0) {
    return add({.kind = EventKind::allocate,
                .heap = {heap},
                .stream = stream,
                .address = {at},
                .bytes = round_up(bytes, kGrain),
                .requested = bytes});
  }
  HandMade& deallocate(std::uint64_t at) {
    return add({.kind = EventKind::deallocate, .address = {at}});
  }
  HandMade& fence(std::uint64_t at, std::uint64_t user) {
    return add({.kind = EventKind::fence, .other = user, .address = {at}});
  }
  HandMade& wait(std::uint64_t waiter, std::uint64_t other) {
    return add({.kind = EventKind::stream_wait, .stream = waiter, .other = other});
  }
  HandMade& initial() { return recording.initial = recording.events.size(), *this; }
  HandMade& add(Event event) {
    event.time = {static_cast<std::int64_t>(recording.events.size()) * 1000};
    recording.events.push_back(event);
    return *this;
  }

  Recording recording;
};

}  // namespace weir
