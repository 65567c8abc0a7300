// SPDX-License-Identifier: Apache-2.0
#include "weir/comm/bucketer.h"

#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/comm_state.h"
#include "core/base/format.h"
#include "weir/log.h"

namespace weir {

class Bucketer::Impl {
 public:
  Impl(std::shared_ptr<CommState> comm, DataType type, Stream stream,
       const BucketerOptions& options)
      : comm_(std::move(comm)), type_(type), options_(options), stream_(stream) {}
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Status lay_out(std::span<const std::uint64_t> counts);
  Status allocate();
  Status ready(std::size_t tensor);
  Status finish();

  std::size_t buckets() const { return buckets_.size(); }
  std::size_t bucket_of(std::size_t tensor) const {
    return tensor < tensors_.size() ? tensors_[tensor].bucket : buckets_.size();
  }
  void* bucket_view(std::size_t tensor) const {
    if (tensor >= tensors_.size() || tensors_[tensor].bytes == 0_B) return nullptr;
    const Tensor& of = tensors_[tensor];
    return static_cast<std::byte*>(buckets_[of.bucket].memory) + of.offset.count;
  }
  Error error(ErrorCode code, const std::string& what) const {
    return comm_->error(code, "bucketer: " + what);
  }

 private:
  struct Tensor {
    std::size_t bucket = 0;
    Bytes offset, bytes;
  };
  struct Bucket {
    Bytes bytes;  // from the first byte of the first tensor to the last of the last
    void* memory = nullptr;
    std::size_t tensors = 0, missing = 0;
  };

  Status check_tensor(std::size_t tensor) const;
  Status enter();
  Status launch(const Bucket& bucket);
  Status launch_full();
  Status check_finished() const;
  void begin_step();

  const std::shared_ptr<CommState> comm_;
  const DataType type_;
  const BucketerOptions options_;
  const Stream stream_;
  std::vector<Tensor> tensors_;  // their layout never changes

