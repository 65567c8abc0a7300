// SPDX-License-Identifier: Apache-2.0
#include "torch/streams.h"

#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <cuda_runtime_api.h>

namespace weir::pytorch {

Result<Stream> Streams::of(c10::cuda::CUDAStream stream) {
  if (const Stream* const found = known(stream)) return *found;
  const cudaStream_t handle = stream.stream();
  // Of a stream that PyTorch was given, and that may not last, the id is the handle.
  const auto id_if_given = static_cast<c10::StreamId>(reinterpret_cast<std::intptr_t>(handle));
  if (handle != nullptr && stream.id() == id_if_given) return of(handle);
  Result<Stream> found = of_lasting(handle);
  if (!found) return found;
  // (Under Trust::told a name that it has in a capture is not its name outside.)
  if (heap_.options().trust == Trust::context || !found->is_of_captured()) {
    known_of(stream.id()) = {number_, stream.id(), *found};
  }
  return found;
}

// It may have been used before, by its handle alone, and not been asked about so far.
Result<Stream> Streams::of_lasting(cudaStream_t handle) {
  Result<Stream> found = heap_.stream(handle);
  if (!found) return found;
  found->may_end = false;
  heap_.captures().meet(*found);
  note(*found, handle);
  return found;
}

// A stream that may be destroyed at any time can't be asked later whether it is captured. If it is
// a blocking one, its capture shows on the legacy default stream; if not, an event of the whole
// context could break it unseen.
Result<Stream> Streams::of(cudaStream_t handle) {
  // What this thread has noted already, so that threads don't meet at the lock.
  constinit static thread_local Known noted;
  Result<Stream> stream = heap_.stream(handle);
  if (!stream) return stream;
  if (noted.of == number_ && noted.stream.id == stream->id) return noted.stream;
  bool lives_on = is_lasting(handle);
  // What a capture permits the runtime to be asked about a stream, no document says: a stream that
  // is captured is looked at the next time.
  if (stream->may_end && !lives_on) {
    const Result<CaptureInfo::Status> capture = device_.capture_status(*stream);
    if (!capture || *capture != CaptureInfo::Status::none) return note(*stream, handle), stream;
  }
  unsigned int flags = 0;
  const bool ends_unseen = stream->may_end && !lives_on && gpu_ &&
                           cudaStreamGetFlags(handle, &flags) == cudaSuccess &&
                           (flags & cudaStreamNonBlocking) != 0;
  if (ends_unseen) {
    std::call_once(pool_listed_, [this] { list_pool(); });
    lives_on = is_lasting(handle);
  }
  if (lives_on) {
    stream = of_lasting(handle);
    if (stream) noted = {number_, 0, *stream};
    return stream;
  }
  if (ends_unseen)
    heap_.captures().forgo_context_events(ContextEventsLost::external_stream, stream->id);
  note(*stream, handle);
  noted = {number_, 0, *stream};
  return stream;
}

void Streams::note(Stream stream, cudaStream_t handle) {
  const std::lock_guard lock(mutex_);
  handles_[stream.id] = handle;
  if (!stream.may_end) lasting_.insert(handle);
}

bool Streams::is_lasting(cudaStream_t handle) const {
  const std::lock_guard lock(mutex_);
  return lasting_.contains(handle);
}

// PyTorch gives its streams in turn, so many for each priority: whoever takes a whole number of
// turns leaves the next one to those who come after as it was.
void Streams::list_pool() {
  constexpr int kMost = 256;
  // Streams that are made now may be made while one is captured.
  const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
  const auto [least, greatest] = c10::cuda::CUDAStream::priority_range();
  for (int priority = least; priority >= greatest; --priority) {
    const auto next = [&] { return c10::cuda::getStreamFromPool(priority, *gpu_).stream(); };
    std::unordered_set<cudaStream_t> turn;
    const cudaStream_t first = next();
    for (cudaStream_t each = first; turn.insert(each).second && turn.size() < kMost;) each = next();
    // `first` was given again.
    for (std::size_t i = 1; i < turn.size() && turn.size() < kMost; ++i) (void)next();
    const std::lock_guard lock(mutex_);
    lasting_.insert(turn.begin(), turn.end());
  }
}

cudaStream_t Streams::handle_of(std::uint64_t stream) const {
  const std::lock_guard lock(mutex_);
  const auto known = handles_.find(stream);
  return known == handles_.end() ? nullptr : known->second;
}

}  // namespace weir::pytorch
