// SPDX-License-Identifier: Apache-2.0
#include "weir/result.h"

#include <cstdio>
#include <cstdlib>

namespace weir {

void abort_without_value(const Error& error) {
  std::fprintf(stderr, "weir: the value of a result that has none, because: %s (%.*s)\n",
               error.message().c_str(), static_cast<int>(name_of(error.code()).size()),
               name_of(error.code()).data());
  std::abort();
}

std::string_view name_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::out_of_memory:
      return "out_of_memory";
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::unknown_pointer:
      return "unknown_pointer";
    case ErrorCode::device:
      return "device";
    case ErrorCode::capture:
      return "capture";
    case ErrorCode::unavailable:
      return "unavailable";
    case ErrorCode::invalid_input:
      return "invalid_input";
    case ErrorCode::asleep:
      return "asleep";
  }
  return "?";
}

}  // namespace weir
