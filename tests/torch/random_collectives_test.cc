// SPDX-License-Identifier: Apache-2.0
// Random programs with operations of c10d, through PyTorch's dispatcher, on a simulated device that
// reports every access that nothing orders: tensors and Works are dropped or kept, and waited for
// never, once or twice, on any stream, by any thread, in captures and out of them.
//
// A program is a list of actions. An action's seed chooses among what there is when its turn comes,
// so that every list is a program, and one that fails is made shorter by leaving actions out. The
// orders that PyTorch documents are put in where an action needs them; those of memory of dropped
// tensors of asynchronous operations are the allocator's business. `--gtest_random_seed=N` runs
// seed N alone.
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/splitmix.h"
#include "tests/torch/fake_nccl.h"

namespace weir::pytorch {
namespace {

using test::SplitMix;

// What is left out on purpose: the programs have to find it.
enum class Defect {
  none,
  no_fence,              // PyTorch lets go of the tensors, and their memory is not fenced
  no_fence_in_captures,  // the same in captures
  fence_before_the_end,  // the private stream does not wait for the operation
  waits_for_everybody,   // a wait on one stream is noted for all that ask next
};

class Broken final : public CollectiveMemory {
 public:
  Broken(CollectiveFences& fences, FakeStreams& streams, SimDevice& device, Defect defect)
      : fences_(fences),
        streams_(streams),
        device_(device),
        defect_(defect),
        elsewhere_(streams.add()) {}

  void record_uses(Operation& operation) noexcept override { fences_.record_uses(operation); }
  void on_current_stream(int device, Operation& operation) noexcept override {
    fences_.on_current_stream(device, operation);
  }
  void note_waited(int device, Fence fence) override {
    if (defect_ != Defect::waits_for_everybody) return fences_.note_waited(device, fence);
    const Stream before = streams_.current();
    for (const Stream stream : program_streams) {
      streams_.set_current(stream);
      fences_.note_waited(device, fence);
    }
    streams_.set_current(before);
  }
  std::optional<Fence> fence(const CommStreamKey& stream, Operation& operation,
                             c10::function_ref<void()> join) override {
    const auto join_elsewhere = [&] { streams_.run_on(elsewhere_, join); };
    if (defect_ == Defect::no_fence || (defect_ == Defect::no_fence_in_captures && is_captured())) {
      join_elsewhere();
      return std::nullopt;
    }
    if (defect_ != Defect::fence_before_the_end) return fences_.fence(stream, operation, join);
    const std::optional<Fence> fence = fences_.fence(stream, operation, [] {});
    join_elsewhere();
    return fence;
  }

  std::vector<Stream> program_streams;

 private:
  bool is_captured() const {
    return device_.capture_info(streams_.current())->status == CaptureInfo::Status::active;
  }

  CollectiveFences& fences_;
  FakeStreams& streams_;
  SimDevice& device_;
  const Defect defect_;
  const Stream elsewhere_;
};

enum class Kind : std::uint8_t {
  make,
  use,
  collect,
  wait,
  drop_work,
  drop,
  empty,
  caching,
  capture,
  pass_time,
};

struct Action {
  Kind kind;
  std::uint64_t seed;
};
using Program = std::vector<Action>;

Program random_program(std::uint64_t seed) {
  struct Weight {
    Kind kind;
    std::uint32_t weight;
  };
  static constexpr Weight kWeights[] = {
      {Kind::make, 26},   {Kind::use, 10},     {Kind::collect, 30}, {Kind::wait, 14},
      {Kind::drop, 24},   {Kind::empty, 3},    {Kind::caching, 3},  {Kind::drop_work, 10},
      {Kind::capture, 8}, {Kind::pass_time, 4}};
  std::uint32_t sum = 0;
  for (const Weight& each : kWeights) sum += each.weight;
  SplitMix random(seed);
  Program program(15 + random.below(40));
  for (Action& action : program) {
    std::uint32_t at = random.below(sum);
    for (const Weight& each : kWeights) {
      action.kind = each.kind;
      if (at < each.weight) break;
      at -= each.weight;
    }
    action.seed = random.next();
  }
  return program;
}

class Execution final : public WithNccl {
 public:
  Execution(std::uint64_t seed, Defect defect)
      : WithNccl(seed % 3 == 0   ? ReusePolicy::balanced
                 : seed % 3 == 1 ? ReusePolicy::no_wait
                                 : ReusePolicy::wait),
        defective_(fences_, streams_, sim_, defect) {
    WithNccl::SetUp();
    proxy().target = &defective_;
    program_.push_back(compute_);
    for (int i = 0; i < 3; ++i) program_.push_back(streams_.add());
    defective_.program_streams = program_;
    other_group_ = make_group("gloo");
    group_ = make_group("nccl");
    nccl_->duration = 5_ms;
    memory_.pools().retain(kPool);
  }
  ~Execution() override {
    proxy().target = &fences_;
    group_.reset();
    other_group_.reset();
  }
  void TestBody() override {}

