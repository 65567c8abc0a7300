// SPDX-License-Identifier: Apache-2.0
// An allocator under test, as the loops see it.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace weir::peers {

// Bytes that an allocator holds of the device's memory; none: it can't say.
using Reserved = std::optional<std::uint64_t>;

// An allocator's calls of the driver so far, by kind, and the host's time in them.
struct DriverCalls {
  std::uint64_t calls = 0, nanoseconds = 0;
};
using DriverSplit = std::map<std::string, DriverCalls>;

// What was called since `before`.
inline DriverSplit since(const DriverSplit& before, DriverSplit now) {
  for (const auto& [kind, earlier] : before) {
    now[kind].calls -= earlier.calls;
    now[kind].nanoseconds -= earlier.nanoseconds;
  }
  return now;
}

// Nothing of an allocator that can't say.
template <class P>
DriverSplit driver_split_of(const P& peer) {
  if constexpr (requires { peer.driver_split(); }) {
    return peer.driver_split();
  } else {
    return {};
  }
}

// A StreamRef is what the allocator takes for a stream, made once for each stream. All calls but
// stream_ref() and reserved() may be made from any thread. Errors: any std::exception.
//
// fence(): work queued so far on `user` uses the block. Its memory must not be used again before
// that work is done, whoever gets it. A peer that knows its driver calls has driver_split(), too;
// one with streams of its own in place of the GPU's, on which fences are measured, kOtherStreams.
template <class P>
concept Peer = requires(P peer, void* handle, typename P::StreamRef stream, void* block) {
  { P::kFences } -> std::convertible_to<bool>;  // whether fence() means anything
  { peer.stream_ref(handle) } -> std::same_as<typename P::StreamRef>;
  { peer.allocate(std::size_t{}, stream) } -> std::same_as<void*>;
  {peer.fence(block, stream, /*user=*/stream)};
  {peer.free(block, stream)};
  { peer.reserved() } -> std::same_as<Reserved>;
};

}  // namespace weir::peers
