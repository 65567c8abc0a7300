// SPDX-License-Identifier: Apache-2.0
#include "torch/c10d/operations.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <torch/library.h>

#include <string_view>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <tuple>
#include <type_traits>
#include <utility>

#include "torch/c10d/fenced_work.h"

namespace weir::pytorch {
namespace {

using c10d::ProcessGroup;
using c10d::ReduceOp;
using c10d::Work;
using Group = c10::intrusive_ptr<ProcessGroup>;
using Op = c10::intrusive_ptr<ReduceOp>;
using WorkPointer = c10::intrusive_ptr<Work>;
using Tensors = std::vector<at::Tensor>;
using Lists = std::vector<std::vector<at::Tensor>>;

int& nccl_groups_of_this_thread() {
  constinit static thread_local int groups = 0;
  return groups;
}

// --- What an argument says. Those that say nothing (options, counts) are passed over.

template <class Argument>
void for_each_tensor(const Argument& argument, auto&& visit) {
  if constexpr (std::is_same_v<Argument, at::Tensor>) {
    if (argument.defined()) visit(argument);
  } else if constexpr (std::is_same_v<Argument, std::optional<at::Tensor>>) {
    if (argument) for_each_tensor(*argument, visit);
  } else if constexpr (std::is_same_v<Argument, at::TensorList>) {
    for (const at::Tensor& tensor : argument) for_each_tensor(tensor, visit);
  } else if constexpr (std::is_same_v<Argument, Lists>) {
    for (const Tensors& list : argument) {
      for (const at::Tensor& tensor : list) for_each_tensor(tensor, visit);
    }
  }
}

template <class Argument>
void find_group(const Argument& argument, ProcessGroup*& group) {
  if constexpr (std::is_same_v<Argument, Group>) group = argument.get();
}

WorkPointer& work_of(WorkPointer& result) { return result; }
template <class First>
WorkPointer& work_of(std::tuple<First, WorkPointer>& result) {
  return std::get<1>(result);
}

// What a call of an operator is about.
struct Call {
  ProcessGroup* group = nullptr;
  bool on_cuda = false;                     // it has a CUDA tensor, be it empty
  c10::SmallVector<at::Tensor, 8> tensors;  // with memory of a CUDA device
  Operation operation;

  bool is_nccls() const {
    return on_cuda && group->getBackend(c10::DeviceType::CUDA)->getBackendName() == "nccl";
  }
  void add(const at::Tensor& tensor) {
    if (!tensor.is_cuda()) return;
    on_cuda = true;
    if (!tensor.has_storage()) return;
    const void* const memory = tensor.storage().data();
    if (memory == nullptr) return;
    tensors.push_back(tensor);
    operation.memory.push_back(memory);
  }
};

class Noted {
 public:
  Noted(CollectiveMemory& memory, Operation& operation) : memory_(memory), operation_(operation) {
    memory_.begin(operation_);
  }
  ~Noted() { memory_.end(operation_); }
  Noted(const Noted&) = delete;
  Noted& operator=(const Noted&) = delete;

 private:
  CollectiveMemory& memory_;
  Operation& operation_;
};

// --- The kernels.

// Name: the operator's, and which of its arguments is the rank of the other side.
template <class Name, class Signature>
struct Kernel;
template <class Name, class Result, class... Arguments>
struct Kernel<Name, Result(Arguments...)> {
  static Result call(c10::DispatchKeySet keys, Arguments... arguments) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow(Name::kSchema, "")
                               .template typed<Result(Arguments...)>();
    const c10::DispatchKeySet rest = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER,
                                                                c10::DispatchKey::BackendSelect);
    const auto go_on = [&]() -> Result {
      return op.redispatch(rest, std::forward<Arguments>(arguments)...);
    };
    Operations* const operations = Operations::in_use();
    if (operations == nullptr) return go_on();
    ProcessGroup* group = nullptr;
    (find_group<std::remove_cvref_t<Arguments>>(arguments, group), ...);
    Call call{.group = group, .tensors = {}, .operation = {}};
    (for_each_tensor<std::remove_cvref_t<Arguments>>(
         arguments, [&](const at::Tensor& tensor) { call.add(tensor); }),
     ...);
    if (!call.is_nccls()) return go_on();
    const auto go_on_relaxed = [&]() -> Result {
      const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
      return go_on();
    };
    // Within ncclGroupStart() an operation's end is marked before it is launched.
    if (call.tensors.empty() || nccl_groups_of_this_thread() > 0) return go_on_relaxed();

