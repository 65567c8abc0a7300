// One GPU's NCCL.
#pragma once

#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "comm/nccl/library.h"
#include "cuda/driver.h"
#include "weir/comm/nccl.h"

namespace weir {

// Driver calls that the allocator does not make.
struct StreamCalls {
  PFN_cuCtxGetStreamPriorityRange_v5050 cuCtxGetStreamPriorityRange = nullptr;
  PFN_cuStreamCreateWithPriority_v5050 cuStreamCreateWithPriority = nullptr;
  PFN_cuStreamDestroy_v4000 cuStreamDestroy = nullptr;
  PFN_cuMemcpyDtoDAsync_v3020 cuMemcpyDtoDAsync = nullptr;
  PFN_cuMemcpyHtoDAsync_v3020 cuMemcpyHtoDAsync = nullptr;
  PFN_cuMemcpyDtoHAsync_v3020 cuMemcpyDtoHAsync = nullptr;

  static Result<StreamCalls> find(const cuda::Driver& driver);
};

class LoadedNccl final : public Nccl {
 public:
  LoadedNccl(const NcclLibrary& nccl, const cuda::Driver& driver, StreamCalls streams,
             CUdevice device, CUcontext context)
      : nccl_(nccl), driver_(driver), streams_(streams), device_(device), context_(context) {}
  ~LoadedNccl() override;

  // For who calls NCCL by themselves: the library, and the communicator that a handle stands for.
  const NcclLibrary& library() const { return nccl_; }
  static ncclComm_t comm_of(CommHandle comm) {
    return static_cast<ncclComm_t>(Address{comm.value}.pointer());
  }

  std::string version() const override { return version_text(nccl_.version); }
  bool connects_at_once() const override { return nccl_.connects_at_once; }
  Result<UniqueId> unique_id() override;
  Result<CommHandle> init(const UniqueId& id, int ranks, int rank,
                          const CommConfig& config) override;
  Result<CommHandle> split(CommHandle comm, int color, int key, const CommConfig& config) override;
  Result<CommHandle> shrink(CommHandle comm, std::span<const int> excluded, bool abort,
                            const CommConfig& config) override;
  Status destroy(CommHandle comm) override;
  Status abort(CommHandle comm) override;
  Status revoke(CommHandle comm) override;
  Status async_error(CommHandle comm) override;
  Result<int> size(CommHandle comm) override;
  Result<int> rank(CommHandle comm) override;
  Status enqueue(CommHandle comm, const Operation& operation, Stream stream) override;
  Status group_start() override;
  Status group_end() override;
  Result<Address> allocate_segment(Bytes bytes) override;
  Status free_segment(Address segment) override;
  Result<RegistrationHandle> register_range(CommHandle comm, Address address, Bytes bytes) override;
  Status deregister(CommHandle comm, RegistrationHandle registration) override;
  Result<Stream> create_stream() override;
  Status destroy_stream(Stream stream) override;
  Status copy(void* to, const void* from, Bytes bytes, Stream stream) override;
  Result<std::vector<std::vector<std::byte>>> host_all_gather(CommHandle comm,
                                                              std::span<const std::byte> mine,
                                                              Nanoseconds timeout) override;

 private:
  // Makes a call of NCCL's: in this GPU's context, which is gone again afterwards whatever NCCL
  // made current meanwhile, and so that no capture is broken.
  template <class Call>
  auto with_context(Call&& call) const;
  // The same; an error names the call. `comm` may be null.
  template <class Call>
  Status checked(const char* name, ncclComm_t comm, Call&& call) const;
  Status wait_for(CUstream stream, CommHandle comm, Nanoseconds timeout);
  // A stream and memory for one exchange. Whoever has it gives it back once its work is done; what
  // was not done in time is given up, and freed with the LoadedNccl.
  struct Staging {
    Stream stream;
    Address memory;
  };
  Result<Staging> take_staging();
  void give_back(const Staging& staging, bool is_idle);
  Result<std::vector<std::vector<std::byte>>> host_all_gather_by(const Staging& staging,
                                                                 CommHandle comm,
                                                                 std::span<const std::byte> mine,
                                                                 std::size_t ranks,
                                                                 Nanoseconds timeout);

  const NcclLibrary& nccl_;
  const cuda::Driver& driver_;
  const StreamCalls streams_;
  const CUdevice device_;
  const CUcontext context_;

  std::mutex staging_mutex_;  // of what follows; not held while NCCL or another rank is waited for
  std::vector<Staging> idle_, given_up_;
};

}  // namespace weir
