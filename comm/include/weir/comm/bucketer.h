// Gradients gathered in buckets, each all-reduced while the rest are still computed.
//
//   Result<Bucketer> buckets = Bucketer::create(world, sizes, DataType::float32, compute);
//   ... the backward pass writes gradient i to buckets->place(i), on `compute`, and says so: ...
//   Status written = buckets->ready(i, compute);
//   Status reduced = buckets->finish(compute);  // `compute` waits, on the GPU, for all of them
//   ... the optimizer reads them, on `compute`; then the next step ...
//
// Buckets are filled in reverse order of the parameters, since gradients come in reverse. A bucket
// is launched once all its tensors are ready and all earlier buckets were launched: the order is
// the same on all ranks, in whatever order gradients come. All ranks must make equal bucketers (in
// a capture end_capture() sees that they differ; eagerly nobody does, before something hangs), and
// report every tensor once a step; one that a step does not use is set to zero and reported.
//
// Order of the GPU's work: a bucket's all-reduce comes after the work that each reporting stream
// held when it reported. What comes after finish(stream) on that stream comes after all of them.
// The next step's writes must come after what used the buckets in the last: on the stream of
// finish() they do; any other stream that writes calls begin() first, once a step (ready_from()
// does so by itself).
//
// Captures: a step is captured whole, begin() to finish(), on streams of one capture, or not at
// all. The launch of the graph then is the step: whoever launches it on another stream than that of
// the last finish() orders the two. Destroy the graphs before the bucketer.
//
// Threads: self-synchronised. The streams given must live until the bucketer is gone, or are
// retired with the heap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "weir/comm/communicator.h"
#include "weir/comm/operation.h"
#include "weir/comm/registered_pool.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir {

struct TensorSize {
  std::uint64_t count = 0;  // of elements
};

struct BucketerOptions {
  // Most bytes of a bucket that has several tensors; a larger tensor has one of its own. The first
  // is small, so that there is something to communicate early.
  Bytes bucket = 25_MiB;
  Bytes first_bucket = 1_MiB;
  Reduction reduction{ReduceOp::average};
  // Where the buckets are, of the same communicator; it must outlive the bucketer. None: the heap.
  RegisteredPool* pool = nullptr;
};

class Bucketer {
 public:
  // Each tensor's place is aligned to kGrain within its bucket.
  // `tensors`: in the order of the parameters. `stream`: what the buckets are allocated for; until
  // the first finish() it stands for the stream of that.
  // Errors: invalid_argument; capture (the stream is being captured); those of the allocation.
  static Result<Bucketer> create(Communicator& communicator, std::span<const TensorSize> tensors,
                                 DataType type, Stream stream, const BucketerOptions& options = {});
  Bucketer(Bucketer&&) noexcept;
  Bucketer& operator=(Bucketer&&) noexcept;
  // The buckets go back, fenced by what used them.
  ~Bucketer();

  std::size_t tensors() const;
  std::size_t buckets() const;
  // Of a tensor, by its number among the parameters; buckets() where there is no such tensor.
  std::size_t bucket_of(std::size_t tensor) const;
  // Where its gradient is written and read. Null: it has no elements, or there is no such tensor.
  void* place(std::size_t tensor) const;

  // Work queued on `writer` from now on comes after the last step's all-reduces, and after what the
  // stream of the last finish() holds so far. A stream in no capture joins the capture that the
  // latter is in. Errors: capture (they are in different ones); device.
  Status begin(Stream writer);
  // Work queued on `stream` so far wrote the tensor. Launches what can be launched.
  // Errors: invalid_argument (no such tensor; it is ready already); capture (the step began in
  // another capture, or in none); those of Collectives. The tensor is ready nonetheless where only
  // the launch failed: the communicator has ended then.
  Status ready(std::size_t tensor, Stream stream);
  // The same, once it was copied there from `source`, on `stream`.
  Status ready_from(std::size_t tensor, const void* source, Stream stream);
  // Ends the step. Errors: invalid_argument (tensors are not ready: how many, and which; the step
  // goes on); capture (the step is of another capture, or its capture is over: reset()); device.
  Status finish(Stream stream);
  // Gives the step up, where its capture failed, say. What was launched stays so: all ranks must
  // have launched the same. Every writer calls begin() in the next step.
  void reset();

 private:
  class Impl;
  explicit Bucketer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weir