    call.operation.waits_for_ranks = group->getSize() > 1;
    const CommStreamKey stream{.group = group,
                               .device = call.tensors.front().device().index(),
                               .peer = Name::peer(arguments...)};
    Result result = [&]() -> Result {
      const Noted noted(operations->memory(), call.operation);
      try {
        return go_on_relaxed();
      } catch (...) {
        operations->memory().record_uses(call.operation);
        throw;
      }
    }();
    WorkPointer& work = work_of(result);
    work = operations->queued(stream, call.operation, std::move(work), call.tensors);
    return result;
  }
};

// The names, and the signatures that PyTorch's own kernels have. The dispatcher refuses a kernel
// with another signature, and a test compares the names with those of the installed PyTorch.
struct Collective {
  static int peer(const auto&...) { return CommStreamKey::kNoPeer; }
};
struct BetweenTwo {
  static int peer(const auto&, const auto&, std::int64_t peer, std::int64_t) {
    return static_cast<int>(peer);
  }
};

#define WEIR_C10D_OPERATIONS(OPERATION)                                                            \
  OPERATION(                                                                                       \
      allreduce_, Collective,                                                                      \
      std::tuple<Tensors, WorkPointer>(at::TensorList, const Group&, const Op&,                    \
                                       const std::optional<at::Tensor>&, bool, std::int64_t))      \
  OPERATION(allreduce_coalesced_, Collective,                                                      \
            WorkPointer(at::TensorList, const Group&, const Op&, bool, std::int64_t))              \
  OPERATION(broadcast_, Collective,                                                                \
            std::tuple<Tensors, WorkPointer>(at::TensorList, const Group&, std::int64_t,           \
                                             std::int64_t, bool, std::int64_t))                    \
  OPERATION(reduce_, Collective,                                                                   \
            WorkPointer(at::TensorList, const Group&, const Op&, std::int64_t, std::int64_t, bool, \
                        std::int64_t))                                                             \
  OPERATION(allgather_, Collective,                                                                \
            std::tuple<Lists, WorkPointer>(const Lists&, at::TensorList, const Group&, bool,       \
                                           std::int64_t))                                          \
  OPERATION(_allgather_base_, Collective,                                                          \
            std::tuple<at::Tensor, WorkPointer>(at::Tensor&, at::Tensor&, const Group&, bool,      \
                                                std::int64_t))                                     \
  OPERATION(allgather_coalesced_, Collective,                                                      \
            WorkPointer(const Lists&, const at::TensorList&, const Group&, bool))                  \
  OPERATION(allgather_into_tensor_coalesced_, Collective,                                          \
            WorkPointer(at::TensorList, at::TensorList, const Group&, bool))                       \
  OPERATION(gather_, Collective,                                                                   \
            WorkPointer(const Lists&, const at::TensorList&, const Group&, std::int64_t, bool,     \
                        std::int64_t))                                                             \
  OPERATION(scatter_, Collective,                                                                  \
            std::tuple<Tensors, WorkPointer>(const at::TensorList&, const Lists&, const Group&,    \
                                             std::int64_t, bool, std::int64_t))                    \
  OPERATION(reduce_scatter_, Collective,                                                           \
            std::tuple<Tensors, WorkPointer>(const at::TensorList&, const Lists&, const Group&,    \
                                             const Op&, bool, std::int64_t))                       \
  OPERATION(_reduce_scatter_base_, Collective,                                                     \
            std::tuple<at::Tensor, WorkPointer>(at::Tensor&, at::Tensor&, const Group&, const Op&, \
                                                bool, std::int64_t))                               \
  OPERATION(                                                                                       \
      reduce_scatter_tensor_coalesced_, Collective,                                                \
      WorkPointer(at::TensorList, at::TensorList, const Group&, const Op&, bool, std::int64_t))    \
  OPERATION(alltoall_, Collective,                                                                 \
            std::tuple<Tensors, WorkPointer>(const at::TensorList&, const at::TensorList&,         \
                                             const Group&, bool, std::int64_t))                    \
  OPERATION(alltoall_base_, Collective,                                                            \
            WorkPointer(at::Tensor&, at::Tensor&, const Group&, std::vector<std::int64_t>,         \
                        std::vector<std::int64_t>, bool, std::int64_t))                            \
  OPERATION(                                                                                       \
      barrier, Collective,                                                                         \
      WorkPointer(at::Tensor, const Group&, const std::vector<std::int64_t>&, bool, std::int64_t)) \
  OPERATION(send, BetweenTwo,                                                                      \
            WorkPointer(at::TensorList, const Group&, std::int64_t, std::int64_t))                 \
  OPERATION(recv_, BetweenTwo,                                                                     \
            WorkPointer(at::TensorList, const Group&, std::int64_t, std::int64_t))                 \
  OPERATION(recv_any_source_, Collective, WorkPointer(at::TensorList, const Group&, std::int64_t))

