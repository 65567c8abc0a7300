// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "look/stack_labels.h"

namespace weir {
namespace {

using testing::ElementsAre;

TEST(StackLabels, AFunctionIsNamedWithItsPlaceAndWithoutItsArguments) {
  const ReadableStacks readable{
      .frames = {{"net::(anonymous namespace)::relu(float*, int)", "src/net.cc", 7},
                 {"run(int)::{lambda(int)#1}::operator()(int) const", "", 0},
                 {"", "", 0}},
      .stacks = {{}, {0}, {1}, {2}},
      .number = {0, 1, 2, 3}};
  EXPECT_THAT(stack_labels(readable, {0, 1, 2, 3}),
              ElementsAre("unknown", "net::relu (net.cc:7)",
                          "run(int)::{lambda(int)#1}::operator()", "(unknown function)"));
}

TEST(StackLabels, StacksOfOneFunctionHaveAsManyCallersAsTellThemApart) {
  const ReadableStacks readable{.frames = {{"zeros", "f.py", 1},
                                           {"MLP.__init__", "m.py", 2},
                                           {"Head.__init__", "m.py", 3},
                                           {"make", "m.py", 4},
                                           {"make", "m.py", 5},
                                           {"gelu", "f.py", 9}},
                                .stacks = {{0, 1, 3}, {0, 1, 4}, {0, 2, 3}, {5, 1, 3}},
                                .number = {0, 1, 2, 3}};
  EXPECT_THAT(
      stack_labels(readable, {0, 1, 2, 3}),
      ElementsAre("zeros ‹ MLP.__init__ ‹ make (m.py:4)", "zeros ‹ MLP.__init__ ‹ make (m.py:5)",
                  "zeros ‹ Head.__init__", "gelu (f.py:9)"));
  // Alone, each needs none.
  EXPECT_THAT(stack_labels(readable, {1, 3}), ElementsAre("zeros (f.py:1)", "gelu (f.py:9)"));
}

}  // namespace
}  // namespace weir
