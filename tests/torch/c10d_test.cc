// c10d's operations through PyTorch's dispatcher and a ProcessGroup, with a backend that stands in
// for NCCL's, on a simulated device that reports every access that nothing orders.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "tests/torch/fake_collectives.h"
#include "torch/c10d/fenced_work.h"
#include "torch/c10d/operations.h"

namespace weir::pytorch {
namespace {

constexpr Bytes kBytes = 16_MiB;

// Keeps tensors as WorkNCCL does: the outputs while it lives, the others until it is waited for.
class FakeWork final : public c10d::Work {
 public:
  FakeWork(std::shared_ptr<FakeCommunicator::End> end, std::vector<at::Tensor> kept)
      : end_(std::move(end)), kept_(std::move(kept)) {}
  void synchronize() override {
    if (end_ != nullptr) end_->join();
    kept_.clear();
  }
  bool wait(std::chrono::milliseconds) override {
    ++waits;
    synchronize();
    return true;
  }
  std::vector<at::Tensor> result() override { return {at::Tensor()}; }
  std::uint64_t getSequencenumber() const override { return 7; }
  float getDuration() const override { return 2.5F; }
  std::size_t kept() const { return kept_.size(); }
  int waits = 0;

 private:
  std::shared_ptr<FakeCommunicator::End> end_;
  std::vector<at::Tensor> kept_;
};

// As ProcessGroupNCCL: async operations run on its stream and keep their tensors; others run on the
// current stream, and give no Work; within a coalesced operation nothing ends.
class FakeNccl final : public c10d::Backend {
 public:
  using Make = std::function<at::Tensor()>;
  FakeNccl(std::string name, FakeCommunicator& communicator, SimDevice& device,
           FakeStreams& streams, std::function<void(at::Tensor)> records)
      : Backend(0, 2),
        name_(std::move(name)),
        communicator_(communicator),
        device_(device),
        streams_(streams),
        records_(std::move(records)) {}

