// Several communicators in one group of NCCL's.
#include <algorithm>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "comm/comm_state.h"

namespace weir {

// `in_order`: the parts' communicators, in the order in which all threads lock them. `blamed`: the
// part that was refused.
Status CommState::enqueue_together(std::span<const Part> parts, std::span<const Entered> entered,
                                   std::span<CommState* const> in_order, std::size_t& blamed) {
  std::vector<std::unique_lock<std::timed_mutex>> nccl_calls;
  nccl_calls.reserve(in_order.size());
  for (CommState* const state : in_order) nccl_calls.push_back(state->lock_nccl());
  for (blamed = 0; blamed < parts.size(); ++blamed) {
    if (Status works = parts[blamed].state->status(); !works) return works;
  }
  blamed = 0;
  Nccl& nccl = parts.front().state->context.nccl;
  Status queued = nccl.group_start();
  if (!queued) return queued;
  for (std::size_t i = 0; i < parts.size() && queued; ++i) {
    queued = parts[i].state->note(parts[i].group, entered[i].stream);
    blamed = queued ? 0 : i;
  }
  Status ended = nccl.group_end();
  return queued ? std::move(ended) : std::move(queued);
}

Result<std::vector<CommState::Point>> CommState::run_together(std::span<const Part> parts,
                                                              Stream stream) {
  for (const Part& part : parts) {
    if (Status good = part.state->check(part.group); !good) return std::move(good).error();
  }
  std::vector<CommState*> states;
  for (const Part& part : parts) states.push_back(part.state);
  std::sort(states.begin(), states.end(), std::less<>());  // one order for all threads
  std::vector<std::unique_lock<std::mutex>> calls;
  calls.reserve(states.size());
  for (CommState* const state : states) calls.emplace_back(state->calls_);

  // All are asked before the first has joined a capture.
  for (const Part& part : parts) {
    Result<CaptureInfo> may = part.state->may_enter(part.group.front(), stream, {});
    if (!may) return std::move(may).error();
  }
  std::vector<Entered> entered;
  for (const Part& part : parts) {
    Result<Entered> one = part.state->enter(part.group.front(), stream, part.overlap, {});
    if (!one) return std::move(one).error();
    entered.push_back(*one);
  }
  std::size_t blamed = 0;
  const Status queued = enqueue_together(parts, entered, states, blamed);
  std::vector<Point> all;
  std::optional<Error> why;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Result<Point> left = parts[i].state->leave(parts[i].group, entered[i], queued);
    if (left) {
      all.push_back(*std::move(left));
    } else if (!why || i == blamed) {
      why = std::move(left).error();
    }
  }
  if (why) return *std::move(why);
  return all;
}

}  // namespace weir
