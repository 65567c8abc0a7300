// SPDX-License-Identifier: Apache-2.0
// What random programs run on: a device, and work for it that can tell whether memory was given out
// wrongly.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "weir/device.h"
#include "weir/sim_device.h"

namespace weir::test {

// A block's bytes are filled with a pattern of their own when written, and compared with it when
// checked. (On the simulated device the happens-before checker watches instead.)
struct Contents {
  void* pointer = nullptr;
  Bytes bytes;
  std::uint64_t pattern = 0;
};

struct Findings {
  std::uint64_t wrong = 0;
  std::string description;
};

// Threads: every call may be made from any thread at any time.
class Gpu {
 public:
  virtual ~Gpu() = default;

  virtual Device& device() = 0;
  virtual Result<Stream> new_stream() = 0;
  // Once the heap was told so (DeviceHeap::retire()).
  virtual Status destroy_stream(Stream stream) = 0;
  // Queues a kernel that waits for `delay`, and then writes (checks) all the bytes.
  virtual Status write(Stream stream, const Contents& contents, Nanoseconds delay) = 0;
  virtual Status check(Stream stream, const Contents& contents, Nanoseconds delay) = 0;
  // Work queued on `later` from now on runs after what is queued on `earlier` now.
  virtual Status order(Stream earlier, Stream later) = 0;
  // Returns once the work queued so far on `stream` is done.
  virtual Status synchronize(Stream stream) = 0;
  // What the checks found that are done.
  virtual Result<Findings> findings() = 0;
};

// Errors: unavailable; device.
Result<std::unique_ptr<Gpu>> open_cuda_gpu(int ordinal);
std::unique_ptr<Gpu> open_sim_gpu(const SimOptions& options = {});

}  // namespace weir::test
