// SPDX-License-Identifier: Apache-2.0
#include "core/heap/stream_waits.h"

namespace weir {
namespace {

// While a stream was made to wait, so many requests ask only whether it is captured: to ask whether
// the waits are over costs more than that question.
constexpr std::uint32_t kAskedBetween = 64;

}  // namespace

bool StreamWaits::is_captured() {
  if (!served_.timelines->not_captured(served_.timeline)) return true;
  if (++asked_ % kAskedBetween != 0) return false;
  const Result<bool> over = served_.timelines->looks_complete(made_);
  if (over && *over) made_.clear();
  return false;
}

bool StreamWaits::is_settled(const FenceSet& fences) const {
  return served_.timelines->satisfied(fences, served_.timeline) ||
         served_.timelines->is_seen_complete(fences);
}

Status StreamWaits::wait_and_clear(BlockUsesPtr& uses) {
  if (served_.pages->makes_waits()) {
    FenceSet made;
    Status status = served_.timelines->wait(served_.timeline, uses->fences, &served_.fold, &made);
    note(made);
    if (!status) return status;
  } else if (!is_settled(uses->fences)) {
    return Error(ErrorCode::capture, "no request waits");
  }
  uses.reset();
  return {};
}

}  // namespace weir
