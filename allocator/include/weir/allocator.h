// SPDX-License-Identifier: Apache-2.0
// Weir for programs in C++: device memory by stream, on one or several devices. docs/glossary.md
// explains the terms.
//
//   weir::Allocator allocator;                             // settings from WEIR_* variables
//   weir::Buffer gradients = allocator.make_buffer(64_MiB, compute);
//   launch_on(copy, gradients.data());
//   gradients.fence(copy);                                 // the copy may still be running
//                                                          // when `gradients` goes out of scope
//
// The rule of streams: work on the stream that a block was allocated for may use it at once. Name
// work on any other stream with fence(), after queueing the work and before giving the block back.
//
// Streams are the caller's own handles (cudaStream_t, CUstream; null is the default stream).
// Threads: every call may be made from any thread; calls about one block must not overlap.
// Errors: OutOfMemory; std::bad_alloc if the host has no memory; Exception for everything else.
// What a program's callback throws passes through. A call that throws has changed nothing, with
// these exceptions: trim(), sleep(), wake(), retire(), record_write(), and fence() of several
// blocks may be partly done; record_stop() has ended the recording; allocate() may have given idle
// memory to the driver and called the program's callbacks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "weir/config.h"
#include "weir/device.h"
#include "weir/device_heap.h"
#include "weir/graph_pool.h"
#include "weir/result.h"
#include "weir/sleep.h"
#include "weir/statistics.h"
#include "weir/types.h"

namespace weir {

// The device or the limit has no room. what() says what holds memory.
class OutOfMemory : public std::bad_alloc {
 public:
  explicit OutOfMemory(const std::string& message) : message_(message) {}
  const char* what() const noexcept override { return message_.what(); }

 private:
  std::runtime_error message_;  // its copies cannot throw, as a string's could
};

// Any other failure. what() names the call, the argument or the setting, and the remedy.
class Exception : public std::runtime_error {
 public:
  Exception(ErrorCode code, const std::string& message)
      : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

class Buffer;

// What a request asks for beside its size.
struct AllocateOptions {
  int device = -1;     // Allocator::kCurrentDevice
  bool plain = false;  // plain memory (MemoryKind::plain), whatever the allocator's own kind: other
                       // processes, peers and libraries can open it. Takes longer; not for streams
                       // that are being captured
  std::string tag{};   // its memory sleeps with this tag (plain memory has none); empty or
                       // kDefaultTag: with that of the tag() scope opened last; without a scope,
                       // with kDefaultTag
};

// Which requests a tag's scope takes: those of the thread that opened it, or those of all threads
// (the backward pass of a training step runs in other threads).
enum class TagThreads { own, all };

class Allocator {
 public:
  // Reads settings from the environment. Opens each device when it is first used.
  Allocator();
  explicit Allocator(Config config);
  // Uses the caller's devices, device 0 first, and ignores `config.device`. A device that is given
  // by reference must outlive the allocator.
  explicit Allocator(std::vector<std::unique_ptr<Device>> devices, Config config = {});
  explicit Allocator(Device& device, Config config = {});
  // Does not wait: first synchronise all work that still uses the memory.
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  // The device that is current in the calling thread (CUDA: the current context's, or 0 if there is
  // none); device 0, where the program passed the devices to the constructor.
  static constexpr int kCurrentDevice = -1;

  // Returns null for zero bytes, else an address that is a multiple of 512.
  void* allocate(Bytes bytes, void* stream, int device = kCurrentDevice);
  void* allocate(Bytes bytes, void* stream, const AllocateOptions& options);
  Buffer make_buffer(Bytes bytes, void* stream, const AllocateOptions& options = {});

  // "Work queued so far on `stream` uses these blocks." One event for all of them
  // (DeviceHeap::fence() says when it is one each).
  void fence(std::span<void* const> blocks, void* stream);
  void fence(void* block, void* stream) { fence(std::span<void* const>(&block, 1), stream); }

  // For code written for PyTorch: "`stream` may use the block until it is deallocated".
  void record_stream(void* block, void* stream);

  // Null is fine. A block that a capture still needs goes back in a later call, and counts as live
  // in statistics until then (DeviceHeap::deallocate()).
  void deallocate(void* block);

  // Says that `stream` is about to be destroyed.
  void retire(void* stream, int device = kCurrentDevice);

