#include "comm/nccl/scalar.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstring>

namespace weir {

std::array<std::byte, 8> scalar_of(double value, DataType type) {
  std::array<std::byte, 8> bytes{};
  const auto put = [&](const auto& element) {
    std::memcpy(bytes.data(), &element, sizeof element);
  };
  const auto narrow = static_cast<float>(value);
  switch (type) {
    case DataType::float64:
      put(value);
      break;
    case DataType::float32:
      put(narrow);
      break;
    case DataType::float16:
      put(__half(__float2half(narrow)));
      break;
    case DataType::bfloat16:
      put(__nv_bfloat16(__float2bfloat16(narrow)));
      break;
    case DataType::float8_e4m3:
      put(__nv_cvt_float_to_fp8(narrow, __NV_SATFINITE, __NV_E4M3));
      break;
    case DataType::float8_e5m2:
      put(__nv_cvt_float_to_fp8(narrow, __NV_SATFINITE, __NV_E5M2));
      break;
    default:
      break;  // integers are not pre-multiplied: Operation::check()
  }
  return bytes;
}

}  // namespace weir
