// SPDX-License-Identifier: Apache-2.0
#include "weir/comm/bucketer.h"

#include <algorithm>
#include <map>
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
      : comm_(std::move(comm)), type_(type), options_(options), reader_(stream) {}
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Status lay_out(std::span<const TensorSize> tensors);
  Status allocate(Stream stream);

  Status begin(Stream writer) {
    const std::lock_guard lock(mutex_);
    return begin_locked(writer);
  }
  // `source`: where it is copied from; none: it is in its bucket already.
  Status ready(std::size_t tensor, std::optional<const void*> source, Stream stream);
  Status finish(Stream stream);
  void reset() {
    const std::lock_guard lock(mutex_);
    reset_locked();
  }

  std::size_t tensors() const { return tensors_.size(); }
  std::size_t buckets() const { return buckets_.size(); }
  std::size_t bucket_of(std::size_t tensor) const { return tensors_[tensor].bucket; }
  void* bucket_view(std::size_t tensor) const {
    const Tensor& of = tensors_[tensor];
    if (of.bytes == 0_B) return nullptr;
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
  struct Written {
    Stream stream;
    CommState::Point point;
  };
  struct Bucket {
    Bytes bytes;  // from the first byte of the first tensor to the last of the last
    void* memory = nullptr;
    std::size_t tensors = 0, missing = 0;
    std::map<std::uint64_t, Written> written = {};  // by stream, the latest
  };

  Status begin_locked(Stream writer);
  Status check_tensor(std::size_t tensor) const;
  Status enter(std::uint64_t capture, Stream stream);
  Status launch(Bucket& bucket, Stream stream);
  Status check_finished() const;
  void reset_locked();
  // Any other writer has yet to call begin(), and will wait for what the stream holds by then.
  bool is_only_writer(Stream stream) const {
    return stream == reader_ &&
           std::all_of(begun_.begin(), begun_.end(), [&](Stream begun) { return begun == stream; });
  }

  const std::shared_ptr<CommState> comm_;
  const DataType type_;
  const BucketerOptions options_;
  std::vector<Tensor> tensors_;  // their layout never changes

  std::mutex mutex_;  // of what follows, and of what changes in a step
  std::vector<Bucket> buckets_;
  std::vector<bool> ready_;  // by tensor, in this step
  std::size_t missing_ = 0, launched_ = 0;
  std::optional<std::uint64_t> capture_;  // of the step, once it has begun; 0: eager
  std::vector<Stream> begun_;             // in this step
  std::optional<CommState::Point> last_;
  Stream reader_;  // of the last finish()
};

