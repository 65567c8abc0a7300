// SPDX-License-Identifier: Apache-2.0
#include "core/heap/served_stream.h"

namespace weir {
namespace {

// While a stream was made to wait, so many requests ask only whether it is captured: to ask whether
// the waits are over costs more than that question.
constexpr std::uint32_t kAskedBetween = 64;

}  // namespace

bool ServedStream::is_captured() {
  if (!timelines->not_captured(timeline)) return true;
  if (++asked_ % kAskedBetween != 0) return false;
  const Result<bool> over = timelines->complete(waits_, Timelines::Asks::looks);
  if (over && *over) waits_.clear();
  return false;
}

bool ServedStream::is_settled(const FenceSet& fences) const {
  return timelines->satisfied(fences, timeline) || timelines->is_seen_complete(fences);
}

Status ServedStream::wait_and_clear(BlockUsesPtr& uses) {
  if (pages->makes_waits()) {
    FenceSet made;
    Status status = timelines->wait(timeline, uses->fences, &fold, &made);
    note_waits(made);
    if (!status) return status;
  } else if (!is_settled(uses->fences)) {
    return Error(ErrorCode::capture, "no request waits");
  }
  uses.reset();
  return {};
}

}  // namespace weir
