// SPDX-License-Identifier: Apache-2.0
// Pinned host memory, in slabs: given out in pieces, one behind the other, and free again slab by
// slab once all pieces of a slab are back.
//
// To make a slab takes longer than to fill it, so where the device says that several threads are
// worth while, they make slabs ahead.
//
// Threads: give(), shrink() and held() from any; the others from one at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "weir/device.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir {

class HostStore {
 public:
  static constexpr Bytes kSlab = 64_MiB;

  // `device` must outlive this.
  explicit HostStore(CopyCalls& device);
  // Gives everything back, taken or not: the device must be done with it.
  ~HostStore();
  HostStore(const HostStore&) = delete;
  HostStore& operator=(const HostStore&) = delete;

  struct Piece {
    void* memory = nullptr;
    Bytes size;
    std::size_t slab = 0;
  };
  // So many bytes will be taken: they are made now, or begun to be made by threads.
  // Errors: as Device::allocate_host(); what was made stays.
  Status expect(Bytes bytes);
  // At least one grain and at most `most` bytes, whole grains. Waits for those who make it.
  Result<Piece> take(Bytes most);
  void give(const Piece& piece);
  // No thread makes anything any more.
  void settle();  // (expect() does it, too)
  // Empty slabs go, while more than `keep` is held. Errors: as Device::free_host().
  Status shrink(Bytes keep);

  Bytes held() const {
    const std::lock_guard lock(mutex_);
    return kSlab * held_;
  }

 private:
  struct Slab {
    void* memory = nullptr;  // null: there is none of that number now
    Bytes filled;
    Bytes taken;
  };
  class Makers;

  // With mutex_ held.
  Bytes empty_bytes() const;
  std::size_t add(void* memory);
  // Null: there is no room in slabs that are there.
  Slab* with_room();
  Piece cut(Slab& slab, Bytes most);

  CopyCalls& device_;
  std::unique_ptr<Makers> makers_;
  mutable std::mutex mutex_;
  std::vector<Slab> slabs_;             // guarded by mutex_
  std::optional<std::size_t> current_;  // guarded by mutex_
  std::uint64_t held_ = 0;              // guarded by mutex_
};

}  // namespace weir
