// SPDX-License-Identifier: Apache-2.0
#include "core/memory/page_tables.h"

namespace weir {

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
