// SPDX-License-Identifier: Apache-2.0
// What of the real NCCL's side can be seen without a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "comm/nccl/library.h"
#include "weir/comm/nccl.h"

namespace weir {
namespace {

TEST(LoadNccl, SaysWhatIsMissingAndWhatToDoOrHasAVersion) {
  const Result<std::unique_ptr<Nccl>> nccl = load_nccl(0);
  if (nccl) {
    EXPECT_THAT((*nccl)->version(), testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
    return;
  }
  EXPECT_EQ(nccl.error().code(), ErrorCode::unavailable);
  EXPECT_THAT(nccl.error().message(), testing::HasSubstr("install"));
}

TEST(LoadNccl, RefusesCallsThatDoNotWait) {
  ::setenv("NCCL_COMM_BLOCKING", "0", 1);
  const Result<std::unique_ptr<Nccl>> nccl = load_nccl(0);
  ::unsetenv("NCCL_COMM_BLOCKING");
  ASSERT_FALSE(nccl);
  EXPECT_EQ(nccl.error().code(), ErrorCode::invalid_argument);
  EXPECT_THAT(nccl.error().message(), testing::HasSubstr("NCCL_COMM_BLOCKING=0"));
}

TEST(LoadNccl, RefusesThatNcclRegistersTheBuffersOfCaptures) {
  for (const char* const value : {"1", "2", "0x1"}) {
    ::setenv("NCCL_GRAPH_REGISTER", value, 1);
    const Result<std::unique_ptr<Nccl>> nccl = load_nccl(0);
    ::unsetenv("NCCL_GRAPH_REGISTER");
    ASSERT_FALSE(nccl);
    EXPECT_EQ(nccl.error().code(), ErrorCode::invalid_argument);
    EXPECT_THAT(nccl.error().message(),
                testing::HasSubstr("NCCL_GRAPH_REGISTER=" + std::string(value) + " is set"));
    EXPECT_THAT(nccl.error().message(), testing::HasSubstr("Unset it, or set it to 0"));
  }
}

TEST(LoadNccl, TakesThatNcclRegistersNoBuffersOfCaptures) {
  for (const char* const value : {"0", ""}) {  // empty: as not set
    ::setenv("NCCL_GRAPH_REGISTER", value, 1);
    const Result<std::unique_ptr<Nccl>> nccl = load_nccl(0);
    ::unsetenv("NCCL_GRAPH_REGISTER");
    if (nccl) continue;
    EXPECT_EQ(nccl.error().code(), ErrorCode::unavailable) << nccl.error().message();
  }
}

TEST(LoadNccl, OfAGpuThatIsNotThereIsAnError) { EXPECT_FALSE(load_nccl(1000)); }

}  // namespace
}  // namespace weir
