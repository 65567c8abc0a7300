// SPDX-License-Identifier: Apache-2.0
#include <link.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <set>
#include <thread>

#include "bench/peers/cuda_check.h"
#include "bench/peers/gpu.h"

namespace weir::peers {
namespace {

constexpr int kOrdinal = 0;

// Work on a stream that waits, in one of the driver's threads, until it is told to end.
class CudaHold final : public Gpu::Hold {
 public:
  explicit CudaHold(cudaStream_t stream) : stream_(stream) {
    check_cuda("cudaLaunchHostFunc", cudaLaunchHostFunc(stream, &CudaHold::run, this));
  }
  ~CudaHold() override {
    released_ = true;
    cudaStreamSynchronize(stream_);  // the work uses this object
  }

  bool release() override {
    released_ = true;
    return !timed_out_;
  }

 private:
  static void run(void* hold) { static_cast<CudaHold*>(hold)->wait(); }

  void wait() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (!released_) {
      if (std::chrono::steady_clock::now() > end) {
        timed_out_ = true;
        return;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  const cudaStream_t stream_;
  std::atomic<bool> released_ = false;
  std::atomic<bool> timed_out_ = false;
};

class CudaGpu final : public Gpu {
 public:
  CudaGpu() {
    enter_thread();
    for (cudaStream_t& stream : streams_) {
      check_cuda("cudaStreamCreateWithFlags",
                 cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    }
  }
  ~CudaGpu() override {
    for (const cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  }

  void* stream(std::size_t number) const override { return streams_.at(number); }
  void enter_thread() const override { check_cuda("cudaSetDevice", cudaSetDevice(kOrdinal)); }
  void synchronize() const override {
    check_cuda("cudaDeviceSynchronize", cudaDeviceSynchronize());
  }

  std::unique_ptr<Hold> hold(void* stream) const override {
    return std::make_unique<CudaHold>(static_cast<cudaStream_t>(stream));
  }

  bool idle(void* stream) const override {
    const cudaError_t result = cudaStreamQuery(static_cast<cudaStream_t>(stream));
    if (result == cudaErrorNotReady) {
      // Else the next call that looks at the thread's last error (PyTorch's do) takes it for one.
      static_cast<void>(cudaGetLastError());
      return false;
    }
    check_cuda("cudaStreamQuery", result);
    return true;
  }

  Description describe() const override {
    cudaDeviceProp properties{};
    check_cuda("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, kOrdinal));
    int driver = 0;
    int runtime = 0;
    check_cuda("cudaDriverGetVersion", cudaDriverGetVersion(&driver));
    check_cuda("cudaRuntimeGetVersion", cudaRuntimeGetVersion(&runtime));
    std::array<char, 64> versions{};
    std::snprintf(versions.data(), versions.size(), "driver %d.%d, runtime %d.%d", driver / 1000,
                  driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    return {.device = properties.name, .versions = versions.data()};
  }

 private:
  std::array<cudaStream_t, kStreams> streams_{};
};

int note_runtime(dl_phdr_info* object, std::size_t, void* paths) {
  if (std::strstr(object->dlpi_name, "libcudart.so") != nullptr) {
    static_cast<std::set<std::string>*>(paths)->insert(object->dlpi_name);
  }
  return 0;
}

// Two CUDA runtimes in one process have a state each: which device is current, for one.
void check_one_runtime() {
  std::set<std::string> paths;
  dl_iterate_phdr(note_runtime, &paths);
  if (paths.size() == 1) return;
  std::string message = "one CUDA runtime must be loaded, and these are:";
  for (const std::string& path : paths) message += " " + path;
  throw std::runtime_error(message);
}

}  // namespace

std::unique_ptr<Gpu> make_cuda_gpu() {
  check_one_runtime();
  return std::make_unique<CudaGpu>();
}

}  // namespace weir::peers
