// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/cuda_rig.h"

#include <chrono>

namespace weir::conformance {

CudaRig::CudaRig(std::unique_ptr<CudaDevice> device, const cuda::Driver& driver)
    : device_(std::move(device)), driver_(driver), calls_(driver) {
  expect_driver(driver.cuDeviceGet(&ordinal_, device_->ordinal()));
  expect_driver(driver.cuDevicePrimaryCtxRetain(&context_, ordinal_));
  const cuda::ContextScope scope = current();
  void* gate = nullptr;
  expect_driver(calls_.cuMemHostAlloc(&gate, sizeof(*gate_), CU_MEMHOSTALLOC_DEVICEMAP));
  expect_driver(calls_.cuMemHostGetDevicePointer(&gate_address_, gate, 0));
  gate_ = static_cast<std::uint32_t*>(gate);
  *gate_ = 0;
}

CudaRig::~CudaRig() {
  let_go();  // of what a failed test left
  {
    const cuda::ContextScope scope = current();
    for (const CUstream stream : streams_) {
      expect_driver(calls_.cuStreamSynchronize(stream));
      expect_driver(calls_.cuStreamDestroy(stream));
    }
    expect_driver(calls_.cuMemFreeHost(gate_));
  }
  expect_driver(driver_.cuDevicePrimaryCtxRelease(ordinal_));
}

Stream CudaRig::new_stream() { return new_stream(*device_, context_); }

Device* CudaRig::peer() {
  if (peer_ != nullptr) return peer_.get();
  const Result<int> devices = CudaDevice::count();
  CUdevice ordinal = 0;
  int can = 0;
  if (!devices || *devices < 2) return nullptr;
  expect_driver(driver_.cuDeviceGet(&ordinal, 1));
  expect_driver(calls_.cuDeviceCanAccessPeer(&can, ordinal, ordinal_));
  if (can == 0) return nullptr;
  peer_ = CudaDevice::open(1).value();
  context_of_peer_ = static_cast<CUcontext>(const_cast<void*>(peer_->context()));
  return peer_.get();
}

void CudaRig::add_peer() { EXPECT_TRUE(device_->add_peer(peer_->ordinal()).ok()); }

Stream CudaRig::new_stream_of_peer() {
  const Stream stream = new_stream(*peer_, context_of_peer_);
  const std::scoped_lock lock(mutex_);
  streams_of_peer_.push_back(driver_stream(stream));
  return stream;
}

cuda::ContextScope CudaRig::current(Stream stream) {
  const std::scoped_lock lock(mutex_);
  const bool is_peers = std::find(streams_of_peer_.begin(), streams_of_peer_.end(),
                                  driver_stream(stream)) != streams_of_peer_.end();
  return cuda::ContextScope(driver_, is_peers ? context_of_peer_ : context_);
}

Stream CudaRig::new_stream(CudaDevice& device, CUcontext context) {
  const cuda::ContextScope scope(driver_, context);
  CUstream stream = nullptr;
  expect_driver(calls_.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  {
    const std::scoped_lock lock(mutex_);
    streams_.push_back(stream);
  }
  return device.stream(stream).value();
}

void CudaRig::destroy_stream(Stream stream) {
  const cuda::ContextScope scope = current();
  const std::scoped_lock lock(mutex_);
  std::erase(streams_, driver_stream(stream));
  expect_driver(calls_.cuStreamDestroy(driver_stream(stream)));
}

void CudaRig::hold(Stream stream) {
  const cuda::ContextScope scope = current(stream);
  expect_driver(calls_.cuStreamWaitValue32(driver_stream(stream), gate_address_, holds_ + 1,
                                           CU_STREAM_WAIT_VALUE_GEQ));
}

void CudaRig::let_go() {
  if (opener_.joinable()) opener_.join();
  std::atomic_ref<std::uint32_t>(*gate_).store(++holds_, std::memory_order_release);
}

void CudaRig::let_go_soon() {
  const std::uint32_t value = ++holds_;
  opener_ = std::thread([gate = gate_, value] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic_ref<std::uint32_t>(*gate).store(value, std::memory_order_release);
  });
}

void CudaRig::fill(Stream stream, Address address, Bytes bytes, std::uint32_t value) {
  const cuda::ContextScope scope = current(stream);
  expect_driver(calls_.cuMemsetD32Async(address.value, value, bytes.count / sizeof(value),
                                        driver_stream(stream)));
}

void CudaRig::expect_filled(Address address, Bytes bytes, std::uint32_t value) {
  const cuda::ContextScope scope = current();
  std::vector<std::uint32_t> words(bytes.count / sizeof(value));
  expect_driver(calls_.cuMemcpyDtoH(words.data(), address.value, bytes.count));
  EXPECT_EQ(std::count(words.begin(), words.end(), value),
            static_cast<std::ptrdiff_t>(words.size()))
      << "words of " << value << " at address " << address.value;
}

RigOrReason make_cuda_rig() {
  Result<std::unique_ptr<CudaDevice>> device = CudaDevice::open(0);
  if (!device) return {nullptr, device.error().message()};
  return {std::make_unique<CudaRig>(std::move(*device), **cuda::Driver::get()), ""};
}

}  // namespace weir::conformance
