// SPDX-License-Identifier: Apache-2.0
// Names of streams that programs know by their handles: one name a stream, whether or not the
// stream is captured when somebody asks, and whichever thread asks.
//
// A stream goes by the driver's id. The driver tells no id of a stream that is captured, so a
// stream that is met first in a capture goes by a number of Weir's own (Stream::of_captured), then
// and later. With two names it would be two streams, and memory that it freed under the one could
// not serve it under the other within a capture (docs/decisions.md, 030).
//
// Once a stream is gone the driver may give its handle to another one. The id that the driver tells
// outside captures shows that; a name within a capture goes by the handle alone.
//
// Threads: self-synchronised by one lock, under which no other is taken. A name that the thread has
// looked up before needs no lock.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "core/base/mutex.h"
#include "weir/types.h"

namespace weir {

class StreamNames {
 public:
  // `number`: of the device heap, in the process; never reused.
  explicit StreamNames(std::uint64_t number) : number_(number) {}

  // The name of the stream that the driver calls `found`.
  Stream of(Stream found);
  // The name of the stream that has the handle, as far as is known; nothing: none was met.
  std::optional<Stream> find(void* handle) const;
  // find(); of a stream that was not met, a new name.
  Stream of_captured(void* handle);

  // The number of Weir's own that the stream goes by, or went by in captures, beside this name.
  std::optional<Stream> own_number(Stream stream) const;
  // The stream was retired: its handle may be another's from now on.
  void forget(Stream stream);

 private:
  struct Named {
    Stream name;
    std::optional<std::uint64_t> id;  // the driver's; nothing: it was not asked yet
  };
  Stream look_up(Stream found) WEIR_EXCLUDES(mutex_);

  const std::uint64_t number_;
  mutable Mutex mutex_;
  std::unordered_map<void*, Named> by_handle_ WEIR_GUARDED_BY(mutex_);
  std::uint64_t last_own_ WEIR_GUARDED_BY(mutex_) = 0;
};

}  // namespace weir
