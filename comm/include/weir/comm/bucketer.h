// SPDX-License-Identifier: Apache-2.0
// Gradients gathered in buckets; a bucket is all-reduced while the backward pass still computes the
// gradients of later buckets.
//
//   Result<Bucketer> buckets = Bucketer::create(world, sizes, DataType::float32, compute);
//   ... the backward pass writes gradient i to buckets->bucket_view(i), on `compute`; then: ...
//   Status written = buckets->ready(i, compute);
//   Status reduced = buckets->finish(compute);  // `compute` waits, on the GPU, for all buckets
//   ... the optimizer reads the gradients, on `compute`; then the next step ...
//
// Buckets are filled in reverse order of the parameters, because the backward pass produces
// gradients in that order. A bucket is launched once all its tensors are ready and all earlier
// buckets were launched, so the order of launches is the same on all ranks, whatever the order of
// the gradients. All ranks must create equal bucketers and report every tensor once a step; a
// program zeroes and reports a tensor that the step does not use. In a capture end_capture()
// detects bucketers that differ; eagerly nothing detects them until an operation hangs.
//
// Order of the GPU's work: a bucket's all-reduce runs after the work that each reporting stream
// held when it reported. Work that follows finish(stream) on that stream runs after all
// all-reduces. The next step's writes must run after the uses of the buckets in the last step. On
// the stream of finish() they do; any other writing stream calls begin() first, once a step
// (ready_from() calls it by itself).
//
// Captures: a step is captured as a whole, begin() to finish(), on streams of one capture, or not
// at all. A launch of the graph then is the step: a program that launches the graph on another
// stream than that of the last finish() must order the two streams. Destroy the graphs before the
// bucketer.
//
// Threads: self-synchronised. The streams passed in must live as long as the bucketer, or be
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
  // Maximum bytes of a bucket that has several tensors; a larger tensor has a bucket of its own.
  // The first bucket is small, so that communication starts early.
  Bytes bucket = 25_MiB;
  Bytes first_bucket = 1_MiB;
  Reduction reduction{ReduceOp::average};
  // The pool that the buckets are allocated from, of the same communicator; it must outlive the
  // bucketer. Null: the device heap.
  RegisteredPool* pool = nullptr;
};

class Bucketer {
 public:
  // Each tensor is aligned to kGrain within its bucket.
  // `tensors`: in the order of the parameters. `stream`: the stream that the buckets are allocated
  // for; until the first finish() it stands for the stream of finish().
  // Errors: invalid_argument; capture (the stream is being captured); those of the allocation.
  static Result<Bucketer> create(Communicator& communicator, std::span<const TensorSize> tensors,
                                 DataType type, Stream stream, const BucketerOptions& options = {});
  Bucketer(Bucketer&&) noexcept;
  Bucketer& operator=(Bucketer&&) noexcept;
  // Deallocates the buckets, fenced by the work that used them.
  ~Bucketer();

  std::size_t tensors() const;
  std::size_t buckets() const;
  // The bucket of a tensor, which is named by its number among the parameters; buckets() if there
  // is no such tensor.
  std::size_t bucket_of(std::size_t tensor) const;
  // The tensor's part of its bucket, where its gradient is written and read. Null: the tensor has
  // no elements, or there is no such tensor.
  void* bucket_view(std::size_t tensor) const;

  // Makes work queued on `writer` from now on run after the last step's all-reduces, and after the
  // work that the stream of the last finish() holds so far. If that stream is in a capture and
  // `writer` in none, `writer` joins the capture. Errors: capture (they are in different captures);
  // device.
  Status begin(Stream writer);
  // Reports that work queued on `stream` so far wrote the tensor. Launches the buckets that can be
  // launched. Errors: invalid_argument (no such tensor; the tensor is already ready); capture (the
  // step began in another capture, or in none); those of Communicator::run(). If only the launch
  // failed, the tensor is ready nonetheless, and the communicator has ended.
  Status ready(std::size_t tensor, Stream stream);
  // Copies the gradient from `source` to its bucket view, on `stream`; then as ready().
  Status ready_from(std::size_t tensor, const void* source, Stream stream);
  // Ends the step. Errors: invalid_argument (tensors are not ready: how many, and which; the step
  // goes on); capture (the step is of another capture, or its capture is over: reset()); device.
  Status finish(Stream stream);
  // Abandons the step, for example after its capture failed. Launched buckets stay launched: all
  // ranks must have launched the same ones. Every writer calls begin() in the next step.
  void reset();

 private:
  class Impl;
  explicit Bucketer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weir
