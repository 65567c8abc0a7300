#include "torch/streams.h"

#include <array>
#include <functional>
#include <utility>

namespace weir::pytorch {
namespace {

// What a thread knows: streams that last, of devices that last.
struct Known {
  const Streams* of = nullptr;
  c10::StreamId id = 0;
  Stream stream;
};
constinit thread_local std::array<Known, 16> the_known;

// Will the stream live as long as the process? Of one that PyTorch was given, the id is the handle.
bool lasts(c10::StreamId id, cudaStream_t handle) {
  return handle == nullptr ||
         id != static_cast<c10::StreamId>(reinterpret_cast<std::intptr_t>(handle));
}

}  // namespace

Result<Stream> Streams::of(c10::cuda::CUDAStream stream) {
  const auto id = static_cast<std::uint64_t>(stream.id());
  Known& known = the_known[(id ^ id >> 5) % the_known.size()];
  if (known.of == this && known.id == stream.id()) [[likely]]
    return known.stream;
  const cudaStream_t handle = stream.stream();
  Result<Stream> found = of(handle);
  if (found.ok() && lasts(stream.id(), handle) && !found->is_of_captured()) {
    known = {this, stream.id(), *found};
  }
  return found;
}

Result<Stream> Streams::of(cudaStream_t handle) {
  Result<Stream> stream = heap_.stream(handle);
  if (!stream) return stream;
  const std::lock_guard lock(mutex_);
  handles_[stream->id] = handle;
  return stream;
}

cudaStream_t Streams::handle_of(std::uint64_t stream) const {
  const std::lock_guard lock(mutex_);
  const auto known = handles_.find(stream);
  return known == handles_.end() ? nullptr : known->second;
}

}  // namespace weir::pytorch
