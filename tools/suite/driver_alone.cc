// SPDX-License-Identifier: Apache-2.0
// No allocator between program and driver: each request is a cudaMalloc of its own, each free a
// cudaFree, which waits for the device. A model: each request takes whole pages of the driver's. (A
// real driver puts requests that are smaller than a page together. bench/peers has the real one.)
#include "suite/allocator.h"

namespace weir::suite {
namespace {

class DriverAlone final : public SuiteAllocator {
 public:
  Result<void*> allocate(const ProgramCall& call) override {
    const Bytes pages = round_up(Bytes{call.bytes}, kDriverPage);
    const Address at = next_;
    next_ = next_ + pages;
    held_ += pages;
    ++driver_calls_;
    return at.pointer();
  }
  Status use(void*, const ProgramCall&) override { return {}; }
  Status free(void*, const ProgramCall& call) override {
    held_ -= round_up(Bytes{call.bytes}, kDriverPage);
    ++driver_calls_;
    ++waits_;
    return {};
  }
  AllocatorFigures figures() const override {
    return {.held = held_.count, .driver_calls = driver_calls_, .waits = waits_};
  }

 private:
  Address next_{std::uint64_t{1} << 40};  // each address is given out once
  Bytes held_;
  std::uint64_t driver_calls_ = 0, waits_ = 0;
};

}  // namespace

AllocatorKind driver_alone_kind() {
  return {.name = "driver-alone",
          .title = "plain cudaMalloc and cudaFree (a model)",
          .has_host_time = false,
          .make = [](const Program&, Purpose) -> Result<std::unique_ptr<SuiteAllocator>> {
            return std::unique_ptr<SuiteAllocator>(std::make_unique<DriverAlone>());
          }};
}

}  // namespace weir::suite
