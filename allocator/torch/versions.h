// SPDX-License-Identifier: Apache-2.0
// Where PyTorch's interface differs between the versions that the backend can be built for, 2.11 to
// 2.15; docs/pytorch.md says what each has. `#if WEIR_TORCH_SINCE(14)`: PyTorch 2.14 or later.
#pragma once

#include <torch/headeronly/version.h>

#define WEIR_TORCH_SINCE(minor) \
  (TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= (minor)))
