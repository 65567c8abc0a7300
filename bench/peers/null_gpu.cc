// SPDX-License-Identifier: Apache-2.0
#include "bench/peers/gpu.h"
#include "suite/null_device.h"

namespace weir::peers {
namespace {

class NullGpu final : public Gpu {
 public:
  void* stream(std::size_t number) const override {
    return bench::NullDevice::stream_handle(static_cast<int>(number));
  }
  void enter_thread() const override {}
  void synchronize() const override {}
  std::unique_ptr<Hold> hold(void*) const override { return nullptr; }
  bool idle(void*) const override { return true; }
  Description describe() const override { return {}; }
};

}  // namespace

std::unique_ptr<Gpu> make_null_gpu() { return std::make_unique<NullGpu>(); }

}  // namespace weir::peers
