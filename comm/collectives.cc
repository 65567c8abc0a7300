#include <algorithm>
#include <utility>

#include "comm/comm_state.h"
#include "weir/comm/communicator.h"

namespace weir {

namespace {

// Of which no two may be in one group.
Status check_parts(std::span<CommState* const> states) {
  for (std::size_t i = 0; i < states.size(); ++i) {
    const CommContext &here = states[i]->context, &first = states.front()->context;
    if (&here.nccl != &first.nccl || &here.device != &first.device || &here.heap != &first.heap) {
      return states[i]->error(ErrorCode::invalid_argument,
                              "run_together: communicator '" + states.front()->options.name +
                                  "' has another context: group communicators of one Nccl, "
                                  "device and heap");
    }
    if (std::find(states.begin(), states.begin() + static_cast<std::ptrdiff_t>(i), states[i]) !=
        states.begin() + static_cast<std::ptrdiff_t>(i)) {
      return states[i]->error(ErrorCode::invalid_argument,
                              "run_together: it is in two parts: put its operations into one");
    }
  }
  return {};
}

}  // namespace

Result<Work> Collectives::run(std::span<const Operation> group, Stream stream) {
  if (state_ == nullptr) return moved_away();
  if (group.empty()) return Work();
  const Result<CommState::Point> end = state_->run(group, stream, overlap_);
  if (!end) return end.error();
  return Work(state_, *end);
}

Result<std::vector<Work>> Collectives::run_together(std::span<const Part> parts, Stream stream) {
  std::vector<CommState*> states;
  for (const Part& part : parts) {
    if (part.communicator.state_ == nullptr) return moved_away();
    states.push_back(part.communicator.state_.get());
  }
  if (Status good = check_parts(states); !good) return std::move(good).error();
  std::vector<CommState::Part> asked;
  for (const Part& part : parts) {
    if (!part.operations.empty()) {
      asked.push_back(
          {part.communicator.state_.get(), part.operations, part.communicator.overlap_});
    }
  }
  std::vector<Work> works(parts.size());
  if (asked.empty()) return works;
  const Result<std::vector<CommState::Point>> all = CommState::run_together(asked, stream);
  if (!all) return all.error();
  auto end = all->begin();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].operations.empty()) continue;
    works[i] = Work(parts[i].communicator.state_, *end++);
  }
  return works;
}

Status Work::wait(Stream stream) const {
  return state_ == nullptr ? Status() : state_->wait(stream, end_);
}

Result<Work> Collectives::all_reduce(const void* send, void* receive, std::uint64_t count,
                                     DataType type, Reduction reduction, Stream stream) {
  return run({OperationKind::all_reduce, send, receive, count, type, reduction}, stream);
}
Result<Work> Collectives::all_gather(const void* send, void* receive, std::uint64_t count,
                                     DataType type, Stream stream) {
  return run({OperationKind::all_gather, send, receive, count, type, {}}, stream);
}
Result<Work> Collectives::reduce_scatter(const void* send, void* receive, std::uint64_t count,
                                         DataType type, Reduction reduction, Stream stream) {
  return run({OperationKind::reduce_scatter, send, receive, count, type, reduction}, stream);
}
Result<Work> Collectives::broadcast(const void* send, void* receive, std::uint64_t count,
                                    DataType type, int root, Stream stream) {
  return run({OperationKind::broadcast, send, receive, count, type, {}, root}, stream);
}
Result<Work> Collectives::reduce(const void* send, void* receive, std::uint64_t count,
                                 DataType type, Reduction reduction, int root, Stream stream) {
  return run({OperationKind::reduce, send, receive, count, type, reduction, root}, stream);
}
Result<Work> Collectives::all_to_all(const void* send, void* receive, std::uint64_t count,
                                     DataType type, Stream stream) {
  return run({OperationKind::all_to_all, send, receive, count, type, {}}, stream);
}
Result<Work> Collectives::send(const void* from, std::uint64_t count, DataType type, int to,
                               Stream stream) {
  return run({OperationKind::send, from, nullptr, count, type, {}, to}, stream);
}
Result<Work> Collectives::receive(void* into, std::uint64_t count, DataType type, int from,
                                  Stream stream) {
  return run({OperationKind::receive, nullptr, into, count, type, {}, from}, stream);
}

}  // namespace weir
