// SPDX-License-Identifier: Apache-2.0
#include "tests/torch/contract/runner.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "tests/torch/contract/legality.h"
#include "tests/torch/contract/subject.h"

namespace weir::contract {
namespace {

using Kind = Step::Kind;

// A flag in the host's memory that kernels wait for.
class HostFlag final : public SimPeers {
 public:
  std::uint64_t arrive(const std::string&) override { return ++kernels_; }
  Status await(std::uint64_t) override {
    if (set_) return {};
    return Error(ErrorCode::device, "the host has yet to set the flag");
  }
  bool are_there(std::uint64_t) const override { return set_; }
  void set() { set_ = true; }

 private:
  bool set_ = false;
  std::uint64_t kernels_ = 0;
};

// Of calls that grow with what they do, and of some others.
CostModel costs(std::int64_t slowness) {
  CostModel costs;
  for (Nanoseconds* const cost :
       {&costs.create, &costs.set_access_per_mapping, &costs.unmap_per_mapping, &costs.record,
        &costs.query, &costs.wait, &costs.launch_graph, &costs.instantiate_per_node}) {
    cost->count *= slowness;
  }
  return costs;
}

class Runner {
 public:
  Runner(const Program& program, const MakeAllocator& make, const RunOptions& options)
      : program_(program),
        options_(options),
        legality_(program),
        device_({.memory = program.memory,
                 .address_seed = options.address_seed,
                 .costs = costs(options.slowness)}) {
    allocator_ = make(device_);
    streams_[0].stream = device_.stream(nullptr).value();
    for (std::uint32_t i = 1; i < program.streams; ++i) streams_[i].stream = device_.new_stream();
  }

  Outcome run() {
    for (; at_ < program_.steps.size() && !failed() && !cut_short_; ++at_) {
      const Step& step = program_.steps[at_];
      const std::uint64_t waits = device_.host_waits();
      make(step);
      legality_.apply(step);
      check_pool(step);
      if (step.kind == Kind::restore_pool && !cut_short_) note_restored();
      if (!may_wait(step)) note_host_waits(device_.host_waits() - waits);
      look_for_races();
      if (options_.validate_every != 0 && at_ % options_.validate_every == 0) validate();
    }
    if (!failed()) finish();
    return std::move(outcome_);
  }

 private:
  struct Tensor {
    Address address;
    Bytes bytes;
    bool live = false;
  };
  struct Graph {
    Stream origin;
    StreamName name;  // of the origin
    PoolId pool;
    bool raw = false;
    std::shared_ptr<std::uint64_t> capture = std::make_shared<std::uint64_t>(0);
    ExecutableHandle executable;
  };

  bool failed() const { return outcome_.failure.has_value(); }
  void fail(Failure::Kind kind, std::string what) {
    if (!failed()) outcome_.failure = Failure{kind, at_, std::move(what)};
  }
  // Of a call that the program itself makes to the device, and that CUDA would allow.
  void expect(const Status& status, Failure::Kind kind) {
    if (!status) fail(kind, status.error().message());
  }
  // Of a call of the allocator.
  void expect_granted(const Status& status) {
    if (status) return;
    const bool hangs = status.error().message().find("wait for ever") != std::string::npos;
    fail(hangs ? Failure::Kind::hang : Failure::Kind::refused, status.error().message());
  }
  Stream stream(std::uint32_t number) const { return streams_.at(number).stream; }

  bool may_wait(const Step& step) const {
    switch (step.kind) {
      case Kind::synchronize_event:
      case Kind::synchronize_stream:
      case Kind::synchronize_device:
      case Kind::empty_cache:
      case Kind::set_limit:
        return true;
      case Kind::allocate:
        return limited_;
      case Kind::drop:
        return uncached_.contains(step.tensor);
      default:
        return false;
    }
  }
  void note_host_waits(std::uint64_t waits) {
    outcome_.host_waits += waits;
    if (waits > 0 && options_.host_waits_fail) {
      fail(Failure::Kind::host_wait, "the host waited where the native allocator never does");
    }
  }

