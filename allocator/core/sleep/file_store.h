// SPDX-License-Identifier: Apache-2.0
// Copies of sleeping memory in files. They go through a few pinned buffers: a buffer is filled from
// the device and written to the file, or read from there and copied to the device. Several threads
// do that, each with a buffer of its own, so that the disk and the device are both at work.
//
// A file is full from its begin to its end, in blocks as large as a buffer; each block is written
// as one. What is given back of a file leaves a gap; the file is closed once nothing of it is in
// use.
//
// Threads: one write() and one read() at a time, with place() and give() beside them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/base/range.h"
#include "core/sleep/host_store.h"
#include "weir/device.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir {

class FileStore {
 public:
  static constexpr Bytes kBlock = 16_MiB;
  // No disk is faster with more at a time, and each is host memory.
  static constexpr std::size_t kMostBuffers = 8;

  // `device`, and `host`, which the buffers come from, must outlive this.
  FileStore(Device& device, HostStore& host) : device_(device), host_(host) {}
  ~FileStore();
  FileStore(const FileStore&) = delete;
  FileStore& operator=(const FileStore&) = delete;

  struct Piece {
    std::size_t file = 0;
    Bytes offset;
    Bytes size;
  };
  // Bytes of the device's, and where their copy is.
  struct Part {
    Range home;
    Piece piece;
    std::size_t range = 0;  // which of those that were to be placed it is of
  };

  // A new file with room for all ranges: for each range its parts, in order, none across two
  // blocks. Errors: as SleepFiles::open(); unavailable (the device has no files).
  Result<std::vector<Part>> place(const std::string& folder, const std::vector<Range>& ranges);
  // Copies what place() returned. On success all of it is safe. Errors: the device's, the host's
  // memory, the file's: then the pieces hold nothing that is known.
  Status write(const std::vector<Part>& parts);
  // Copies back, and says of each part whether its bytes are there: on success all are.
  Status read(const std::vector<Part>& parts, std::vector<bool>& there);
  // Reads bytes of one piece to any host memory.
  Status read_bytes(const Piece& piece, Bytes skip, Bytes size, void* to);
  void give(const Piece& piece);
  // Closes the files of which nothing is in use.
  void close_unused();

  Bytes held() const;          // of files that are open
  bool through_cache() const;  // is there one whose file system doesn't take direct writes?

 private:
  struct File {
    std::unique_ptr<SleepFile> open;  // null: it was closed
    Bytes size;
    Bytes taken;
  };
  // What one thread works with.
  struct Worker {
    void* buffer = nullptr;
    EventHandle event;
  };
  struct Crew {
    std::vector<Worker> workers;
    std::vector<HostStore::Piece> slabs;
  };
  // Parts of one block, by their numbers.
  using Group = std::vector<std::size_t>;

  SleepFile& file_of(const Piece& piece) const;
  static std::vector<Group> by_block(const std::vector<Part>& parts);
  // Calls work(worker, number) for each of `groups`, until one fails.
  Status run(std::size_t groups, Device::Direction direction,
             const std::function<Status(const Worker&, std::size_t)>& work);
  Status gather(std::size_t count, Crew& crew);
  void dismiss(Crew& crew, bool is_quiet);
  Status write_block(const Worker& worker, const std::vector<Part>& parts, const Group& group);
  Status read_block(const Worker& worker, const std::vector<Part>& parts, const Group& group);
  Status finish_copies(const Worker& worker, Stream stream);
  bool wait_for_copies(Device::Direction direction);

  Device& device_;
  HostStore& host_;
  mutable std::mutex mutex_;
  std::vector<File> files_;          // guarded by mutex_
  std::vector<EventHandle> events_;  // guarded by mutex_; to be destroyed
};

}  // namespace weir
