// SPDX-License-Identifier: Apache-2.0
// What the JSON of the tools has in common.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "weir/types.h"

namespace weir {

using Json = nlohmann::ordered_json;

inline double microseconds(Nanoseconds time) { return static_cast<double>(time.count) / 1000; }

// A number that may not be there.
template <class Number>
Json or_null(const std::optional<Number>& number) {
  return number ? Json(*number) : Json(nullptr);
}

// Indented by two; ends with a line end. Names come from files and programs: bytes of them that are
// no UTF-8 are replaced.
inline std::string json_text(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace weir
