// PageTable: when each mapping was last used, also where 32 bits run out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "core/page_table.h"
#include "tests/unit/core_test_access.h"

namespace weir {
namespace {

constexpr HeapId kHeap{0};
constexpr PageId kPage{0};

class PageTableUses : public testing::Test, private PageTable::Listener {
 protected:
  void SetUp() override {
    table_.add(kPage, PhysicalHandle{1}, 2_MiB);
    for (std::uint32_t i = 0; i < at_.size(); ++i) {
      at_[i] = Address{std::uint64_t{1} << 30} + 4_MiB * i;
      table_.add_mapping(kPage, kHeap, at_[i], RowId{i});
    }
  }
  void TearDown() override {
    EXPECT_THAT(table_.validate([this](HeapId) -> const RangeSet& { return usable_; }),
                testing::IsEmpty());
  }
  void use_and_free(Address at) {
    const auto ignore = [](const Page&, Bytes, Bytes, bool) {};
    table_.use({at, 1_MiB}, kHeap, ignore);
    EXPECT_EQ(kGrain * table_.mapping(at).used_grains, 1_MiB);
    table_.free({at, 1_MiB}, kHeap, ignore);
    EXPECT_EQ(table_.mapping(at).used_grains, 0u);
  }
  std::uint32_t used_at(Address at) const { return table_.mapping(at).used_at; }

  PageTable table_{*this};
  std::array<Address, 4> at_;

 private:
  void usable(HeapId, Range addresses) override { usable_.insert(addresses); }
  void unusable(HeapId, Range addresses) override { usable_.erase(addresses); }
  RangeSet usable_;
};

TEST_F(PageTableUses, AMappingHasTheNumberOfTheLastRunWhenItsBytesCameOrWent) {
  const auto ignore = [](const Page&, Bytes, Bytes, bool) {};
  table_.use({at_[0], 1_MiB}, kHeap, ignore);
  EXPECT_EQ(used_at(at_[0]), 1u);
  table_.use({at_[1] + 1_MiB, 1_MiB}, kHeap, ignore);
  EXPECT_EQ(used_at(at_[0]), 1u);
  EXPECT_EQ(used_at(at_[1]), 2u);
  table_.free({at_[0], 1_MiB}, kHeap, ignore);
  EXPECT_EQ(used_at(at_[0]), 2u);
  table_.free({at_[1] + 1_MiB, 1_MiB}, kHeap, ignore);
}

TEST_F(PageTableUses, AreNumberedOnWhen32BitsRunOut) {
  use_and_free(at_[0]);
  use_and_free(at_[1]);
  TestAccess::last_use(table_) = TestAccess::kUsesEnd - 3;
  use_and_free(at_[2]);
  use_and_free(at_[3]);
  EXPECT_EQ(used_at(at_[0]), 1u);
  EXPECT_EQ(used_at(at_[3]), TestAccess::kUsesEnd - 1);

  use_and_free(at_[1]);
  EXPECT_EQ(table_.uses(), TestAccess::kUsesEnd - TestAccess::kUsesEnd / 2);
  EXPECT_EQ(used_at(at_[1]), table_.uses());
  EXPECT_EQ(used_at(at_[3]), table_.uses() - 1);
  EXPECT_EQ(used_at(at_[2]), table_.uses() - 2);
  EXPECT_EQ(used_at(at_[0]), 0u) << "as old as any";
  use_and_free(at_[0]);
  EXPECT_EQ(used_at(at_[0]), used_at(at_[1]) + 1);
}

}  // namespace
}  // namespace weir
