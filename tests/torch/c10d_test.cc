// SPDX-License-Identifier: Apache-2.0
// c10d's operations through PyTorch's dispatcher and a ProcessGroup, with a backend that stands in
// for NCCL's, on a simulated device that reports every access that nothing orders.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "tests/torch/fake_nccl.h"
#include "tests/torch/own_process.h"
#include "torch/c10d/operations.h"
#include "weir/weir.h"

// What the Python package calls.
extern "C" {
weir_status_t weir_c10d_enable(void* memory);
void weir_c10d_coalescing_begins(std::int64_t group);
int weir_c10d_relax(std::int64_t group);
void weir_c10d_restore(int before);
}

namespace weir::pytorch {
namespace {

class C10d : public WithNccl {
 protected:
  using WorkPointer = c10::intrusive_ptr<c10d::Work>;
  using List = std::vector<at::Tensor>;

  WorkPointer barrier(at::Tensor token) {
    static const auto op =
        c10::Dispatcher::singleton()
            .findSchemaOrThrow("c10d::barrier", "")
            .typed<WorkPointer(at::Tensor, const c10::intrusive_ptr<c10d::ProcessGroup>&,
                               const std::vector<std::int64_t>&, bool, std::int64_t)>();
    return op.call(std::move(token), group_, {}, true, -1);
  }

  // An operation of the group's, with its default options.
  using Group = c10d::ProcessGroup;
  template <class A, class Options>
  WorkPointer run(WorkPointer (Group::*operation)(A&, const Options&), A a) {
    return (*group_.*operation)(a, Options());
  }
  template <class A, class B, class Options>
  WorkPointer run(WorkPointer (Group::*operation)(A&, B&, const Options&), A a, B b) {
    return (*group_.*operation)(a, b, Options());
  }

