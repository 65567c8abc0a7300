#include "weir/comm/collectives.h"

#include <utility>

#include "comm/comm_state.h"

namespace weir {

Result<Work> Collectives::run(std::span<const Operation> group, Stream stream) {
  if (group.empty()) return Work();
  Result<CommState::Queued> queued = state_->run(group, stream);
  if (!queued) return std::move(queued).error();
  Work work;
  work.state_ = state_;
  work.fence_ = queued->fence;
  work.capture_ = queued->capture;
  work.lane_ = queued->lane;
  work.done_ = queued->done;
  return work;
}

Status Work::wait(Stream stream) const {
  if (state_ == nullptr) return {};
  return state_->wait(stream,
                      {.fence = fence_, .capture = capture_, .event = done_, .lane = lane_});
}

Result<Work> Collectives::all_reduce(const void* send, void* receive, std::uint64_t count,
                                     DataType type, Reduction reduction, Stream stream) {
  return run({.kind = OperationKind::all_reduce,
              .send = send,
              .receive = receive,
              .count = count,
              .type = type,
              .reduction = reduction},
             stream);
}

Result<Work> Collectives::all_gather(const void* send, void* receive, std::uint64_t count,
                                     DataType type, Stream stream) {
  return run({.kind = OperationKind::all_gather,
              .send = send,
              .receive = receive,
              .count = count,
              .type = type},
             stream);
}

Result<Work> Collectives::reduce_scatter(const void* send, void* receive, std::uint64_t count,
                                         DataType type, Reduction reduction, Stream stream) {
  return run({.kind = OperationKind::reduce_scatter,
              .send = send,
              .receive = receive,
              .count = count,
              .type = type,
              .reduction = reduction},
             stream);
}

Result<Work> Collectives::broadcast(const void* send, void* receive, std::uint64_t count,
                                    DataType type, int root, Stream stream) {
  return run({.kind = OperationKind::broadcast,
              .send = send,
              .receive = receive,
              .count = count,
              .type = type,
              .peer = root},
             stream);
}

Result<Work> Collectives::reduce(const void* send, void* receive, std::uint64_t count,
                                 DataType type, Reduction reduction, int root, Stream stream) {
  return run({.kind = OperationKind::reduce,
              .send = send,
              .receive = receive,
              .count = count,
              .type = type,
              .reduction = reduction,
              .peer = root},
             stream);
}

Result<Work> Collectives::all_to_all(const void* send, void* receive, std::uint64_t count,
                                     DataType type, Stream stream) {
  return run({.kind = OperationKind::all_to_all,
              .send = send,
              .receive = receive,
              .count = count,
              .type = type},
             stream);
}

Result<Work> Collectives::send(const void* from, std::uint64_t count, DataType type, int to,
                               Stream stream) {
  return run({.kind = OperationKind::send, .send = from, .count = count, .type = type, .peer = to},
             stream);
}

Result<Work> Collectives::receive(void* into, std::uint64_t count, DataType type, int from,
                                  Stream stream) {
  return run(
      {.kind = OperationKind::receive, .receive = into, .count = count, .type = type, .peer = from},
      stream);
}

}  // namespace weir
