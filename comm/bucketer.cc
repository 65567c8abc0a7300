// SPDX-License-Identifier: Apache-2.0
#include "weir/comm/bucketer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/comm_state.h"
#include "core/base/format.h"
#include "weir/log.h"

namespace weir {

Bucketer::Bucketer(std::shared_ptr<CommState> comm, DataType type, Stream stream,
                   const BucketerOptions& options)
    : comm_(std::move(comm)), type_(type), options_(options), stream_(stream) {}

Result<Bucketer> Bucketer::create(Communicator& communicator, std::span<const std::uint64_t> counts,
                                  DataType type, Stream stream, const BucketerOptions& options) {
  Bucketer made(communicator.state_->shared_from_this(), type, stream, options);
  if (Status works = made.comm_->status(); !works) return std::move(works).error();
  if (Status laid = made.lay_out(counts); !laid) return std::move(laid).error();
  if (Status allocated = made.allocate(); !allocated) return std::move(allocated).error();
  return made;
}

Error Bucketer::error(ErrorCode code, const std::string& what) const {
  return comm_->error(code, "bucketer: " + what);
}

void* Bucketer::bucket_view(std::size_t tensor) const {
  if (tensor >= tensors_.size() || tensors_[tensor].bytes == 0_B) return nullptr;
  const Tensor& of = tensors_[tensor];
  return static_cast<std::byte*>(buckets_[of.bucket].memory.get()) + of.offset.count;
}

// From the last parameter to the first.
Status Bucketer::lay_out(std::span<const std::uint64_t> counts) {
  const Status known = Operation{.type = type_, .reduction = options_.reduction}.check(1, 0);
  if (!known) return error(known.error().code(), known.error().message());
  constexpr Bytes kMost = 1_TiB;
  const Bytes each = size_of(type_);
  tensors_.resize(counts.size());
  for (std::size_t at = counts.size(); at-- > 0;) {
    if (counts[at] > kMost / each) {
      return error(
          ErrorCode::invalid_argument,
          fmt::format("tensor {} has {} elements, more than any device holds", at, counts[at]));
    }
    const Bytes bytes = each * counts[at];
    const Bytes most = buckets_.size() < 2 ? options_.first_bucket : options_.bucket;
    const bool full = !buckets_.empty() && buckets_.back().bytes > 0_B &&
                      round_up(buckets_.back().bytes, kGrain) + bytes > most;
    if (buckets_.empty() || full) buckets_.emplace_back();
    Bucket& bucket = buckets_.back();
    const Bytes offset = round_up(bucket.bytes, kGrain);
    tensors_[at] = {buckets_.size() - 1, offset, bytes};
    if (bytes > 0_B) bucket.bytes = offset + bytes;
    ++bucket.tensors;
  }
  begin_step();
  return {};
}

// All-reduces fence the buckets, and the stream's own work needs no fence.
Status Bucketer::allocate() {
  const std::string remedy = "create bucketers before the capture begins";
  if (Status eager = check_not_captured(*comm_, stream_, remedy); !eager) return eager;
  DeviceHeap& heap = comm_->context.heap;
  for (Bucket& bucket : buckets_) {
    Result<void*> memory = heap.allocate(bucket.bytes, stream_);
    if (!memory) return std::move(memory).error();
    bucket.memory = std::shared_ptr<void>(*memory, [&heap](void* block) {
      const Status freed = heap.deallocate(block);
      if (!freed) log(LogLevel::error, freed.error().message());
    });
  }
  return {};
}

// A step belongs to one capture epoch.
Status Bucketer::enter() {
  const Result<CaptureInfo> info = comm_->context.device.capture_info(stream_);
  if (!info) return info.error();
  const bool is_abandoned = capture_.value_or(0) != 0 && *capture_ != info->id;
  if (is_abandoned) begin_step();
  if (capture_.value_or(info->id) != info->id) {
    return error(
        ErrorCode::capture,
        fmt::format("the step began in no capture, and stream {} is being captured: a step "
                    "is captured whole, or not at all",
                    stream_.id));
  }
  capture_ = info->id;
  return {};
}

Status Bucketer::ready(std::size_t number) {
  const std::lock_guard lock(*mutex_);
  if (Status works = comm_->status(); !works) return works;
  if (Status same = enter(); !same) return same;
  if (number >= tensors_.size()) {
    return error(ErrorCode::invalid_argument,
                 fmt::format("tensor {}: there are {}, from 0", number, tensors_.size()));
  }
  Tensor& tensor = tensors_[number];
  if (std::exchange(tensor.ready, true)) {
    return error(ErrorCode::invalid_argument,
                 fmt::format("tensor {} of {} was ready in this step already: each is reported "
                             "once, and finish() ends the step",
                             number, tensors_.size()));
  }
  --buckets_[tensor.bucket].missing;
  return launch_full();
}

Status Bucketer::launch_full() {
  while (launched_ < buckets_.size() && buckets_[launched_].missing == 0) {
    if (Status queued = launch(buckets_[launched_]); !queued) return queued;
    ++launched_;
  }
  return {};
}

Status Bucketer::launch(const Bucket& bucket) {
  if (bucket.bytes == 0_B) return {};
  const Operation sum{.kind = OperationKind::all_reduce,
                      .send = bucket.memory.get(),
                      .receive = bucket.memory.get(),
                      .count = bucket.bytes / size_of(type_),
                      .type = type_,
                      .reduction = options_.reduction};
  Result<WorkPoint> queued = comm_->run({&sum, 1}, stream_, /*overlap=*/true);
  if (!queued) return std::move(queued).error();
  last_ = *std::move(queued);
  return {};
}

Status Bucketer::check_finished() const {
  const auto is_missing = [](const Tensor& tensor) { return !tensor.ready; };
  const auto first = std::find_if(tensors_.begin(), tensors_.end(), is_missing);
  if (first == tensors_.end()) return {};
  return error(ErrorCode::invalid_argument,
               fmt::format("{} of {} tensors are not ready, the first is {}. All ranks reduce all "
                           "buckets: set gradients that the step does not use to zero, and report "
                           "them too",
                           std::count_if(first, tensors_.end(), is_missing), tensors_.size(),
                           first - tensors_.begin()));
}

Status Bucketer::finish() {
  const std::lock_guard lock(*mutex_);
  if (Status works = comm_->status(); !works) return works;
  if (capture_.value_or(0) != 0) {
    const Result<CaptureInfo> info = comm_->context.device.capture_info(stream_);
    if (!info) return info.error();
    if (info->id != *capture_) {
      return error(ErrorCode::capture,
                   "the capture of the step ended before finish(), so the step is abandoned: "
                   "destroy its graph, and capture a step whole, from ready() to finish()");
    }
  }
  if (Status all = check_finished(); !all) return all;
  if (Status launched = launch_full(); !launched) return launched;
  if (last_) {
    if (Status waited = comm_->wait(stream_, *last_); !waited) return waited;
  }
  begin_step();
  return {};
}

void Bucketer::begin_step() {
  for (Tensor& tensor : tensors_) tensor.ready = false;
  for (Bucket& bucket : buckets_) bucket.missing = bucket.tensors;
  launched_ = 0;
  capture_.reset();
  last_.reset();
}

}  // namespace weir