  // One of each of the operators, asynchronous, on tensors that nobody else has.
  std::vector<std::function<WorkPointer()>> every_operation() {
    const auto t = [this] { return tensor(); };
    const auto w = [this] { return written(); };
    return {
        [=, this] { return run(&Group::allreduce, {w()}); },
        [=, this] {
          return run(&Group::allreduce_coalesced, {w(), w()});
        },
        [=, this] { return run(&Group::broadcast, {w()}); },
        [=, this] { return run(&Group::reduce, {w()}); },
        [=, this] {
          return run(&Group::allgather, {{t(), t()}}, {w()});
        },
        [=, this] { return run(&Group::_allgather_base, t(), w()); },
        [=, this] { return run(&Group::allgather_coalesced, {{t()}}, {w()}); },
        [=, this] { return run(&Group::allgather_into_tensor_coalesced, {t()}, {w()}); },
        [=, this] { return run(&Group::gather, {{t()}}, {w()}); },
        [=, this] { return run(&Group::scatter, {t()}, {{w()}}); },
        [=, this] { return run(&Group::reduce_scatter, {t()}, {{w()}}); },
        [=, this] { return run(&Group::_reduce_scatter_base, t(), w()); },
        [=, this] { return run(&Group::reduce_scatter_tensor_coalesced, {t()}, {w()}); },
        [=, this] { return run(&Group::alltoall, {t()}, {w()}); },
        [=, this] {
          at::Tensor o = t(), i = w();
          std::vector<std::int64_t> none;
          return group_->alltoall_base(o, i, none, none);
        },
        [=, this] {
          List sent{w()};
          return group_->send(sent, 1, 0);
        },
        [=, this] {
          List received{t()};
          return group_->recv(received, 1, 0);
        },
        [=, this] {
          List received{t()};
          return group_->recvAnysource(received, 0);
        },
        [=, this] { return barrier(t()); },
    };
  }
};

TEST_F(C10d, EveryOperationOfAGroupIsFencedAndItsTensorsMayGoAtOnce) {
  std::ptrdiff_t done = 0;
  auto operations = every_operation();
#if WEIR_TORCH_SINCE(14)
  operations.emplace_back([this] { return run(&Group::gather_into_tensor, tensor(), written()); });
#endif
  for (const auto& operation : operations) {
    const WorkPointer work = operation();
    ASSERT_NE(work.get(), nullptr) << done;
    EXPECT_EQ(fenced(), static_cast<std::uint64_t>(++done));
    const auto* const fenced_work = dynamic_cast<FencedWork*>(work.get());
    ASSERT_NE(fenced_work, nullptr);
    const auto& own = dynamic_cast<FakeWork&>(*fenced_work->inner());
    EXPECT_EQ(own.kept(), 0u) << done;
    EXPECT_EQ(own.waits, 0);
    use_memory_again();
    EXPECT_EQ(sim_.race_count(), 0u) << done;
  }
  const auto names = c10::Dispatcher::singleton().getAllOpNames();
  EXPECT_EQ(done, std::count_if(names.begin(), names.end(), [](const c10::OperatorName& name) {
              return name.name.starts_with("c10d::") &&
                     c10::Dispatcher::singleton().findOp(name)->hasKernelForDispatchKey(
                         c10::DispatchKey::BackendSelect);
            }));
}

// As most programs do; then nothing waits for the operation a second time.
TEST_F(C10d, AfterAWaitOfTheProgramsItsStreamTakesTheMemoryWithoutAnother) {
  const std::vector<std::function<void(c10d::Work&)>> ways = {
      [](c10d::Work& work) { work.wait(); }, [](c10d::Work& work) { work.synchronize(); },
      [](c10d::Work& work) { work.blockCurrentStream(); }};
  for (const auto& waits_for : ways) {
    std::vector<at::Tensor> tensors{written()};
    const void* const memory = tensors[0].storage().data();
    const auto work = group_->allreduce(tensors);
    waits_for(*work);
    tensors.clear();
    const std::uint64_t waits = sim_.calls(DeviceCall::wait);
    const at::Tensor next = written();
    EXPECT_EQ(next.storage().data(), memory);
    EXPECT_EQ(sim_.calls(DeviceCall::wait), waits);
  }
}

TEST_F(C10d, AWorkSaysWhatPyTorchsOwnSays) {
  std::vector<at::Tensor> tensors{written()};
  const auto work = group_->allreduce(tensors);
  const c10d::Work& own = *dynamic_cast<FencedWork&>(*work).inner();
  EXPECT_EQ(work->retrieveOpType(), own.retrieveOpType());
  EXPECT_EQ(work->isCompleted(), const_cast<c10d::Work&>(own).isCompleted());
  EXPECT_EQ(work->isSuccess(), own.isSuccess());
  EXPECT_EQ(work->exception(), own.exception());
  EXPECT_EQ(work->result().size(), 1u);
  EXPECT_EQ(work->getSequencenumber(), 7u);
  EXPECT_EQ(work->getDuration(), 2.5F);
#if WEIR_TORCH_SINCE(14)
  EXPECT_EQ(work->getTimeout(), std::chrono::milliseconds(11));
#endif
#if WEIR_TORCH_SINCE(15)
  EXPECT_EQ(work->getCompletionKey(), 13u);
#endif
}

TEST_F(C10d, GroupsOfOtherBackendsAreLeftAlone) {
  const auto other = make_group("gloo");
  std::vector<at::Tensor> tensors{written()};
  const auto work = other->allreduce(tensors);
  tensors.clear();
  EXPECT_EQ(fenced(), 0u);
  EXPECT_GT(dynamic_cast<FakeWork&>(*work).kept(), 0u);
  use_memory_again();
}

// They have no memory that could serve anybody else.
TEST_F(C10d, TensorsOfTheHostAndEmptyOnesNeedNoFence) {
  std::vector<char> memory(64);
  const auto of_host = [&] {
    return tensor_with({memory.data(), c10::Device(c10::kCPU)}, Bytes{memory.size()});
  };
  const auto empty = [] { return tensor_with({nullptr, c10::Device(c10::kCUDA, 0)}, 0_B); };
  for (const at::Tensor& each : {of_host(), empty()}) {
    std::vector<at::Tensor> tensors{each};
    const auto work = group_->allreduce(tensors);
    EXPECT_NE(dynamic_cast<FakeWork*>(work.get()), nullptr);
    EXPECT_EQ(fenced(), 0u);
  }
  std::vector<at::Tensor> tensors{empty(), written()};
  (void)group_->allreduce_coalesced(tensors);
  EXPECT_EQ(fenced(), 1u);
  EXPECT_EQ(proxy().addresses, 1u);
}

TEST_F(C10d, AnOptionalTensorIsOneOfTheOperations) {
  std::vector<at::Tensor> tensors{written()};
  c10d::AllreduceOptions options;
  options.sparseIndices = written();
  (void)group_->allreduce(tensors, options);
  EXPECT_EQ(proxy().addresses, 2u);
}

// Of whatever device, though here there is one.
TEST_F(C10d, ACoalescedOperationIsOfTheDeviceOfItsTensors) {
  struct Asked final : CollectiveMemory {
    std::optional<Fence> fence(const CommStreamKey& stream, Operation& operation,
                               c10::function_ref<void()> join) override {
      key = stream;
      memory.assign(operation.memory.begin(), operation.memory.end());
      join();
      return std::nullopt;
    }
    void note_waited(int, Fence) override {}
    void record_uses(Operation&) noexcept override { ++without; }
    void on_current_stream(int device, Operation&) noexcept override { current = device; }
    std::optional<CommStreamKey> key;
    std::vector<const void*> memory;
    int without = 0;
    std::optional<int> current;
  };
  struct Joined final : c10d::Work {
    void synchronize() override { ++joins; }
    int joins = 0;
  };
  Asked asked;
  Operations operations(asked);
  Operation first, second;
  first.memory.push_back(&first);
  second.memory.push_back(&second);
  c10::SmallVector<at::Tensor, 8> tensors{tensor()};
  const CommStreamKey key{group_.get(), 3};
  const auto work = c10::make_intrusive<Joined>();
  operations.coalescing_begins(group_.get());
  EXPECT_EQ(operations.queued(key, first, nullptr, tensors), nullptr);
  EXPECT_EQ(operations.queued(key, second, nullptr, tensors), nullptr);
  operations.coalescing_ends(group_.get(), work);
  EXPECT_EQ(asked.key, key);
  EXPECT_THAT(asked.memory, testing::ElementsAre(&first, &second));
  EXPECT_EQ(work->joins, 1);
  EXPECT_EQ(asked.without, 0);
  operations.coalescing_begins(group_.get());  // and then nothing comes
  operations.coalescing_ends(group_.get(), work);
  EXPECT_EQ(work->joins, 1);
  EXPECT_EQ(asked.without, 1);
  // Without a Work they ran on the current stream of that device.
  c10::SmallVector<at::Tensor, 8> more{tensor()};
  operations.coalescing_begins(group_.get());
  EXPECT_EQ(operations.queued(key, first, nullptr, more), nullptr);
  operations.coalescing_ends(group_.get(), nullptr);
  EXPECT_EQ(asked.current, 3);
}

// C++ code coalesces without a word to Weir: PyTorch keeps the tensors, as ever.
TEST_F(C10d, ACoalescedOperationThatNobodyTellsOfIsAsWithoutWeir) {
  group_->startCoalescing(c10::DeviceType::CUDA);
  for (int i = 0; i < 3; ++i) {
    std::vector<at::Tensor> sent{written()}, reduced{written()};
    (void)group_->send(sent, 1, 0);
    (void)group_->allreduce(reduced);
  }
  use_memory_again();
  const auto work = group_->endCoalescing(c10::DeviceType::CUDA);
  EXPECT_GT(dynamic_cast<FakeWork&>(*work).kept(), 0u);
  work->wait();
  use_memory_again(12);
}

TEST_F(C10d, EnablingTwiceChangesNothing) {
  Operations* const before = Operations::in_use();
  EXPECT_EQ(weir_c10d_enable(&proxy()), WEIR_OK);
  EXPECT_EQ(Operations::in_use(), before);
}

// As the package calls it, of ProcessGroup._id().
void end_coalescing(std::int64_t group, const c10::intrusive_ptr<c10d::Work>& work) {
  using Given = std::optional<c10::intrusive_ptr<c10d::Work>>;
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("weir::_coalescing_ends", "")
                             .typed<void(std::int64_t, const Given&)>();
  op.call(group, work ? Given(work) : std::nullopt);
}

TEST_F(C10d, ThePackageCoalesces) {
  const auto id = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(group_.get()));
  const auto send_twice = [&] {
    weir_c10d_coalescing_begins(id);
    group_->startCoalescing(c10::DeviceType::CUDA);
    for (int i = 0; i < 2; ++i) {
      std::vector<at::Tensor> tensors{written()};
      (void)group_->send(tensors, 1, 0);
    }
    return group_->endCoalescing(c10::DeviceType::CUDA);
  };
  end_coalescing(id, send_twice());
  EXPECT_EQ(fenced(), 1u);
  use_memory_again();

