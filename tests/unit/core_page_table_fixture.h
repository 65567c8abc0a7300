// What the tests of PageTable share: a listener that keeps what it is told, and pages mapped apart
// from one another.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/page_table.h"

namespace weir {

inline constexpr HeapId kA{0}, kB{1};
inline constexpr Address kFirst{1 << 30};

// Keeps what it is told; to be told what it knows already is wrong.
class Recorder : public PageTable::Listener {
 public:
  void usable(HeapId heap, Range addresses) override {
    ++calls;
    if (sets_[heap].overlaps(addresses)) {
      ++contradictions;
    } else {
      sets_[heap].insert(addresses);
    }
  }
  void unusable(HeapId heap, Range addresses) override {
    ++calls;
    if (sets_[heap].contains(addresses)) {
      sets_[heap].erase(addresses);
    } else {
      ++contradictions;
    }
  }
  const RangeSet& of(HeapId heap) { return sets_[heap]; }

  int calls = 0, contradictions = 0;

 private:
  std::map<HeapId, RangeSet> sets_;
};

class PageTableTest : public testing::Test {
 protected:
  PageId page(Bytes size = 2_MiB) {
    const PageId id{static_cast<std::uint32_t>(handles_++)};
    table_.add(id, PhysicalHandle{handles_}, size);
    return id;
  }
  Address map(PageId page, HeapId heap, RowId row = RowId{0}) {
    const Address at = next_;
    next_ = next_ + table_.page(page).size + 4_MiB;
    table_.add_mapping(page, heap, at, row);
    return at;
  }
  // What `heap` may hand out, as it finds it when it looks.
  const RangeSet& usable(HeapId heap) {
    table_.tell(heap);
    return told_.of(heap);
  }
  std::vector<std::string> validate() {
    return table_.validate([this](HeapId heap) -> const RangeSet& { return told_.of(heap); });
  }
  void TearDown() override {
    EXPECT_THAT(validate(), testing::IsEmpty());
    EXPECT_EQ(told_.contradictions, 0);
  }

  Recorder told_;
  PageTable table_{told_};
  Address next_ = kFirst;
  std::uint64_t handles_ = 0;
};

}  // namespace weir