  // What went wrong, if anything.
  std::string run(const Program& program) {
    for (const Action& action : program) {
      SplitMix random(action.seed);
      random_ = &random;
      take(action.kind);
      streams_.set_current(compute_);
      if (sim_.race_count() > 0) return sim_.races().front().describe();
    }
    SplitMix random(0);
    random_ = &random;
    if (open_) end_capture();
    works_.clear();
    tensors_.clear();
    sim_.finish();
    check(memory_.pools().release(kPool));
    memory_.empty({0, 0});
    if (sim_.race_count() > 0) return sim_.races().front().describe();
    const std::vector<std::string> broken = allocator_.validate();
    if (!broken.empty()) return broken.front();
    return wrong_;
  }
  const std::vector<std::string>& steps() const { return steps_; }
  std::uint64_t operations() const { return fences_.fenced(); }
  std::uint64_t captured() const { return captured_; }

 private:
  // Of an asynchronous operation.
  struct Queued {
    c10::intrusive_ptr<c10d::Work> work;  // null: the program has dropped it
    std::size_t number;
    bool captured = false;
    bool plain = false;  // without a fence: to be waited for on the tensors' stream before a drop
    Stream home = {};
    bool waited = false;
  };
  struct Use {
    Stream on;
    std::shared_ptr<FakeCommunicator::End> end;  // of a kernel
    std::shared_ptr<Queued> operation;           // or of this one
  };
  struct Tensor {
    at::Tensor tensor;
    std::size_t number;
    std::size_t home;  // of program_
    bool captured;
    std::vector<Use> uses;
  };

  static constexpr c10::MempoolId_t kPool{0, 7};
  static constexpr std::size_t kMost = 16;  // tensors

  template <class... Parts>
  void say(const Parts&... parts) {
    std::ostringstream text;
    (text << ... << parts);
    steps_.push_back(text.str());
  }
  bool chance(std::uint32_t percent) { return random_->chance(percent); }
  std::size_t below(std::size_t count) { return random_->below(count); }
  Stream stream_of(std::size_t number) const { return program_.at(number); }
  // While a stream is captured, that one most of the time.
  std::size_t any_stream() { return open_ && chance(60) ? origin_ : below(program_.size()); }
  bool is_captured(std::size_t stream) const { return open_ && stream == origin_; }
  static const void* block(const Tensor& tensor) { return tensor.tensor.storage().data(); }
  static Bytes bytes(const Tensor& tensor) { return {tensor.tensor.storage().nbytes()}; }
  Nanoseconds duration() { return chance(50) ? 5_ms : 10_us; }

