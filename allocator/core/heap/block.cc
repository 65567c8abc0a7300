// SPDX-License-Identifier: Apache-2.0
#include "core/heap/block.h"

#include <utility>

namespace weir {

void BlockPool::add_chunk() {
  chunks_.push_back(std::make_unique<Block[]>(kChunk));
  for (std::size_t i = kChunk; i-- > 0;) give_back(&chunks_.back()[i]);
}

BlockUses& BlockPool::uses(Block& block) {
  if (block.uses != nullptr) return *block.uses;
  if (spare_uses_.empty()) {
    all_uses_.push_back(std::make_unique<BlockUses>());
    spare_uses_.push_back(all_uses_.back().get());
  }
  block.uses = spare_uses_.back();
  spare_uses_.pop_back();
  return *block.uses;
}

void BlockPool::drop_uses(Block& block) {
  if (block.uses == nullptr) return;
  block.uses->fences.clear();
  block.uses->users.clear();
  spare_uses_.push_back(std::exchange(block.uses, nullptr));
}

}  // namespace weir
