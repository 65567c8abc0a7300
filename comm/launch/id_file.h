// The file at which rank 0 leaves the id of a communicator for the other ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "weir/comm/nccl.h"
#include "weir/result.h"

namespace weir {

struct IdFile {
  std::string run;  // as in Rendezvous
  int ranks = 0;
  std::string host;          // where the writer's process id means something; empty: not known
  int process = 0;           // the writer's id
  std::int64_t written = 0;  // nanoseconds since 1970, by the writer's clock
  UniqueId id;

  friend bool operator==(const IdFile&, const IdFile&) = default;
};

// This boot of this machine, and this namespace of process ids.
std::string process_host();

std::string encode(const IdFile& file);
// Nothing: `text` is cut off, changed, of another version, or something else.
std::optional<IdFile> decode(std::string_view text);

// What stands at `path`; nothing: no file is there. Links are not followed.
// Errors: invalid_argument (it can't be read, is no plain file, or is another user's).
Result<std::optional<std::string>> read_own_file(const std::string& path);

// Has `path` hold `text`, all at once, for this user alone. Errors: as of read_own_file(), or it
// can't be written there.
Status write_own_file(const std::string& path, const std::string& text);

// Removes what is at `path`, if anything. Errors: as of read_own_file(), or it can't be removed.
Status remove_own_file(const std::string& path);

}  // namespace weir