  // A tensor that work on the stream may use; nothing: there is none.
  std::optional<std::size_t> pick(std::size_t stream) {
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].captured == is_captured(stream)) found.push_back(i);
    }
    if (found.empty()) return std::nullopt;
    return random_->pick(found);
  }

  // May work on the stream be ordered behind all uses of the tensor? Of operations only a Work can
  // tell; `next`: the work is an operation, which comes after those of before anyhow.
  bool can_order(const Tensor& tensor, bool next) const {
    return std::all_of(tensor.uses.begin(), tensor.uses.end(), [&](const Use& use) {
      return use.operation == nullptr || next || use.operation->work != nullptr;
    });
  }
  void order(const Tensor& tensor, std::size_t stream, bool next) {
    streams_.set_current(stream_of(stream));
    for (const Use& use : tensor.uses) {
      if (use.operation != nullptr) {
        if (!next) wait_here(*use.operation);
      } else if (use.end != nullptr && use.on.id != stream_of(stream).id) {
        use.end->join();
      }
    }
  }
  void wait_here(Queued& operation) {
    (void)operation.work->wait();
    operation.waited =
        operation.waited || !operation.plain || streams_.current().id == operation.home.id;
  }
  void note_kernel(Tensor& tensor, std::size_t stream) {
    Use use{stream_of(stream), nullptr, nullptr};
    if (!is_captured(stream)) {
      use.end = std::make_shared<FakeCommunicator::End>(sim_, streams_);
      use.end->record(use.on);
    }
    tensor.uses.push_back(std::move(use));
  }

  void take(Kind kind);
  Tensor& make(std::size_t stream, Bytes size);
  void make();
  void use();
  void collect();
  void queue(std::size_t stream, const std::vector<Tensor*>& chosen);
  void queue_without_a_fence(std::size_t stream, Tensor& tensor);
  void queue_that_fails(std::size_t stream, Tensor& tensor);
  void queue_coalesced(std::size_t stream, const std::vector<Tensor*>& chosen);
  void keep(c10::intrusive_ptr<c10d::Work> work, const std::vector<Tensor*>& chosen,
            std::size_t stream, bool plain = false);
  void wait();
  void drop_work();
  void drop(std::size_t at);
  void begin_capture();
  void end_capture();

  Broken defective_;
  c10::intrusive_ptr<c10d::ProcessGroup> other_group_;
  std::vector<Stream> program_;
  SplitMix* random_ = nullptr;
  std::vector<Tensor> tensors_;
  std::vector<std::shared_ptr<Queued>> works_;
  std::size_t numbers_ = 0;
  bool caching_ = true;
  bool open_ = false;             // a capture is
  std::size_t origin_ = 0;        // of that
  std::uint64_t capture_id_ = 0;  // of that
  std::size_t captured_operations_ = 0;
  std::uint64_t captured_ = 0;  // operations in all captures
  std::uint64_t graphs_ = 0;
  std::string wrong_;
  std::vector<std::string> steps_;
};

void Execution::take(Kind kind) {
  switch (kind) {
    case Kind::make:
      return make();
    case Kind::use:
      return use();
    case Kind::collect:
      return collect();
    case Kind::wait:
      return wait();
    case Kind::drop_work:
      return drop_work();
    case Kind::drop:
      if (!tensors_.empty()) drop(below(tensors_.size()));
      return;
    case Kind::empty:
      if (open_) return;
      say("empty the cache");
      return memory_.empty({0, 0});
    case Kind::caching:
      if (open_) return;
      caching_ = !caching_;
      say("caching ", caching_ ? "on" : "off");
      return memory_.set_caching(caching_);
    case Kind::capture:
      return open_ ? end_capture() : begin_capture();
    case Kind::pass_time:
      say("time passes");
      return sim_.advance(chance(50) ? 1_ms : 50_ms);
  }
}

Execution::Tensor& Execution::make(std::size_t stream, Bytes size) {
  streams_.set_current(stream_of(stream));
  const bool pooled = caching_ && !open_ && chance(15);
  if (pooled) {
    memory_.pools().retain(kPool);
    check(memory_.pools().begin(
        kPool, [](cudaStream_t) { return true; }, stream_of(stream)));
  }
  tensors_.push_back({tensor(size), numbers_++, stream, is_captured(stream), {}});
  if (pooled) {
    check(memory_.pools().end(kPool));
    check(memory_.pools().release(kPool));
  }
  Tensor& made = tensors_.back();
  say("tensor ", made.number, " of ", size.count, " bytes on stream ", stream,
      pooled ? ", of the pool" : "", made.captured ? ", captured" : "");
  write(const_cast<void*>(block(made)), size, duration());
  note_kernel(made, stream);
  return made;
}

void Execution::make() {
  if (tensors_.size() < kMost) {
    (void)make(any_stream(), random_->one_of({16_MiB, 16_MiB, 64_MiB, 3_MiB, 64_KiB}));
  }
}

