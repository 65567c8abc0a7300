// SPDX-License-Identifier: Apache-2.0
// What `weir comm bench --compare` compares with: calls of the library's own functions. Here they
// are functions of this file, which note what they are asked for.
#include "comm/bare_nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/nccl/loaded_nccl.h"

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
  nccl.ncclGroupStart = [] { return note("{", 0, nullptr, nullptr); };
  nccl.ncclGroupEnd = [] { return note("}", 0, nullptr, nullptr); };
  nccl.ncclAllReduce = [](const void*, void*, std::size_t count, ncclDataType_t, ncclRedOp_t,
                          ncclComm_t comm,
                          cudaStream_t stream) { return note("sum", count, comm, stream); };
  nccl.ncclAllGather = [](const void*, void*, std::size_t count, ncclDataType_t, ncclComm_t comm,
                          cudaStream_t stream) { return note("gather", count, comm, stream); };
  nccl.ncclReduceScatter = [](const void*, void*, std::size_t count, ncclDataType_t, ncclRedOp_t,
                              ncclComm_t comm,
                              cudaStream_t stream) { return note("scatter", count, comm, stream); };
  nccl.ncclAlltoAll = [](const void*, void*, std::size_t count, ncclDataType_t, ncclComm_t comm,
                         cudaStream_t stream) { return note("all", count, comm, stream); };
  nccl.ncclSend = [](const void*, std::size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                     cudaStream_t stream) {
    return note(peer == 3 ? "send" : "?", count, comm, stream);
  };
  nccl.ncclRecv = [](void*, std::size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                     cudaStream_t stream) {
    return note(peer == 5 ? "receive" : "?", count, comm, stream);
  };
  return nccl;
}

class BareNccl : public testing::Test {
 protected:
  BareNccl() {
    asked().clear();
    driver_.cuDevicePrimaryCtxRelease = [](CUdevice) { return CUDA_SUCCESS; };
  }
  Status queue(const std::vector<OperationGroup>& groups, int times) {
    const auto nccl = make_loaded_nccl(library_, driver_, 0, nullptr);
    return queue_bare(*nccl, {7}, groups, times, Stream{.handle = Address{9}.pointer()});
  }
  NcclLibrary library_ = fake_library();
  cuda::Driver driver_;
};

Operation of(OperationKind kind, std::uint64_t count, int peer = 0) {
  return {.kind = kind, .count = count, .peer = peer};
}

TEST_F(BareNccl, CallsTheLibrarysFunctionsInTurn) {
  EXPECT_TRUE(queue({{of(OperationKind::all_reduce, 1)},
                     {of(OperationKind::send, 2, 3), of(OperationKind::receive, 2, 5)}},
                    3));
  EXPECT_THAT(asked(), ElementsAre("sum 1 7 9", "{ 0 0 0", "send 2 7 9", "receive 2 7 9", "} 0 0 0",
                                   "sum 1 7 9"));
}

TEST_F(BareNccl, HasEveryOperationOfTheBenchmark) {
  EXPECT_TRUE(queue({{of(OperationKind::all_gather, 1)},
                     {of(OperationKind::reduce_scatter, 2)},
                     {of(OperationKind::all_to_all, 3)}},
                    3));
  EXPECT_THAT(asked(), ElementsAre("gather 1 7 9", "scatter 2 7 9", "all 3 7 9"));
}

TEST_F(BareNccl, EndsWithTheFirstErrorOfNccls) {
  const Status status =
      queue({{of(OperationKind::all_reduce, 1)}, {of(OperationKind::all_reduce, 13)}}, 5);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message(), HasSubstr("bare NCCL: a fault"));
  EXPECT_EQ(asked().size(), 2u);
}

}  // namespace
}  // namespace weir
