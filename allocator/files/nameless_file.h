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
#include "weir/device.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir::files {

class NamelessFile final : public SleepFile {
 public:
  // `calls` must outlive it. Errors, as everywhere here: invalid_input, which names the folder,
  // what the system says, and the remedy.
  static Result<std::unique_ptr<NamelessFile>> open(const std::string& folder, Bytes size,
                                                    FileCalls& calls = FileCalls::system());
  ~NamelessFile() override;

  Status write(Bytes offset, const void* from, Bytes size) override;
  Status read(Bytes offset, void* to, Bytes size) override;
  Status sync() override;
  bool direct() const override { return direct_.load(std::memory_order_relaxed); }

 private:
  NamelessFile(std::string folder, int file, FileCalls& calls)
      : folder_(std::move(folder)), file_(file), calls_(calls) {}

  // Repeats call(done), which moves bytes from the one that it is given on, until all are moved.
  template <class Call>
  Status move_all(const char* what, Bytes size, Call&& call);
  void stop_direct();
  Error failed(const char* what, int error) const;

  const std::string folder_;
  const int file_;
  FileCalls& calls_;
  std::mutex direct_mutex_;  // of changes of direct_
  std::atomic<bool> direct_{false};
};

// The system's.
class SystemFiles final : public SleepFiles {
 public:
  Result<std::unique_ptr<SleepFile>> open(const std::string& folder, Bytes size) override {
    Result<std::unique_ptr<NamelessFile>> made = NamelessFile::open(folder, size);
    if (!made) return std::move(made).error();
    return std::unique_ptr<SleepFile>(*std::move(made));
  }
};

}  // namespace weir::files
