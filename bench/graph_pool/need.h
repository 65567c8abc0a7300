// SPDX-License-Identifier: Apache-2.0
// Calls that must not fail: where one does, std::runtime_error says which, and why.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "weir/result.h"

namespace weir::graph_pool {

inline void need(const std::string& what, const Status& status) {
  if (!status) throw std::runtime_error(what + ": " + status.error().message());
}
template <class T>
T need(const std::string& what, Result<T> result) {
  if (!result) throw std::runtime_error(what + ": " + result.error().message());
  return *std::move(result);
}

}  // namespace weir::graph_pool