void Execution::use() {
  const std::size_t stream = any_stream();
  const auto at = pick(stream);
  if (!at || !can_order(tensors_[*at], /*next=*/false)) return;
  Tensor& used = tensors_[*at];
  order(used, stream, /*next=*/false);
  const bool writes = chance(50);
  say(writes ? "write" : "read", " of tensor ", used.number, " on stream ", stream);
  const Access access = writes ? Writes(block(used), bytes(used)) : Reads(block(used), bytes(used));
  EXPECT_TRUE(sim_.launch(stream_of(stream), access, duration()).ok());
  note_kernel(used, stream);
}

void Execution::keep(c10::intrusive_ptr<c10d::Work> work, const std::vector<Tensor*>& chosen,
                     std::size_t stream, bool plain) {
  auto operation = std::make_shared<Queued>(Queued{std::move(work), numbers_++, is_captured(stream),
                                                   plain, stream_of(chosen.front()->home)});
  for (Tensor* const each : chosen) each->uses.push_back({{}, nullptr, operation});
  if (operation->captured) {
    ++captured_operations_;
    ++captured_;
  }
  works_.push_back(std::move(operation));
}

void Execution::collect() {
  const std::size_t stream = any_stream();
  // NCCL's stream is a part of the capture then.
  if (!is_captured(stream) && open_ && captured_operations_ > 0) return;
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < 1 + below(2); ++i) {
    const auto at = pick(stream);
    if (!at || std::find(found.begin(), found.end(), *at) != found.end()) continue;
    if (can_order(tensors_[*at], /*next=*/true)) found.push_back(*at);
  }
  if (found.empty()) return;
  std::vector<Tensor*> chosen;
  for (const std::size_t at : found) {
    chosen.push_back(&tensors_[at]);
    order(tensors_[at], stream, /*next=*/true);
  }
  streams_.set_current(stream_of(stream));
  if (chance(60)) {
    EXPECT_TRUE(sim_.launch(stream_of(stream), duration()).ok());
  }
  const bool eager = !is_captured(stream);
  const std::size_t way = below(20);
  if (eager && way == 0) return queue_without_a_fence(stream, *chosen.front());
  if (eager && way == 1) return queue_that_fails(stream, *chosen.front());
  if (way == 2 || way == 3) return queue_coalesced(stream, chosen);
  queue(stream, chosen);
}

void Execution::queue(std::size_t stream, const std::vector<Tensor*>& chosen) {
  at::Tensor one = chosen.front()->tensor, other = chosen.back()->tensor;
  std::vector<at::Tensor> list{one}, others{other};
  std::vector<std::vector<at::Tensor>> lists{{other}};
  std::vector<std::int64_t> none;
  c10d::AllreduceOptions now;
  now.asyncOp = false;
  c10::intrusive_ptr<c10d::Work> work;
  const bool two = chosen.size() > 1;
  const std::size_t which = two ? 5 + below(5) : below(5);
  switch (which) {
    case 0:
      work = group_->allreduce(list);
      break;
    case 1:
      work = group_->broadcast(list);
      break;
    case 2:
      work = group_->send(list, static_cast<int>(below(2)), 0);
      break;
    case 3:
      work = group_->recv(list, static_cast<int>(below(2)), 0);
      break;
    case 4:  // on the current stream
      if (!can_order(*chosen.front(), /*next=*/false)) return;
      order(*chosen.front(), stream, /*next=*/false);
      EXPECT_EQ(group_->allreduce(list, now).get(), nullptr);
      say("operation on tensor ", chosen.front()->number, ", not asynchronous, on stream ", stream);
      return note_kernel(*chosen.front(), stream);
    case 5:
      work = group_->_allgather_base(one, other);
      break;
    case 6:
      work = group_->_reduce_scatter_base(one, other);
      break;
    case 7:
      work = group_->alltoall_base(one, other, none, none);
      break;
    case 8:
      work = group_->allgather(lists, list);
      break;
    default:
      work = group_->reduce_scatter(list, lists);
  }
  say("operation ", numbers_, " (", which, ") on tensor ", chosen.front()->number,
      two ? " and " + std::to_string(chosen.back()->number) : "", ", from stream ", stream);
  keep(std::move(work), chosen, stream);
}