  auto work = send_twice();
  end_coalescing(id, nullptr);  // it ran on the current stream
  end_coalescing(id, work);     // there is none any more
  EXPECT_EQ(fenced(), 1u);
  work = nullptr;
  use_memory_again();  // record_stream() was called all the same
}

// The package's hooks stay where they are, whoever is PyTorch's allocator.
TEST(C10dBeforeItIsEnabled, CoalescingIsNoMatterForWeir) {
  in_a_fresh_process([] {
    weir_c10d_coalescing_begins(1);
    weir_c10d_restore(weir_c10d_relax(1));
    EXPECT_EQ(Operations::in_use(), nullptr);
  });
}

TEST_F(C10d, ThePackageTellsOfGroupsOfNcclsOwn) {
  std::vector<at::Tensor> tensors{written()};
  weir_c10d_leave_nccl_group();  // that began before Weir was told
  weir_c10d_enter_nccl_group();
  weir_c10d_enter_nccl_group();
  weir_c10d_leave_nccl_group();
  const auto work = group_->allreduce(tensors);
  EXPECT_EQ(fenced(), 0u);
  EXPECT_GT(dynamic_cast<FakeWork&>(*work).kept(), 0u);
  weir_c10d_leave_nccl_group();
  (void)group_->allreduce(tensors);
  EXPECT_EQ(fenced(), 1u);
}

TEST_F(C10d, AnOperationThatFailsLeavesItsErrorAndItsTensorsAsTheyWere) {
  nccl_->fails = true;
  {
    std::vector<at::Tensor> sent{written()};
    EXPECT_THROW((void)group_->send(sent, 1, 0), c10::Error);
  }
  EXPECT_EQ(fenced(), 0u);
  use_memory_again();  // record_stream() was called all the same
  nccl_->fails = false;
  std::vector<at::Tensor> sent{written()};
  (void)group_->send(sent, 1, 0);
  EXPECT_EQ(fenced(), 1u);
}

// It was queued, and other ranks count on it.
TEST_F(C10d, AnOperationWhoseFenceTheDriverRefusesKeepsItsWork) {
  WorkPointer work;
  {
    std::vector<at::Tensor> tensors{written()};
    sim_.fail(DeviceCall::record, 3);  // of the operation's begin, of its end, of the fence
    EXPECT_NO_THROW(work = group_->allreduce(tensors));
  }
  ASSERT_NE(work.get(), nullptr);
  EXPECT_EQ(sim_.forget_faults(), 0u);
  EXPECT_TRUE(work->wait());
  use_memory_again();
}

TEST_F(C10d, OperationsWithDifferentPeersHaveStreamsOfTheirOwn) {
  proxy().keys.clear();
  for (const int peer : {1, 0, 1}) {
    std::vector<at::Tensor> tensors{written()};
    (void)group_->send(tensors, peer, 0);
  }
  std::vector<at::Tensor> tensors{written()};
  (void)group_->allreduce(tensors);
  EXPECT_THAT(
      proxy().keys,
      testing::ElementsAre(CommStreamKey{group_.get(), 0, 1}, CommStreamKey{group_.get(), 0, 0},
                           CommStreamKey{group_.get(), 0, 1}, CommStreamKey{group_.get(), 0}));
  EXPECT_EQ(streams_.made(), 3u);
}

TEST_F(C10d, HundredThousandOperationsLeaveNothingBehind) {
  nccl_->duration = 1_us;
  std::uint64_t events = 0;
  for (int i = 0; i < 100'000; ++i) {
    std::vector<at::Tensor> tensors{tensor()};
    (void)group_->allreduce(tensors);
    if (i == 2'000) events = sim_.live().events;
  }
  EXPECT_EQ(sim_.live().events, events);
  EXPECT_EQ(fenced(), 100'000u);
}

// --- The first operation of a group, within a capture.

class FirstOperation : public C10d, public testing::WithParamInterface<CaptureMode> {};
INSTANTIATE_TEST_SUITE_P(Modes, FirstOperation,
                         testing::Values(CaptureMode::global, CaptureMode::thread_local_,
                                         CaptureMode::relaxed));

TEST_P(FirstOperation, OfEveryKindIsCaptured) {
  const std::size_t kinds = every_operation().size();
  for (std::size_t kind = 0; kind < kinds; ++kind) {
    group_ = make_group("nccl");
    begin_capture(GetParam());
    const WorkPointer work = every_operation()[kind]();
    ASSERT_NE(work.get(), nullptr) << kind;
    (void)work->wait();
    drop(end_capture());
    EXPECT_EQ(capture_mode_of_fake_runtime(), cudaStreamCaptureModeGlobal) << kind;
  }
  EXPECT_EQ(fenced(), kinds);
}

TEST_P(FirstOperation, OnTheCurrentStreamIsCaptured) {
  begin_capture(GetParam());
  {
    List tensors{written()};
    c10d::AllreduceOptions options;
    options.asyncOp = false;
    EXPECT_EQ(group_->allreduce(tensors, options).get(), nullptr);
  }
  drop(end_capture());
}

TEST_P(FirstOperation, ThatIsCoalescedIsCaptured) {
  const auto id = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(group_.get()));
  begin_capture(GetParam());
  weir_c10d_coalescing_begins(id);
  group_->startCoalescing(c10::DeviceType::CUDA);
  {
    List sent{written()}, received{tensor()};
    (void)group_->send(sent, 1, 0);
    (void)group_->recv(received, 1, 0);
  }
  const int before = weir_c10d_relax(id);
  EXPECT_EQ(capture_mode_of_fake_runtime(), cudaStreamCaptureModeRelaxed);
  const WorkPointer work = group_->endCoalescing(c10::DeviceType::CUDA);
  weir_c10d_restore(before);
  EXPECT_EQ(capture_mode_of_fake_runtime(), cudaStreamCaptureModeGlobal);
  end_coalescing(id, work);
  (void)work->wait();
  EXPECT_EQ(fenced(), 1u);
  drop(end_capture());
}

// As PyTorch alone does it: the test would see it.
TEST_F(C10d, WithoutWeirsKernelTheFirstOperationBreaksTheCapture) {
  begin_capture();
  {
    List tensors{written()};
    const auto backend = group_->getBackend(c10::DeviceType::CUDA);
    EXPECT_THROW((void)backend->allreduce(tensors, {}), c10::Error);
  }
  end_broken_capture();
}

TEST_F(C10d, TheThreadsCaptureModeIsAsBeforeWhateverComesOfAnOperation) {
  for (const cudaStreamCaptureMode before :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
        cudaStreamCaptureModeRelaxed}) {
    cudaStreamCaptureMode mode = before;
    ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    for (const bool fails : {false, true}) {
      nccl_->fails = fails;
      List tensors{written()};
      if (fails) {
        EXPECT_THROW((void)group_->allreduce(tensors), c10::Error);
      } else {
        (void)group_->allreduce(tensors);
      }
      EXPECT_EQ(nccl_->mode, cudaStreamCaptureModeRelaxed);
      EXPECT_EQ(capture_mode_of_fake_runtime(), before);
      sim_.finish();
    }
    ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  }
}

TEST_F(C10d, OperationsThatGetNoFenceConnectAllTheSame) {
  List tensors{tensor_with({nullptr, c10::Device(c10::kCUDA, 0)}, 0_B)};
  (void)group_->allreduce(tensors);
  EXPECT_EQ(nccl_->mode, cudaStreamCaptureModeRelaxed);
  nccl_->mode.reset();
  weir_c10d_enter_nccl_group();
  tensors = {written()};
  const WorkPointer work = group_->allreduce(tensors);
  weir_c10d_leave_nccl_group();
  EXPECT_EQ(nccl_->mode, cudaStreamCaptureModeRelaxed);
}

TEST_F(C10d, TheCaptureModeOfOtherBackendsOperationsIsLeftAlone) {
  std::vector<char> memory(64);
  List tensors{tensor_with({memory.data(), c10::Device(c10::kCPU)}, Bytes{memory.size()})};
  (void)group_->allreduce(tensors);  // by the group's backend for the host, which is gloo
  EXPECT_EQ(host_backend_->mode, cudaStreamCaptureModeGlobal);

  const auto other = make_group("gloo");
  tensors = {written()};
  const WorkPointer work = other->allreduce(tensors);
  EXPECT_EQ(nccl_->mode, cudaStreamCaptureModeGlobal);
  const auto id = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(other.get()));
  weir_c10d_coalescing_begins(id);
  const int before = weir_c10d_relax(id);
  EXPECT_EQ(capture_mode_of_fake_runtime(), cudaStreamCaptureModeGlobal);
  weir_c10d_restore(before);
  end_coalescing(id, nullptr);
}

