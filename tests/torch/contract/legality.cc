// SPDX-License-Identifier: Apache-2.0
#include "tests/torch/contract/legality.h"

#include <algorithm>

namespace weir::contract {
namespace {

using Kind = Step::Kind;

// It does so whenever no pool is bound, though a capture may go on.
constexpr const char* kRecorded = "the native allocator may record an event on a captured stream";

Violation illegal(std::string what) { return {.what = std::move(what), .missing = {}}; }

bool share_a_pool(const Legality::Graph& a, const Legality::Graph& b) {
  return std::any_of(a.memory_of.begin(), a.memory_of.end(),
                     [&](std::uint32_t pool) { return b.memory_of.contains(pool); });
}

void add(std::vector<std::uint32_t>& streams, std::uint32_t stream) {
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
}

}  // namespace

void Clock::set(std::uint32_t actor, std::uint32_t time) {
  if (actor >= times_.size()) times_.resize(actor + 1);
  times_[actor] = time;
}

void Clock::join(const Clock& other) {
  if (times_.size() < other.times_.size()) times_.resize(other.times_.size());
  for (std::size_t i = 0; i < other.times_.size(); ++i) {
    times_[i] = std::max(times_[i], other.times_[i]);
  }
}

Legality::Legality(const Program& program) {
  for (std::uint32_t stream = 0; stream < program.streams; ++stream) {
    streams_[stream].live = true;
    eager_actor_[stream] = new_actor(stream, 0);
  }
}

const Legality::Tensor* Legality::tensor(std::uint32_t number) const {
  const auto known = tensors_.find(number);
  return known == tensors_.end() ? nullptr : &known->second;
}

const Legality::Graph* Legality::graph(std::uint32_t number) const {
  const auto known = graphs_.find(number);
  return known == graphs_.end() ? nullptr : &known->second;
}

bool Legality::live(std::uint32_t stream) const {
  const auto known = streams_.find(stream);
  return known != streams_.end() && known->second.live;
}

std::uint32_t Legality::capture_of(std::uint32_t stream) const {
  const auto known = streams_.find(stream);
  return known == streams_.end() ? 0 : known->second.capture;
}

std::uint32_t Legality::actor_of(std::uint32_t stream) const {
  const std::uint32_t capture = capture_of(stream);
  return capture == 0 ? eager_actor_.at(stream) : graphs_.at(capture).streams.at(stream);
}

std::uint32_t Legality::new_actor(std::uint32_t stream, std::uint32_t world) {
  stream_of_.push_back(stream);
  world_of_.push_back(world);
  clocks_.emplace_back();
  return static_cast<std::uint32_t>(clocks_.size() - 1);
}

Clock Legality::clock_of(std::uint32_t actor) const {
  Clock clock = clocks_[actor];
  if (world_of_[actor] == 0) clock.join(host_);
  return clock;
}

Legality::Point Legality::work(std::uint32_t actor) {
  if (world_of_[actor] == 0) clocks_[actor].join(host_);
  const Point point{actor, clocks_[actor][actor] + 1};
  clocks_[actor].set(actor, point.time);
  return point;
}

bool Legality::capturing() const {
  return std::any_of(graphs_.begin(), graphs_.end(), [](const auto& each) {
    return each.second.state == Graph::State::capturing && !each.second.raw;
  });
}

bool Legality::any_capture() const {
  return std::any_of(graphs_.begin(), graphs_.end(),
                     [](const auto& each) { return each.second.state == Graph::State::capturing; });
}

// Failed captures leave bindings that serve nobody.
bool Legality::pool_served() const {
  return std::any_of(bindings_.begin(), bindings_.end(), [&](std::uint32_t number) {
    const Pool& pool = pools_.at(number);
    return pool.by || graphs_.at(pool.graph).state == Graph::State::capturing;
  });
}

std::vector<std::uint32_t> Legality::flags_awaited() const {
  std::vector<std::uint32_t> flags;
  for (const auto& [number, flag] : flags_) {
    if (!flag.set && !flag.kernels.empty()) flags.push_back(number);
  }
  return flags;
}

bool Legality::flag_awaited() const { return !flags_awaited().empty(); }

std::uint32_t Legality::bound_pool(std::uint32_t thread, std::uint32_t stream) const {
  for (auto pool = bindings_.rbegin(); pool != bindings_.rend(); ++pool) {
    const Pool& each = pools_.at(*pool);
    const std::optional<std::uint32_t> by = each.by ? each.by : each.resumed_by;
    const bool takes = by ? *by == thread : each.graph != 0 && capture_of(stream) == each.graph;
    if (takes) return *pool;
  }
  return 0;
}

void Legality::need(Point point, std::uint32_t world, const Clock& clock,
                    Violation& missing) const {
  if (world_of_[point.actor] != world || covers(clock, point)) return;
  add(missing.missing, stream_of_[point.actor]);
}

void Legality::check_use(const Tensor& tensor, bool write, std::uint32_t world, const Clock& clock,
                         Violation& missing) const {
  need(tensor.allocation, world, clock, missing);
  const auto drops = drops_.find({tensor.pool, tensor.stream});
  if (!tensor.uncached && drops != drops_.end()) {
    for (std::size_t i = 0; i < tensor.older_drops; ++i) {
      need(drops->second[i], world, clock, missing);
    }
  }
  for (const TensorUse& use : tensor.uses) {
    if (write || use.write) need(use.point, world, clock, missing);
  }
  if (tensor.pool == 0 || world != 0) return;
  for (const auto& [number, graph] : graphs_) {
    if (!graph.memory_of.contains(tensor.pool) || graph.begun_at > tensor.allocated_at) continue;
    for (const Point replay : graph.replays) need(replay, world, clock, missing);
  }
}

std::optional<Violation> Legality::check_host_wait(const Clock& clock) const {
  if (capturing()) return illegal("the host may not wait while a capture goes on");
  for (const auto& [number, flag] : flags_) {
    if (flag.set) continue;
    for (const Point kernel : flag.kernels) {
      if (covers(clock, kernel)) {
        return illegal("the host waits for a kernel that waits for a flag of the host");
      }
    }
  }
  return std::nullopt;
}

std::optional<Violation> Legality::check_allocate(const Step& step) const {
  if (!live(step.stream)) return illegal("no such stream");
  if (tensor(step.tensor) != nullptr) return illegal("the tensor was allocated already");
  if (!caching_ && any_capture()) return illegal("cudaMalloc during a capture");
  if (limit_ > 0_B && flag_awaited()) return illegal("cudaFree would wait for a flag");
  return std::nullopt;
}

std::optional<Violation> Legality::check_kernel(const Step& step) const {
  if (!live(step.stream)) return illegal("no such stream");
  if (step.flag != 0 && capture_of(step.stream) != 0) return illegal("a flag in a capture");
  const Clock clock = clock_of(actor_of(step.stream));
  Violation missing{.what = "the kernel is not ordered after earlier uses of its memory",
                    .missing = {}};
  for (const Use& use : step.uses) {
    const Tensor* const used = tensor(use.tensor);
    if (used == nullptr || !used->live) return illegal("the tensor is not live");
    if (captured_elsewhere(*used, capture_of(step.stream))) {
      return illegal("the tensor is of a capture that goes on");
    }
    check_use(*used, use.write, capture_of(step.stream), clock, missing);
  }
  if (!missing.missing.empty()) return missing;
  return std::nullopt;
}

std::optional<Violation> Legality::check_order(const Step& step) const {
  if (!live(step.stream) || !live(step.other)) return illegal("no such stream");
  if (step.stream == step.other) return illegal("a stream waits for itself");
  const std::uint32_t later = capture_of(step.stream), earlier = capture_of(step.other);
  if (later == earlier) return std::nullopt;
  if (later != 0) return illegal("a captured stream waits for work outside its capture");
  if (step.stream == 0) return illegal("the default stream can't be captured");
  if (unserved(earlier) && streams_.at(step.stream).recorded) return illegal(kRecorded);
  return std::nullopt;
}

std::optional<Violation> Legality::check_drop(const Step& step) const {
  const Tensor* const dropped = tensor(step.tensor);
  if (dropped == nullptr || !dropped->live) return illegal("the tensor is not live");
  if (dropped->uncached && capturing()) return illegal("cudaFree during a capture");
  if (dropped->uncached && flag_awaited()) return illegal("cudaFree would wait for a flag");
  for (const auto& [number, graph] : graphs_) {
    if (graph.state != Graph::State::capturing || !graph.uses.contains(step.tensor)) continue;
    if (graph.raw || graph.pool != dropped->pool) return illegal("the capture uses the tensor");
  }
  return std::nullopt;
}

std::optional<Violation> Legality::check_begin_capture(const Step& step) const {
  if (!live(step.stream) || step.stream == 0) return illegal("the stream can't be captured");
  if (capture_of(step.stream) != 0) return illegal("the stream is captured already");
  if (graph(step.graph) != nullptr || step.graph == 0) return illegal("the graph was captured");
  if (step.kind == Kind::begin_raw_capture) {
    if (streams_.at(step.stream).recorded) return illegal(kRecorded);
    return std::nullopt;
  }
  if (limit_ > 0_B || !caching_) return illegal("cudaMalloc or cudaFree during a capture");
  for (const auto& [number, each] : graphs_) {
    if (each.state == Graph::State::capturing && !each.raw && each.thread == step.thread) {
      return illegal("the thread captures already");
    }
  }
  return check_pool_for_capture(step);
}

std::optional<Violation> Legality::check_pool_for_capture(const Step& step) const {
  const auto pool = pools_.find(step.pool);
  if (step.pool == 0) return illegal("no such pool");
  if (pool == pools_.end()) return std::nullopt;
  if (pool->second.uses == 0) return illegal("the pool is gone");
  if (pool->second.graph != 0 || pool->second.by) return illegal("the pool is allocated from");
  // Weir refuses it (docs/guarantees.md, captures that pause).
  std::map<std::uint32_t, std::set<std::uint32_t>> streams;  // by capture
  for (const auto& [number, each] : tensors_) {
    if (each.pool != step.pool || !captured_elsewhere(each, 0)) continue;
    std::set<std::uint32_t>& used_on = streams[each.world];
    used_on.insert(each.stream);
    used_on.insert(each.recorded.begin(), each.recorded.end());
    if (used_on.size() > 1) return illegal("a capture that goes on used the pool on two streams");
  }
  return std::nullopt;
}

std::optional<Violation> Legality::check_refused_capture(const Step& step) const {
  if (!live(step.stream) || step.stream == 0) return illegal("the stream can't be captured");
  if ((capture_of(step.stream) == 0) != step.on) return illegal("nothing refuses the capture");
  if (graph(step.graph) != nullptr || step.graph == 0) return illegal("the graph was captured");
  if (limit_ > 0_B || !caching_) return illegal("cudaMalloc or cudaFree during a capture");
  return check_pool_for_capture(step);
}

std::optional<Violation> Legality::check_pause(const Step& step) const {
  const Graph* const captured = graph(step.graph);
  if (captured == nullptr || captured->state != Graph::State::capturing || captured->raw) {
    return illegal("the graph is not being captured");
  }
  if (captured->thread != step.thread) return illegal("another thread's capture");
  if (step.kind == Kind::fail_capture) {
    if (!pools_.at(captured->pool).resumed_by) return std::nullopt;
    return illegal("the thread would allocate from the pool for ever");
  }
  if (captured->paused != (step.kind == Kind::resume_pool)) {
    return illegal("the pool takes requests already, or takes none");
  }
  if (step.kind == Kind::resume_pool) return std::nullopt;
  const auto recorded = [&](const auto& each) {
    return each.second.capture != 0 && each.second.recorded;
  };
  if (std::any_of(streams_.begin(), streams_.end(), recorded)) return illegal(kRecorded);
  return std::nullopt;
}

std::optional<Violation> Legality::check_end_capture(const Step& step) const {
  const Graph* const ended = graph(step.graph);
  if (ended == nullptr || ended->state != Graph::State::capturing) {
    return illegal("the graph is not being captured");
  }
  if (ended->raw != (step.kind == Kind::end_raw_capture)) return illegal("another's capture");
  if (!ended->raw && ended->thread != step.thread) return illegal("another thread's capture");
  if (ended->paused) return illegal("the pool takes no requests");
  const Clock& end = clocks_[ended->streams.at(ended->origin)];
  for (const auto& [stream, actor] : ended->streams) {
    if (end[actor] < clocks_[actor][actor]) return illegal("a forked stream has not joined");
  }
  return std::nullopt;
}

std::optional<Violation> Legality::check_replay(const Step& step) const {
  const Graph* const replayed = graph(step.graph);
  if (replayed == nullptr || replayed->state != Graph::State::ready) {
    return illegal("the graph can't be replayed");
  }
  if (!live(step.stream) || capture_of(step.stream) != 0) return illegal("no such eager stream");
  Clock clock = clock_of(actor_of(step.stream));
  clock.join(replayed->last_replay);
  Violation missing{.what = "the replay is not ordered after earlier uses of its memory",
                    .missing = {}};
  for (const auto& [number, write] : replayed->uses) {
    const Tensor& used = tensors_.at(number);
    const bool pools_own = !replayed->raw && used.world == step.graph && used.pool != 0;
    if (!used.live && !pools_own) return illegal("an input of the graph was dropped");
    if (!used.live && pools_.at(used.pool).uses == 0) return illegal("the memory's pool is gone");
    if (captured_elsewhere(used, 0)) return illegal("the tensor is of a capture that goes on");
    check_use(used, write, 0, clock, missing);
  }
  for (const auto& [number, other] : tensors_) {
    if (!replayed->memory_of.contains(other.pool)) continue;
    if (other.allocated_at < replayed->begun_at) continue;
    for (const TensorUse& use : other.uses) need(use.point, 0, clock, missing);
  }
  for (const auto& [number, other] : graphs_) {
    if (!share_a_pool(*replayed, other)) continue;
    for (const Point replay : other.replays) need(replay, 0, clock, missing);
  }
  if (!missing.missing.empty()) return missing;
  return std::nullopt;
}

std::optional<Violation> Legality::check_pool_state(const Step& step) const {
  const auto pool = pools_.find(step.pool);
  if (pool == pools_.end() || pool->second.uses == 0) return illegal("no such pool");
  if (any_capture() || pool->second.by || pool->second.graph != 0) {
    return illegal("the pool is allocated from");
  }
  if (pool->second.recorded) return illegal("blocks of the pool may wait for events");
  if (step.kind == Kind::restore_pool && !pool->second.saved) return illegal("no state was saved");
  return std::nullopt;
}

std::optional<Violation> Legality::check(const Step& step) const {
  switch (step.kind) {
    case Kind::make_stream:
      if (streams_.contains(step.stream)) return illegal("the stream exists already");
      return std::nullopt;
    case Kind::destroy_stream: {
      const auto known = streams_.find(step.stream);
      if (known == streams_.end() || !known->second.live || !known->second.external) {
        return illegal("no such external stream");
      }
      if (known->second.capture != 0) return illegal("the stream is being captured");
      if (known->second.deferred) return illegal("an event is yet to be recorded on the stream");
      const std::uint32_t actor = eager_actor_.at(step.stream);
      if (host_[actor] < clocks_[actor][actor]) return illegal("the stream is at work");
      for (const auto& [number, each] : tensors_) {
        if (each.live && each.recorded.contains(step.stream)) {
          return illegal("a live tensor was recorded on the stream");
        }
      }
      return std::nullopt;
    }
    case Kind::allocate:
      return check_allocate(step);
    case Kind::kernel:
      return check_kernel(step);
    case Kind::order:
      return check_order(step);
    case Kind::record_event:
      if (!live(step.stream) || capture_of(step.stream) != 0) return illegal("no eager stream");
      return std::nullopt;
    case Kind::wait_event:
      if (!live(step.stream) || capture_of(step.stream) != 0) return illegal("no eager stream");
      if (!events_.contains(step.event)) return illegal("no such event");
      return std::nullopt;
    case Kind::synchronize_event:
      if (!events_.contains(step.event)) return illegal("no such event");
      return check_host_wait(events_.at(step.event));
    case Kind::synchronize_stream:
      if (!live(step.stream) || capture_of(step.stream) != 0) return illegal("no eager stream");
      return check_host_wait(clocks_[actor_of(step.stream)]);
    case Kind::synchronize_device:
      if (any_capture()) return illegal("the host waits for the device during a capture");
      if (flag_awaited()) return illegal("the host waits for a kernel that waits for its flag");
      return std::nullopt;
    case Kind::record_stream: {
      const Tensor* const used = tensor(step.tensor);
      if (used == nullptr || !used->live) return illegal("the tensor is not live");
      if (used->uncached) return illegal("no memory of the allocator's");
      if (!live(step.stream)) return illegal("no such stream");
      const std::uint32_t capture = capture_of(step.stream);
      if (capture != 0 && unserved(capture)) return illegal(kRecorded);
      return std::nullopt;
    }
    case Kind::drop:
      return check_drop(step);
    case Kind::empty_cache:
      if (capturing()) return illegal("cudaFree during a capture");
      if (flag_awaited()) return illegal("cudaFree would wait for a flag");
      return std::nullopt;
    case Kind::set_limit:
      if (capturing() || flag_awaited()) return illegal("cudaFree during a capture");
      return std::nullopt;
    case Kind::set_caching:
      if (any_capture() || flag_awaited()) return illegal("cudaMalloc during a capture");
      return std::nullopt;
    case Kind::make_pool:
      if (step.pool == 0 || pools_.contains(step.pool)) return illegal("the pool exists");
      return std::nullopt;
    case Kind::enter_pool: {
      const auto pool = pools_.find(step.pool);
      if (pool == pools_.end() || !pool->second.object) return illegal("no such pool");
      if (pool->second.by || pool->second.graph != 0) return illegal("it is allocated from");
      return std::nullopt;
    }
    case Kind::leave_pool: {
      const auto pool = pools_.find(step.pool);
      if (pool == pools_.end() || pool->second.by != step.thread) {
        return illegal("the thread does not allocate from the pool");
      }
      return std::nullopt;
    }
    case Kind::drop_pool: {
      const auto pool = pools_.find(step.pool);
      if (pool == pools_.end() || !pool->second.object) return illegal("no such pool");
      if (pool->second.by) return illegal("it is allocated from");
      return std::nullopt;
    }
    case Kind::begin_capture:
    case Kind::begin_raw_capture:
      return check_begin_capture(step);
    case Kind::end_capture:
    case Kind::end_raw_capture:
      return check_end_capture(step);
    case Kind::pause_pool:
    case Kind::resume_pool:
    case Kind::fail_capture:
      return check_pause(step);
    case Kind::refuse_capture:
      return check_refused_capture(step);
    case Kind::replay:
      return check_replay(step);
    case Kind::drop_graph: {
      const Graph* const dropped = graph(step.graph);
      if (dropped == nullptr || dropped->state != Graph::State::ready) {
        return illegal("no such graph");
      }
      return std::nullopt;
    }
    case Kind::save_pool:
    case Kind::restore_pool:
      return check_pool_state(step);
    case Kind::set_flag:
    case Kind::busy:
      return std::nullopt;
  }
  return std::nullopt;
}

void Legality::allocate(const Step& step) {
  Tensor& made = tensors_[step.tensor];
  made.live = true;
  made.bytes = step.bytes;
  made.stream = step.stream;
  made.world = capture_of(step.stream);
  made.uncached = !caching_;
  made.pool = made.uncached ? 0 : bound_pool(step.thread, step.stream);
  made.allocated_at = steps_;
  made.allocation = work(actor_of(step.stream));
  if (!made.uncached) made.older_drops = drops_[{made.pool, made.stream}].size();
  if (made.world != 0 && made.pool != 0 && !graphs_.at(made.world).raw) {
    graphs_.at(made.world).memory_of.insert(made.pool);
  }
}

void Legality::use(std::uint32_t number, bool write, Point point, std::uint32_t world) {
  tensors_.at(number).uses.push_back({point, write, world});
}

void Legality::drop(std::uint32_t number) {
  Tensor& dropped = tensors_.at(number);
  dropped.live = false;
  for (const std::uint32_t stream : dropped.recorded) {
    if (pool_served()) streams_.at(stream).deferred = true;
  }
  std::vector<Point> uncached;
  std::vector<Point>& drops = dropped.uncached ? uncached : drops_[{dropped.pool, dropped.stream}];
  for (const TensorUse& use : dropped.uses) {
    const std::uint32_t stream = stream_of_[use.point.actor];
    if (stream != dropped.stream && dropped.recorded.contains(stream)) continue;
    drops.push_back(use.point);
  }
}

// The pool stays bound, unless it was paused; PyTorch takes no capture into it then.
void Legality::fail(const Step& step) {
  Graph& failed = graphs_.at(step.graph);
  failed.state = Graph::State::failed;
  for (const auto& [stream, actor] : failed.streams) streams_.at(stream).capture = 0;
  if (failed.paused) pools_.at(failed.pool).graph = 0;
  failed.paused = false;
}

void Legality::replay(const Step& step) {
  Graph& replayed = graphs_.at(step.graph);
  const std::uint32_t actor = actor_of(step.stream);
  clocks_[actor].join(replayed.last_replay);
  const Point point = work(actor);
  for (const auto& [number, write] : replayed.uses) {
    use(number, write, point, 0);
    const Tensor& used = tensors_.at(number);
    if (!used.live) drops_[{used.pool, used.stream}].push_back(point);
  }
  replayed.replays.push_back(point);
  replayed.last_replay = clocks_[actor];
}

// What is live and was not is dropped; what was live and is not any more lies where it lay.
void Legality::restore(const Step& step) {
  const std::set<std::uint32_t> saved = *pools_.at(step.pool).saved;
  for (const auto& [number, each] : tensors_) {
    if (each.pool == step.pool && each.live && !saved.contains(number)) drop(number);
  }
  for (const std::uint32_t number : saved) {
    Tensor& again = tensors_.at(number);
    if (again.live) continue;
    again.live = true;
    again.allocated_at = steps_;
    again.older_drops = drops_[{again.pool, again.stream}].size();
  }
}

void Legality::apply(const Step& step) {
  ++steps_;
  switch (step.kind) {
    case Kind::make_stream:
      streams_[step.stream] = {.live = true, .external = true};
      eager_actor_[step.stream] = new_actor(step.stream, 0);
      break;
    case Kind::destroy_stream:
      streams_.at(step.stream).live = false;
      break;
    case Kind::allocate:
      allocate(step);
      break;
    case Kind::kernel: {
      const Point point = work(actor_of(step.stream));
      const std::uint32_t capture = capture_of(step.stream);
      for (const Use& each : step.uses) {
        use(each.tensor, each.write, point, capture);
        if (capture == 0) continue;
        bool& written = graphs_.at(capture).uses[each.tensor];
        written = written || each.write;
      }
      if (step.flag != 0) flags_[step.flag].kernels.push_back(point);
      break;
    }
    case Kind::order: {
      const std::uint32_t capture = capture_of(step.other);
      const Clock earlier = clock_of(actor_of(step.other));
      if (capture != capture_of(step.stream)) {
        streams_.at(step.stream).capture = capture;
        graphs_.at(capture).streams[step.stream] = new_actor(step.stream, capture);
      }
      clocks_[actor_of(step.stream)].join(earlier);
      break;
    }
    case Kind::record_event:
      events_[step.event] = clock_of(actor_of(step.stream));
      break;
    case Kind::wait_event:
      clocks_[actor_of(step.stream)].join(events_.at(step.event));
      break;
    case Kind::synchronize_event:
      host_.join(events_.at(step.event));
      break;
    case Kind::synchronize_stream:
      host_.join(clocks_[actor_of(step.stream)]);
      break;
    case Kind::synchronize_device:
      for (const auto& [stream, actor] : eager_actor_) host_.join(clocks_[actor]);
      break;
    case Kind::record_stream:
      tensors_.at(step.tensor).recorded.insert(step.stream);
      streams_.at(step.stream).recorded = true;
      if (const std::uint32_t pool = tensors_.at(step.tensor).pool; pool != 0) {
        pools_.at(pool).recorded = true;
      }
      break;
    case Kind::drop:
      drop(step.tensor);
      break;
    case Kind::empty_cache:
      break;
    case Kind::set_limit:
      limit_ = step.bytes;
      break;
    case Kind::set_caching:
      caching_ = step.on;
      break;
    case Kind::make_pool:
      pools_[step.pool] = {.uses = 1, .object = true};
      break;
    case Kind::enter_pool:
      ++pools_.at(step.pool).uses;
      pools_.at(step.pool).by = step.thread;
      bindings_.push_back(step.pool);
      break;
    case Kind::leave_pool:
      --pools_.at(step.pool).uses;
      pools_.at(step.pool).by.reset();
      std::erase(bindings_, step.pool);
      break;
    case Kind::drop_pool:
      --pools_.at(step.pool).uses;
      pools_.at(step.pool).object = false;
      break;
    case Kind::begin_capture:
    case Kind::begin_raw_capture: {
      Graph& made = graphs_[step.graph];
      made.raw = step.kind == Kind::begin_raw_capture;
      made.pool = made.raw ? 0 : step.pool;
      made.thread = step.thread;
      made.origin = step.stream;
      made.begun_at = steps_;
      made.streams[step.stream] = new_actor(step.stream, step.graph);
      streams_.at(step.stream).capture = step.graph;
      if (made.raw) break;
      made.memory_of = {step.pool};
      ++pools_[step.pool].uses;
      pools_[step.pool].graph = step.graph;
      bindings_.push_back(step.pool);
      break;
    }
    case Kind::end_capture:
    case Kind::end_raw_capture: {
      Graph& ended = graphs_.at(step.graph);
      ended.state = Graph::State::ready;
      for (const auto& [stream, actor] : ended.streams) streams_.at(stream).capture = 0;
      if (ended.raw) break;
      pools_.at(ended.pool).graph = 0;
      pools_.at(ended.pool).resumed_by.reset();
      std::erase(bindings_, ended.pool);
      break;
    }
    case Kind::pause_pool: {
      Graph& captured = graphs_.at(step.graph);
      captured.paused = true;
      pools_.at(captured.pool).resumed_by.reset();
      std::erase(bindings_, captured.pool);
      break;
    }
    case Kind::resume_pool: {
      Graph& captured = graphs_.at(step.graph);
      captured.paused = false;
      if (!step.on) ++pools_.at(captured.pool).uses;
      pools_.at(captured.pool).resumed_by = step.thread;
      bindings_.push_back(captured.pool);
      break;
    }
    case Kind::fail_capture:
      fail(step);
      break;
    case Kind::refuse_capture: {
      Graph& made = graphs_[step.graph];
      made.state = Graph::State::failed;
      made.pool = step.pool;
      made.thread = step.thread;
      made.origin = step.stream;
      made.begun_at = steps_;
      ++pools_[step.pool].uses;
      pools_[step.pool].graph = step.graph;
      bindings_.push_back(step.pool);
      break;
    }
    case Kind::replay:
      replay(step);
      break;
    case Kind::drop_graph: {
      Graph& dropped = graphs_.at(step.graph);
      dropped.state = Graph::State::gone;
      if (!dropped.raw) --pools_.at(dropped.pool).uses;
      break;
    }
    case Kind::save_pool: {
      std::set<std::uint32_t>& saved = pools_.at(step.pool).saved.emplace();
      for (const auto& [number, each] : tensors_) {
        if (each.pool == step.pool && each.live) saved.insert(number);
      }
      break;
    }
    case Kind::restore_pool:
      restore(step);
      break;
    case Kind::set_flag:
      flags_[step.flag].set = true;
      break;
    case Kind::busy:
      break;
  }
}

std::optional<std::string> Legality::unfinished() const {
  if (any_capture()) return "a capture goes on";
  if (pool_served()) return "a thread allocates from a pool";
  if (flag_awaited()) return "a kernel waits for a flag";
  return std::nullopt;
}

std::optional<IllegalStep> first_illegal_step(const Program& program) {
  Legality legality(program);
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    if (const auto violation = legality.check(program.steps[i])) {
      return IllegalStep{i, violation->what};
    }
    legality.apply(program.steps[i]);
  }
  if (const auto open = legality.unfinished()) return IllegalStep{program.steps.size(), *open};
  return std::nullopt;
}

}  // namespace weir::contract