  void look_for_races() {
    if (device_.race_count() == 0 || failed()) return;
    const Race race = device_.races().front();
    const bool unmapped = race.kind == Race::Kind::unmapped_in_use;
    fail(unmapped ? Failure::Kind::unmapped : Failure::Kind::overwritten, race.describe());
  }

  void check_pool(const Step& step) {
    const auto made = tensors_.find(step.tensor);
    if (step.kind != Kind::allocate || made == tensors_.end()) return;
    const PoolId pool = allocator_->pool_of(made->second.address.pointer());
    if (pool.second == legality_.tensors().at(step.tensor).pool) return;
    fail(Failure::Kind::wrong_pool,
         "tensor " + std::to_string(step.tensor) + " is of pool " + std::to_string(pool.second));
  }
  void note_restored() {
    for (auto& [number, tensor] : tensors_) {
      tensor.live = legality_.tensors().at(number).live;
    }
  }

  void validate() {
    const std::vector<std::string> broken = allocator_->validate();
    if (!broken.empty()) fail(Failure::Kind::broken_books, broken.front());
  }

  void finish() {
    for (auto& [number, flag] : flags_) flag->set();
    device_.finish();
    for (auto& [number, graph] : graphs_) {
      if (graph.executable.value != 0) drop(graph);
    }
    for (auto& [number, tensor] : tensors_) {
      if (tensor.live) expect_granted(allocator_->deallocate(tensor.address.pointer()));
    }
    allocator_->set_caching(true);
    expect_granted(allocator_->set_limit(0_B));
    expect_granted(allocator_->empty_cache());
    look_for_races();
    validate();
    outcome_.peak = device_.physical_peak();
    outcome_.layouts = allocator_->layouts();
    if (options_.most_memory > 0_B && outcome_.peak > options_.most_memory) {
      fail(Failure::Kind::too_much, std::to_string(outcome_.peak / 1_MiB) + " MiB were held, and " +
                                        std::to_string(options_.most_memory / 1_MiB) +
                                        " MiB are enough");
    }
    if (const Bytes live = allocator_->live_bytes(); options_.leaks_fail && live > 0_B) {
      fail(Failure::Kind::leaked, std::to_string(live.count) + " bytes are live at the end");
    }
    if (options_.goes_back && !failed()) look_whether_memory_goes_back();
    if (options_.moves_memory && !failed()) look_whether_memory_moves();
  }

  // Once its pools are gone, too.
  void look_whether_memory_goes_back() {
    for (std::uint32_t pool = 1; pool <= program_.steps.size() + 1; ++pool) {
      while (allocator_->release_pool({0, pool})) {
      }
    }
    expect_granted(allocator_->empty_cache());
    const Bytes held = device_.physical_bytes();
    if (held > 0_B) {
      fail(Failure::Kind::leaked, std::to_string(held / 1_MiB) + " MiB are held at the end");
    }
  }

  // Each stream's work on the block is done before the next one asks.
  void look_whether_memory_moves() {
    constexpr Bytes kBlock = 64_MiB;
    constexpr int kAsking = 4;
    const Bytes before = device_.physical_bytes();
    for (int i = 0; i < kAsking; ++i) {
      const StreamName asking{device_.new_stream()};
      const Result<void*> block = allocator_->allocate(kBlock, asking);
      if (!block) return expect_granted(block.error());
      (void)device_.launch(asking.stream, Writes(*block, kBlock), 1_us);
      expect_granted(allocator_->deallocate(*block));
      device_.advance(10_ms);
    }
    const Bytes grown = device_.physical_bytes() - before;
    if (grown <= kBlock * 2) return;
    fail(Failure::Kind::stays_apart,
         std::to_string(grown / 1_MiB) + " MiB serve " + std::to_string(kAsking) +
             " streams in turn that ask for " + std::to_string(kBlock / 1_MiB) + " MiB each");
  }

