// SPDX-License-Identifier: Apache-2.0
// A backend that stands in for NCCL's, in a ProcessGroup that PyTorch's dispatcher reaches, on a
// simulated device.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "tests/torch/fake_collectives.h"
#include "torch/c10d/operations.h"

extern "C" {
void weir_c10d_enter_nccl_group();
void weir_c10d_leave_nccl_group();
}

namespace weir::pytorch {

constexpr Bytes kTensorBytes = 16_MiB;

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
  void blockCurrentStream() override { synchronize(); }
  std::vector<at::Tensor> result() override { return {at::Tensor()}; }
  std::uint64_t getSequencenumber() const override { return 7; }
  float getDuration() const override { return 2.5F; }
#if WEIR_TORCH_SINCE(14)
  std::chrono::milliseconds getTimeout() const override { return std::chrono::milliseconds(11); }
#endif
#if WEIR_TORCH_SINCE(15)
  std::uint64_t getCompletionKey() const override { return 13; }
#endif
  std::size_t kept() const { return kept_.size(); }
  int waits = 0;

 private:
  std::shared_ptr<FakeCommunicator::End> end_;
  std::vector<at::Tensor> kept_;
};

// As ProcessGroupNCCL: async operations run on its stream and keep their tensors; others run on the
// current stream, and give no Work; within a coalesced operation nothing ends. It connects in its
// first operation, or at the end of the first coalesced one, by calls that captures do not permit.
class FakeNccl final : public c10d::Backend {
 public:
  using Make = std::function<at::Tensor()>;
  FakeNccl(std::string name, FakeCommunicator& communicator, SimDevice& device,
           FakeStreams& streams, std::function<void(at::Tensor)> records, int ranks = 2)
      : Backend(0, ranks),
        name_(std::move(name)),
        communicator_(communicator),
        device_(device),
        streams_(streams),
        records_(std::move(records)) {}

  const std::string getBackendName() const override { return name_; }
  void startCoalescing() override { coalescing_ = true; }
  c10::intrusive_ptr<c10d::Work> endCoalescing() override {
    coalescing_ = false;
    connect();
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
#if WEIR_TORCH_SINCE(14)
  WEIR_IN_OUT(gather_into_tensor, GatherOptions)
#endif
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

  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int) override {
    return between_two({}, tensors);
  }

  Make make_flat;
  bool fails = false;
  std::optional<cudaStreamCaptureMode> mode;  // of the thread, in the last operation
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

  void connect() {
    if (!connected_) streams_.forbidden();
    connected_ = true;
  }

  c10::intrusive_ptr<c10d::Work> queue(const std::vector<at::Tensor>& inputs,
                                       const std::vector<at::Tensor>& outputs, bool async) {
    mode = capture_mode_of_fake_runtime();
    if (!coalescing_) connect();
    std::vector<Access> accesses;
    const auto bytes = [](const at::Tensor& tensor) { return Bytes{tensor.storage().nbytes()}; };
    const auto has_memory = [&](const at::Tensor& tensor) {
      return tensor.is_cuda() && bytes(tensor) > 0_B;
    };
    for (const at::Tensor& tensor : inputs) {
      if (has_memory(tensor)) accesses.push_back(Reads(tensor.storage().data(), bytes(tensor)));
    }
    for (const at::Tensor& tensor : outputs) {
      if (has_memory(tensor)) accesses.push_back(Writes(tensor.storage().data(), bytes(tensor)));
    }
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
  bool connected_ = name_ != "nccl";
  bool coalescing_ = false;
  std::vector<at::Tensor> coalesced_;
};

inline Backend* backend_of_tensors = nullptr;

// Groups of the stand-in, in a process whose operations get fences.
class WithNccl : public WithCollectives {
 protected:
  explicit WithNccl(ReusePolicy reuse = ReusePolicy::wait) : WithCollectives(reuse) {}

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
    std::optional<Fence> fence(const CommStreamKey& stream, Operation& operation,
                               c10::function_ref<void()> join) override {
      keys.push_back(stream);
      addresses = operation.memory.size();
      return target->fence(stream, operation, join);
    }
    void note_waited(int device, Fence fence) override { target->note_waited(device, fence); }
    void record_uses(Operation& operation) noexcept override { target->record_uses(operation); }
    void on_current_stream(int device, Operation& operation) noexcept override {
      target->on_current_stream(device, operation);
    }
    CollectiveMemory* target = nullptr;
    std::vector<CommStreamKey> keys;
    std::size_t addresses = 0;  // of the last operation's memory
  };
  static Proxy& proxy() {
    static Proxy proxy;
    return proxy;
  }

  c10::intrusive_ptr<c10d::ProcessGroup> make_group(const std::string& name, int ranks = 2) {
    auto backend = c10::make_intrusive<FakeNccl>(
        name, communicator_, sim_, streams_,
        [this](const at::Tensor& tensor) {
          record_stream(const_cast<void*>(tensor.storage().data()), communicator_.stream());
        },
        ranks);
    backend->make_flat = [this] { return tensor(); };
    nccl_ = backend.get();
    auto of_host = c10::make_intrusive<FakeNccl>("gloo", communicator_, sim_, streams_,
                                                 [](const at::Tensor&) {});
    host_backend_ = of_host.get();
    auto group = c10::make_intrusive<c10d::ProcessGroup>(0, ranks);
    group->setBackend(c10::DeviceType::CUDA, c10d::ProcessGroup::BackendType::NCCL,
                      c10::intrusive_ptr<c10d::Backend>(std::move(backend)));
    group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO,
                      c10::intrusive_ptr<c10d::Backend>(std::move(of_host)));
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::NCCL);
    return group;
  }

  // Of a CUDA device, with memory of Weir's.
  at::Tensor tensor(Bytes bytes = kTensorBytes) {
    void* const block = allocate(bytes);
    return tensor_with({block, block, +[](void* memory) { backend_of_tensors->raw_delete(memory); },
                        c10::Device(c10::kCUDA, 0)},
                       bytes);
  }
  // Of the device that `data` names.
  static at::Tensor tensor_with(c10::DataPtr data, Bytes bytes) {
    const auto key = data.device().is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
    c10::Storage storage(c10::Storage::use_byte_size_t(), bytes.count, std::move(data));
    at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(key), caffe2::TypeMeta::Make<std::uint8_t>());
    made.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<std::int64_t>(bytes.count)});
    return made;
  }
  at::Tensor written() {
    at::Tensor made = tensor();
    write(const_cast<void*>(made.storage().data()), kTensorBytes);
    return made;
  }
  // What the memory of dropped tensors is used for next. (All of it is, and a race is seen.)
  void use_memory_again(int blocks = 6) {
    std::vector<at::Tensor> next;
    for (int i = 0; i < blocks; ++i) next.push_back(written());
  }
  std::uint64_t fenced() const { return fences_.fenced(); }

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  FakeNccl* nccl_ = nullptr;          // of the group that was made last,
  FakeNccl* host_backend_ = nullptr;  // and what it has for tensors of the host
};

}  // namespace weir::pytorch
