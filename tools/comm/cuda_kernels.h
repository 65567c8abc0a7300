// SPDX-License-Identifier: Apache-2.0
// Kernels of a rank on a real GPU.
#pragma once

#include <memory>

#include "comm/ranks.h"
#include "weir/cuda_device.h"

namespace weir {

// How long work takes on a GPU, so that a kernel of a wanted duration can be made: it does a fixed
// amount of work, and takes longer where others use the GPU too.
struct KernelRates {
  double ns_per_round = 0;  // where every thread that the GPU runs at once does it
  double ns_per_byte = 0;   // read or written
  unsigned blocks = 0;      // that the GPU runs at once
  unsigned multiprocessors = 0;
};
// The host waits, some 50 ms. No capture goes on. Throws: device.
KernelRates measure_kernels(int ordinal);

// `device` lives longer. Throws: device.
std::unique_ptr<Kernels> open_cuda_kernels(CudaDevice& device, const KernelRates& rates, int rank,
                                           int ranks);

}  // namespace weir
