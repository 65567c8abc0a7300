// Collectives, sends and receives on fenced streams.
//
//   Collectives collectives(world);
//   Result<Work> sum = collectives.all_reduce(gradient, gradient, count, DataType::float32,
//                                             {ReduceOp::sum}, compute);
//   heap.deallocate(gradient);          // at once: its block carries the fence
//   Status waited = sum->wait(compute); // where the result is needed: on the GPU, never the host
//
// An operation runs on the communicator's own stream, after the work that `stream` holds so far.
// The blocks of the device heap that the operation uses are fenced: they may be deallocated as soon
// as the call returns. (The caller must keep all other memory until the work is done.)
//
// In a capture (`stream` is being captured into a graph pool) the operation becomes part of the
// graph. Weir forks the communicator's stream, and joins it if a CaptureScope ends the capture; if
// the program ends the capture by other means, a captured stream must wait() for each Work. The
// communicator must be prepared; an unprepared one refuses the operation, and the capture stays
// intact.
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

// Operations that were queued. Cheap to copy; its destructor does nothing. A Work must not be used
// after its communicator is closed; the Work of a captured operation, not after the capture ends.
class Work {
 public:
  Work() = default;  // of nothing: wait() does nothing

  // Makes work queued on `stream` from now on run after the operation. For a captured operation,
  // `stream` is in the same capture, or in no capture and joins it. Errors: capture (the operation
  // was captured, and the stream is in another capture, or the capture is over; or the operation
  // was eager, and the stream is being captured); device.
  Status wait(Stream stream) const;
  bool captured() const { return capture_ != 0; }

 private:
  friend class Collectives;
  Work(std::shared_ptr<CommState> state, Fence fence, std::uint64_t capture, Stream comm_stream,
       EventHandle done);
  std::shared_ptr<CommState> state_;
  Fence fence_;                // eager
  std::uint64_t capture_ = 0;  // else its id,
  Stream comm_stream_;         // a stream that is in it, and
  EventHandle done_;           // an event of it
};

class Collectives {
 public:
  explicit Collectives(const Communicator& communicator) : state_(communicator.state_) {}

  // Counts are NCCL's (weir/comm/operation.h). Operations may be in place where NCCL allows it:
  // send == receive; for all_gather, send is this rank's part of receive; for reduce_scatter,
  // receive is this rank's part of send.
  // Errors: invalid_argument; capture (the communicator is not prepared; the capture is already
  // invalidated; no pool serves it); device (NCCL refused: the communicator has ended); whatever
  // ended the communicator.
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

  // Runs any operation, or several as one group (NCCL: ncclGroupStart, ncclGroupEnd). Sends and
  // receives between the same ranks must be one group. An empty group gives an empty Work.
  Result<Work> run(const Operation& operation, Stream stream) {
    return run(std::span<const Operation>(&operation, 1), stream);
  }
  Result<Work> run(std::span<const Operation> group, Stream stream);

  // Runs operations of several communicators of this rank as one group, so that no operation has to
  // end before another begins. Returns a Work for each part, in order. The communicators differ,
  // and have the same CommContext; all ranks list their common communicators in the same order.
  // Errors: those above; if NCCL refuses the group, all communicators end.
  struct Part {
    const Communicator& communicator;
    std::span<const Operation> operations;
  };
  static Result<std::vector<Work>> run_together(std::span<const Part> parts, Stream stream);

 private:
  std::shared_ptr<CommState> state_;
};

}  // namespace weir
