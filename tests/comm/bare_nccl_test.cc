// SPDX-License-Identifier: Apache-2.0
// What `weir comm bench --compare` compares with: calls of the library's own functions. Here they
// are functions of this file, which note what they are asked for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/nccl/loaded_nccl.h"
#include "comm/overhead.h"

namespace weir {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string>& asked() {
  static std::vector<std::string> list;
  return list;
}
ncclResult_t note(const char* call, std::size_t count, ncclComm_t comm, cudaStream_t stream) {
  asked().push_back(std::string(call) + " " + std::to_string(count) + " " +
                    std::to_string(Address::of(comm).value) + " " +
                    std::to_string(Address::of(stream).value));
  return count == 13 ? ncclInternalError : ncclSuccess;
}

NcclLibrary fake_library() {
  NcclLibrary nccl;
  nccl.ncclGetErrorString = [](ncclResult_t) { return "a fault"; };
  nccl.ncclGetLastError = [](ncclComm_t) { return ""; };
  nccl.ncclAllReduce = [](const void*, void*, std::size_t count, ncclDataType_t, ncclRedOp_t,
                          ncclComm_t comm,
                          cudaStream_t stream) { return note("sum", count, comm, stream); };
  return nccl;
}

class BareNccl : public testing::Test {
 protected:
  BareNccl() {
    asked().clear();
    driver_.cuDevicePrimaryCtxRelease = [](CUdevice) { return CUDA_SUCCESS; };
  }
  Status queue(std::uint64_t count, int times) {
    const auto nccl = make_loaded_nccl(library_, driver_, 0, nullptr);
    return queue_bare(*nccl, {7}, {.count = count}, times, Stream{.handle = Address{9}.pointer()});
  }
  NcclLibrary library_ = fake_library();
  cuda::Driver driver_;
};

TEST_F(BareNccl, CallsTheLibrarysFunction) {
  EXPECT_TRUE(queue(1, 2));
  EXPECT_THAT(asked(), ElementsAre("sum 1 7 9", "sum 1 7 9"));
}

TEST_F(BareNccl, EndsWithTheFirstErrorOfNccls) {
  const Status status = queue(13, 5);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message(), HasSubstr("bare NCCL: a fault"));
  EXPECT_EQ(asked().size(), 1u);
}

}  // namespace
}  // namespace weir