  void make(const Step& step);
  void allocate(const Step& step);
  void launch(const Step& step);
  void order(Stream later, Stream earlier);
  void synchronize(EventHandle event);
  void drop(const Step& step);
  PoolFilter takes_capture(const Graph& graph);
  PoolFilter takes_thread(std::uint32_t thread) {
    return [this, thread](void*) { return thread_ == thread; };
  }
  void begin_capture(const Step& step);
  void end_capture(const Step& step);
  void resume_pool(const Step& step);
  void fail_capture(const Step& step);
  void refuse_capture(const Step& step);
  void restore_pool(PoolId pool);
  void replay(const Step& step);
  void drop(Graph& graph);

  const Program& program_;
  const RunOptions options_;
  Legality legality_;
  SimDevice device_;
  std::unique_ptr<TorchAllocator> allocator_;
  std::map<std::uint32_t, StreamName> streams_;
  std::map<std::uint32_t, Tensor> tensors_;
  std::map<std::uint32_t, bool> uncached_;
  std::map<std::uint32_t, Graph> graphs_;
  std::map<std::uint32_t, EventHandle> events_;
  std::map<std::uint32_t, std::shared_ptr<HostFlag>> flags_;
  std::uint32_t thread_ = 0;  // that makes the step
  bool caching_ = true;
  bool limited_ = false;
  bool cut_short_ = false;  // the program would go on otherwise than the native allocator's
  std::size_t at_ = 0;
  Outcome outcome_;
};

void Runner::allocate(const Step& step) {
  StreamName name = streams_.at(step.stream);
  name.bare = step.on;
  Result<void*> block = allocator_->allocate(step.bytes, name);
  if (!block) {
    if (block.error().code() == ErrorCode::out_of_memory) {
      ++outcome_.out_of_memory;
    } else {
      expect_granted(block.error());
    }
    return;
  }
  tensors_[step.tensor] = {Address::of(*block), step.bytes, true};
  if (!caching_) {
    uncached_[step.tensor] = true;
  } else {
    outcome_.addresses.push_back(Address::of(*block));
  }
}

// Under a limit the memory may not be there, as for an allocation: the state is as it was, and what
// the program would do next is not what it does with the native allocator.
void Runner::restore_pool(PoolId pool) {
  const Bytes live = allocator_->live_bytes();
  const Status restored = allocator_->restore_pool(pool);
  if (restored || restored.error().code() != ErrorCode::out_of_memory || !limited_) {
    return expect_granted(restored);
  }
  ++outcome_.out_of_memory;
  cut_short_ = true;
  if (allocator_->live_bytes() != live) {
    fail(Failure::Kind::broken_books, "a pool that was not restored has other blocks than before");
  }
}

void Runner::launch(const Step& step) {
  std::vector<Access> accesses;
  for (const Use& use : step.uses) {
    const auto tensor = tensors_.find(use.tensor);
    if (tensor == tensors_.end()) continue;
    accesses.push_back({use.write ? Access::Kind::write : Access::Kind::read,
                        tensor->second.address, tensor->second.bytes});
  }
  SimRendezvous rendezvous;
  if (step.flag != 0) {
    std::shared_ptr<HostFlag>& flag = flags_[step.flag];
    if (flag == nullptr) flag = std::make_shared<HostFlag>();
    rendezvous.peers = flag;
  }
  const Status launched = device_.launch(stream(step.stream), accesses,
                                         {step.duration.count * options_.slowness}, rendezvous);
  if (launched) return;
  const bool lost = launched.error().code() == ErrorCode::capture;
  expect(launched, lost ? Failure::Kind::capture_lost : Failure::Kind::illegal_access);
}

void Runner::order(Stream later, Stream earlier) {
  const EventHandle event = device_.create_event().value();
  expect(device_.record(event, earlier), Failure::Kind::capture_lost);
  expect(device_.wait(later, event), Failure::Kind::capture_lost);
  (void)device_.destroy_event(event);
}

void Runner::synchronize(EventHandle event) {
  const Status done = device_.synchronize(event);
  if (done) return;
  const bool lost = done.error().code() == ErrorCode::capture;
  fail(lost ? Failure::Kind::capture_lost : Failure::Kind::hang, done.error().message());
}

void Runner::drop(const Step& step) {
  const auto tensor = tensors_.find(step.tensor);
  if (tensor == tensors_.end()) return;
  tensor->second.live = false;
  expect_granted(allocator_->deallocate(tensor->second.address.pointer()));
}

// As CUDAGraph's own: until the capture has begun it takes no stream.
PoolFilter Runner::takes_capture(const Graph& graph) {
  return [this, capture = graph.capture](void* handle) {
    const Result<CaptureInfo> info = device_.capture_info(Stream::of_captured(handle));
    return info && info->status == CaptureInfo::Status::active && info->id == *capture;
  };
}

void Runner::begin_capture(const Step& step) {
  Graph& graph = graphs_[step.graph];
  graph.origin = stream(step.stream);
  graph.name = streams_.at(step.stream);
  graph.raw = step.kind == Kind::begin_raw_capture;
  if (!graph.raw) {
    graph.pool = {0, step.pool};
    expect_granted(
        allocator_->begin_pool(graph.pool, takes_capture(graph), streams_.at(step.stream)));
  }
  expect(
      device_.begin_capture(graph.origin, graph.raw ? CaptureMode::relaxed : CaptureMode::global),
      Failure::Kind::capture_lost);
  const Result<CaptureInfo> info = device_.capture_info(graph.origin);
  if (info) *graph.capture = info->id;
}

void Runner::end_capture(const Step& step) {
  Graph& graph = graphs_.at(step.graph);
  Result<GraphHandle> captured = device_.end_capture(graph.origin);
  if (!captured) return fail(Failure::Kind::capture_lost, captured.error().message());
  if (!graph.raw) expect_granted(allocator_->end_pool(graph.pool, graph.name));
  if (device_.race_count() > 0) look_for_races();
  Result<ExecutableHandle> executable = device_.instantiate(*captured);
  if (!executable) return fail(Failure::Kind::capture_lost, executable.error().message());
  graph.executable = *executable;
  (void)device_.destroy_graph(*captured);
}

void Runner::resume_pool(const Step& step) {
  const Graph& graph = graphs_.at(step.graph);
  expect_granted(allocator_->begin_pool(graph.pool, takes_thread(step.thread), graph.name));
  if (step.on) expect_granted(allocator_->release_pool(graph.pool));
}

// The program asks about an event of the capture; cudaStreamEndCapture() then says no, and the rest
// of CUDAGraph.capture_end() is left out.
void Runner::fail_capture(const Step& step) {
  const Graph& graph = graphs_.at(step.graph);
  const EventHandle event = device_.create_event().value();
  (void)device_.record(event, graph.origin);
  (void)device_.query(event);
  (void)device_.destroy_event(event);
  if (device_.end_capture(graph.origin)) fail(Failure::Kind::refused, "the capture did not fail");
  allocator_->capture_failed(graph.name);
}

void Runner::refuse_capture(const Step& step) {
  Graph& graph = graphs_[step.graph];
  graph.origin = stream(step.stream);
  graph.name = streams_.at(step.stream);
  graph.pool = {0, step.pool};
  expect_granted(
      allocator_->begin_pool(graph.pool, takes_capture(graph), streams_.at(step.stream)));
  if (step.on) device_.fail(DeviceCall::begin_capture, 1);
  if (device_.begin_capture(graph.origin, CaptureMode::global)) {
    fail(Failure::Kind::refused, "the capture began");
  }
  allocator_->capture_failed(graph.name);
}

void Runner::replay(const Step& step) {
  const Status launched =
      device_.launch_graph(graphs_.at(step.graph).executable, stream(step.stream));
  const bool lost = !launched && launched.error().code() == ErrorCode::capture;
  expect(launched, lost ? Failure::Kind::capture_lost : Failure::Kind::illegal_access);
}

void Runner::drop(Graph& graph) {
  if (!graph.raw) expect_granted(allocator_->release_pool(graph.pool));
  expect(device_.destroy_executable(std::exchange(graph.executable, {})), Failure::Kind::refused);
}

void Runner::make(const Step& step) {
  thread_ = step.thread;
  switch (step.kind) {
    case Kind::make_stream:
      streams_[step.stream] = {device_.new_stream(), false};
      break;
    case Kind::destroy_stream:
      expect(device_.destroy_stream(stream(step.stream)), Failure::Kind::capture_lost);
      break;
    case Kind::allocate:
      allocate(step);
      break;
    case Kind::kernel:
      launch(step);
      break;
    case Kind::order:
      order(stream(step.stream), stream(step.other));
      break;
    case Kind::record_event: {
      EventHandle& event = events_[step.event];
      if (event.value == 0) event = device_.create_event().value();
      expect(device_.record(event, stream(step.stream)), Failure::Kind::capture_lost);
      break;
    }
    case Kind::wait_event:
      expect(device_.wait(stream(step.stream), events_.at(step.event)),
             Failure::Kind::capture_lost);
      break;
    case Kind::synchronize_event:
      synchronize(events_.at(step.event));
      break;
    case Kind::synchronize_stream: {
      const EventHandle event = device_.create_event().value();
      expect(device_.record(event, stream(step.stream)), Failure::Kind::capture_lost);
      synchronize(event);
      (void)device_.destroy_event(event);
      break;
    }
    case Kind::synchronize_device:
      device_.finish();
      break;
    case Kind::record_stream: {
      const auto tensor = tensors_.find(step.tensor);
      if (tensor == tensors_.end()) break;
      expect_granted(
          allocator_->record_stream(tensor->second.address.pointer(), streams_.at(step.stream)));
      break;
    }
    case Kind::drop:
      drop(step);
      break;
    case Kind::empty_cache:
      expect_granted(allocator_->empty_cache());
      break;
    case Kind::set_limit:
      limited_ = step.bytes > 0_B;
      expect_granted(allocator_->set_limit(step.bytes));
      break;
    case Kind::set_caching:
      caching_ = step.on;
      allocator_->set_caching(step.on);
      break;
    case Kind::make_pool:
      expect_granted(allocator_->retain_pool({0, step.pool}));
      break;
    case Kind::enter_pool:
      expect_granted(allocator_->begin_pool({0, step.pool}, takes_thread(step.thread),
                                            streams_.at(step.stream)));
      break;
    case Kind::leave_pool:
      expect_granted(allocator_->end_pool({0, step.pool}, streams_.at(step.stream)));
      expect_granted(allocator_->release_pool({0, step.pool}));
      break;
    case Kind::drop_pool:
      expect_granted(allocator_->release_pool({0, step.pool}));
      break;
    case Kind::begin_capture:
    case Kind::begin_raw_capture:
      begin_capture(step);
      break;
    case Kind::end_capture:
    case Kind::end_raw_capture:
      end_capture(step);
      break;
    case Kind::pause_pool:
      expect_granted(
          allocator_->end_pool(graphs_.at(step.graph).pool, graphs_.at(step.graph).name));
      break;
    case Kind::resume_pool:
      resume_pool(step);
      break;
    case Kind::fail_capture:
      fail_capture(step);
      break;
    case Kind::refuse_capture:
      refuse_capture(step);
      break;
    case Kind::replay:
      replay(step);
      break;
    case Kind::drop_graph:
      drop(graphs_.at(step.graph));
      break;
    case Kind::save_pool:
      expect_granted(allocator_->save_pool({0, step.pool}));
      break;
    case Kind::restore_pool:
      restore_pool({0, step.pool});
      break;
    case Kind::set_flag: {
      std::shared_ptr<HostFlag>& flag = flags_[step.flag];
      if (flag == nullptr) flag = std::make_shared<HostFlag>();
      flag->set();
      break;
    }
    case Kind::busy:
      device_.advance(step.duration);
      break;
  }
}

}  // namespace

const char* name_of(Failure::Kind kind) {
  static constexpr const char* kNames[] = {"overwritten while in use",
                                           "unmapped while in use",
                                           "illegal access",
                                           "capture lost",
                                           "error where the native allocator has none",
                                           "wrong pool",
                                           "hang",
                                           "host wait",
                                           "broken books",
                                           "leak",
                                           "too much memory",
                                           "memory no longer moves",
                                           "placed by time"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Failure::Kind::moved_in_time) + 1);
  return kNames[static_cast<std::size_t>(kind)];
}