#define WEIR_C10D_NAME(name, kind, ...)                    \
  struct Of_##name : kind {                                \
    static constexpr const char* kName = #name;            \
    static constexpr const char* kSchema = "c10d::" #name; \
  };
WEIR_C10D_OPERATIONS(WEIR_C10D_NAME)

// `group`: as ProcessGroup._id() in Python gives it.
void coalescing_ends(std::int64_t group, const std::optional<WorkPointer>& work) {
  if (Operations* const operations = Operations::in_use()) {
    const auto id = static_cast<std::intptr_t>(group);
    operations->coalescing_ends(reinterpret_cast<const ProcessGroup*>(id),
                                work.value_or(WorkPointer()));
  }
}

void add_kernels() {
  // For as long as the process lives: a call may be on its way at any time.
  static auto* const library = new torch::Library(
      torch::Library::IMPL, "c10d", c10::DispatchKey::BackendSelect, __FILE__, __LINE__);
#define WEIR_C10D_KERNEL(name, kind, ...) \
  library->impl(#name, TORCH_FN((Kernel<Of_##name, __VA_ARGS__>::call)));
  WEIR_C10D_OPERATIONS(WEIR_C10D_KERNEL)

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

std::vector<const char*> Operations::names() {
#define WEIR_C10D_TEXT(name, kind, ...) Of_##name::kName,
  return {WEIR_C10D_OPERATIONS(WEIR_C10D_TEXT)};
}

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
  if (coalescing_groups_.load(std::memory_order_relaxed) == 0) return false;
  const std::lock_guard lock(mutex_);
  const auto found = coalesced_.find(static_cast<const ProcessGroup*>(stream.group));
  if (found == coalesced_.end()) return false;
  Coalesced& coalesced = *found->second;
  coalesced.device = stream.device;
  coalesced.operation.add(operation);
  coalesced.tensors.insert(coalesced.tensors.end(), std::move_iterator(tensors.begin()),
                           std::move_iterator(tensors.end()));
  return true;
}

void Operations::coalescing_begins(const ProcessGroup* group) {
  const std::lock_guard lock(mutex_);
  auto& coalesced = coalesced_[group];
  if (coalesced == nullptr) coalescing_groups_.fetch_add(1, std::memory_order_relaxed);
  coalesced = std::make_unique<Coalesced>();
}

bool Operations::has_coalesced(const ProcessGroup* group) {
  const std::lock_guard lock(mutex_);
  const auto found = coalesced_.find(group);
  return found != coalesced_.end() && !found->second->tensors.empty();
}

void Operations::coalescing_ends(const ProcessGroup* group, const WorkPointer& work) {
  std::unique_ptr<Coalesced> coalesced;
  {
    const std::lock_guard lock(mutex_);
    const auto found = coalesced_.find(group);
    if (found == coalesced_.end()) return;
    coalesced = std::move(found->second);
    coalesced_.erase(found);
    coalescing_groups_.fetch_sub(1, std::memory_order_relaxed);
  }
  Operation& operation = coalesced->operation;
  if (coalesced->tensors.empty()) return memory_.record_uses(operation);
  (void)fence_of({.group = group, .device = coalesced->device}, operation, work);
}

void Operations::enter_nccl_group() { ++nccl_groups_of_this_thread(); }
void Operations::leave_nccl_group() {
  if (nccl_groups_of_this_thread() > 0) --nccl_groups_of_this_thread();
}

}  // namespace weir::pytorch
