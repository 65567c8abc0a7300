// SPDX-License-Identifier: Apache-2.0
// The rig of the CUDA device, for tests that are about that device alone too. Only where the CUDA
// toolkit is found.
#pragma once

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "cuda/driver.h"
#include "tests/conformance/rig.h"
#include "weir/cuda_device.h"

namespace weir::conformance {

// Fails the test if a call of the driver does.
inline void expect_driver(CUresult result) { EXPECT_EQ(result, CUDA_SUCCESS); }

// Entry points that CudaDevice has no use for, and tests have.
#define WEIR_TEST_DRIVER_CALLS(X)        \
  X(cuDeviceCanAccessPeer, 4000)         \
  X(cuCtxSynchronize, 2000)              \
  X(cuStreamCreate, 2000)                \
  X(cuStreamDestroy, 4000)               \
  X(cuStreamQuery, 2000)                 \
  X(cuStreamSynchronize, 2000)           \
  X(cuStreamWaitValue32, 11070)          \
  X(cuMemAlloc, 3020)                    \
  X(cuMemFree, 3020)                     \
  X(cuMemAllocAsync, 11020)              \
  X(cuMemFreeAsync, 11020)               \
  X(cuMemHostAlloc, 2020)                \
  X(cuMemHostGetDevicePointer, 3020)     \
  X(cuMemHostRegister, 6050)             \
  X(cuMemHostUnregister, 4000)           \
  X(cuMemFreeHost, 2000)                 \
  X(cuMemExportToShareableHandle, 10020) \
  X(cuMemsetD32Async, 3020)              \
  X(cuMemcpyDtoH, 3020)                  \
  X(cuStreamBeginCapture, 10010)         \
  X(cuStreamEndCapture, 10000)           \
  X(cuGraphDestroy, 10000)

struct TestDriver {
#define WEIR_TEST_DRIVER_MEMBER(name, version) PFN_##name##_v##version name = nullptr;
  WEIR_TEST_DRIVER_CALLS(WEIR_TEST_DRIVER_MEMBER)
#undef WEIR_TEST_DRIVER_MEMBER

  explicit TestDriver(const cuda::Driver& driver) {
#define WEIR_TEST_DRIVER_LOAD(name, version) \
  name = reinterpret_cast<PFN_##name##_v##version>(driver.find(#name, version));
    WEIR_TEST_DRIVER_CALLS(WEIR_TEST_DRIVER_LOAD)
#undef WEIR_TEST_DRIVER_LOAD
  }
};

class CudaRig final : public Rig {
 public:
  CudaRig(std::unique_ptr<CudaDevice> device, const cuda::Driver& driver);
  ~CudaRig() override;

  Device& device() override { return *device_; }
  Stream new_stream() override;
  void destroy_stream(Stream stream) override;
  Device* peer() override;
  void add_peer() override;
  Stream new_stream_of_peer() override;
  void hold(Stream stream) override;
  void let_go() override;
  void let_go_soon() override;
  void fill(Stream stream, Address address, Bytes bytes, std::uint32_t value) override;
  void expect_filled(Address address, Bytes bytes, std::uint32_t value) override;
  Bytes memory_info_slack() const override { return 16_MiB; }

  // Makes the device's context current in this thread while the result lives.
  cuda::ContextScope current() const { return cuda::ContextScope(driver_, context_); }
  const TestDriver& calls() const { return calls_; }

  static CUstream driver_stream(Stream stream) { return static_cast<CUstream>(stream.handle); }

 private:
  Stream new_stream(CudaDevice& device, CUcontext context);
  // Makes the stream's context current.
  cuda::ContextScope current(Stream stream);

  std::unique_ptr<CudaDevice> device_;
  const cuda::Driver& driver_;
  const TestDriver calls_;
  CUdevice ordinal_ = 0;
  CUcontext context_ = nullptr;
  std::unique_ptr<CudaDevice> peer_;
  CUcontext context_of_peer_ = nullptr;  // peer_ keeps it
  std::uint32_t* gate_ = nullptr;  // host memory that held streams wait for to be let_go_'s value
  CUdeviceptr gate_address_ = 0;
  std::uint32_t holds_ = 0;
  std::thread opener_;
  std::mutex mutex_;
  std::vector<CUstream> streams_;          // guarded by mutex_
  std::vector<CUstream> streams_of_peer_;  // guarded by mutex_; of those
};

}  // namespace weir::conformance
