// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime as far as the backend and PyTorch's streams call it, for programs without a GPU:
// two devices, one of which is current in each thread, and a note of what was asked for. A program
// that is linked with fake_runtime.cc has these functions instead of the runtime's own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace weir::pytorch {

// Not thread-safe.
struct FakeRuntime {
  // Devices are -1 for a copy that names none.
  struct Copy {
    void* to;
    int to_device;
    const void* from;
    int from_device;
    std::size_t bytes;
    cudaStream_t stream;
    bool operator==(const Copy&) const = default;
  };
  std::vector<Copy> copies;
  std::vector<std::pair<int, int>> peers;  // the device that was current, and the one it may reach
  std::vector<cudaStreamCaptureMode> capture_modes;  // which the thread had when a stream was made
  std::function<cudaStream_t()> make_stream;
  unsigned int stream_flags = cudaStreamDefault;  // of any stream that is asked about
  int flags_asked = 0;
  std::size_t free_bytes = std::size_t{1} << 30;  // of whichever device is current
  cudaError_t answer = cudaSuccess;               // of copies, and of what concerns peers
  int errors_taken = 0;                           // by cudaGetLastError()
};

FakeRuntime& fake_runtime();
int current_device_of_fake_runtime();
// Of the calling thread.
cudaStreamCaptureMode capture_mode_of_fake_runtime();

}  // namespace weir::pytorch
