// SPDX-License-Identifier: Apache-2.0
#include "torch/c10d/operations.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <string>

#include "api/c_status.h"

namespace weir::pytorch {
namespace {

using c10d::ProcessGroup;
using c10d::Work;
using WorkPointer = c10::intrusive_ptr<Work>;

constinit thread_local int nccl_groups_of_this_thread = 0;

// As ProcessGroup._id() in Python gives it.
const ProcessGroup* group_of(std::int64_t id) {
  return reinterpret_cast<const ProcessGroup*>(static_cast<std::intptr_t>(id));
}

// What a call of an operator is about. Arguments that say nothing (options, counts) are passed
// over.
struct Call {
  c10::intrusive_ptr<ProcessGroup> group;
  bool on_cuda = false;                     // it has a CUDA tensor, be it empty
  c10::SmallVector<at::Tensor, 8> tensors;  // with memory of a CUDA device
  Operation operation;

  explicit Call(c10::ArrayRef<c10::IValue> arguments) {
    for (const c10::IValue& each : arguments) add(each);
  }
  bool is_nccls() const {
    return on_cuda && group->getBackend(c10::DeviceType::CUDA)->getBackendName() == "nccl";
  }

 private:
  void add(const c10::IValue& argument) {
    if (argument.isTensor()) return add(argument.toTensor());
    if (argument.isList()) {
      for (const c10::IValue& each : argument.toListRef()) add(each);
    } else if (argument.isObject()) {  // a group, or what an operation reduces by
      const auto object = argument.toObjectRef().getSlot(0).toCapsule();
      auto* const found = dynamic_cast<ProcessGroup*>(object.get());
      if (found != nullptr) group = c10::intrusive_ptr<ProcessGroup>::reclaim_copy(found);
    }
  }
  void add(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cuda()) return;
    on_cuda = true;
    if (!tensor.has_storage()) return;
    const void* const memory = tensor.storage().data();
    if (memory == nullptr) return;
    tensors.push_back(tensor);
    operation.memory.push_back(memory);
  }
};

constexpr std::array kOperators = {
    "allreduce_",
    "allreduce_coalesced_",
    "broadcast_",
    "reduce_",
    "allgather_",
    "_allgather_base_",
    "allgather_coalesced_",
    "allgather_into_tensor_coalesced_",
    "gather_",
    "gather_into_tensor_",  // since PyTorch 2.14
    "scatter_",
    "reduce_scatter_",
    "_reduce_scatter_base_",
    "reduce_scatter_tensor_coalesced_",
    "alltoall_",
    "alltoall_base_",
    "barrier",
    "send",
    "recv_",
    "recv_any_source_",
};

// The rank of the other side, the third argument of operations between two.
int peer_of(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  const std::string& name = op.operator_name().name;
  const bool is_between_two = name == "c10d::send" || name == "c10d::recv_";
  return is_between_two ? static_cast<int>(arguments.at(2).toInt()) : CommStreamKey::kNoPeer;
}

// The kernel of all operators: whatever their arguments, they are on the stack, and so is what
// comes back, the work last.
void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet rest =
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
  const auto go_on = [&] { op.redispatchBoxed(rest, stack); };
  Operations* const operations = Operations::in_use();
  if (operations == nullptr) return go_on();
  const c10::ArrayRef<c10::IValue> arguments =
      torch::jit::last(*stack, op.schema().arguments().size());
  Call call(arguments);
  if (!call.is_nccls()) return go_on();
  const auto go_on_relaxed = [&] {
    const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
    go_on();
  };
  // Within ncclGroupStart() an operation's end is marked before it is launched.
  if (call.tensors.empty() || nccl_groups_of_this_thread > 0) return go_on_relaxed();

  call.operation.waits_for_ranks = call.group->getSize() > 1;
  const CommStreamKey stream{.group = call.group.get(),
                             .device = call.tensors.front().device().index(),
                             .peer = peer_of(op, arguments)};
  Operation::begin(call.operation);
  try {
    go_on_relaxed();
  } catch (...) {
    Operation::end(call.operation);
    operations->memory().record_uses(call.operation);
    throw;
  }
  Operation::end(call.operation);
  c10::IValue& work = stack->back();
  work = operations->queued(stream, call.operation, work.toCustomClass<Work>(), call.tensors);
}

void coalescing_ends(std::int64_t group, const std::optional<WorkPointer>& work) {
  if (Operations* const operations = Operations::in_use()) {
    operations->coalescing_ends(group_of(group), work.value_or(WorkPointer()));
  }
}