// PyTorch keeps the tensor, as without Weir.
void Execution::queue_without_a_fence(std::size_t stream, Tensor& tensor) {
  std::vector<at::Tensor> list{tensor.tensor};
  const bool of_nccl = chance(50);
  if (of_nccl) weir_c10d_enter_nccl_group();
  auto work = (of_nccl ? group_ : other_group_)->allreduce(list);
  if (of_nccl) weir_c10d_leave_nccl_group();
  say("operation ", numbers_, " without a fence on tensor ", tensor.number, ", from stream ",
      stream);
  keep(std::move(work), {&tensor}, stream, /*plain=*/true);
}

// PyTorch has recorded the tensor's use; nobody can wait for it.
void Execution::queue_that_fails(std::size_t stream, Tensor& tensor) {
  std::vector<at::Tensor> list{tensor.tensor};
  nccl_->fails = true;
  EXPECT_THROW((void)group_->send(list, 1, 0), c10::Error);
  nccl_->fails = false;
  say("a send of tensor ", tensor.number, " fails, from stream ", stream);
  keep(nullptr, {&tensor}, stream);
}

void Execution::queue_coalesced(std::size_t stream, const std::vector<Tensor*>& chosen) {
  Operations& operations = *Operations::in_use();
  operations.coalescing_begins(group_.get());
  group_->startCoalescing(c10::DeviceType::CUDA);
  for (Tensor* const each : chosen) {
    std::vector<at::Tensor> list{each->tensor};
    chance(50) ? (void)group_->allreduce(list) : (void)group_->send(list, 1, 0);
  }
  auto work = [&] {  // as the package has it
    const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
    return group_->endCoalescing(c10::DeviceType::CUDA);
  }();
  operations.coalescing_ends(group_.get(), work);
  say("operation ", numbers_, ", coalesced, on tensor ", chosen.front()->number, " and ",
      chosen.back()->number, ", from stream ", stream);
  keep(std::move(work), chosen, stream);
}

void Execution::wait() {
  std::vector<std::shared_ptr<Queued>> found;
  for (const auto& each : works_) {
    if (each->work != nullptr && (!each->captured || open_)) found.push_back(each);
  }
  if (found.empty()) return;
  Queued& operation = *random_->pick(found);
  std::size_t stream = below(program_.size());
  if (operation.captured) stream = origin_;
  if (operation.captured != is_captured(stream)) return;
  streams_.set_current(stream_of(stream));
  if (operation.plain) {
    if (open_ && operation.home.id == stream_of(origin_).id) return;
    streams_.set_current(operation.home);
  }
  const bool elsewhere = chance(25);
  say("stream ", stream, operation.plain ? " (the tensors')" : "", " waits for operation ",
      operation.number, elsewhere ? ", says another thread" : "");
  if (!elsewhere) return wait_here(operation);
  std::thread([&, current = streams_.current()] {
    streams_.set_current(current);
    wait_here(operation);
  }).join();
}

void Execution::drop_work() {
  if (works_.empty()) return;
  const std::size_t at = below(works_.size());
  Queued& operation = *works_[at];
  if (operation.plain && !operation.waited) return;  // PyTorch's watchdog has another Work of it
  say("the work of operation ", operation.number, " goes");
  operation.work.reset();
  works_.erase(works_.begin() + static_cast<std::ptrdiff_t>(at));
}

// Another stream's kernels are waited for before that, or recorded: as PyTorch documents.
void Execution::drop(std::size_t at) {
  Tensor& dropped = tensors_[at];
  const Stream home = stream_of(dropped.home);
  for (const Use& use : dropped.uses) {
    if (use.end == nullptr || use.on.id == home.id) continue;
    if (is_captured(dropped.home) || (!open_ && chance(40))) {
      record_stream(const_cast<void*>(block(dropped)), use.on);
    } else {
      streams_.set_current(home);
      use.end->join();
    }
  }
  say("tensor ", dropped.number, " goes");
  tensors_.erase(tensors_.begin() + static_cast<std::ptrdiff_t>(at));
}

void Execution::begin_capture() {
  origin_ = below(program_.size());
  open_ = true;
  capture_id_ = 0;
  captured_operations_ = 0;
  ++graphs_;
  check(memory_.pools().begin(
      {graphs_, 0},
      [this](cudaStream_t asking) {
        const CaptureInfo info = *sim_.capture_info(Stream::of_captured(asking));
        return info.status == CaptureInfo::Status::active && info.id == capture_id_;
      },
      stream_of(origin_)));
  EXPECT_TRUE(sim_.begin_capture(stream_of(origin_), CaptureMode::global).ok());
  capture_id_ = sim_.capture_info(stream_of(origin_))->id;
  say("a capture of stream ", origin_, " begins");
}

