// SPDX-License-Identifier: Apache-2.0
// The GPU that the benchmark runs on: device, streams, and orders between streams. All throw
// std::runtime_error where a call fails. One thread at a time, but for device().
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bench/graph_pool/kernels.h"
#include "bench/graph_pool/need.h"
#include "weir/cuda_device.h"
#include "weir/graph_pool.h"

namespace weir::graph_pool {

inline cudaStream_t handle_of(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

// Thrown where there is nothing to run on.
class NoGpu : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Gpu {
 public:
  Gpu();
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  Device& device() { return *device_; }
  std::string description() const;  // the GPU's name, and the versions of CUDA
  Stream new_stream();
  std::vector<Stream> new_streams(unsigned count);
  // Work queued on `later` from now on runs after what is queued on `earlier` now; also in a
  // capture. One stream: nothing to do.
  void order(Stream earlier, Stream later);
  void synchronize();  // with all of the device

 private:
  std::unique_ptr<CudaDevice> device_;
  std::vector<cudaStream_t> streams_;
  // For every order: a wait is for the record before it, whatever is recorded later.
  cudaEvent_t event_ = nullptr;
};

// Counters in device memory, zero at first, and read by the host.
class Words {
 public:
  explicit Words(unsigned count);
  ~Words();
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;
  Word* at(unsigned index) const { return words_ + index; }
  Word read(unsigned index) const;  // waits for the device

 private:
  Word* words_ = nullptr;
};

}  // namespace weir::graph_pool
