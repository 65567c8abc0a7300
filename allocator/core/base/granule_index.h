// SPDX-License-Identifier: Apache-2.0
// Things that begin at different addresses, in order: the last one that begins at an address or
// before is found in some dozen instructions. Knows nothing else of them, and owns none.
//
// They are linked by address; a table, made for 512 MiB of addresses at a time, has the first that
// begins in each granule of 2 MiB, and a bit for each granule that has one. A look-up walks those
// that begin in one granule. Not thread-safe.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "weir/types.h"

namespace weir {

// Node has the members `before` and `after`, pointers that belong to the index, and begin_of(node)
// gives its address.
template <class Node>
class GranuleIndex {
 public:
  static constexpr std::uint64_t kGranule = (2_MiB).count;

  Node* first() const { return first_; }

  // The last that begins at `address` or before; null: none does.
  Node* last_at(Address address) const {
    Node* const first = first_near(address);
    return first == nullptr ? search_last_at(address) : last_near(first, address);
  }

  // The same; null also where nothing begins in the address's own granule: that takes a search.
  Node* last_at_near(Address address) const {
    Node* const first = first_near(address);
    return first == nullptr ? nullptr : last_near(first, address);
  }

  // `before`: what last_at() says of its address.
  void insert_after(Node* before, Node* node) {
    node->before = before;
    node->after = before == nullptr ? first_ : before->after;
    (before == nullptr ? first_ : before->after) = node;
    if (node->after != nullptr) node->after->before = node;
    enter(node);
  }
  void remove(Node* node) {
    leave(node);
    (node->before == nullptr ? first_ : node->before->after) = node->after;
    if (node->after != nullptr) node->after->before = node->before;
  }
  // `move(node)` gives the node another address, between the same neighbours.
  template <class Move>
  void move(Node* node, Address to, Move&& move) {
    const bool same = begin_of(*node).value / kGranule == to.value / kGranule;
    if (!same) leave(node);
    move();
    if (!same) enter(node);
  }

  // If nothing is there, the tables go: those that things elsewhere will need are others.
  void shrink() {
    if (first_ != nullptr) return;
    std::vector<std::unique_ptr<Table>>().swap(tables_);
    first_table_ = count_ = 0;
  }

  // Do the tables and the links say the same, in order?
  bool consistent() const;

 private:
  friend struct TestAccess;
  static constexpr std::uint64_t kGranules = 256;  // in a table

  struct Table {
    std::array<std::uint64_t, kGranules / 64> filled{};  // a bit for each granule with a node
    std::array<Node*, kGranules> first{};
  };

  // The first that begins in the address's own granule; null: none does.
  Node* first_near(Address address) const {
    const std::uint64_t granule = address.value / kGranule;
    const std::uint64_t table = granule / kGranules - first_table_;
    if (table >= count_ || tables_[table] == nullptr) [[unlikely]]
      return nullptr;
    return tables_[table]->first[granule % kGranules];
  }
  // `first`: of the address's own granule.
  static Node* last_near(Node* first, Address address) {
    return last_from(begin_of(*first) > address ? first->before : first, address);
  }
  // What comes after one that begins at `address` is not looked at: it may be far away.
  static Node* last_from(Node* at, Address address) {
    while (at != nullptr && begin_of(*at) != address && at->after != nullptr &&
           begin_of(*at->after) <= address) {
      at = at->after;
    }
    return at;
  }
  Node* search_last_at(Address address) const;
  Table& table_of(std::uint64_t granule);
  void enter(Node* node);
  void leave(Node* node);