  const std::string getBackendName() const override { return name_; }
  void startCoalescing() override { coalescing_ = true; }
  c10::intrusive_ptr<c10d::Work> endCoalescing() override {
    coalescing_ = false;
    auto end = std::make_shared<FakeCommunicator::End>(device_, streams_);
    end->record(communicator_.stream());
    return c10::make_intrusive<FakeWork>(std::move(end), std::exchange(coalesced_, {}));
  }

#define WEIR_IN_OUT(name, Options)                                             \
  c10::intrusive_ptr<c10d::Work> name(at::Tensor& output, at::Tensor& input,   \
                                      const c10d::Options& options) override { \
    return queue({input}, {output}, options.asyncOp);                          \
  }
#define WEIR_LIST(name, Options)                                               \
  c10::intrusive_ptr<c10d::Work> name(std::vector<at::Tensor>& tensors,        \
                                      const c10d::Options& options) override { \
    return queue(tensors, tensors, options.asyncOp);                           \
  }
#define WEIR_LISTS(name, Options)                                              \
  c10::intrusive_ptr<c10d::Work> name(std::vector<at::Tensor>& outputs,        \
                                      std::vector<at::Tensor>& inputs,         \
                                      const c10d::Options& options) override { \
    return queue(inputs, outputs, options.asyncOp);                            \
  }
  WEIR_LIST(allreduce, AllreduceOptions)
  WEIR_LIST(allreduce_coalesced, AllreduceCoalescedOptions)
  WEIR_LIST(broadcast, BroadcastOptions)
  WEIR_LIST(reduce, ReduceOptions)
  WEIR_IN_OUT(_allgather_base, AllgatherOptions)
  WEIR_IN_OUT(_reduce_scatter_base, ReduceScatterOptions)
  WEIR_LISTS(allgather_into_tensor_coalesced, AllgatherOptions)
  WEIR_LISTS(reduce_scatter_tensor_coalesced, ReduceScatterOptions)
  WEIR_LISTS(alltoall, AllToAllOptions)
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                               std::vector<std::int64_t>&,
                                               std::vector<std::int64_t>&,
                                               const c10d::AllToAllOptions& options) override {
    return queue({input}, {output}, options.asyncOp);
  }
  // Through a tensor of its own, as NCCL's does for lists.
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override {
    std::vector<at::Tensor> all = outputs.at(0);
    all.push_back(make_flat());
    return queue(inputs, all, options.asyncOp);
  }
  c10::intrusive_ptr<c10d::Work> reduce_scatter(
      std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
      const c10d::ReduceScatterOptions& options) override {
    std::vector<at::Tensor> all = inputs.at(0);
    all.push_back(make_flat());
    return queue(all, outputs, options.asyncOp);
  }
  c10::intrusive_ptr<c10d::Work> gather(std::vector<std::vector<at::Tensor>>& outputs,
                                        std::vector<at::Tensor>& inputs,
                                        const c10d::GatherOptions& options) override {
    return queue(inputs, outputs.at(0), options.asyncOp);
  }
  c10::intrusive_ptr<c10d::Work> scatter(std::vector<at::Tensor>& outputs,
                                         std::vector<std::vector<at::Tensor>>& inputs,
                                         const c10d::ScatterOptions& options) override {
    return queue(inputs.at(0), outputs, options.asyncOp);
  }
  c10::intrusive_ptr<c10d::Work> allgather_coalesced(
      std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& options) override {
    return queue(inputs, outputs.at(0), options.asyncOp);
  }
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override {
    return queue({make_flat()}, {}, options.asyncOp);
  }
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int, int) override {
    return between_two(tensors, {});
  }
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int, int) override {
    return between_two({}, tensors);
  }

  Make make_flat;
  bool fails = false;
  Nanoseconds duration = 5_ms;

 private:
  c10::intrusive_ptr<c10d::Work> between_two(const std::vector<at::Tensor>& inputs,
                                             const std::vector<at::Tensor>& outputs) {
    for (const auto* list : {&inputs, &outputs}) {
      for (const at::Tensor& tensor : *list) records_(tensor);
    }
    auto work = queue(inputs, outputs, true);
    return coalescing_ ? nullptr : work;
  }

  c10::intrusive_ptr<c10d::Work> queue(const std::vector<at::Tensor>& inputs,
                                       const std::vector<at::Tensor>& outputs, bool async) {
    std::vector<Access> accesses;
    for (const at::Tensor& tensor : inputs)
      accesses.push_back(Reads(tensor.storage().data(), kBytes));
    for (const at::Tensor& tensor : outputs)
      accesses.push_back(Writes(tensor.storage().data(), kBytes));
    if (!async) {
      EXPECT_TRUE(device_.launch(streams_.current(), accesses, duration).ok());
      return nullptr;
    }
    auto end = communicator_.queue(accesses, duration);
    TORCH_CHECK(!fails, "NCCL says no");
    std::vector<at::Tensor> kept = inputs;
    kept.insert(kept.end(), outputs.begin(), outputs.end());
    if (!coalescing_) return c10::make_intrusive<FakeWork>(std::move(end), std::move(kept));
    coalesced_.insert(coalesced_.end(), kept.begin(), kept.end());
    return c10::make_intrusive<FakeWork>(nullptr, std::vector<at::Tensor>());
  }

  const std::string name_;
  FakeCommunicator& communicator_;
  SimDevice& device_;
  FakeStreams& streams_;
  std::function<void(at::Tensor)> records_;
  bool coalescing_ = false;
  std::vector<at::Tensor> coalesced_;
};

Backend* backend_of_tensors = nullptr;

class C10d : public WithCollectives {
 protected:
  void SetUp() override {
    backend_of_tensors = &backend_;
    proxy().target = &fences_;
    Operations::enable(proxy());
    group_ = make_group("nccl");
  }
  void TearDown() override {
    group_.reset();
    WithCollectives::TearDown();
  }

  // Kernels are the process's: what they reach is each test's own.
  struct Proxy final : CollectiveMemory {
    void begin(Operation& operation) override { target->begin(operation); }
    void end(Operation& operation) noexcept override { target->end(operation); }
    std::optional<Fence> fence(const CommStreamKey& stream, Operation& operation,
                               c10::function_ref<void()> join) override {
      keys.push_back(stream);
      return target->fence(stream, operation, join);
    }
    void note_waited(int device, Fence fence) override { target->note_waited(device, fence); }
    void record_uses(Operation& operation) override { target->record_uses(operation); }
    CollectiveFences* target = nullptr;
    std::vector<CommStreamKey> keys;
  };
  static Proxy& proxy() {
    static Proxy proxy;
    return proxy;
  }

