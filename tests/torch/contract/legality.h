// SPDX-License-Identifier: Apache-2.0
// Which programs PyTorch's own (native) allocator runs correctly, decided from program order alone.
//
// Program order is what streams, events and host waits that the program itself makes put in order,
// as vector clocks (Mattern 1989). No allocator is asked. A program is legal if
//   - two kernels that touch the same tensor, one of them writing, are in order;
//   - a tensor is used after its allocation in the order of streams (work on another stream than
//   the
//     allocation's waits for that one first), and not after it was dropped;
//   - before memory that was allocated after a tensor was dropped is used, in the same pool and for
//     the same stream, the dropped tensor's uses are over, unless record_stream() told of them.
//     (The native allocator gives memory out again within its pool and stream alone; elsewhere
//     memory goes by cudaFree, which waits for the device.)
//   - graphs that use memory of one pool, and tensors allocated in it after such a graph's capture
//     began, are used in order: a replay may write all memory that its capture got, and what of it
//     has been dropped may be given out again. Beside the graph's own pool, that is every pool (a
//     MemPool that a thread allocates from) that served a request of the capture;
//   - memory that was dropped is replayed on only while its pool is in use: then it goes by
//     cudaFree;
//   - captures, streams and pools are used as CUDA and PyTorch document, and the host waits for no
//     kernel that waits for a flag which the host sets later. A capture may fail, or not begin:
//     then its pool is captured into no more, and its tensors are memory like any other.
// The rules are slightly stricter than the native allocator where that makes them simpler.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/torch/contract/program.h"

namespace weir::contract {

// For each actor, up to which of its work is known to be in order before something.
class Clock {
 public:
  std::uint32_t operator[](std::uint32_t actor) const {
    return actor < times_.size() ? times_[actor] : 0;
  }
  void set(std::uint32_t actor, std::uint32_t time);
  void join(const Clock& other);

 private:
  std::vector<std::uint32_t> times_;
};

// Why a step may not come next.
struct Violation {
  std::string what;
  // Streams whose work has to come before the step's own stream; empty: no order would help.
  std::vector<std::uint32_t> missing;
};

class Legality {
 public:
  // A piece of work: the `time`-th of an actor. An actor is a stream, or a stream within a capture.
  struct Point {
    std::uint32_t actor = 0;
    std::uint32_t time = 0;
  };
  struct TensorUse {
    Point point;
    bool write = false;
    std::uint32_t world = 0;  // 0: eager; else the graph whose capture it is in
  };
  struct Tensor {
    bool live = false;
    bool uncached = false;
    Bytes bytes;
    std::uint32_t stream = 0;
    std::uint32_t pool = 0;   // 0: none
    std::uint32_t world = 0;  // it was allocated in
    std::uint32_t allocated_at = 0;
    Point allocation;
    std::size_t older_drops = 0;  // of its zone, when it was allocated
    std::vector<TensorUse> uses;
    std::set<std::uint32_t> recorded;
  };
  struct Graph {
    enum class State : std::uint8_t { capturing, ready, gone, failed };
    State state = State::capturing;
    bool raw = false;
    bool paused = false;  // its pool takes no requests
    std::uint32_t pool = 0;
    std::set<std::uint32_t> memory_of;  // pools that it may use memory of, its own among them
    std::uint32_t thread = 0;
    std::uint32_t origin = 0;
    std::uint32_t begun_at = 0;
    std::map<std::uint32_t, bool> uses;              // by tensor: is it written?
    std::map<std::uint32_t, std::uint32_t> streams;  // that are captured: the actor of each
    std::vector<Point> replays;
    Clock last_replay;
  };
  struct Stream {
    bool live = false;
    bool external = false;
    bool recorded = false;      // ever, by record_stream()
    bool deferred = false;      // the native allocator may have yet to record an event on it
    std::uint32_t capture = 0;  // the graph that it is being captured into
  };
  struct Pool {
    std::uint32_t uses = 0;
    bool object = false;      // the MemPool object lives
    std::uint32_t graph = 0;  // that is being captured with it, or whose capture failed
    std::optional<std::uint32_t> resumed_by;       // in that capture: the thread that it serves now
    std::optional<std::uint32_t> by;               // the thread that allocates from it
    bool recorded = false;                         // record_stream() was called on a tensor of it
    std::optional<std::set<std::uint32_t>> saved;  // the tensors that were live
  };

  explicit Legality(const Program& program);

  // Nothing: the step may come next.
  std::optional<Violation> check(const Step& step) const;
  // The step, which check() allows, is made.
  void apply(const Step& step);
  // What is left open, so that the program can't end here; nothing: it can.
  std::optional<std::string> unfinished() const;