Outcome run(const Program& program, const MakeAllocator& make, const RunOptions& options) {
  return Runner(program, make, options).run();
}

Outcome run_on_native(const Program& program, NativeDefect defect) {
  return run(program,
             [&](SimDevice& device) { return std::make_unique<NativeModel>(device, defect); });
}

// Are there captures of streams that nothing was allocated for before, and no tensor recorded on;
// or that may be destroyed at any time, and so can't be asked?
bool has_unseen_captures(const Program& program) {
  std::set<std::uint32_t> seen, external;
  for (const Step& step : program.steps) {
    const bool names = step.kind == Step::Kind::allocate || step.kind == Step::Kind::record_stream;
    if (names) seen.insert(step.stream);
    if (step.kind == Step::Kind::make_stream) external.insert(step.stream);
    if (step.kind != Step::Kind::begin_raw_capture) continue;
    if (!seen.contains(step.stream) || external.contains(step.stream)) return true;
  }
  return false;
}

// Weir moves memory by events of the context, until it meets a capture that nobody announced, or a
// stream that may end.
bool moves_memory(const Program& program) {
  const auto gives_up = [](const Step& step) {
    return step.kind == Step::Kind::begin_raw_capture || step.kind == Step::Kind::make_stream;
  };
  return !program.has_flags && std::none_of(program.steps.begin(), program.steps.end(), gives_up);
}

