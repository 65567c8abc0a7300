// Collectives, sends and receives on fenced streams.
//
//   Collectives collectives(world);
//   Result<Work> sum = collectives.all_reduce(gradient, gradient, count, DataType::float32,
//                                             {ReduceOp::sum}, compute);
//   heap.deallocate(gradient);          // at once: its block carries the fence
//   Status waited = sum->wait(compute); // where the result is needed: on the GPU, never the host
//
// An operation runs on the communicator's own stream, after the work that `stream` holds so far.
// The blocks of the device heap that it uses are fenced: they may be deallocated as soon as the
// call returns. (Memory that is not the heap's is the caller's to keep until the work is done.)
//
// In a capture (`stream` is being captured into a graph pool) the operation becomes part of the
// graph: the communicator's stream is forked and joined by Weir, if a CaptureScope ends the
// capture; where the program ends it by other means, some captured stream must wait() for each
// Work. The communicator must be prepared; one that is not is refused before anything is spoilt.
//
// Threads: as Communicator's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "weir/comm/communicator.h"
#include "weir/comm/operation.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir {

// Operations that were queued. Cheap to copy; nothing happens when it is destroyed. It must not be
// used after its communicator is closed; one that was captured, not after the end of the capture.
class Work {
 public:
  Work() = default;  // of nothing: wait() does nothing

  // Makes work queued on `stream` from now on run after it. A captured one takes streams of its
  // capture, and such as are in none, which then join it. Errors: capture (the operation was
  // captured, and the stream is in another capture, or the capture is over; or it was eager, and
  // the stream is being captured); device.
  Status wait(Stream stream) const;
  bool captured() const { return capture_ != 0; }

 private:
  friend class Collectives;
  Work(std::shared_ptr<CommState> state, Fence fence, std::uint64_t capture, Stream lane,
       EventHandle done);
  std::shared_ptr<CommState> state_;
  Fence fence_;                // eager
  std::uint64_t capture_ = 0;  // else its id,
  Stream lane_;                // a stream that is in it, and
  EventHandle done_;           // an event of it
};

class Collectives {
 public:
  explicit Collectives(const Communicator& communicator) : state_(communicator.state_) {}

  // Counts are NCCL's (weir/comm/operation.h). In place where NCCL allows: send == receive; for
  // all_gather send is this rank's part of receive, for reduce_scatter the reverse.
  // Errors: invalid_argument; capture (not prepared; the capture is broken already; no pool serves
  // it); device (NCCL refused: the communicator has ended); whatever ended the communicator.
  Result<Work> all_reduce(const void* send, void* receive, std::uint64_t count, DataType type,
                          Reduction reduction, Stream stream);
  Result<Work> all_gather(const void* send, void* receive, std::uint64_t count, DataType type,
                          Stream stream);
  Result<Work> reduce_scatter(const void* send, void* receive, std::uint64_t count, DataType type,
                              Reduction reduction, Stream stream);
  Result<Work> broadcast(const void* send, void* receive, std::uint64_t count, DataType type,
                         int root, Stream stream);
  Result<Work> reduce(const void* send, void* receive, std::uint64_t count, DataType type,
                      Reduction reduction, int root, Stream stream);
  Result<Work> all_to_all(const void* send, void* receive, std::uint64_t count, DataType type,
                          Stream stream);
  Result<Work> send(const void* from, std::uint64_t count, DataType type, int to, Stream stream);
  Result<Work> receive(void* into, std::uint64_t count, DataType type, int from, Stream stream);

  // Any operation; or several as one group (NCCL: ncclGroupStart, ncclGroupEnd), which sends and
  // receives between the same ranks must be. None: a Work of nothing.
  Result<Work> run(const Operation& operation, Stream stream) {
    return run(std::span<const Operation>(&operation, 1), stream);
  }
  Result<Work> run(std::span<const Operation> group, Stream stream);

  // Operations of several communicators of this rank as one group, so that none has to end before
  // another begins. A Work for each part, in order. All have the same CommPlace, and none comes
  // twice; on all ranks the parts that a communicator is in are in the same order. Errors: those
  // above; what NCCL refuses ends all of them.
  struct Part {
    const Communicator& communicator;
    std::span<const Operation> operations;
  };
  static Result<std::vector<Work>> run_together(std::span<const Part> parts, Stream stream);

 private:
  std::shared_ptr<CommState> state_;
};

}  // namespace weir
