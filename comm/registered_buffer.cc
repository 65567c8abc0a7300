// SPDX-License-Identifier: Apache-2.0
#include "weir/comm/registered_buffer.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "comm/comm_state.h"
#include "core/base/format.h"
#include "weir/log.h"

namespace weir {
namespace {

constexpr Bytes kMostBytes = 1_TiB * 1024;  // more than any device has

// May this rank ask for such a buffer?
Status check(CaptureCalls& device, Stream stream, Bytes bytes) {
  if (bytes == 0_B) return Error(ErrorCode::invalid_argument, "a buffer has at least one byte");
  if (bytes > kMostBytes) {
    return Error(ErrorCode::out_of_memory, "no device has " + format(bytes));
  }
  const Result<CaptureInfo::Status> known = device.capture_status(stream);
  return known ? Status() : known.error();
}

}  // namespace

RegisteredBuffer::RegisteredBuffer(std::shared_ptr<CommState> communicator, Stream stream,
                                   Bytes bytes)
    : communicator_(std::move(communicator)), stream_(stream), bytes_(bytes) {
  ++communicator_->registered;
}

RegisteredBuffer& RegisteredBuffer::operator=(RegisteredBuffer&& other) noexcept {
  std::swap(communicator_, other.communicator_);
  std::swap(stream_, other.stream_);
  std::swap(bytes_, other.bytes_);
  std::swap(memory_, other.memory_);
  std::swap(registration_, other.registration_);
  return *this;
}

RegisteredBuffer::~RegisteredBuffer() {
  const Status closed = close();
  if (closed) return;
  log(LogLevel::error, closed.error().message());
  if (communicator_ == nullptr) return;
  communicator_->leave_to_close(release());
  --communicator_->registered;
}

// Each rank makes its buffer first: what it made is of no use where another has none. The size is
// part of the call, which must be the same on all ranks.
Result<RegisteredBuffer> RegisteredBuffer::create(Communicator& communicator, Stream stream,
                                                  Bytes bytes) {
  CommState& state = *communicator.state_;
  Status mine = state.status();
  if (mine) mine = check(state.context.device, stream, bytes);
  if (bytes <= kMostBytes) bytes = round_up(bytes, state.context.device.granularity());
  RegisteredBuffer made(communicator.state_, stream, bytes);
  if (mine) mine = made.register_memory();
  const auto agreed =
      state.agree(fmt::format("create a registered buffer of {} bytes", bytes.count), mine,
                  mine ? ErrorCode::device : mine.error().code());
  if (agreed) return made;
  if (const Status gone = made.end(); !gone) log(LogLevel::error, gone.error().message());
  return agreed.error();
}

Status RegisteredBuffer::register_memory() {
  const CommContext& context = communicator_->context;
  const Result<Address> memory = allocate_segment(context, bytes_);
  if (!memory) return memory.error();
  const Result<RegistrationHandle> handle =
      context.nccl.register_range(communicator_->handle, *memory, bytes_);
  if (!handle) {
    (void)context.nccl.free_segment(*memory);
    return handle.error();
  }
  memory_ = *memory;
  registration_ = *handle;
  return {};
}

Status RegisteredBuffer::close() {
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
  return end();
}

// Without memory it does nothing. A buffer that is still registered is kept.
std::function<Status()> RegisteredBuffer::release() {
  return [nccl = &communicator_->context.nccl, comm = communicator_->handle,
          registration = registration_, memory = std::exchange(memory_, {})]() -> Status {
    if (memory.value == 0) return {};
    if (Status status = nccl->deregister(comm, registration); !status) return status;
    return nccl->free_segment(memory);
  };
}

Status RegisteredBuffer::end() {
  Status ended = in_own_time(*communicator_, "NCCL did not deregister a buffer in time: it is kept",
                             release());
  --communicator_->registered;
  communicator_ = nullptr;
  return ended;
}

}  // namespace weir