  // Gives idle memory back to the driver until each device holds at most `keep`, or nothing more
  // can go without waiting. Returns the bytes given back.
  Bytes trim(Bytes keep = {});

  // Limits the physical memory that `device` holds, graph pools included, to `limit`; zero: no
  // limit. If more is held, idle memory goes back at once. Free memory that work on the device
  // still uses goes back with the first deallocate() after that work is done; memory that a graph
  // may use, once the graph is gone.
  void set_limit(Bytes limit, int device = kCurrentDevice);

  // statistics(), snapshot() and tags() do not open a device that was not used yet: they return
  // zeros, an empty snapshot, no tags.
  Statistics statistics(int device = kCurrentDevice) const;
  HeapSnapshot snapshot(int device = kCurrentDevice) const;

  // Writes the snapshot of `device` to a file: JSON, gzipped when the name ends in ".gz".
  void write_snapshot(const std::string& path, int device = kCurrentDevice) const;

  // Records what every device does from now on (those not opened yet: from their first event) into
  // `path`, in place of an earlier recording (any other file there is an error); each device after
  // the first has a file of its own, with its number ("run.1.weir").
  // Throws if the allocator records into a file already. Other threads may go on allocating.
  // `stacks`: which kind of stack is recorded with each allocation; nullopt: as WEIR_RECORD_STACKS,
  // or Config::stacks, says.
  void record_start(const std::string& path, std::optional<RecordStacks> stacks = {});
  // Ends the recording. Throws Exception if a file could not be written whole.
  void record_stop();
  // With WEIR_RECORD_RING: writes the latest events to `path`; files are named as by
  // record_start().
  void record_write(const std::string& path);
  // Adds a remark to all that is recorded now.
  void mark(std::string_view text);

  // sleep() gives the memory of tags back to the device; wake() gets memory at the same addresses
  // again (docs/sleep.md). heap().tags() has further calls: for contents, holds, and what else is
  // on the device.
  SleepReport sleep(const SleepOptions& options = {}, int device = kCurrentDevice);
  SleepReport wake(const WakeOptions& options = {}, int device = kCurrentDevice);
  // While the binding is open, requests for the device's memory belong to the tag. Of several open
  // bindings the last opened counts. Requests of captured streams go to their graph's pool.
  PoolBinding tag(const std::string& name, TagThreads threads = TagThreads::own,
                  int device = kCurrentDevice);
  std::vector<TagInfo> tags(int device = kCurrentDevice) const;

  // Checks every device; returns each broken invariant, in words.
  std::vector<std::string> validate() const;

  int device_count() const;
  const Config& config() const;

  // The allocator's parts, for calls that it lacks. They live as long as the allocator.
  Device& device(int device = kCurrentDevice);
  DeviceHeap& heap(int device = kCurrentDevice);
  // The heap that gave out the block. Exception (unknown_pointer): none did.
  DeviceHeap& heap_of(const void* block);
  // Call this after a request to heap() failed with `error`: if memory ran out, it logs that and
  // writes the files that WEIR_SNAPSHOT_ON_OOM and WEIR_RECORD_RING ask for, as allocate() does.
  void report_failure(const Error& error, int device = kCurrentDevice);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Owns one block. Movable, not copyable; the allocator must outlive it. Not thread-safe.
class Buffer {
 public:
  Buffer() = default;
  // Takes over `block`, which `allocator` gave out.
  Buffer(Allocator& allocator, void* block, Bytes bytes)
      : allocator_(&allocator), block_(block), bytes_(bytes) {}
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  // Gives the block back. If that fails, logs the error, which a destructor can't report; the block
  // then stays in the allocator, unused.
  ~Buffer();

  void* data() const { return block_; }
  Bytes bytes() const { return bytes_; }  // as asked for
  explicit operator bool() const { return block_ != nullptr; }

  void fence(void* stream);
  void record_stream(void* stream);

  // Gives the block back now; the buffer is then empty. Unlike the destructor, throws.
  void reset();
  // The block is the caller's to deallocate; the buffer is then empty.
  [[nodiscard]] void* release();

 private:
  Allocator* allocator_ = nullptr;
  void* block_ = nullptr;
  Bytes bytes_;
};

}  // namespace weir
