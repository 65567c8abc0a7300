// SPDX-License-Identifier: Apache-2.0
// A file of a folder that has no name: it is gone once this is, or the process has ended.
//
// Its size is fixed, and the room for it is reserved when it is opened, so that a full disk is an
// error then and not in the midst of writing. Bytes go past the system's page cache where the file
// system takes that: the cache is host memory, which is short where such a file is asked for.
//
// Threads: write() and read() from any, at a time; sync() while neither goes on.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "files/file_calls.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir::files {

class NamelessFile {
 public:
  // `calls` must outlive it. Errors, as everywhere here: invalid_input, which names the folder,
  // what the system says, and the remedy.
  static Result<std::unique_ptr<NamelessFile>> open(const std::string& folder, Bytes size,
                                                    FileCalls& calls = FileCalls::system());
  ~NamelessFile();
  NamelessFile(const NamelessFile&) = delete;
  NamelessFile& operator=(const NamelessFile&) = delete;

  // Offsets, sizes and addresses are multiples of 4 KiB, within the file's size. An error may leave
  // some of the bytes written or read.
  Status write(Bytes offset, const void* from, Bytes size);
  Status read(Bytes offset, void* to, Bytes size);
  // Once it has returned, what was written is read as it was, or reading it is an error.
  Status sync();

  // Do bytes go past the page cache?
  bool direct() const { return direct_.load(std::memory_order_relaxed); }

 private:
  NamelessFile(std::string folder, Bytes size, int file, FileCalls& calls)
      : folder_(std::move(folder)), size_(size), file_(file), calls_(calls) {}

  // Repeats call(done), which moves bytes from the one that it is given on, until all are moved.
  template <class Call>
  Status move_all(const char* what, Bytes size, Call&& call);
  void stop_direct();
  Error failed(const char* what, int error) const;

  const std::string folder_;
  const Bytes size_;
  const int file_;
  FileCalls& calls_;
  std::mutex direct_mutex_;  // of changes of direct_
  std::atomic<bool> direct_{false};
};

}  // namespace weir::files