  c10::intrusive_ptr<c10d::ProcessGroup> make_group(const std::string& name) {
    auto backend = c10::make_intrusive<FakeNccl>(
        name, communicator_, sim_, streams_, [this](const at::Tensor& tensor) {
          record_stream(const_cast<void*>(tensor.storage().data()), communicator_.stream());
        });
    backend->make_flat = [this] { return tensor(); };
    nccl_ = backend.get();
    auto group = c10::make_intrusive<c10d::ProcessGroup>(0, 2);
    group->setBackend(c10::DeviceType::CUDA, c10d::ProcessGroup::BackendType::NCCL,
                      c10::intrusive_ptr<c10d::Backend>(std::move(backend)));
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::NCCL);
    return group;
  }

  // Of a CUDA device, with memory of Weir's.
  at::Tensor tensor() {
    void* const block = allocate(kBytes);
    c10::DataPtr data(
        block, block, +[](void* memory) { backend_of_tensors->raw_delete(memory); },
        c10::Device(c10::kCUDA, 0));
    c10::Storage storage(c10::Storage::use_byte_size_t(), kBytes.count, std::move(data));
    at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA),
        caffe2::TypeMeta::Make<std::uint8_t>());
    made.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<std::int64_t>(kBytes.count)});
    return made;
  }
  at::Tensor written() {
    at::Tensor made = tensor();
    write(const_cast<void*>(made.storage().data()), kBytes);
    return made;
  }
  // What the memory of dropped tensors is used for next. (All of it is, and a race is seen.)
  void use_memory_again(int blocks = 6) {
    std::vector<at::Tensor> next;
    for (int i = 0; i < blocks; ++i) next.push_back(written());
  }
  std::uint64_t fenced() const { return fences_.fenced(); }

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  FakeNccl* nccl_ = nullptr;
};

TEST_F(C10d, EveryOperationOfAGroupIsFencedAndItsTensorsMayGoAtOnce) {
  using List = std::vector<at::Tensor>;
  using Lists = std::vector<List>;
  const std::vector<std::function<c10::intrusive_ptr<c10d::Work>()>> operations = {
      [&] {
        List t{written()};
        return group_->allreduce(t);
      },
      [&] {
        List t{written(), written()};
        return group_->allreduce_coalesced(t);
      },
      [&] {
        List t{written()};
        return group_->broadcast(t);
      },
      [&] {
        List t{written()};
        return group_->reduce(t);
      },
      [&] {
        Lists o{{tensor(), tensor()}};
        List i{written()};
        return group_->allgather(o, i);
      },
      [&] {
        at::Tensor o = tensor(), i = written();
        return group_->_allgather_base(o, i);
      },
      [&] {
        Lists o{{tensor()}};
        List i{written()};
        return group_->allgather_coalesced(o, i);
      },
      [&] {
        List o{tensor()}, i{written()};
        return group_->allgather_into_tensor_coalesced(o, i);
      },
      [&] {
        Lists o{{tensor()}};
        List i{written()};
        return group_->gather(o, i);
      },
      [&] {
        List o{tensor()};
        Lists i{{written()}};
        return group_->scatter(o, i);
      },
      [&] {
        List o{tensor()};
        Lists i{{written()}};
        return group_->reduce_scatter(o, i);
      },
      [&] {
        at::Tensor o = tensor(), i = written();
        return group_->_reduce_scatter_base(o, i);
      },
      [&] {
        List o{tensor()}, i{written()};
        return group_->reduce_scatter_tensor_coalesced(o, i);
      },
      [&] {
        at::Tensor o = tensor(), i = written();
        std::vector<std::int64_t> none;
        return group_->alltoall_base(o, i, none, none);
      },
      [&] {
        List o{tensor()}, i{written()};
        return group_->alltoall(o, i);
      },
      [&] {
        List t{written()};
        return group_->send(t, 1, 0);
      },
      [&] {
        List t{tensor()};
        return group_->recv(t, 1, 0);
      },
  };
  std::uint64_t done = 0;
  for (const auto& operation : operations) {
    const c10::intrusive_ptr<c10d::Work> work = operation();
    ASSERT_NE(work.get(), nullptr) << done;
    EXPECT_EQ(fenced(), ++done);
    const auto* const fenced_work = dynamic_cast<FencedWork*>(work.get());
    ASSERT_NE(fenced_work, nullptr);
    const auto& own = dynamic_cast<FakeWork&>(*fenced_work->inner());
    EXPECT_EQ(own.kept(), 0u) << done;
    EXPECT_EQ(own.waits, 0);
    use_memory_again();
    EXPECT_EQ(sim_.race_count(), 0u) << done;
  }
  // All of them but barrier, which PyTorch makes a tensor for, and what NCCL does not have.
  EXPECT_EQ(done + 2, Operations::names().size());
}

// As most programs do; then nothing waits for the operation a second time.
TEST_F(C10d, AfterAWaitOfTheProgramsItsStreamTakesTheMemoryWithoutAnother) {
  for (const bool by_wait : {true, false}) {
    std::vector<at::Tensor> tensors{written()};
    const void* const memory = tensors[0].storage().data();
    const auto work = group_->allreduce(tensors);
    by_wait ? (void)work->wait() : work->synchronize();
    tensors.clear();
    const std::uint64_t waits = sim_.calls(DeviceCall::wait);
    const at::Tensor next = written();
    EXPECT_EQ(next.storage().data(), memory);
    EXPECT_EQ(sim_.calls(DeviceCall::wait), waits);
  }
}