// --- Requests beside an operation that waits for other ranks.

class BesideAReceive : public WithNccl, public testing::WithParamInterface<ReusePolicy> {
 protected:
  static constexpr Bytes kBlock = 64_MiB;
  BesideAReceive() : WithNccl(GetParam()) {}

  void SetUp() override {
    WithNccl::SetUp();
    nccl_->duration = 1000_ms;
  }
  // What one stream has used serves another one. Returns how long that stands.
  Nanoseconds hand_over() {
    const Stream a = streams_.add(), b = streams_.add();
    streams_.set_current(a);
    void* const x = allocate(kBlock);
    write(x, kBlock);
    backend_.raw_delete(x);
    sim_.advance(10_ms);
    streams_.set_current(b);
    void* const y = allocate(kBlock);
    write(y, kBlock);
    backend_.raw_delete(y);
    streams_.set_current(compute_);
    return sim_.stream_waited(b);
  }
};
INSTANTIATE_TEST_SUITE_P(Policies, BesideAReceive,
                         testing::Values(ReusePolicy::wait, ReusePolicy::balanced));

TEST_P(BesideAReceive, StreamsDoNotStandForIt) {
  std::vector<at::Tensor> tensors{tensor()};
  const auto work = group_->recv(tensors, 1, 0);
  EXPECT_EQ(hand_over(), 0_ms);
}