// From the last parameter to the first.
Status Bucketer::Impl::lay_out(std::span<const TensorSize> tensors) {
  constexpr Bytes kMost = 1_TiB;
  const Bytes each = size_of(type_);
  tensors_.resize(tensors.size());
  for (std::size_t at = tensors.size(); at-- > 0;) {
    if (tensors[at].count > kMost / each) {
      return error(ErrorCode::invalid_argument, "tensor " + std::to_string(at) + " has " +
                                                    std::to_string(tensors[at].count) +
                                                    " elements, more than any device holds");
    }
    const Bytes bytes = each * tensors[at].count;
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
  reset_locked();
  return {};
}

Status Bucketer::Impl::allocate(Stream stream) {
  const Result<CaptureInfo> info = comm_->context.device.capture_info(stream);
  if (!info) return info.error();
  if (info->status != CaptureInfo::Status::none) {
    return error(ErrorCode::capture, "stream " + std::to_string(stream.id) +
                                         " is being captured: create it before the capture begins");
  }
  for (Bucket& bucket : buckets_) {
    Result<void*> memory = options_.pool != nullptr
                               ? options_.pool->allocate(bucket.bytes, stream)
                               : comm_->context.heap.allocate(bucket.bytes, stream);
    if (!memory) return std::move(memory).error();
    bucket.memory = *memory;
  }
  return {};
}

// Streams that wrote in a step that was not finished, and the one that read.
Bucketer::Impl::~Impl() {
  std::map<std::uint64_t, Stream> users{{reader_.id, reader_}};
  for (const Stream begun : begun_) users.emplace(begun.id, begun);
  for (const Bucket& bucket : buckets_) {
    for (const auto& [id, written] : bucket.written) users.emplace(id, written.stream);
  }
  const auto note = [](const Status& status) {
    if (!status) log(LogLevel::error, status.error().message());
  };
  for (const Bucket& bucket : buckets_) {
    if (bucket.memory == nullptr) continue;
    for (const auto& [id, user] : users) {
      note(options_.pool != nullptr ? options_.pool->fence(bucket.memory, user)
                                    : comm_->context.heap.fence(bucket.memory, user));
    }
    note(options_.pool != nullptr ? options_.pool->deallocate(bucket.memory)
                                  : comm_->context.heap.deallocate(bucket.memory));
  }
}

Status Bucketer::Impl::begin_locked(Stream writer) {
  Device& device = comm_->context.device;
  const Result<CaptureInfo> mine = device.capture_info(writer);
  const Result<CaptureInfo> theirs = device.capture_info(reader_);
  if (!mine || !theirs) return mine ? theirs.error() : mine.error();
  // Eager work comes before a graph as it comes before the launch.
  const bool eager_before_graph = mine->id != 0 && theirs->id == 0;
  if (writer != reader_ && !eager_before_graph) {
    const Result<CommState::Point> point = comm_->take_point(reader_);
    if (!point) return point.error();
    if (Status waited = comm_->wait(writer, *point); !waited) return waited;
  }
  // The capture epoch: a stream in no capture has joined the other's.
  const std::uint64_t epoch = mine->id != 0 ? mine->id : theirs->id;
  if (last_ && last_->capture == epoch) {
    if (Status waited = comm_->wait(writer, *last_); !waited) return waited;
  }
  if (std::find(begun_.begin(), begun_.end(), writer) == begun_.end()) begun_.push_back(writer);
  return {};
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
Status Bucketer::Impl::enter(std::uint64_t capture, Stream stream) {
  if (!capture_) capture_ = capture;
  if (*capture_ == capture) return {};
  const auto say = [](std::uint64_t id) {
    return id == 0 ? std::string("in no capture") : "in capture " + std::to_string(id);
  };
  return error(ErrorCode::capture,
               "the step began " + say(*capture_) + ", and stream " + std::to_string(stream.id) +
                   " is " + say(capture) +
                   ": a step is captured whole, or not at all (after a capture that failed: "
                   "reset())");
}

Status Bucketer::Impl::ready(std::size_t number, std::optional<const void*> source, Stream stream) {
  const std::lock_guard lock(mutex_);
  if (Status good = check_tensor(number); !good) return good;
  if (Status works = comm_->usable(); !works) return works;
  const Tensor& tensor = tensors_[number];
  if (source) {
    if (*source == nullptr && tensor.bytes > 0_B) {
      return error(ErrorCode::invalid_argument,
                   "tensor " + std::to_string(number) + " is to be copied from null");
    }
    const bool begun = std::find(begun_.begin(), begun_.end(), stream) != begun_.end();
    if (!begun) {
      if (Status ordered = begin_locked(stream); !ordered) return ordered;
    }
  }
  const Result<CaptureInfo> info = comm_->context.device.capture_info(stream);
  if (!info) return info.error();
  if (Status same = enter(info->id, stream); !same) return same;
  if (source && tensor.bytes > 0_B) {
    Status copied = comm_->context.nccl.copy(bucket_view(number), *source, tensor.bytes, stream);
    if (!copied) return copied;
  }
  Bucket& bucket = buckets_[tensor.bucket];
  // A launch that comes now waits for what the stream holds now.
  if ((bucket.missing > 1 || tensor.bucket != launched_) && !is_only_writer(stream)) {
    const Result<CommState::Point> point = comm_->take_point(stream);
    if (!point) return point.error();
    bucket.written.insert_or_assign(stream.id, Written{stream, *point});
  }
  ready_[number] = true;
  --bucket.missing;
  --missing_;
  while (launched_ < buckets_.size() && buckets_[launched_].missing == 0) {
    if (Status queued = launch(buckets_[launched_], stream); !queued) return queued;
    ++launched_;
  }
  return {};
}

// Now, on `stream`, is after all that was reported from there.
Status Bucketer::Impl::launch(Bucket& bucket, Stream stream) {
  if (bucket.bytes == 0_B) return {};
  std::vector<CommState::Point> after;
  for (const auto& [id, written] : bucket.written) {
    if (written.stream != stream) after.push_back(written.point);
  }
  const Operation sum{.kind = OperationKind::all_reduce,
                      .send = bucket.memory,
                      .receive = bucket.memory,
                      .count = bucket.bytes / size_of(type_),
                      .type = type_,
                      .reduction = options_.reduction};
  Result<CommState::Point> queued = comm_->run({&sum, 1}, stream, /*overlap=*/true, after);
  if (!queued) return std::move(queued).error();
  last_ = *queued;
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

Status Bucketer::Impl::finish(Stream stream) {
  const std::lock_guard lock(mutex_);
  if (Status works = comm_->usable(); !works) return works;
  if (Status all = check_finished(); !all) return all;
  const std::uint64_t of = capture_.value_or(0);
  if (last_ && last_->capture == of) {
    if (of != 0) {
      const Result<CaptureInfo> info = comm_->context.device.capture_info(last_->stream);
      if (!info) return info.error();
      if (info->id != of) {
        return error(ErrorCode::capture,
                     "the step's capture is over, and the step is not: finish() comes before the "
                     "end of the capture (now: reset())");
      }
    }
    if (Status waited = comm_->wait(stream, *last_); !waited) return waited;
  }
  reader_ = stream;
  reset_locked();
  return {};
}

void Bucketer::Impl::reset_locked() {
  ready_.assign(tensors_.size(), false);
  for (Bucket& bucket : buckets_) {
    bucket.missing = bucket.tensors;
    bucket.written.clear();
  }
  missing_ = tensors_.size();
  launched_ = 0;
  capture_.reset();
  begun_.clear();
}

Bucketer::Bucketer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Bucketer::Bucketer(Bucketer&&) noexcept = default;
Bucketer& Bucketer::operator=(Bucketer&&) noexcept = default;
Bucketer::~Bucketer() = default;

Result<Bucketer> Bucketer::create(Communicator& communicator, std::span<const TensorSize> tensors,
                                  DataType type, Stream stream, const BucketerOptions& options) {
  if (communicator.state_ == nullptr) return communicator.status().error();
  auto impl = std::make_unique<Impl>(communicator.state_, type, stream, options);
  const CommState& state = *communicator.state_;
  if (Status works = state.usable(); !works) return std::move(works).error();
  if (options.pool != nullptr && options.pool->communicator_ != communicator.state_) {
    return impl->error(ErrorCode::invalid_argument,
                       "its pool is of another communicator, which knows nothing of operations of "
                       "this one");
  }
  const Operation sum{.count = 0, .type = type, .reduction = options.reduction};
  if (Status good = sum.check(state.ranks, state.rank); !good) {
    return impl->error(good.error().code(), good.error().message());
  }
  if (Status laid = impl->lay_out(tensors); !laid) return std::move(laid).error();
  if (Status allocated = impl->allocate(stream); !allocated) return std::move(allocated).error();
  return Bucketer(std::move(impl));
}

std::size_t Bucketer::tensors() const { return impl_->tensors(); }
std::size_t Bucketer::buckets() const { return impl_->buckets(); }
std::size_t Bucketer::bucket_of(std::size_t tensor) const {
  return tensor < impl_->tensors() ? impl_->bucket_of(tensor) : impl_->buckets();
}
void* Bucketer::bucket_view(std::size_t tensor) const {
  return tensor < impl_->tensors() ? impl_->bucket_view(tensor) : nullptr;
}
Status Bucketer::begin(Stream writer) { return impl_->begin(writer); }
Status Bucketer::ready(std::size_t tensor, Stream stream) {
  return impl_->ready(tensor, std::nullopt, stream);
}
Status Bucketer::ready_from(std::size_t tensor, const void* source, Stream stream) {
  return impl_->ready(tensor, source, stream);
}
Status Bucketer::finish(Stream stream) { return impl_->finish(stream); }
void Bucketer::reset() { impl_->reset(); }

}  // namespace weir
