// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <utility>
#include <vector>

#include "pattern/pattern.h"
#include "replay/replay_device.h"
#include "weir/cuda_device.h"

namespace weir {
namespace {

constexpr int kOrdinal = 0;

Status status_of(const char* call, cudaError_t result) {
  if (result == cudaSuccess) return {};
  return Error(ErrorCode::device, fmt::format("{}: {} ({})", call, cudaGetErrorName(result),
                                              cudaGetErrorString(result)));
}

// Work is queued only to be checked: without `kernels` there is none.
class CudaReplayDevice final : public ReplayDevice {
 public:
  CudaReplayDevice(std::unique_ptr<CudaDevice> device, std::unique_ptr<PatternKernels> kernels)
      : cuda_(std::move(device)), metered_(*cuda_), kernels_(std::move(kernels)) {}

  ~CudaReplayDevice() override {
    if (event_ != nullptr) cudaEventDestroy(event_);
    for (const cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  }

  std::string_view name() const override { return "cuda"; }
  MeteredDevice& device() override { return metered_; }

  Status open() {
    // Makes the primary context, which the driver's device uses too, the runtime's.
    if (Status set = status_of("cudaSetDevice", cudaSetDevice(kOrdinal)); !set) return set;
    return status_of("cudaEventCreate", cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  }

  Result<MemoryInfo> memory() override { return cuda_->memory_info(); }

  Result<Stream> new_stream() override {
    cudaStream_t stream = nullptr;
    const Status made =
        status_of("cudaStreamCreate", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    if (!made.ok()) return made.error();
    streams_.push_back(stream);
    return cuda_->stream(stream);
  }

  Status write(Stream stream, const BlockUse& block) override {
    if (kernels_ == nullptr) return {};
    return kernels_->write(stream, block.pointer, block.bytes, block.pattern);
  }

  Status read(Stream stream, const BlockUse& block, Nanoseconds duration) override {
    if (kernels_ == nullptr) return {};
    // What must still be there is what is there at the end of the use.
    const Nanoseconds delay = duration > kShortWork ? duration : Nanoseconds{};
    return kernels_->check(stream, block.pointer, block.bytes, block.pattern, delay);
  }

  Status order(Stream later, Stream earlier) override {
    // One event serves all: a wait is for the record made before it.
    Status recorded = status_of("cudaEventRecord",
                                cudaEventRecord(event_, static_cast<cudaStream_t>(earlier.handle)));
    if (!recorded.ok()) return recorded;
    return status_of("cudaStreamWaitEvent",
                     cudaStreamWaitEvent(static_cast<cudaStream_t>(later.handle), event_));
  }

  void advance_to(Nanoseconds /*time*/) override {}  // a real program is as fast as it is

  Status finish() override {
    for (const cudaStream_t stream : streams_) {
      Status done = status_of("cudaStreamSynchronize", cudaStreamSynchronize(stream));
      if (!done.ok()) return done;
    }
    return {};
  }

  std::optional<std::uint64_t> races() const override {
    const std::optional<PatternReport> found = findings();
    if (!found) return std::nullopt;
    return found->wrong_bytes;
  }

  std::string first_race() const override {
    const std::optional<PatternReport> found = findings();
    return found && found->wrong_bytes > 0 ? found->describe() : "";
  }

 private:
  std::optional<PatternReport> findings() const {
    if (kernels_ == nullptr) return std::nullopt;
    const Result<PatternReport> found = kernels_->report();
    if (!found.ok()) return std::nullopt;
    return *found;
  }

  const std::unique_ptr<CudaDevice> cuda_;
  MeteredDevice metered_;
  const std::unique_ptr<PatternKernels> kernels_;
  cudaEvent_t event_ = nullptr;
  std::vector<cudaStream_t> streams_;
};

}  // namespace

Result<std::unique_ptr<ReplayDevice>> make_cuda_replay_device(bool verify) {
  Result<std::unique_ptr<CudaDevice>> device = CudaDevice::open(kOrdinal);
  if (!device.ok()) return std::move(device).error();
  std::unique_ptr<PatternKernels> kernels;
  if (verify) {
    Result<std::unique_ptr<PatternKernels>> opened = PatternKernels::open(kOrdinal);
    if (!opened.ok()) return std::move(opened).error();
    kernels = *std::move(opened);
  }
  auto replay_device = std::make_unique<CudaReplayDevice>(*std::move(device), std::move(kernels));
  if (Status opened = replay_device->open(); !opened.ok()) return opened.error();
  return Result<std::unique_ptr<ReplayDevice>>(std::move(replay_device));
}

}  // namespace weir
