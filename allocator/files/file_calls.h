// SPDX-License-Identifier: Apache-2.0
// The system's calls about one file, as far as NamelessFile makes them, so that a test can have
// each of them fail, end early or be interrupted.
//
// Each call is the system's of that name, with its result, and errno where that says failure.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

#include "weir/types.h"

namespace weir::files {

class FileCalls {
 public:
  virtual ~FileCalls() = default;

  // A file of `folder` that has no name (O_TMPFILE), or loses it at once where the file system
  // knows none without.
  virtual int open_nameless(const std::string& folder);
  // posix_fallocate(): the error, and not errno. Zero: there is room.
  virtual int reserve(int file, Bytes size);
  // Whether bytes go past the page cache from now on (O_DIRECT).
  virtual int set_direct(int file, bool direct);
  virtual ssize_t write_at(int file, const void* from, std::size_t size, off_t offset);
  virtual ssize_t read_at(int file, void* to, std::size_t size, off_t offset);
  virtual int sync(int file);
  virtual void close(int file);

  static FileCalls& system();
};

}  // namespace weir::files
