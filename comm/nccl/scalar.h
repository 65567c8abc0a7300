// Numbers as the elements of a type.
#pragma once

#include <array>
#include <cstddef>

#include "weir/comm/operation.h"

namespace weir {

// `value`, rounded to the floating-point type, in its first size_of(type) bytes.
std::array<std::byte, 8> scalar_of(double value, DataType type);

}  // namespace weir