void add_kernels() {
  // For as long as the process lives: a call may be on its way at any time.
  static auto* const library = new torch::Library(
      torch::Library::IMPL, "c10d", c10::DispatchKey::BackendSelect, __FILE__, __LINE__);
  for (const char* const name : kOperators) {
    if (!c10::Dispatcher::singleton().findSchema({std::string("c10d::") + name, ""})) continue;
    library->impl(name, torch::CppFunction::makeFromBoxedFunction<&run>());
  }

  // As an operator Python hands over its Work, and no Python runs while the Work is joined. Modes
  // of torch.utils._python_dispatch have no part in it.
  static auto* const own =
      new torch::Library(torch::Library::FRAGMENT, "weir", std::nullopt, __FILE__, __LINE__);
  own->def("_coalescing_ends(int group, __torch__.torch.classes.c10d.Work? work) -> ()");
  own->impl("_coalescing_ends", TORCH_FN(coalescing_ends));
  own->impl("_coalescing_ends",
            torch::dispatch(c10::DispatchKey::Python, TORCH_FN(coalescing_ends)));
}

}  // namespace

void Operations::enable(CollectiveMemory& memory) {
  static std::once_flag added;
  std::call_once(added, add_kernels);
  if (in_use() == nullptr) in_use_.store(new Operations(memory), std::memory_order_release);
}

WorkPointer Operations::queued(const CommStreamKey& stream, Operation& operation, WorkPointer work,
                               c10::SmallVectorImpl<at::Tensor>& tensors) {
  if (add_to_coalesced(stream, operation, tensors)) return work;
  const std::optional<Fence> fence = fence_of(stream, operation, work);
  if (!fence) return work;
  return c10::make_intrusive<FencedWork>(std::move(work), memory_, stream.device, *fence);
}

std::optional<Fence> Operations::fence_of(const CommStreamKey& stream, Operation& operation,
                                          const WorkPointer& work) {
  if (!work) {
    memory_.on_current_stream(stream.device, operation);
    return std::nullopt;
  }
  // Not wait(), which blocks the host where TORCH_NCCL_BLOCKING_WAIT is set.
  return memory_.fence(stream, operation, [&work] { work->synchronize(); });
}

bool Operations::add_to_coalesced(const CommStreamKey& stream, Operation& operation,
                                  c10::SmallVectorImpl<at::Tensor>& tensors) {
  const std::lock_guard lock(mutex_);
  const auto found = coalesced_.find(static_cast<const ProcessGroup*>(stream.group));
  if (found == coalesced_.end()) return false;
  Coalesced& coalesced = found->second;
  coalesced.device = stream.device;
  coalesced.operation.add(operation);
  coalesced.tensors.insert(coalesced.tensors.end(), std::move_iterator(tensors.begin()),
                           std::move_iterator(tensors.end()));
  return true;
}

void Operations::coalescing_begins(const ProcessGroup* group) {
  const std::lock_guard lock(mutex_);
  coalesced_[group] = {};
}

bool Operations::has_coalesced(const ProcessGroup* group) {
  const std::lock_guard lock(mutex_);
  const auto found = coalesced_.find(group);
  return found != coalesced_.end() && !found->second.tensors.empty();
}

void Operations::coalescing_ends(const ProcessGroup* group, const WorkPointer& work) {
  std::unique_lock lock(mutex_);
  auto ended = coalesced_.extract(group);
  lock.unlock();
  if (ended.empty()) return;
  auto& [device, operation, tensors] = ended.mapped();
  if (tensors.empty()) return memory_.record_uses(operation);
  (void)fence_of({.group = group, .device = device}, operation, work);
}

// What the Python package calls, by ctypes. Groups are as ProcessGroup._id() gives them.
extern "C" {

// `memory`: what weir_torch_collective_memory() gave.
weir_status_t weir_c10d_enable(void* memory) {
  return c::guarded([&] { Operations::enable(*static_cast<CollectiveMemory*>(memory)); });
}

void weir_c10d_coalescing_begins(std::int64_t group) {
  if (Operations* const operations = Operations::in_use()) {
    operations->coalescing_begins(group_of(group));
  }
}

// The end of a coalesced operation may connect its ranks. If it is one of NCCL's, the thread's
// capture mode is relaxed until weir_c10d_restore() has what this returns; else nothing happens.
int weir_c10d_relax(std::int64_t group) {
  Operations* const operations = Operations::in_use();
  if (operations == nullptr || !operations->has_coalesced(group_of(group))) return -1;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  return cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess ? mode : -1;
}
void weir_c10d_restore(int before) {
  if (before < 0) return;
  auto mode = static_cast<cudaStreamCaptureMode>(before);
  (void)cudaThreadExchangeStreamCaptureMode(&mode);
}

// While the thread is within a group of NCCL's own (ncclGroupStart), operations are not launched
// before its end, and PyTorch keeps their tensors.
void weir_c10d_enter_nccl_group() { ++nccl_groups_of_this_thread; }
void weir_c10d_leave_nccl_group() {
  int& groups = nccl_groups_of_this_thread;
  groups = std::max(groups - 1, 0);
}

}  // extern "C"

}  // namespace weir::pytorch
