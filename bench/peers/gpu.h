// SPDX-License-Identifier: Apache-2.0
// What the loops need of a GPU besides an allocator: streams. Two exist: CUDA's device 0, and one
// that is no GPU at all.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

namespace weir::peers {

// Threads: enter_thread() from any; the rest from the thread that made it. Errors: throws
// std::runtime_error, naming the call.
class Gpu {
 public:
  static constexpr std::size_t kStreams = 17;  // 16 to allocate for, and one that uses blocks too
  static constexpr std::size_t kUser = 16;

  virtual ~Gpu() = default;

  // A cudaStream_t, or a number where there is no GPU. Never null.
  virtual void* stream(std::size_t number) const = 0;
  // Makes the device current. Each thread calls this before it allocates.
  virtual void enter_thread() const = 0;
  // The host waits for all work on all streams.
  virtual void synchronize() const = 0;

  // While one exists, work queued on the stream waits; for at most 5 s, so that nothing hangs.
  class Hold {
   public:
    virtual ~Hold() = default;
    // Lets the stream go on. False if it had not been held until now.
    virtual bool release() = 0;
  };
  // Null where there is no GPU.
  virtual std::unique_ptr<Hold> hold(void* stream) const = 0;
  // Whether all work queued on the stream is done.
  virtual bool idle(void* stream) const = 0;

  struct Description {
    std::string device;    // empty: none
    std::string versions;  // of the CUDA driver and runtime
  };
  virtual Description describe() const = 0;
};

std::unique_ptr<Gpu> make_cuda_gpu();
std::unique_ptr<Gpu> make_null_gpu();

}  // namespace weir::peers