Outcome run_on_weir(const Program& program, const RunOptions& given) {
  const SubjectOptions subject{.never_waits = program.has_flags,
                               .captures_unseen = has_unseen_captures(program),
                               .fixed_addresses = given.fixed_addresses};
  RunOptions options = given;
  options.most_memory = run_on_native(program).peak * 3 / 2 + 128_MiB;
  options.leaks_fail = options.goes_back = true;
  options.moves_memory = moves_memory(program);
  const auto make = [&](SimDevice& device) { return std::make_unique<Subject>(device, subject); };
  Outcome outcome = run(program, make, options);
  if (!options.fixed_addresses || outcome.failure) return outcome;
  options.slowness = 50;
  options.address_seed = 7;
  const Outcome slow = run(program, make, options);
  if (slow.failure) return slow;
  if (outcome.addresses != slow.addresses || outcome.layouts != slow.layouts) {
    const auto [one, other] = std::mismatch(outcome.addresses.begin(), outcome.addresses.end(),
                                            slow.addresses.begin(), slow.addresses.end());
    outcome.failure =
        Failure{Failure::Kind::moved_in_time, program.steps.size(),
                "of two runs, placement " + std::to_string(one - outcome.addresses.begin()) +
                    " is the first that differs, or the layouts alone do"};
  }
  return outcome;
}

}  // namespace weir::contract
