// SPDX-License-Identifier: Apache-2.0
#include "look/diff.h"
#include "replay/json.h"

namespace weir {
namespace {

const char* suffix(Unit unit) {
  return unit == Unit::bytes ? "bytes" : unit == Unit::time ? "ns" : "count";
}

Json value_or_null(std::optional<std::uint64_t> value) {
  return value ? Json(*value) : Json(nullptr);
}

}  // namespace

std::string diff_json(const Diff& diff) {
  Json json = {{"before", diff.before}, {"after", diff.after}, {"changed", diff.changed()}};
  for (const ChangeGroup& group : diff.groups) {
    Json list = Json::array();
    for (const Change& change : group.changes) {
      const auto a = static_cast<std::int64_t>(change.before.value_or(0));
      const auto b = static_cast<std::int64_t>(change.after.value_or(0));
      list.push_back({{"name", change.name},
                      {"unit", suffix(change.unit)},
                      {"before", value_or_null(change.before)},
                      {"after", value_or_null(change.after)},
                      {"change", b - a}});
    }
    json[group.name] = std::move(list);
  }
  return json_text(json);
}

}  // namespace weir
