// SPDX-License-Identifier: Apache-2.0
// Sleep of a device heap's memory, by tags: DeviceHeap::tags().
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "weir/result.h"
#include "weir/sleep.h"
#include "weir/types.h"

namespace weir {

class GraphPool;

// Threads: as DeviceHeap, whose it is.
class HeapTags {
 public:
  HeapTags() = default;
  virtual ~HeapTags() = default;
  HeapTags(const HeapTags&) = delete;
  HeapTags& operator=(const HeapTags&) = delete;

  // sleep() gives the memory of tags back to the device, and wake() gets memory at the same
  // addresses again, so that pointers and captured graphs stay valid. A tag is all memory of the
  // graph pools that name it; kDefaultTag is the device heap's own memory, and that of all other
  // graph pools.
  //
  // While a tag sleeps, requests for its memory fail (ErrorCode::asleep), and so does
  // Graph::launch() of its graphs. Its blocks may be freed. Queue no work that uses its memory from
  // the call of sleep() until wake() has returned; sleep() waits for work queued before.
  //
  // Errors: invalid_argument (there is no such tag; or memory can't sleep, which the message names
  // with its holder) and capture (a stream is being captured) leave all as it was, except that idle
  // memory may be gone and `options.contents` set. After device and out_of_memory (of the host) the
  // tags are awake, or partly asleep (TagInfo). A tag that sleeps already is no error.
  virtual Result<SleepReport> sleep(const SleepOptions& options) = 0;
  Result<SleepReport> sleep() { return sleep(SleepOptions{}); }
  // The host waits until the bytes are there. Errors: invalid_argument; out_of_memory (the message
  // says who has the memory), device: tags before the one that failed are awake, that one is partly
  // asleep, and wake() may be called again.
  virtual Result<SleepReport> wake(const WakeOptions& options) = 0;
  Result<SleepReport> wake() { return wake(WakeOptions{}); }
  virtual std::vector<TagInfo> list() = 0;  // by name
  // Counts from the next sleep() on. Errors: invalid_argument (the name is empty).
  virtual Status set_contents(const std::string& tag, SleepContents contents) = 0;
  // Says that bytes of an immutable tag have changed since they were copied.
  virtual Status declare_changed(const std::string& tag) = 0;
  // The pool of requests that are made for a tag (GraphPool::serve(), GraphPool::allocate()), which
  // lives as long as the device heap. Errors: invalid_argument (the name is empty, or kDefaultTag).
  virtual Result<GraphPool*> pool(const std::string& tag) = 0;
  // Says that another process or a library uses the physical memory of a live block: it can't sleep
  // until release_hold(). Call that before the block is deallocated. Returns the hold's number.
  // Errors: unknown_pointer.
  virtual Result<std::uint64_t> hold(const void* block, std::string holder) = 0;
  virtual void release_hold(std::uint64_t hold) = 0;
  // The host memory with the copy of a live block's bytes, from `pointer` on, which may point
  // anywhere into the block. A copy exists while a tag with copied contents sleeps; that of an
  // immutable tag also after wake(), for the next sleep(). The pointers are valid until any
  // thread begins the next sleep() or wake() of the tag; read_asleep() is safe beside both. Errors:
  // unknown_pointer; invalid_argument (there is no copy).
  virtual Result<std::vector<HostPart>> host_copy(const void* pointer, Bytes bytes) = 0;
  // Writes that copy to `to`. Must not be called for a simulated device, whose host memory can't be
  // read. Errors: as host_copy().
  virtual Status read_asleep(const void* pointer, Bytes bytes, void* to) = 0;
  // Adds a callback that sleep() and residue() call in their thread. The callback returns memory
  // that is not this heap's, is counted to one of its tags, and can't sleep. It must not call Weir.
  using HeldCallback = std::function<std::vector<HeldMemory>()>;
  virtual void on_sleep(HeldCallback callback) = 0;
  // What is on the device now.
  virtual Residue residue() = 0;
};

}  // namespace weir
