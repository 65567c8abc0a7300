// SPDX-License-Identifier: Apache-2.0
// The file at which rank 0 leaves the id of a communicator for the other ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "weir/comm/nccl.h"

namespace weir {

// What is in it, byte for byte; and a checksum behind that. Hosts of one job have one byte order.
struct IdFile {
  std::uint64_t version = 0x3374656d72696577;
  std::uint64_t run = 0;     // a digest of Rendezvous::run
  std::uint64_t host = 0;    // of where the writer's process id means something; 0: not known
  std::int64_t written = 0;  // nanoseconds since 1970, by the writer's clock
  std::int32_t ranks = 0;
  std::int32_t process = 0;  // the writer's id
  UniqueId id;

  friend bool operator==(const IdFile&, const IdFile&) = default;
};

// This boot of this machine, and this namespace of process ids.
std::uint64_t process_host();

std::string encode(const IdFile& file);
// Nothing: `text` is cut off, changed, of another version, or something else.
std::optional<IdFile> decode(std::string_view text);

}  // namespace weir
