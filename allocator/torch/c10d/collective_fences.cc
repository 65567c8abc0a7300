// SPDX-License-Identifier: Apache-2.0
#include "torch/c10d/collective_fences.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include "torch/errors.h"

namespace weir::pytorch {
namespace {

// Not one of PyTorch's pool of streams: those are handed out again and again, and a program's own
// stream would then wait for collectives.
cudaStream_t new_stream(int device) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  // The first operation of a group may be inside a capture.
  const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
  cudaStream_t stream = nullptr;
  C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

// The thread's current stream of that device.
Stream current_stream(DeviceMemory& memory) {
  const auto index = static_cast<c10::DeviceIndex>(memory.number());
  return check(memory.streams().of(c10::cuda::getCurrentCUDAStream(index)));
}

void warn(const char* what, const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  TORCH_WARN("weir: ", what, ": ",
             of_torch != nullptr ? of_torch->what_without_backtrace() : error.what());
}

}  // namespace

Stream CollectiveFences::private_stream(const CommStreamKey& key) {
  const std::lock_guard lock(mutex_);
  if (const auto known = private_streams_.find(key); known != private_streams_.end()) {
    return known->second;
  }
  Streams& streams = backend_.memory(key.device).streams();
  const Stream stream = check(streams.of_lasting(new_stream(key.device)));
  return private_streams_.emplace(key, stream).first->second;
}

std::optional<Fence> CollectiveFences::fence(const CommStreamKey& key, Operation& operation,
                                             c10::function_ref<void()> join) {
  if (memory_is_gone()) return std::nullopt;
  std::optional<Fence> fence;
  try {
    fence = take_fence(key, operation, join);
  } catch (const std::exception& error) {
    record_uses(operation);
    warn("an operation of torch.distributed gets no fence", error);
  }
  for (void* const block : operation.freed) backend_.raw_delete(block);
  return fence;
}

std::optional<Fence> CollectiveFences::take_fence(const CommStreamKey& key, Operation& operation,
                                                  c10::function_ref<void()> join) {
  DeviceMemory& memory = backend_.memory(key.device);
  const auto is_weirs = [&](const void* pointer) { return memory.owns(pointer); };
  if (!std::all_of(operation.memory.begin(), operation.memory.end(), is_weirs)) {
    record_uses(operation);
    return std::nullopt;
  }
  const Stream stream = private_stream(key);
  // Within `join`, before there is a fence, PyTorch lets go of the tensors. Those that nobody else
  // has are freed then: such frees are made once the fence is taken, also after an error.
  operation.holds_frees = true;
  Operation::begin(operation);
  const auto index = static_cast<c10::DeviceIndex>(key.device);
  const c10::cuda::CUDAStream before = c10::cuda::getCurrentCUDAStream(index);
  c10::cuda::setCurrentCUDAStream(
      c10::cuda::getStreamFromExternal(static_cast<cudaStream_t>(stream.handle), index));
  std::exception_ptr failure;
  try {
    join();
  } catch (...) {
    failure = std::current_exception();
  }
  c10::cuda::setCurrentCUDAStream(before);
  Operation::end(operation);
  operation.memory.append(operation.allocated.begin(), operation.allocated.end());
  const std::optional<Fence> fence =
      check(memory.fence_around({operation.memory.data(), operation.memory.size()}, stream));
  if (failure) std::rethrow_exception(failure);
  operation.recorded.clear();
  if (operation.waits_for_ranks) memory.heap().note_remote_work(stream);
  fenced_.fetch_add(1, std::memory_order_relaxed);
  return fence;
}

// An error here means that less is known, and no more.
void CollectiveFences::note_waited(int device, Fence fence) noexcept {
  if (memory_is_gone()) return;
  try {
    DeviceMemory& memory = backend_.memory(device);
    memory.heap().note_waited(current_stream(memory), fence);
  } catch (const std::exception& error) {
    warn("a wait for an operation of torch.distributed is not noted", error);
  }
}

void CollectiveFences::record_uses(Operation& operation) noexcept {
  const std::vector<Operation::Recorded> recorded = std::exchange(operation.recorded, {});
  for (const Operation::Recorded& use : recorded) {
    try {
      backend_.record_stream(use.block, use.user);
    } catch (const std::exception& error) {
      warn("a use of a tensor by torch.distributed is not recorded", error);
    }
  }
}

void CollectiveFences::on_current_stream(int device, Operation& operation) noexcept {
  record_uses(operation);
  if (!operation.waits_for_ranks || memory_is_gone()) return;
  try {
    DeviceMemory& memory = backend_.memory(device);
    memory.heap().note_remote_work(current_stream(memory));
  } catch (const std::exception& error) {
    warn("requests may wait for an operation of torch.distributed", error);
  }
}

}  // namespace weir::pytorch