void Execution::end_capture() {
  if (captured_operations_ > 0) {  // NCCL's stream has to join
    Tensor& last = make(origin_, 64_KiB);
    std::vector<at::Tensor> list{last.tensor};
    streams_.set_current(stream_of(origin_));
    const auto work = group_->allreduce(list);
    (void)work->wait();
  }
  const Result<GraphHandle> graph = sim_.end_capture(stream_of(origin_));
  say("the capture ends");
  open_ = false;
  check(memory_.pools().end({graphs_, 0}));
  if (!graph.ok()) {
    wrong_ = "the capture failed: " + graph.error().message();
  } else {
    for (std::uint64_t order = 0; order < 4; ++order) {
      if (sim_.replay_in_random_order(*graph, order) != 0) wrong_ = "a replay reads other bytes";
    }
    EXPECT_TRUE(sim_.destroy_graph(*graph).ok());
  }
  std::erase_if(works_, [](const auto& each) { return each->captured; });
  std::erase_if(tensors_, [](const Tensor& each) { return each.captured; });
  check(memory_.pools().release({graphs_, 0}));
}

struct Found {
  std::string what;
  std::vector<std::string> steps;
  std::uint64_t operations = 0, captured = 0;
};
Found run(const Program& program, std::uint64_t seed, Defect defect) {
  Execution execution(seed, defect);
  Found found{execution.run(program), {}, 0, 0};
  found.steps = execution.steps();
  found.operations = execution.operations();
  found.captured = execution.captured();
  return found;
}

// The shortest that still fails.
Program shorter(Program program, std::uint64_t seed, Defect defect) {
  for (std::size_t size = program.size() / 2; size > 0; size /= 2) {
    for (std::size_t at = 0; at < program.size();) {
      Program without(program.begin(), program.begin() + static_cast<std::ptrdiff_t>(at));
      without.insert(
          without.end(),
          program.begin() + static_cast<std::ptrdiff_t>(std::min(at + size, program.size())),
          program.end());
      if (run(without, seed, defect).what.empty()) {
        at += size;
      } else {
        program = std::move(without);
      }
    }
  }
  return program;
}

std::string report(const Program& program, std::uint64_t seed, Defect defect) {
  const Found found = run(shorter(program, seed, defect), seed, defect);
  std::ostringstream text;
  text << "seed " << seed << ": " << found.what << "\n";
  for (const std::string& step : found.steps) text << "  " << step << "\n";
  return text.str();
}

TEST(RandomCollectives, AreOrderedBeforeTheNextUseOfTheirMemory) {
  std::uint64_t operations = 0, captured = 0;
  const auto only = static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed));
  const std::uint64_t first = only != 0 ? only : 1;
  for (std::uint64_t seed = first; seed < first + (only != 0 ? 1 : 6000); ++seed) {
    const Program program = random_program(seed);
    const Found found = run(program, seed, Defect::none);
    operations += found.operations;
    captured += found.captured;
    ASSERT_TRUE(found.what.empty()) << report(program, seed, Defect::none);
  }
  if (only != 0) return;
  EXPECT_GT(operations, 10'000u);
  EXPECT_GT(captured, 1'000u);
}

// The test of the test.
class RandomCollectivesWith : public testing::TestWithParam<Defect> {};

TEST_P(RandomCollectivesWith, ADefectIsFound) {
  for (std::uint64_t seed = 1; seed < 2000; ++seed) {
    const Program program = random_program(seed);
    if (run(program, seed, GetParam()).what.empty()) continue;
    const Program least = shorter(program, seed, GetParam());
    EXPECT_LE(least.size(), 6u) << report(program, seed, GetParam());
    return;
  }
  FAIL() << "no program finds it";
}

INSTANTIATE_TEST_SUITE_P(Each, RandomCollectivesWith,
                         testing::Values(Defect::no_fence, Defect::no_fence_in_captures,
                                         Defect::fence_before_the_end,
                                         Defect::waits_for_everybody));

}  // namespace
}  // namespace weir::pytorch