TEST_P(BesideAReceive, StreamsDoNotStandForAnOperationOnTheCurrentStream) {
  std::vector<at::Tensor> tensors{tensor()};
  c10d::AllreduceOptions options;
  options.asyncOp = false;
  (void)group_->allreduce(tensors, options);
  EXPECT_EQ(hand_over(), 0_ms);
}

TEST_P(BesideAReceive, StreamsDoNotStandForACoalescedOperation) {
  Operations& operations = *Operations::in_use();
  operations.coalescing_begins(group_.get());
  group_->startCoalescing(c10::DeviceType::CUDA);
  std::vector<at::Tensor> tensors{tensor()};
  (void)group_->recv(tensors, 1, 0);
  operations.coalescing_ends(group_.get(), group_->endCoalescing(c10::DeviceType::CUDA));
  EXPECT_EQ(hand_over(), 0_ms);
}

// It waits for nobody.
TEST_P(BesideAReceive, MemoryIsHandedOverBesideAnOperationOfOneRank) {
  group_ = make_group("nccl", /*ranks=*/1);
  std::vector<at::Tensor> tensors{tensor()};
  const auto work = group_->allreduce(tensors);
  const Bytes before = sim_.physical_bytes();
  (void)hand_over();
  EXPECT_LE(sim_.physical_bytes(), before + kBlock);
}

}  // namespace
}  // namespace weir::pytorch
