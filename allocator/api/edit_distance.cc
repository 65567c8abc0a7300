// SPDX-License-Identifier: Apache-2.0
#include "api/edit_distance.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace weir {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Of the table of distances, the row before the last, the last, and the one being filled.
  std::vector<std::size_t> earlier, last, row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    earlier = std::exchange(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = a[i - 1] == b[j - 1] ? 0 : 1;
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], earlier[j - 2] + 1);
      }
    }
  }
  return row.back();
}

std::string_view nearest_name(std::string_view word, const std::vector<std::string>& names) {
  const std::size_t letters = word.size() - std::min(word.find_first_not_of('-'), word.size());
  std::size_t least = std::max<std::size_t>(letters / 3, 1) + 1;
  std::string_view nearest;
  for (const std::string& name : names) {
    const auto [shorter, longer] = std::minmax({word.size(), name.size()});
    if (longer - shorter >= least) continue;
    const std::size_t away = edit_distance(word, name);
    if (away < least) least = away, nearest = name;
  }
  return nearest;
}

}  // namespace weir
