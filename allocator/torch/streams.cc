#include "torch/streams.h"

#include <array>
#include <functional>
#include <utility>

namespace weir::pytorch {
namespace {

// What a thread knows: streams that last, of devices that last.
struct Known {
  const Streams* of = nullptr;
  Stream stream;
};
constinit thread_local std::array<Known, 16> the_known;

}  // namespace

bool Streams::lasts(c10::cuda::CUDAStream stream) {
  const cudaStream_t handle = stream.stream();
  if (handle == nullptr) return true;
  // Of a stream that PyTorch was given, the id is the handle.
  return stream.id() != static_cast<c10::StreamId>(reinterpret_cast<std::intptr_t>(handle));
}

Result<Stream> Streams::of(cudaStream_t handle, bool lasts) {
  if (!lasts) return ask(handle);
  const auto bits = reinterpret_cast<std::uintptr_t>(handle);
  Known& known = the_known[(bits >> 4 ^ bits >> 9) % the_known.size()];
  if (known.of != this || known.stream.handle != handle) {
    Result<Stream> stream = ask(handle);
    if (!stream || stream->is_of_captured()) return stream;
    known = {this, *stream};
  }
  return known.stream;
}

Result<Stream> Streams::ask(cudaStream_t handle) {
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
