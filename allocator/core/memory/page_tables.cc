// SPDX-License-Identifier: Apache-2.0
#include "core/memory/page_tables.h"

#include <algorithm>

namespace weir {

Bytes PageTables::used_in(const Page& page) const {
  Bytes used;
  if (page.idle()) return used;
  for (const Tile* tile = tiles.at(page.home); tile != nullptr && tile->begin < page.end();
       tile = tile->after) {
    if (tile->is_free() || tile->kind == Tile::Kind::vacant) continue;
    used += std::min(tile->end(), page.end()) - std::max(tile->begin, page.home);
  }
  return used;
}

FenceSet PageTables::users_of(const Tile* head, Range home) const {
  FenceSet fences;
  (void)Tiles::visit_notes(head, home, [&](const Tile& tile) {
    if (tile.by != Tile::kNobody) fences.join(tiles.release_point(tile));
    if (tile.uses) fences.join(tile.uses->fences);
    return true;
  });
  return fences;
}

}  // namespace weir