  const std::map<std::uint32_t, Tensor>& tensors() const { return tensors_; }
  const std::map<std::uint32_t, Graph>& graphs() const { return graphs_; }
  const std::map<std::uint32_t, Stream>& streams() const { return streams_; }
  const std::map<std::uint32_t, Pool>& pools() const { return pools_; }
  bool capturing() const;     // a capture of PyTorch's goes on
  bool any_capture() const;   // or one of somebody else's
  bool pool_served() const;   // requests may go to a pool
  bool flag_awaited() const;  // a kernel waits for a flag that is not set
  std::vector<std::uint32_t> flags_awaited() const;
  bool caching() const { return caching_; }
  Bytes limit() const { return limit_; }

 private:
  // Memory that the native allocator gives out again: of a pool, for a stream.
  using Zone = std::pair<std::uint32_t, std::uint32_t>;
  struct Flag {
    bool set = false;
    std::vector<Point> kernels;
  };

  const Tensor* tensor(std::uint32_t number) const;
  const Graph* graph(std::uint32_t number) const;
  bool live(std::uint32_t stream) const;
  std::uint32_t capture_of(std::uint32_t stream) const;
  std::uint32_t actor_of(std::uint32_t stream) const;
  std::uint32_t new_actor(std::uint32_t stream, std::uint32_t world);
  // Of the work that is queued next on the actor.
  Clock clock_of(std::uint32_t actor) const;
  Point work(std::uint32_t actor);
  static bool covers(const Clock& clock, Point point) { return clock[point.actor] >= point.time; }
  // The pool that a request is served from.
  std::uint32_t bound_pool(std::uint32_t thread, std::uint32_t stream) const;

  // Adds the streams whose work has to come before a use of the tensor.
  void need(Point point, std::uint32_t world, const Clock& clock, Violation& missing) const;
  void check_use(const Tensor& tensor, bool write, std::uint32_t world, const Clock& clock,
                 Violation& missing) const;
  // Is the capture one that no pool serves now?
  bool unserved(std::uint32_t capture) const {
    return graphs_.at(capture).raw || graphs_.at(capture).paused;
  }
  // What is allocated in a capture is used elsewhere once the capture has ended.
  bool captured_elsewhere(const Tensor& tensor, std::uint32_t world) const {
    return tensor.world != world && tensor.world != 0 &&
           graphs_.at(tensor.world).state == Graph::State::capturing;
  }
  std::optional<Violation> check_host_wait(const Clock& clock) const;
  std::optional<Violation> check_allocate(const Step& step) const;
  std::optional<Violation> check_kernel(const Step& step) const;
  std::optional<Violation> check_order(const Step& step) const;
  std::optional<Violation> check_drop(const Step& step) const;
  std::optional<Violation> check_begin_capture(const Step& step) const;
  std::optional<Violation> check_end_capture(const Step& step) const;
  std::optional<Violation> check_pause(const Step& step) const;
  std::optional<Violation> check_refused_capture(const Step& step) const;
  std::optional<Violation> check_pool_for_capture(const Step& step) const;
  std::optional<Violation> check_replay(const Step& step) const;
  std::optional<Violation> check_pool_state(const Step& step) const;

  void allocate(const Step& step);
  void use(std::uint32_t number, bool write, Point point, std::uint32_t world);
  void drop(std::uint32_t tensor);
  void fail(const Step& step);
  void replay(const Step& step);
  void restore(const Step& step);

  std::vector<std::uint32_t> stream_of_;                // by actor
  std::vector<std::uint32_t> world_of_;                 // by actor
  std::vector<Clock> clocks_;                           // by actor
  Clock host_;                                          // what the host has waited for
  std::map<std::uint32_t, std::uint32_t> eager_actor_;  // by stream

  std::map<std::uint32_t, Tensor> tensors_;
  std::map<std::uint32_t, Graph> graphs_;
  std::map<std::uint32_t, Stream> streams_;
  std::map<std::uint32_t, Pool> pools_;
  std::map<std::uint32_t, Clock> events_;
  std::map<std::uint32_t, Flag> flags_;
  std::map<Zone, std::vector<Point>> drops_;  // uses of dropped tensors
  std::vector<std::uint32_t> bindings_;       // pools that are allocated from, the newest last
  bool caching_ = true;
  Bytes limit_;
  std::uint32_t steps_ = 0;
};

// The first step of the program that is not legal, and why; nothing: it is legal as a whole.
struct IllegalStep {
  std::size_t step = 0;  // steps.size(): it ends too early
  std::string what;
};
std::optional<IllegalStep> first_illegal_step(const Program& program);

}  // namespace weir::contract
