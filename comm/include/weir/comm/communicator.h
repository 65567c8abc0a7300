// A communicator: one rank's part of a group of ranks that exchange data, each with a GPU.
//
//   Result<Communicator> world = Communicator::create({nccl, device, heap}, id, ranks, rank);
//   Status ready = world->prepare();          // connects everything: captures are possible now
//   Collectives collectives(*world);          // weir/comm/collectives.h
//
// What fails on one rank is noticed on the others: a thread of the communicator's looks for errors
// and for operations that do not end (NCCL itself waits for ever), and ends the communicator. After
// that every call returns what was found; memory is whole, and the process goes on, with shrink()
// or without ranks.
//
// Threads: any thread may call; calls are made one after the other. On all ranks operations must be
// asked for in the same order.
// Order of destruction: graphs that captured its operations, then the communicator, then the heap.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weir/comm/nccl.h"
#include "weir/device.h"
#include "weir/device_heap.h"
#include "weir/graph_pool.h"
#include "weir/result.h"

namespace weir {

class CapturedTogether;
class CommState;

struct CommunicatorOptions {
  std::string name = "world";  // in messages and in NCCL's logs
  // Longest that an operation, or the launch of a graph, may take, by the device's clock (which is
  // simulated where the device is); zero: none is watched. Each is timed from when it was queued,
  // or from when the one before it was seen to have ended; so it counts where an operation waits
  // for work of the caller's stream.
  Nanoseconds timeout{std::int64_t{600} * 1'000'000'000};
  // Longest that the host waits for other ranks, where it has to: to create, split, agree, close.
  // Real time, always.
  Nanoseconds patience{std::int64_t{120} * 1'000'000'000};
  // Has the watch end the communicator when it found an error? Else streams may wait for ever.
  bool aborts = true;
  // How often the watch looks, in a thread of its own; zero: when poll() is called.
  Nanoseconds watch_every{100'000'000};
  std::optional<int> most_blocks;  // of the GPU that an operation may take; NCCL's own choice
};

// Where a rank lives. All must outlive its communicators.
struct CommPlace {
  Nccl& nccl;
  Device& device;
  DeviceHeap& heap;
};

// One that was moved from has no rank (-1 of 0) and no name; calls about it, and those of
// collectives made of it, are errors (invalid_argument).
class Communicator {
 public:
  // Returns once all ranks have come. Errors: invalid_argument; device (a rank did not come within
  // `patience`, or NCCL refused).
  static Result<Communicator> create(CommPlace place, const UniqueId& id, int ranks, int rank,
                                     const CommunicatorOptions& options = {});
  Communicator(Communicator&&) noexcept;
  Communicator& operator=(Communicator&&) noexcept;
  // close(); an error is logged.
  ~Communicator();

  int rank() const;
  int ranks() const;
  const std::string& name() const;

  // Connects what would otherwise connect at first use: rings and trees, and this rank with every
  // other. From then on any operation can be captured, the first of its kind too. All ranks call
  // it; the host waits. Some tens of MiB of NCCL's own memory, for a second communicator that
  // ranks agree with. A second call does nothing.
  Status prepare();
  bool prepared() const;

  // Ends the capture, and agrees with the other ranks that all have captured the same operations of
  // this communicator: a graph whose ranks differ would wait for ever. All ranks call it; the host
  // waits. Where other communicators of this rank have operations in the capture, their ranks agree
  // too, in the order in which they joined it: one communicator ends the capture, the same on all
  // of its ranks. Errors: capture (names a rank whose capture failed or differs: no rank has a
  // graph then); device (a rank did not come).
  Result<Graph> end_capture(CaptureScope& capture);
  // Launches it, and watches that it ends: so do the others whose operations end_capture() found in
  // it. Errors: whatever ended one of them; those of Graph::launch.
  Status launch(Graph& graph, Stream stream);

  // The ranks of one color, in order of `key`, become a communicator; a negative color: of none.
  // All ranks call it, in no capture. Where not all come within the patience of `options`, this
  // communicator ends, as it does with shrink().
  Result<std::optional<Communicator>> split(int color, int key, CommunicatorOptions options = {});
  // The ranks that are left become one; those excluded do not call. Of a communicator that failed,
  // what goes on is ended first.
  Result<Communicator> shrink(std::span<const int> excluded, CommunicatorOptions options = {});

  // What ended it; success: it works. poll() looks for errors first, as the watch does.
  Status status() const;
  Status poll();
  // Ends what goes on, here; other ranks find out by their own watch. Waits for a call of another
  // thread that is at NCCL, up to 1 s: one that takes longer waits for other ranks, and is ended.
  void abort(const std::string& why);
  // Waits for its operations, and gives back what NCCL and Weir hold for it. Each of the two is
  // bounded by `patience`; no other call may go on. Ranks that are threads of one process: let them
  // meet after it, since NCCL then waits for all GPUs of the process, and so for whoever waits for
  // this rank. Errors: invalid_argument (graphs that captured its operations are alive: it stays as
  // it is); device (an operation did not end: it is named, and was ended; or NCCL's part did not:
  // that is left as it is, the rest is gone).
  Status close();

 private:
  friend class Bucketer;
  friend class Collectives;
  friend class RegisteredPool;
  explicit Communicator(std::shared_ptr<CommState> state);
  std::vector<std::shared_ptr<CommState>> others_in(
      const std::shared_ptr<CapturedTogether>& together) const;
  std::shared_ptr<CommState> state_;
};

}  // namespace weir
