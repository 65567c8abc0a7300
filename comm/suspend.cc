// SPDX-License-Identifier: Apache-2.0
// Communicators whose memory is given away for a while.
#include <memory>
#include <string>
#include <utility>

#include "comm/comm_state.h"

namespace weir {

Status CommState::usable() const {
  if (Status works = status(); !works) return works;
  if (!suspended_.load(std::memory_order_acquire)) return {};
  return error(ErrorCode::invalid_argument, "it is suspended: resume() it first, on every rank");
}

// NCCL's communicator, and the one that ranks agree with. Each that NCCL has done is noted, so that
// a call that failed on the way is made again, or taken back, from there.
Status CommState::suspend_or_resume(const char* call, bool suspends) {
  const auto refused = std::make_shared<bool>(false);  // by NCCL, and not for want of a rank
  const std::optional<Status> done =
      in_time(options.host_timeout, [this, suspends, refused]() -> Status {
        const auto nccl_call = lock_nccl();
        const std::pair<CommHandle, bool*> both[] = {{control_, &control_suspended_},
                                                     {handle, &handle_suspended_}};
        for (const auto& [each, is_suspended] : both) {
          if (each.value == 0 || *is_suspended == suspends) continue;
          Status status = suspends ? context.nccl.suspend(each) : context.nccl.resume(each);
          if (!status) {
            *refused = true;
            return status;
          }
          *is_suspended = suspends;
        }
        return {};
      });
  if (done && *done) {
    suspended_.store(suspends, std::memory_order_release);
    return {};
  }
  if (!done || !*refused) {
    fail({ErrorCode::device,
          std::string(call) + ": not all ranks came in time: all of them call it"});
    return status();
  }
  suspended_.store(control_suspended_ || handle_suspended_, std::memory_order_release);
  return error(done->error().code(), std::string(call) + ": " + done->error().message());
}

Status CommState::suspend() {
  const std::lock_guard calls(calls_);
  if (Status works = status(); !works) return works;
  if (handle_suspended_) return {};
  // Graphs that captured its operations may have been launched by others.
  if (Status ended = finish_in_time([this] { return context.device.synchronize_context(); });
      !ended) {
    fail(ended.error());
    return status();
  }
  return suspend_or_resume("suspend", true);
}

Status CommState::resume() {
  const std::lock_guard calls(calls_);
  if (Status works = status(); !works) return works;
  return suspended_.load(std::memory_order_acquire) ? suspend_or_resume("resume", false) : Status();
}

}  // namespace weir