TEST_F(C10d, AWaitOnAnotherStreamSaysNothingOfTheTensorsOwn) {
  const Stream side = streams_.add();
  std::vector<at::Tensor> tensors{written()};
  const auto work = group_->allreduce(tensors);
  streams_.set_current(side);
  (void)work->wait();
  streams_.set_current(compute_);
  tensors.clear();
  const std::uint64_t waits = sim_.calls(DeviceCall::wait);
  use_memory_again();
  EXPECT_GT(sim_.calls(DeviceCall::wait), waits);
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
}

TEST_F(C10d, ABarrierIsFenced) {
  at::Tensor token = tensor();
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("c10d::barrier", "")
                             .typed<c10::intrusive_ptr<c10d::Work>(
                                 at::Tensor, const c10::intrusive_ptr<c10d::ProcessGroup>&,
                                 const std::vector<std::int64_t>&, bool, std::int64_t)>();
  const auto work = op.call(token, group_, {}, true, -1);
  EXPECT_EQ(fenced(), 1u);
  use_memory_again();
}

TEST_F(C10d, OperationsOnTheCurrentStreamNeedNoFence) {
  std::vector<at::Tensor> tensors{written()};
  c10d::AllreduceOptions options;
  options.asyncOp = false;
  EXPECT_EQ(group_->allreduce(tensors, options).get(), nullptr);
  tensors.clear();
  EXPECT_EQ(fenced(), 0u);
  use_memory_again();
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

// batch_isend_irecv, and Python's coalescing manager.
TEST_F(C10d, ACoalescedOperationGetsOneFenceAtItsEnd) {
  Operations& operations = *Operations::in_use();
  operations.coalescing_begins(group_.get());
  group_->startCoalescing(c10::DeviceType::CUDA);
  for (int i = 0; i < 3; ++i) {
    std::vector<at::Tensor> sent{written()}, received{tensor()};
    EXPECT_EQ(group_->send(sent, 1, 0).get(), nullptr);
    EXPECT_EQ(group_->recv(received, 1, 0).get(), nullptr);
    std::vector<at::Tensor> reduced{written()};
    (void)group_->allreduce(reduced);
  }
  EXPECT_EQ(fenced(), 0u);
  use_memory_again();
  const auto work = group_->endCoalescing(c10::DeviceType::CUDA);
  operations.coalescing_ends(group_.get(), [&] { work->synchronize(); });
  EXPECT_EQ(fenced(), 1u);
  EXPECT_EQ(dynamic_cast<FakeWork&>(*work).kept(), 0u);
  use_memory_again(12);
}

TEST_F(C10d, ACoalescedOperationOnTheCurrentStreamGetsNone) {
  Operations& operations = *Operations::in_use();
  operations.coalescing_begins(group_.get());
  operations.coalescing_ends(group_.get(), std::nullopt);
  operations.coalescing_ends(group_.get(), std::nullopt);  // nothing was begun
  EXPECT_EQ(fenced(), 0u);
  std::vector<at::Tensor> tensors{written()};
  (void)group_->allreduce(tensors);
  EXPECT_EQ(fenced(), 1u);
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

TEST_F(C10d, WithinAGroupOfNcclsOwnNothingIsFenced) {
  Operations::enter_nccl_group();
  std::vector<at::Tensor> tensors{written()};
  const auto work = group_->allreduce(tensors);
  Operations::leave_nccl_group();
  EXPECT_EQ(fenced(), 0u);
  EXPECT_GT(dynamic_cast<FakeWork&>(*work).kept(), 0u);
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

// Scenario C: what eight layers hold, each with an all-reduce whose tensor and Work are dropped.
TEST_F(C10d, DroppedOperationsHoldNoMemoryOfLaterLayers) {
  for (int step = 0; step < 5; ++step) {
    for (int layer = 0; layer < 8; ++layer) {
      std::vector<at::Tensor> tensors{written()};
      (void)group_->allreduce(tensors);
    }
  }
  EXPECT_LE(sim_.physical_bytes(), kBytes * 3);
}

TEST_F(C10d, HundredThousandOperationsLeaveNothingBehind) {
  nccl_->duration = 1_us;
  std::uint64_t events = 0;
  for (int i = 0; i < 100'000; ++i) {
    std::vector<at::Tensor> tensors{tensor()};
    (void)group_->allreduce(tensors);
    if (i == 2'000) events = sim_.live_events();
  }
  EXPECT_EQ(sim_.live_events(), events);
  EXPECT_EQ(fenced(), 100'000u);
}

}  // namespace
}  // namespace weir::pytorch
