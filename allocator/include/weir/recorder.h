// SPDX-License-Identifier: Apache-2.0
// Records what a device heap does, in the format of allocator/observe/README.md, which
// read_recording() reads.
//
// Never makes an allocating thread wait for I/O: events go into a bounded ring, and a thread of the
// recorder's own does all else. What comes while the ring is full is dropped and counted; the file
// stays a sound recording all the same, and says how much is missing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weir/event.h"
#include "weir/recording.h"
#include "weir/result.h"

namespace weir {

// Says who asks for memory. Equal stacks have one id, and no other stack has that id. Any thread
// may call. The source must outlive every recorder and heap that uses it.
class StackSource {
 public:
  virtual ~StackSource() = default;
  // The calling thread's stack; 0: unknown. Called in allocations while somebody records, with no
  // lock of Weir's held. Must not allocate from Weir.
  virtual std::uint32_t here() = 0;
  // The frames of a stack that here() returned, innermost first. A recorder's thread calls it once
  // for each stack.
  virtual std::vector<RecordedFrame> frames(std::uint32_t stack) = 0;
};

// The stacks of C++ and C code, as the unwinder sees them. Functions are named where the dynamic
// symbol table has them; others by their place in the binary. There is one in the process.
StackSource& cpp_stacks();

// The stacks of Python code: function, file and line of each frame, and nothing of Weir's or of C
// in between. Where a thread runs no Python function, or the process has no Python (CPython 3.9 or
// later), its stacks are cpp_stacks()'. Runs no Python code. A thread that has released Python's
// lock (the GIL) takes the lock within its allocation, to name its stack. So while a heap is
// recorded, a thread that holds the lock must not wait for a thread that allocates: both would
// hang. There is one in the process.
StackSource& python_stacks();
// Call it before Python ends, without holding Python's lock. It waits, 2 s at most, for threads in
// Weir that want that lock; from then on Weir never takes it.
void python_ends();

struct RecorderOptions {
  std::string program;  // what is recorded; empty: the name of the running program
  std::string device;   // Device::name()
  Bytes device_bytes;   // memory of the device in all; zero: unknown
  // Who asks, for each allocation; null: nobody is named. Of several recorders of one heap, the
  // first one's is asked: they should have the same.
  StackSource* stacks = nullptr;
  // Events that the ring holds, rounded up to a power of two; 128 bytes each.
  std::size_t ring_events = std::size_t{1} << 16;
};

// Serves one heap, once. Threads: any may call on_event(), mark(), flush(), write_to() and
// dropped(); call close() and the destructor only when no event can come any more. In a child of
// fork() nothing is recorded, and the parent's file is left alone.
class Recorder final : public EventSink {
 public:
  // Writes the file `path`, in place of an earlier recording; any other file there is an error.
  // What has happened is in the file 200 ms later at the latest, even if the process is killed
  // then. Errors: invalid_input (the file can't be written; names it and says why).
  static Result<std::unique_ptr<Recorder>> open(const std::string& path,
                                                const RecorderOptions& options = {});
  // A flight recorder: keeps the latest events in memory, `most` compressed bytes of them, and what
  // was live at the oldest of them, for write_to().
  static std::unique_ptr<Recorder> keep(Bytes most, const RecorderOptions& options = {});

  // Closes; a caller who wants to know whether all was written calls close() first.
  ~Recorder() override;

  void on_event(const Event& event) override;
  void on_start(std::span<const Event> initial) override;
  StackSource* stacks() override;
  // A remark of the program's, at `time` by the device's clock.
  void mark(Nanoseconds time, std::string_view text);

  // Returns once all events that came before are in the file, or kept. Errors: as close().
  Status flush();
  // Writes what a flight recorder keeps, as a recording. The file appears whole, or not at all, in
  // place of an earlier recording; any other file there is an error. Errors: invalid_input (it
  // can't be written, or this is no flight recorder).
  Status write_to(const std::string& path);

  // The end. Further events are ignored; a second close() does nothing. Errors: invalid_input (the
  // file could not be written whole).
  Status close();

  // Events so far that were lost because the ring was full.
  std::uint64_t dropped() const;

 private:
  class Impl;
  explicit Recorder(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weir