  std::mutex mutex_;  // of what follows, and of what changes in a step
  std::vector<Bucket> buckets_;
  std::vector<bool> ready_;  // by tensor, in this step
  std::size_t missing_ = 0, launched_ = 0;
  std::optional<std::uint64_t> capture_;  // of the step, once it has begun; 0: eager
  std::optional<CommState::Point> last_;  // of the step's last all-reduce
};

// From the last parameter to the first.
Status Bucketer::Impl::lay_out(std::span<const std::uint64_t> counts) {
  constexpr Bytes kMost = 1_TiB;
  const Bytes each = size_of(type_);
  tensors_.resize(counts.size());
  for (std::size_t at = counts.size(); at-- > 0;) {
    if (counts[at] > kMost / each) {
      return error(ErrorCode::invalid_argument, "tensor " + std::to_string(at) + " has " +
                                                    std::to_string(counts[at]) +
                                                    " elements, more than any device holds");
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

Status Bucketer::Impl::allocate() {
  const std::string remedy = "create bucketers before the capture begins";
  if (Status eager = check_not_captured(*comm_, stream_, remedy); !eager) return eager;
  for (Bucket& bucket : buckets_) {
    Result<void*> memory = comm_->context.heap.allocate(bucket.bytes, stream_);
    if (!memory) return std::move(memory).error();
    bucket.memory = *memory;
  }
  return {};
}

// All-reduces have fenced them, and the stream's own work needs no fence.
Bucketer::Impl::~Impl() {
  for (const Bucket& bucket : buckets_) {
    const Status freed = comm_->context.heap.deallocate(bucket.memory);
    if (!freed) log(LogLevel::error, freed.error().message());
  }
}

Status Bucketer::Impl::check_tensor(std::size_t tensor) const {
  const std::string name = "tensor " + std::to_string(tensor);
  if (tensor >= tensors_.size()) {
    return error(ErrorCode::invalid_argument,
                 name + ": there are " + std::to_string(tensors_.size()) + ", from 0");
  }
  if (ready_[tensor]) {
    return error(ErrorCode::invalid_argument,
                 name + " of " + std::to_string(tensors_.size()) +
                     " was ready in this step already: each is reported once, and finish() ends "
                     "the step");
  }
  return {};
}

// A step belongs to one capture epoch.
Status Bucketer::Impl::enter() {
  const Result<CaptureInfo> info = comm_->context.device.capture_info(stream_);
  if (!info) return info.error();
  const bool is_abandoned = capture_.value_or(0) != 0 && *capture_ != info->id;
  if (is_abandoned) begin_step();
  if (capture_.value_or(info->id) != info->id) {
    return error(ErrorCode::capture,
                 "the step began in no capture, and stream " + std::to_string(stream_.id) +
                     " is being captured: a step is captured whole, or not at all");
  }
  capture_ = info->id;
  return {};
}

Status Bucketer::Impl::ready(std::size_t number) {
  const std::lock_guard lock(mutex_);
  if (Status works = comm_->status(); !works) return works;
  if (Status same = enter(); !same) return same;
  if (Status good = check_tensor(number); !good) return good;
  Bucket& bucket = buckets_[tensors_[number].bucket];
  ready_[number] = true;
  --bucket.missing;
  --missing_;
  return launch_full();
}

Status Bucketer::Impl::launch_full() {
  while (launched_ < buckets_.size() && buckets_[launched_].missing == 0) {
    if (Status queued = launch(buckets_[launched_]); !queued) return queued;
    ++launched_;
  }
  return {};
}

Status Bucketer::Impl::launch(const Bucket& bucket) {
  if (bucket.bytes == 0_B) return {};
  const Operation sum{.kind = OperationKind::all_reduce,
                      .send = bucket.memory,
                      .receive = bucket.memory,
                      .count = bucket.bytes / size_of(type_),
                      .type = type_,
                      .reduction = options_.reduction};
  Result<CommState::Point> queued = comm_->run({&sum, 1}, stream_, /*overlap=*/true);
  if (!queued) return std::move(queued).error();
  last_ = *std::move(queued);
  return {};
}

Status Bucketer::Impl::check_finished() const {
  if (missing_ == 0) return {};
  constexpr std::size_t kNamed = 8;
  std::string list;
  std::size_t named = 0;
  for (std::size_t i = 0; i < tensors_.size() && named < kNamed; ++i) {
    if (ready_[i]) continue;
    list += (named++ == 0 ? "" : ", ") + std::to_string(i);
  }
  if (missing_ > named) list += ", ...";
  return error(ErrorCode::invalid_argument,
               std::to_string(missing_) + " of " + std::to_string(tensors_.size()) +
                   " tensors are not ready: " + list +
                   ". All ranks reduce all buckets: set gradients that the step does not use to "
                   "zero, and report them too");
}

Status Bucketer::Impl::finish() {
  const std::lock_guard lock(mutex_);
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

void Bucketer::Impl::begin_step() {
  ready_.assign(tensors_.size(), false);
  for (Bucket& bucket : buckets_) bucket.missing = bucket.tensors;
  missing_ = tensors_.size();
  launched_ = 0;
  capture_.reset();
  last_.reset();
}

Bucketer::Bucketer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Bucketer::Bucketer(Bucketer&&) noexcept = default;
Bucketer& Bucketer::operator=(Bucketer&&) noexcept = default;
Bucketer::~Bucketer() = default;

Result<Bucketer> Bucketer::create(Communicator& communicator, std::span<const std::uint64_t> counts,
                                  DataType type, Stream stream, const BucketerOptions& options) {
  auto impl = std::make_unique<Impl>(communicator.state_, type, stream, options);
  const CommState& state = *communicator.state_;
  if (Status works = state.status(); !works) return std::move(works).error();
  if (Status laid = impl->lay_out(counts); !laid) return std::move(laid).error();
  if (Status allocated = impl->allocate(); !allocated) return std::move(allocated).error();
  return Bucketer(std::move(impl));
}

std::size_t Bucketer::buckets() const { return impl_->buckets(); }
std::size_t Bucketer::bucket_of(std::size_t tensor) const { return impl_->bucket_of(tensor); }
void* Bucketer::bucket_view(std::size_t tensor) const { return impl_->bucket_view(tensor); }
Status Bucketer::ready(std::size_t tensor) { return impl_->ready(tensor); }
Status Bucketer::finish() { return impl_->finish(); }

}  // namespace weir
