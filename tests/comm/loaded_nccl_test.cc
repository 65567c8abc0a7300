// SPDX-License-Identifier: Apache-2.0
// LoadedNccl over a driver and an NCCL that are functions of this file: a GPU whose work is done at
// once, but for all-gathers, which end when the test says that the other ranks came.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/nccl/library.h"
#include "weir/comm/nccl.h"

namespace weir {
namespace {

constexpr int kRanks = 2;
constexpr Nanoseconds kOneSecond{1'000'000'000};

struct FakeComm {
  bool all_came = false;
  int gathers = 0;
  int asked = 0;  // whether its gathers are done, and they were not
};
struct FakeStream {
  std::vector<FakeComm*> gathers;  // queued so far
};
using FakeEvent = FakeStream;  // as its stream was when it was recorded

// What the functions below share, since NCCL's calls and the driver's know no object.
struct FakeGpu {
  std::mutex mutex;
  std::condition_variable changed;
  int streams = 0, segments = 0;  // alive
};
FakeGpu gpu;

FakeStream* fake(CUstream stream) { return reinterpret_cast<FakeStream*>(stream); }
FakeEvent* fake(CUevent event) { return reinterpret_cast<FakeEvent*>(event); }
FakeComm* fake(ncclComm_t comm) { return reinterpret_cast<FakeComm*>(comm); }

cuda::Driver fake_driver() {
  cuda::Driver driver;
  driver.cuCtxGetCurrent = [](CUcontext* context) { return *context = nullptr, CUDA_SUCCESS; };
  driver.cuCtxPushCurrent = [](CUcontext) { return CUDA_SUCCESS; };
  driver.cuCtxPopCurrent = [](CUcontext*) { return CUDA_SUCCESS; };
  driver.cuThreadExchangeStreamCaptureMode = [](CUstreamCaptureMode*) { return CUDA_SUCCESS; };
  driver.cuDevicePrimaryCtxRelease = [](CUdevice) { return CUDA_SUCCESS; };
  driver.cuStreamGetId = [](CUstream stream, unsigned long long* id) {
    return *id = reinterpret_cast<std::uintptr_t>(stream), CUDA_SUCCESS;
  };
  driver.cuEventCreate = [](CUevent* event, unsigned) {
    return *event = reinterpret_cast<CUevent>(new FakeEvent), CUDA_SUCCESS;
  };
  driver.cuEventDestroy = [](CUevent event) { return delete fake(event), CUDA_SUCCESS; };
  driver.cuEventRecord = [](CUevent event, CUstream stream) {
    const std::lock_guard lock(gpu.mutex);
    return *fake(event) = *fake(stream), CUDA_SUCCESS;
  };
  driver.cuEventQuery = [](CUevent event) {
    const std::lock_guard lock(gpu.mutex);
    for (FakeComm* const comm : fake(event)->gathers) {
      if (comm->all_came) continue;
      ++comm->asked;
      gpu.changed.notify_all();
      return CUDA_ERROR_NOT_READY;
    }
    return CUDA_SUCCESS;
  };
  driver.cuCtxGetStreamPriorityRange = [](int*, int*) { return CUDA_SUCCESS; };
  driver.cuStreamCreateWithPriority = [](CUstream* stream, unsigned, int) {
    const std::lock_guard lock(gpu.mutex);
    ++gpu.streams;
    return *stream = reinterpret_cast<CUstream>(new FakeStream), CUDA_SUCCESS;
  };
  driver.cuStreamDestroy = [](CUstream stream) {
    const std::lock_guard lock(gpu.mutex);
    --gpu.streams;
    return delete fake(stream), CUDA_SUCCESS;
  };
  driver.cuMemcpyHtoDAsync = [](CUdeviceptr to, const void* from, std::size_t bytes, CUstream) {
    return std::memcpy(Address{to}.pointer(), from, bytes), CUDA_SUCCESS;
  };
  driver.cuMemcpyDtoHAsync = [](void* to, CUdeviceptr from, std::size_t bytes, CUstream) {
    return std::memcpy(to, Address{from}.pointer(), bytes), CUDA_SUCCESS;
  };
  return driver;
}

NcclLibrary fake_library() {
  NcclLibrary nccl;
  nccl.ncclGetErrorString = [](ncclResult_t) { return "fake"; };
  nccl.ncclGetLastError = [](ncclComm_t) { return ""; };
  nccl.ncclCommCount = [](ncclComm_t, int* ranks) { return *ranks = kRanks, ncclSuccess; };
  nccl.ncclCommGetAsyncError = [](ncclComm_t, ncclResult_t* error) {
    return *error = ncclSuccess, ncclSuccess;
  };
  nccl.ncclMemAlloc = [](void** segment, std::size_t bytes) {
    const std::lock_guard lock(gpu.mutex);
    ++gpu.segments;
    return *segment = std::malloc(bytes), ncclSuccess;
  };
  nccl.ncclMemFree = [](void* segment) {
    const std::lock_guard lock(gpu.mutex);
    --gpu.segments;
    return std::free(segment), ncclSuccess;
  };
  nccl.ncclAllGather = [](const void* send, void* receive, std::size_t count, ncclDataType_t,
                          ncclComm_t comm, cudaStream_t stream) {
    for (std::size_t rank = 0; rank < kRanks; ++rank) {  // all say the same
      std::memcpy(static_cast<std::byte*>(receive) + rank * count, send, count);
    }
    const std::lock_guard lock(gpu.mutex);
    fake(stream)->gathers.push_back(fake(comm));
    ++fake(comm)->gathers;
    gpu.changed.notify_all();
    return ncclSuccess;
  };
  return nccl;
}

class FakeNccl : public testing::Test {
 protected:
  static CommHandle handle(FakeComm& comm) { return {Address::of(&comm).value}; }
  auto host_all_gather(FakeComm& comm, char word, Nanoseconds timeout) {
    const std::byte mine{static_cast<unsigned char>(word)};
    return nccl_->host_all_gather(handle(comm), {&mine, 1}, timeout);
  }
  static void let_come(FakeComm& comm) {
    const std::lock_guard lock(gpu.mutex);
    comm.all_came = true;
  }
  static void await_gather(FakeComm& comm) {
    std::unique_lock lock(gpu.mutex);
    gpu.changed.wait(lock, [&] { return comm.gathers > 0; });
  }
  void TearDown() override {
    nccl_.reset();
    EXPECT_EQ(gpu.streams, 0);
    EXPECT_EQ(gpu.segments, 0);
  }

  const cuda::Driver driver_ = fake_driver();
  NcclLibrary library_ = fake_library();
  std::unique_ptr<Nccl> nccl_ = make_loaded_nccl(library_, driver_, CUdevice{}, CUcontext{});
};

TEST_F(FakeNccl, AnExchangeWaitsForNoOtherCommunicators) {
  FakeComm late, here;
  std::thread waits([&] {
    const auto gathered = host_all_gather(late, 'l', Nanoseconds{3 * kOneSecond.count});
    ASSERT_TRUE(gathered.ok()) << gathered.error().message();
    EXPECT_EQ((*gathered)[1], std::vector{std::byte{'l'}});
  });
  await_gather(late);
  let_come(here);
  const auto gathered = host_all_gather(here, 'h', kOneSecond);
  let_come(late);  // who comes there may have waited for the exchange here
  waits.join();
  ASSERT_TRUE(gathered.ok()) << gathered.error().message();
  EXPECT_EQ((*gathered)[0], std::vector{std::byte{'h'}});
}

// Calls of NCCL's with what they were given, in words.
std::vector<std::string> said;
ncclResult_t next_result = ncclSuccess;

template <class... Numbers>
ncclResult_t say(const char* call, Numbers... numbers) {
  said.emplace_back(call);
  ((said.back() += " " + std::to_string(static_cast<std::int64_t>(numbers))), ...);
  return std::exchange(next_result, ncclSuccess);
}
std::uintptr_t number(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

TEST_F(FakeNccl, OperationsAreCalledWithWhatTheyWereGivenAndErrorsSayWhichCall) {
  library_.ncclAllReduce = [](const void* send, void* receive, std::size_t count,
                              ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t) {
    return say("all_reduce", number(send), number(receive), count, type, op, number(comm));
  };
  library_.ncclBroadcast = [](const void* send, void* receive, std::size_t count,
                              ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t) {
    return say("broadcast", number(send), number(receive), count, type, root, number(comm));
  };
  library_.ncclGroupStart = [] { return say("group_start"); };
  library_.ncclGroupEnd = [] { return say("group_end"); };
  library_.ncclGetLastError = [](ncclComm_t) { return "its last words"; };
  const auto* const send = reinterpret_cast<const void*>(0x10);
  auto* const receive = reinterpret_cast<void*>(0x20);
  const auto enqueue = [&](const Operation& operation) {
    said.clear();
    return nccl_->enqueue({5}, {&operation, 1}, Stream{});
  };
  const Operation most{OperationKind::all_reduce, send,         receive, 3,
                       DataType::float32,         ReduceOp::max};
  EXPECT_TRUE(enqueue(most).ok());
  EXPECT_THAT(said, testing::ElementsAre("all_reduce 16 32 3 7 2 5"));
  const Operation given{OperationKind::broadcast, send, receive, 4, DataType::int8, {}, 1};
  EXPECT_TRUE(enqueue(given).ok());
  EXPECT_THAT(said, testing::ElementsAre("broadcast 16 32 4 0 1 5"));
  next_result = ncclInternalError;
  const Status refused = enqueue(most);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::device);
  EXPECT_EQ(refused.error().message(), "all-reduce: fake (its last words)");

  // A group that was begun is ended, whatever happened.
  said.clear();
  const Operation group[] = {given, most, given};
  EXPECT_TRUE(nccl_->enqueue({5}, group, Stream{}).ok());
  EXPECT_THAT(said, testing::ElementsAre("group_start", "broadcast 16 32 4 0 1 5",
                                         "all_reduce 16 32 3 7 2 5", "broadcast 16 32 4 0 1 5",
                                         "group_end"));
  said.clear();
  library_.ncclAllReduce = [](const void*, void*, std::size_t, ncclDataType_t, ncclRedOp_t,
                              ncclComm_t, cudaStream_t) { return ncclInternalError; };
  EXPECT_FALSE(nccl_->enqueue({5}, group, Stream{}).ok());
  EXPECT_THAT(said, testing::ElementsAre("group_start", "broadcast 16 32 4 0 1 5", "group_end"));
}

// NCCL keeps the pointer, and profilers read it later.
TEST_F(FakeNccl, CommunicatorsKeepTheirNamesWhenTheCallIsOver) {
  static const char* name = nullptr;
  library_.ncclCommInitRankConfig = [](ncclComm_t* comm, int, ncclUniqueId, int,
                                       ncclConfig_t* config) {
    name = config->commName;
    *comm = reinterpret_cast<ncclComm_t>(5);
    return ncclSuccess;
  };
  const std::string long_name(100, 'x');
  EXPECT_TRUE(nccl_->init({}, 1, 0, {.name = long_name}).ok());
  EXPECT_TRUE(nccl_->init({}, 1, 0, {.name = std::string(100, 'y')}).ok());
  const std::string kept = name;
  EXPECT_EQ(kept, std::string(100, 'y'));
  EXPECT_TRUE(nccl_->init({}, 1, 0, {.name = long_name}).ok());
  EXPECT_NE(name, long_name.c_str()) << "the caller's own may go";
  EXPECT_EQ(name, long_name);
}

TEST_F(FakeNccl, AnExchangeOfMoreThanItsMemoryHoldsComesInParts) {
  FakeComm here;
  let_come(here);
  std::vector<std::byte> mine((2 << 20) / 3);  // its own, and two
  EXPECT_TRUE(nccl_->host_all_gather(handle(here), mine, kOneSecond).ok());
  EXPECT_EQ(here.gathers, 1);
  for (std::size_t at = 0; at < 3; ++at) mine.push_back(std::byte(at + 1));
  const auto gathered = nccl_->host_all_gather(handle(here), mine, kOneSecond);
  ASSERT_TRUE(gathered.ok()) << gathered.error().message();
  EXPECT_EQ(*gathered, std::vector(2, mine));
  EXPECT_EQ(here.gathers, 3);
}

TEST_F(FakeNccl, ExchangesOneAfterTheOtherShareAStreamAndMemory) {
  FakeComm here;
  let_come(here);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(host_all_gather(here, 'h', kOneSecond).ok());
  EXPECT_EQ(gpu.streams, 1);
  EXPECT_EQ(gpu.segments, 1);
}

TEST_F(FakeNccl, AnExchangeDoesNotWaitBehindOneThatRanksDidNotComeTo) {
  FakeComm late, here;
  let_come(here);
  EXPECT_FALSE(host_all_gather(late, 'l', Nanoseconds{1'000'000}).ok());
  const auto gathered = host_all_gather(here, 'h', Nanoseconds{1'000'000});
  EXPECT_TRUE(gathered.ok()) << gathered.error().message();
}

// What of the real NCCL's side can be seen without a GPU.
TEST(LoadNccl, SaysWhatIsMissingAndWhatToDoOrHasAVersion) {
  const Result<std::unique_ptr<Nccl>> nccl = load_nccl(0);
  if (nccl) {
    EXPECT_THAT((*nccl)->version(), testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
    return;
  }
  EXPECT_EQ(nccl.error().code(), ErrorCode::unavailable);
  EXPECT_THAT(nccl.error().message(), testing::HasSubstr("install"));
}

TEST(LoadNccl, RefusesSettingsThatItCannotWorkWith) {
  const std::pair<std::string, const char*> bad[] = {
      {"NCCL_COMM_BLOCKING", "0"}, {"NCCL_GRAPH_REGISTER", "1"}, {"NCCL_GRAPH_REGISTER", "0x1"}};
  for (const auto& [name, value] : bad) {
    ::setenv(name.c_str(), value, 1);
    const Result<std::unique_ptr<Nccl>> nccl = load_nccl(0);
    ::unsetenv(name.c_str());
    ASSERT_FALSE(nccl);
    EXPECT_EQ(nccl.error().code(), ErrorCode::invalid_argument);
    EXPECT_THAT(nccl.error().message(), testing::HasSubstr(name + "=" + value));
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

}  // namespace
}  // namespace weir
