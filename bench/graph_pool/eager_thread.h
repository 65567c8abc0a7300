// SPDX-License-Identifier: Apache-2.0
// Eager work beside the launches: a thread that allocates, writes, checks and frees blocks of the
// same heap on a stream of its own, with kernels that wait for random times.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <thread>

#include "bench/graph_pool/gpu.h"
#include "pattern/pattern.h"

namespace weir::graph_pool {

class EagerThread {
 public:
  // Begins at once.
  EagerThread(Gpu& gpu, DeviceHeap& heap, std::uint64_t seed);
  ~EagerThread();
  EagerThread(const EagerThread&) = delete;
  EagerThread& operator=(const EagerThread&) = delete;

  // Ends it, and waits for its work. Throws what went wrong in it.
  void finish();
  std::uint64_t blocks() const { return blocks_; }            // after finish()
  std::uint64_t wrong_bytes() const { return wrong_bytes_; }  // after finish()

 private:
  void run();
  void work();
  void stop();

  DeviceHeap& heap_;
  const Stream stream_;
  const std::uint64_t seed_;
  const std::unique_ptr<PatternKernels> kernels_;
  std::atomic<bool> stop_{false};
  std::exception_ptr failure_;
  std::uint64_t blocks_ = 0, wrong_bytes_ = 0;
  std::thread thread_;
};

}  // namespace weir::graph_pool
