// SPDX-License-Identifier: Apache-2.0
// Gradients gathered in buckets; a bucket is all-reduced while the backward pass still computes the
// gradients of later buckets.
//
//   Result<Bucketer> buckets = Bucketer::create(world, sizes, DataType::float32, compute);
//   ... the backward pass writes gradient i to buckets->bucket_view(i), on `compute`; then: ...
//   Status written = buckets->ready(i);
//   Status reduced = buckets->finish();  // `compute` waits, on the GPU, for all buckets
//   ... the optimizer reads the gradients, on `compute`; then the next step ...
//
// Buckets are filled in reverse order of the parameters, because the backward pass produces
// gradients in that order. A bucket is launched once its tensors are ready and all earlier buckets
// were launched, so that all ranks launch buckets in one order, whatever the order of the
// gradients. All ranks must create equal bucketers and report every tensor once a step; a tensor
// that the step does not use must be set to zero and reported too. end_capture() detects captured
// bucketers that differ; eager ones are detected only when an operation hangs.
//
// One stream writes and reads the gradients. A program that computes some gradients on another
// stream must first make the bucketer's stream wait for them (DeviceHeap::order()), then call
// ready().
//
// Captures: a step is captured as a whole, or not at all; each launch of the graph is a step. If
// the capture ends before finish(), the step is abandoned: its graph lacks a part of it, and the
// next ready() begins another. Destroy the graphs, then the bucketer, then the heap.
//
// Threads: self-synchronised. The stream must live as long as the bucketer, or be given to
// DeviceHeap::retire() before it is destroyed. A bucketer that was moved from may be destroyed or
// assigned to, nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weir/comm/communicator.h"
#include "weir/comm/operation.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir {

struct BucketerOptions {
  // Maximum bytes of a bucket that has several tensors; a larger tensor has a bucket of its own.
  // The first bucket is small, so that communication starts early.
  Bytes bucket = 25_MiB;
  Bytes first_bucket = 1_MiB;
  ReduceOp reduction = ReduceOp::average;
};

class Bucketer {
 public:
  // Allocates the buckets, each a block of the device heap. `counts` has the number of elements of
  // each tensor, in the order of the parameters. A tensor is aligned to kGrain within its bucket.
  // Errors: invalid_argument; capture (the stream is being captured); those of the allocation;
  // whatever ended the communicator.
  static Result<Bucketer> create(Communicator& communicator, std::span<const std::uint64_t> counts,
                                 DataType type, Stream stream, const BucketerOptions& options = {});
  // Returns the number of buckets.
  std::size_t buckets() const { return buckets_.size(); }
  // Returns the tensor's part of its bucket, where the program writes and reads the gradient, or
  // null if the tensor has no elements or does not exist.
  void* bucket_view(std::size_t tensor) const;

  // Reports that work queued so far on the bucketer's stream wrote the tensor, and launches the
  // buckets that are then complete. Errors: invalid_argument (no such tensor; the tensor is already
  // ready); capture (the step began eagerly, and the stream is being captured); those of
  // Communicator::run(). If only the launch failed, the tensor is ready nonetheless, and finish()
  // tries the launch again.
  Status ready(std::size_t tensor);
  // Ends the step: work queued on the bucketer's stream from now on runs after all all-reduces.
  // Errors: invalid_argument (tensors are not ready: how many, and the first; the step goes on);
  // capture (the step's capture has ended: the step is abandoned; or the step began eagerly, and
  // the stream is being captured); those of Communicator::run() (a bucket could not be launched);
  // device.
  Status finish();

 private:
  struct Tensor {
    std::size_t bucket = 0;
    Bytes offset, bytes;
    bool ready = false;  // in this step
  };
  struct Bucket {
    Bytes bytes;  // from the first byte of the first tensor to the last of the last
    std::shared_ptr<void> memory;  // goes back to the heap
    std::size_t tensors = 0, missing = 0;
  };

  Bucketer(std::shared_ptr<CommState> comm, DataType type, Stream stream,
           const BucketerOptions& options);
  Error error(ErrorCode code, const std::string& what) const;
  Status lay_out(std::span<const std::uint64_t> counts);
  Status allocate();
  Status enter();
  Status launch(const Bucket& bucket);
  Status launch_full();
  Status check_finished() const;
  void begin_step();

  std::shared_ptr<CommState> comm_;
  DataType type_;
  BucketerOptions options_;
  Stream stream_;

  std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();  // of what changes in a step
  std::vector<Tensor> tensors_;
  std::vector<Bucket> buckets_;
  std::size_t launched_ = 0;
  std::optional<std::uint64_t> capture_;  // of the step, once it has begun; 0: eager
  std::optional<WorkPoint> last_;         // of the step's last all-reduce
};

}  // namespace weir
