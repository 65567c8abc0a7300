// SPDX-License-Identifier: Apache-2.0
#include "torch/streams.h"

#include <cuda_runtime_api.h>

#include <array>
#include <functional>
#include <utility>

namespace weir::pytorch {
namespace {

// Will the stream live as long as the process? Of one that PyTorch was given, the id is the handle.
bool lasts(c10::StreamId id, cudaStream_t handle) {
  return handle == nullptr ||
         id != static_cast<c10::StreamId>(reinterpret_cast<std::intptr_t>(handle));
}

}  // namespace

Streams::Known& Streams::known_of(c10::StreamId id) {
  constinit static thread_local std::array<Known, 16> known;
  const auto bits = static_cast<std::uint64_t>(id);
  return known[(bits ^ bits >> 5) % known.size()];
}

Result<Stream> Streams::of(c10::cuda::CUDAStream stream) {
  if (const Stream* const found = known(stream)) return *found;
  const cudaStream_t handle = stream.stream();
  Result<Stream> found = of(handle);
  if (!found.ok()) return found;
  if (!lasts(stream.id(), handle) && !is_lasting(handle)) {
    note_end(handle);
    return found;
  }
  found->may_end = false;
  if (!found->is_of_captured()) known_of(stream.id()) = {number_, stream.id(), *found};
  return found;
}

// A stream that may be destroyed at any time can't be asked later whether it is captured. If it is
// a blocking one, its capture shows on the legacy default stream; if not, an event of the whole
// context could break it unseen.
void Streams::note_end(cudaStream_t handle) {
  unsigned int flags = 0;
  if (!on_gpu_ || cudaStreamGetFlags(handle, &flags) != cudaSuccess) return;
  if ((flags & cudaStreamNonBlocking) != 0) heap_.forgo_context_events();
}

Result<Stream> Streams::of(cudaStream_t handle) {
  // What this thread has noted already, so that threads don't meet at the lock.
  constinit static thread_local Known noted;
  Result<Stream> stream = heap_.stream(handle);
  if (!stream || (noted.of == number_ && noted.stream.id == stream->id)) return stream;
  const std::lock_guard lock(mutex_);
  handles_[stream->id] = handle;
  noted = {number_, 0, *stream};
  return stream;
}

Result<Stream> Streams::of_lasting(cudaStream_t handle) {
  Result<Stream> stream = of(handle);
  if (!stream.ok()) return stream;
  stream->may_end = false;
  const std::lock_guard lock(mutex_);
  lasting_.insert(handle);
  return stream;
}

bool Streams::is_lasting(cudaStream_t handle) const {
  const std::lock_guard lock(mutex_);
  return lasting_.contains(handle);
}

cudaStream_t Streams::handle_of(std::uint64_t stream) const {
  const std::lock_guard lock(mutex_);
  const auto known = handles_.find(stream);
  return known == handles_.end() ? nullptr : known->second;
}

}  // namespace weir::pytorch
