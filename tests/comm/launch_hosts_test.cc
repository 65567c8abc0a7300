#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/launch/host_list.h"

namespace weir {
namespace {

using ::testing::ElementsAre;
using ::testing::Optional;

TEST(HostList, NamesAreTakenAsTheyAre) {
  EXPECT_THAT(expand_hosts("gpu1"), Optional(ElementsAre("gpu1")));
  EXPECT_THAT(expand_hosts("a,b.example.org,c-d"),
              Optional(ElementsAre("a", "b.example.org", "c-d")));
}

TEST(HostList, RangesKeepTheZerosInFront) {
  EXPECT_THAT(expand_hosts("gpu[003-005,12]"),
              Optional(ElementsAre("gpu003", "gpu004", "gpu005", "gpu12")));
  EXPECT_THAT(expand_hosts("n[8-11]"), Optional(ElementsAre("n8", "n9", "n10", "n11")));
  EXPECT_THAT(expand_hosts("n[08-11]"), Optional(ElementsAre("n08", "n09", "n10", "n11")));
  EXPECT_THAT(expand_hosts("n[99-101]"), Optional(ElementsAre("n99", "n100", "n101")));
  EXPECT_THAT(expand_hosts("n[0-0]"), Optional(ElementsAre("n0")));
}

TEST(HostList, CommasInBracketsDoNotSplitNames) {
  EXPECT_THAT(expand_hosts("a,b[1-2]"), Optional(ElementsAre("a", "b1", "b2")));
  EXPECT_THAT(expand_hosts("a[1,3],b,c[2]"), Optional(ElementsAre("a1", "a3", "b", "c2")));
}

TEST(HostList, WhatFollowsABracketBelongsToEachName) {
  EXPECT_THAT(expand_hosts("n[1-2]-ib.cluster"),
              Optional(ElementsAre("n1-ib.cluster", "n2-ib.cluster")));
}

TEST(HostList, OfSeveralBracketsTheLastRunsFastest) {
  EXPECT_THAT(expand_hosts("rack[0-1]n[1,3]"),
              Optional(ElementsAre("rack0n1", "rack0n3", "rack1n1", "rack1n3")));
}

TEST(HostList, ThatIsMalformedGivesNoHosts) {
  for (const char* list :
       {"", ",", "a,", "a,,b", "a[", "a]", "a[]", "a[1", "a[1-]", "a[-1]", "a[x]", "a[5-3]",
        "a[1,]", "a[[1]]", "a[1-2-3]", "a[1 ]", "a[99999999999999999999]"}) {
    EXPECT_EQ(expand_hosts(list), std::nullopt) << list;
    EXPECT_EQ(expand_hosts(list, 1), std::nullopt) << list;
  }
}

TEST(HostList, OfManyHostsIsCutAtTheMostThatIsAskedFor) {
  EXPECT_THAT(expand_hosts("n[1-999999999999]", 2), Optional(ElementsAre("n1", "n2")));
  EXPECT_THAT(expand_hosts("a,n[1-99],b", 2), Optional(ElementsAre("a", "n1")));
  EXPECT_EQ(expand_hosts("r[0-999]n[0-999]m[0-999]")->size(), std::size_t{1} << 16);
}

TEST(TasksOnNode, AreReadFromSlurmsShortForm) {
  EXPECT_EQ(tasks_on_node("4", 0), 4);
  EXPECT_EQ(tasks_on_node("2(x3),1", 0), 2);
  EXPECT_EQ(tasks_on_node("2(x3),1", 2), 2);
  EXPECT_EQ(tasks_on_node("2(x3),1", 3), 1);
  EXPECT_EQ(tasks_on_node("2,1,3(x2)", 1), 1);
  EXPECT_EQ(tasks_on_node("2,1,3(x2)", 3), 3);
}

TEST(TasksOnNode, OfANodeThatIsNotThereAreUnknown) {
  EXPECT_EQ(tasks_on_node("2(x3),1", 4), std::nullopt);
  EXPECT_EQ(tasks_on_node("2", -1), std::nullopt);
}

TEST(TasksOnNode, OfAMalformedListAreUnknown) {
  for (const char* list :
       {"", "x", "2(x", "2(x)", "2(3)", "2(xx2)", "(x2)", "2(x2", "-1", "2,,1"}) {
    EXPECT_EQ(tasks_on_node(list, 2), std::nullopt) << list;
  }
}

}  // namespace
}  // namespace weir
