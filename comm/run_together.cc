// SPDX-License-Identifier: Apache-2.0
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
Status CommState::enqueue_together(std::span<const Part> parts,
                                   std::span<CommState* const> in_order, std::size_t& blamed) {
  std::vector<std::unique_lock<std::timed_mutex>> nccl_calls;
  nccl_calls.reserve(in_order.size());
  for (CommState* const state : in_order) nccl_calls.push_back(state->lock_nccl());
  for (blamed = 0; blamed < parts.size(); ++blamed) {
    if (Status works = parts[blamed].state->usable(); !works) return works;
  }
  blamed = 0;
  Nccl& nccl = parts.front().state->context.nccl;
  Status queued = nccl.group_start();
  if (!queued) return queued;
  for (std::size_t i = 0; i < parts.size() && queued; ++i) {
    queued = parts[i].state->note(parts[i].group, parts[i].entered.stream);
    blamed = queued ? 0 : i;
  }
  Status ended = nccl.group_end();
  return queued ? std::move(ended) : std::move(queued);
}

Result<std::vector<Work>> CommState::run_together(std::span<const Communicator::Part> asked,
                                                  Where where) {
  std::vector<Work> works(asked.size());
  std::vector<Part> parts;
  std::vector<CommState*> states;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    CommState* const state = asked[i].communicator.state_.get();
    if (state == nullptr) return moved_away();
    if (asked[i].operations.empty()) continue;
    if (Status good = state->check(asked[i].operations); !good) return std::move(good).error();
    if (std::find(states.begin(), states.end(), state) != states.end()) {
      return state->error(ErrorCode::invalid_argument,
                          "run_together: it is in two parts: put its operations into one");
    }
    parts.push_back({state, asked[i].operations, &works[i], {}});
    states.push_back(state);
    const CommContext &here = state->context, &first = states.front()->context;
    if (&here.nccl == &first.nccl && &here.device == &first.device && &here.heap == &first.heap) {
      continue;
    }
    return state->error(ErrorCode::invalid_argument,
                        "run_together: communicator '" + states.front()->options.name +
                            "' has another context: group communicators of one Nccl, device and "
                            "heap");
  }
  if (parts.empty()) return works;
  std::sort(states.begin(), states.end(), std::less<>());  // one order for all threads
  std::vector<std::unique_lock<std::mutex>> calls;
  calls.reserve(states.size());
  for (CommState* const state : states) calls.emplace_back(state->calls_);

  // All are asked before the first has joined a capture.
  for (const Part& part : parts) {
    Result<CaptureInfo> may = part.state->may_enter(part.group.front(), where.stream, {});
    if (!may) return std::move(may).error();
  }
  for (Part& part : parts) {
    const bool overlap = where.overlap || part.state->options.overlap;
    Result<Entered> entered = part.state->enter(part.group.front(), where.stream, overlap, {});
    if (!entered) return std::move(entered).error();
    part.entered = *entered;
  }
  std::size_t blamed = 0;
  const Status queued = enqueue_together(parts, states, blamed);
  std::optional<Error> why;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Part& part = parts[i];
    Result<WorkPoint> left = part.state->leave(part.group, part.entered, queued);
    if (left) {
      *part.work = Work(part.state->shared_from_this(), *left);
    } else if (!why || i == blamed) {
      why = std::move(left).error();
    }
  }
  if (why) return *std::move(why);
  return works;
}

}  // namespace weir