  Node* first_ = nullptr;
  std::uint64_t first_table_ = 0;
  std::uint64_t count_ = 0;  // of tables_
  std::vector<std::unique_ptr<Table>> tables_;
};

template <class Node>
typename GranuleIndex<Node>::Table& GranuleIndex<Node>::table_of(std::uint64_t granule) {
  const std::uint64_t wanted = granule / kGranules;
  if (tables_.empty()) first_table_ = wanted;
  if (wanted < first_table_) {
    std::vector<std::unique_ptr<Table>> more(first_table_ - wanted);
    for (auto& table : tables_) more.push_back(std::move(table));
    tables_ = std::move(more);
    first_table_ = wanted;
  }
  const std::uint64_t table = wanted - first_table_;
  if (table >= tables_.size()) tables_.resize(table + 1);
  if (tables_[table] == nullptr) tables_[table] = std::make_unique<Table>();
  count_ = tables_.size();
  return *tables_[table];
}

// Where nothing begins in the address's own granule: the last of the granule before it that has
// something.
template <class Node>
Node* GranuleIndex<Node>::search_last_at(Address address) const {
  const std::uint64_t granule = address.value / kGranule;
  if (granule / kGranules < first_table_ || tables_.empty()) return nullptr;
  std::uint64_t table = granule / kGranules - first_table_;
  std::uint64_t end = granule % kGranules;  // only granules before this one count
  if (table >= tables_.size()) {
    table = tables_.size() - 1;
    end = kGranules;
  }
  for (;; --table, end = kGranules) {
    if (tables_[table] != nullptr) {
      for (std::uint64_t word = (end + 63) / 64; word-- > 0;) {
        std::uint64_t bits = tables_[table]->filled[word];
        if (end < (word + 1) * 64) bits &= (std::uint64_t{1} << end % 64) - 1;
        if (bits == 0) continue;
        const auto last = 63 - static_cast<std::uint64_t>(std::countl_zero(bits));
        Node* const first = tables_[table]->first[word * 64 + last];
        return first == nullptr ? nullptr : last_from(first, address);  // null: a broken invariant
      }
    }
    if (table == 0) return nullptr;
  }
}

template <class Node>
void GranuleIndex<Node>::enter(Node* node) {
  const std::uint64_t granule = begin_of(*node).value / kGranule;
  const std::uint64_t near = granule / kGranules - first_table_;
  Table& table = near < count_ && tables_[near] != nullptr ? *tables_[near] : table_of(granule);
  Node*& first = table.first[granule % kGranules];
  if (first == nullptr) table.filled[granule % kGranules / 64] |= std::uint64_t{1} << granule % 64;
  if (first == nullptr || begin_of(*node) < begin_of(*first)) first = node;
}

template <class Node>
void GranuleIndex<Node>::leave(Node* node) {
  const std::uint64_t granule = begin_of(*node).value / kGranule;
  Table& table = *tables_[granule / kGranules - first_table_];
  Node*& first = table.first[granule % kGranules];
  if (first != node) return;
  Node* const after = node->after;
  first = after != nullptr && begin_of(*after).value / kGranule == granule ? after : nullptr;
  if (first == nullptr) {
    table.filled[granule % kGranules / 64] &= ~(std::uint64_t{1} << granule % 64);
  }
}

template <class Node>
bool GranuleIndex<Node>::consistent() const {
  std::uint64_t granules = 0, filled = 0;
  const Node* before = nullptr;
  for (const Node* at = first_; at != nullptr; before = at, at = at->after) {
    const std::uint64_t granule = begin_of(*at).value / kGranule;
    if (at->before != before || (before != nullptr && begin_of(*before) >= begin_of(*at))) {
      return false;
    }
    if (before != nullptr && begin_of(*before).value / kGranule == granule) continue;
    ++granules;
    const std::uint64_t table = granule / kGranules - first_table_;
    if (table >= tables_.size() || tables_[table] == nullptr) return false;
    if (tables_[table]->first[granule % kGranules] != at) return false;
  }
  for (const auto& table : tables_) {
    for (std::uint64_t granule = 0; table != nullptr && granule < kGranules; ++granule) {
      const bool has = (table->filled[granule / 64] >> granule % 64 & 1) != 0;
      if (has != (table->first[granule] != nullptr)) return false;
      filled += has ? 1 : 0;
    }
  }
  return filled == granules;
}

}  // namespace weir
