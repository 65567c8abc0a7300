// SPDX-License-Identifier: Apache-2.0
#include "weir/comm/registered_buffers.h"

#include <functional>
#include <string>
#include <utility>

#include "comm/comm_state.h"
#include "core/base/format.h"
#include "weir/log.h"

namespace weir {
namespace {

constexpr Bytes kMostBytes = 1_TiB * 1024;  // more than any device has

// May this rank ask for such buffers?
Status check(CaptureCalls& device, Stream stream, Bytes bytes, int count) {
  if (bytes == 0_B || count < 1) {
    return Error(ErrorCode::invalid_argument, "there is at least one, of at least one byte");
  }
  if (bytes > kMostBytes) {
    return Error(ErrorCode::out_of_memory, "no device has " + format(bytes));
  }
  const Result<CaptureInfo::Status> known = device.capture_status(stream);
  return known ? Status() : known.error();
}

}  // namespace

RegisteredBuffers::RegisteredBuffers(std::shared_ptr<CommState> communicator, Stream stream,
                                     Bytes bytes)
    : communicator_(std::move(communicator)), stream_(stream), bytes_(bytes) {
  ++communicator_->registered;
}

RegisteredBuffers& RegisteredBuffers::operator=(RegisteredBuffers&& other) noexcept {
  if (this != &other) {
    const RegisteredBuffers old = std::move(*this);
    communicator_ = std::move(other.communicator_);
    stream_ = other.stream_;
    bytes_ = other.bytes_;
    segments_ = std::move(other.segments_);
  }
  return *this;
}

RegisteredBuffers::~RegisteredBuffers() {
  const Status closed = close();
  if (closed) return;
  log(LogLevel::error, closed.error().message());
  if (communicator_ != nullptr) communicator_->released(release_segments());
}

// Each rank makes its buffers first: what it made is of no use where another has none.
Result<RegisteredBuffers> RegisteredBuffers::create(Communicator& communicator, Stream stream,
                                                    Bytes bytes, int count) {
  CommState& state = *communicator.state_;
  Status mine = state.status();
  if (mine) mine = check(state.context.device, stream, bytes, count);
  if (bytes <= kMostBytes) bytes = round_up(bytes, state.context.device.granularity());
  RegisteredBuffers made(communicator.state_, stream, bytes);
  while (mine && std::ssize(made.segments_) < count) {
    const Result<Segment> one = made.make_segment();
    if (one) {
      made.segments_.push_back(*one);
    } else {
      mine = one.error();
    }
  }
  Status agreed = made.agree(count, mine);
  if (agreed) return made;
  if (const Status gone = made.end_segments(); !gone) log(LogLevel::error, gone.error().message());
  std::exchange(made.communicator_, nullptr)->released();
  return std::move(agreed).error();
}

Result<RegisteredBuffers::Segment> RegisteredBuffers::make_segment() const {
  Nccl& nccl = communicator_->context.nccl;
  const Result<Address> address = allocate_segment(communicator_->context, bytes_);
  if (!address) return address.error();
  const Result<RegistrationHandle> handle =
      nccl.register_range(communicator_->handle, *address, bytes_);
  if (handle) return Segment{*address, *handle};
  (void)nccl.free_segment(*address);
  return handle.error();
}

// A rank says what it asks for and, after a '!', why it has failed.
Status RegisteredBuffers::agree(int count, const Status& mine) const {
  const std::string asked =
      std::to_string(count) + " of " + std::to_string(bytes_.count) + " bytes";
  const auto all = communicator_->gather_said("create registered buffers",
                                              mine ? asked : asked + "!" + mine.error().message());
  if (!all) return all.error();
  std::string list, failed;
  bool equal = true;
  for (std::size_t rank = 0; rank < all->size(); ++rank) {
    const std::string name = "rank " + std::to_string(rank);
    const std::string& theirs = (*all)[rank];
    const std::size_t end = theirs.find('!');
    equal = equal && theirs.substr(0, end) == asked;
    list += (rank == 0 ? "" : ", ") + name + " for " + theirs.substr(0, end);
    if (failed.empty() && end != theirs.npos) {
      failed = name + " has none, so no rank keeps one: " + theirs.substr(end + 1);
    }
  }
  if (!equal) {
    return communicator_->error(ErrorCode::invalid_argument,
                                "ranks ask for different registered buffers: " + list +
                                    ": they must be equal on every rank; none was made");
  }
  if (failed.empty()) return {};
  return communicator_->error(mine ? ErrorCode::device : mine.error().code(),
                              "registered buffers: " + failed);
}

Status RegisteredBuffers::close() {
  if (communicator_ == nullptr) return {};
  const std::string remedy = "close registered buffers once the capture has ended";
  if (Status eager = check_not_captured(*communicator_, stream_, remedy); !eager) return eager;
  if (Status gone = await_graphs(*communicator_); !gone) return gone;
  if (const Status done = communicator_->finish(stream_); !done) {
    return communicator_->error(done.error().code(),
                                done.error().message() +
                                    "; if work hangs, abort() the communicator, then close "
                                    "registered buffers");
  }
  Status ended = end_segments();
  std::exchange(communicator_, nullptr)->released();
  return ended;
}

// Whatever one refuses, the others are done; a segment that is still registered is kept.
std::function<Status()> RegisteredBuffers::release_segments() {
  return [nccl = &communicator_->context.nccl, comm = communicator_->handle,
          segments = std::exchange(segments_, {})] {
    Status first;
    for (const Segment& segment : segments) {
      Status status = nccl->deregister(comm, segment.registration);
      if (status) status = nccl->free_segment(segment.address);
      if (first && !status) first = std::move(status);
    }
    return first;
  };
}

Status RegisteredBuffers::end_segments() {
  const std::string late = "NCCL did not deregister " + std::to_string(segments_.size()) +
                           " buffers in time: they are kept";
  return in_own_time(*communicator_, late, release_segments());
}

}  // namespace weir
