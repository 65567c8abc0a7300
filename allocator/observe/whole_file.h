// Files that are there whole or not at all: written beside their place, and renamed.
#pragma once

#include <sys/stat.h>

#include <string>

namespace weir {

// Where to write what shall stand at `path`: beside it, to be renamed to it. What is there and no
// plain file (a device, a pipe, a link such as /dev/stdout) is `path` itself: it would be replaced
// by a file, which root may do even to /dev/null.
inline std::string place_to_write(const std::string& path) {
  struct stat there {};
  const bool stays = ::lstat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode);
  return stays ? path : path + ".unfinished";
}

}  // namespace weir
