// SPDX-License-Identifier: Apache-2.0
// PyTorch's allocator, for `weir bench`. suite_loader.cc loads it, once its setting stands in the
// environment. Pools of a program are not told: one cache serves all.
#include <dlfcn.h>

#include "bench/peers/suite_peer.h"
#include "bench/peers/torch_context.h"
#include "bench/peers/torch_peer.h"

extern "C" __attribute__((visibility("default"))) const weir_suite_functions*
weir_suite_allocator_called(const char* name) {
  weir::peers::set_torch_context_hook(!weir::peers::NoCuda().is_loaded());
  return weir::peers::suite_functions<weir::peers::Torch>(name);
}
