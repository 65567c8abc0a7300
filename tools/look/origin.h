// SPDX-License-Identifier: Apache-2.0
// What a file says of the program beside its requests: the allocator that served it, the devices,
// the request that failed.
//
// A recording holds what Weir did, or would have done, with the requests. All of this is of the
// allocator that ran: PyTorch's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "weir/types.h"

namespace weir {

// Why PyTorch's allocator held bytes that no block had. Every such byte has one cause.
enum class Inactive : std::uint8_t {
  graph_pool,    // in segments of a graph's private pool
  small_pool,    // in the 2 MiB segments that serve requests of up to 1 MiB
  other_stream,  // in segments of a stream other than the one with the most memory
  remainder,     // beside a live block of the same segment
  cached,        // segments without a live block
};
inline constexpr int kInactives = static_cast<int>(Inactive::cached) + 1;
std::string_view name_of(Inactive cause);
// "in segments without a live block": where such bytes are.
std::string_view meaning_of(Inactive cause);

// Addresses in a row that the recorded allocator held.
struct HeldSegment {
  std::uint64_t address = 0;
  Bytes bytes;
  std::uint64_t stream = 0;
  Inactive why = Inactive::cached;                      // its bytes without a block
  std::vector<std::pair<std::uint64_t, Bytes>> blocks;  // where in it
};

// What the recorded allocator held at one moment.
struct Held {
  std::size_t events = 0;  // of the recording had happened
  Bytes reserved, live;
  std::array<Bytes, kInactives> inactive{};
  Bytes largest_inactive;             // piece
  std::vector<HeldSegment> segments;  // by address
};

struct FailedRequest {
  Bytes wanted;
  Nanoseconds time;
  std::size_t events = 0;     // of the recording had happened
  std::uint64_t count = 1;    // requests that failed; this is the last of them
  std::uint32_t stack = 0;    // Event::stack
  std::optional<Bytes> free;  // on the device, if the file says so
};

struct DeviceInFile {
  std::uint64_t events = 0;
  Bytes peak_reserved;
  bool ran_out = false;

  bool is_used() const { return events > 0 || peak_reserved > 0_B; }
};

// What to change, as replays of the program tell.
struct Help {
  std::string text;
  bool needs_less = false;  // no setting helps
};

struct Origin {
  bool has_times = true;              // else times are numbers of events
  int device = 0;                     // of `devices`: the one that is shown
  std::vector<DeviceInFile> devices;  // empty: the file has one
  std::optional<FailedRequest> failure;
  std::optional<Held> held;     // when the request failed, or at the peak of what was reserved
  bool lacks_segments = false;  // of `device`, in a snapshot of PyTorch's: what it held is unknown
  bool expandable_segments = false;                            // were on, says the file
  bool is_pytorchs() const { return held || lacks_segments; }  // a snapshot of PyTorch's
  std::optional<Help> help;                                    // none: there was nothing to replay
  std::vector<std::uint64_t> addresses;  // of blocks in the file, in order of allocation
};

}  // namespace weir
