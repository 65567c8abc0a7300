// SPDX-License-Identifier: Apache-2.0
// CudaDevice's contexts, its own and those of peers, over a driver that is functions of this file:
// a GPU that does no work until the test says so, where an event stands for the work that its
// record saw. Whether the driver's own calls do what these do is for the conformance suite, on
// GPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda/driver_device.h"

namespace weir::cuda {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Work = std::set<int>;  // that was queued; numbers
constexpr int kDevices = 3;
// A context of its own on each device, whose number is the device's and this.
constexpr int kGreen = 100;

struct FakeStream {
  int device = 0;
  Work queued;
};
struct FakeEvent {
  int device = 0;
  Work before;
};

// What the functions below share, since the driver's calls know no object.
struct FakeMachine {
  FakeMachine();
  std::vector<std::unique_ptr<FakeStream>> streams;
  std::vector<std::unique_ptr<FakeEvent>> events;
  std::map<CUdeviceptr, int> blocks;  // and the device of each
  std::vector<int> contexts;          // current ones, the last on top
  int retained[kDevices] = {};
  Work done;
  std::set<int> captured;           // devices with a blocking stream that is captured
  std::vector<int> waited;          // devices that the host waited for
  int records = 0;                  // cuCtxRecordEvent
  CUresult refusal = CUDA_SUCCESS;  // of cuDevicePrimaryCtxRetain
  int full = -1;                    // a device without memory
  CUdeviceptr last_block = 0;

  int current() const { return contexts.empty() ? -1 : contexts.back(); }
  // Each context's default stream.
  std::map<int, FakeStream> default_streams;
  Work of_context(int device) const {
    Work all;
    for (const auto& stream : streams) {
      if (stream->device == device) all.insert(stream->queued.begin(), stream->queued.end());
    }
    return all;
  }
};
FakeMachine* machine;
FakeMachine::FakeMachine() { machine = this; }

CUcontext context_of(int device) {
  return reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(device + 1));
}
int device_of(CUcontext context) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(context)) - 1;
}
FakeStream* fake(CUstream stream) {
  if (stream == nullptr) return &machine->default_streams[machine->current()];
  return reinterpret_cast<FakeStream*>(stream);
}
FakeEvent* fake(CUevent event) { return reinterpret_cast<FakeEvent*>(event); }

CUresult record_context(CUcontext context, CUevent event) {
  ++machine->records;
  if (fake(event)->device != device_of(context)) return CUDA_ERROR_INVALID_HANDLE;
  fake(event)->before = machine->of_context(device_of(context));
  return CUDA_SUCCESS;
}

Driver fake_driver() {
  Driver driver;
  driver.get_proc_address = [](const char* name, void** entry, int, cuuint64_t,
                               CUdriverProcAddressQueryResult* status) {
    const bool known = std::strcmp(name, "cuCtxRecordEvent") == 0;
    *entry = known ? reinterpret_cast<void*>(&record_context) : nullptr;
    *status = known ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
  };
  driver.cuGetErrorName = [](CUresult, const char** name) { return *name = "NAME", CUDA_SUCCESS; };
  driver.cuGetErrorString = [](CUresult, const char** text) {
    return *text = "text", CUDA_SUCCESS;
  };
  driver.cuDeviceGet = [](CUdevice* device, int ordinal) {
    return *device = ordinal, CUDA_SUCCESS;
  };
  driver.cuDevicePrimaryCtxRetain = [](CUcontext* context, CUdevice device) {
    if (machine->refusal != CUDA_SUCCESS) return machine->refusal;
    ++machine->retained[device];
    return *context = context_of(device), CUDA_SUCCESS;
  };
  driver.cuDevicePrimaryCtxRelease = [](CUdevice device) {
    return --machine->retained[device], CUDA_SUCCESS;
  };
  driver.cuCtxGetCurrent = [](CUcontext* context) {
    *context = machine->contexts.empty() ? nullptr : context_of(machine->current());
    return CUDA_SUCCESS;
  };
  driver.cuCtxGetDevice = [](CUdevice* device) {
    return *device = machine->current() % kGreen, CUDA_SUCCESS;
  };
  driver.cuCtxPushCurrent = [](CUcontext context) {
    return machine->contexts.push_back(device_of(context)), CUDA_SUCCESS;
  };
  driver.cuCtxPopCurrent = [](CUcontext*) { return machine->contexts.pop_back(), CUDA_SUCCESS; };
  driver.cuThreadExchangeStreamCaptureMode = [](CUstreamCaptureMode*) { return CUDA_SUCCESS; };
  driver.cuMemAlloc = [](CUdeviceptr* at, std::size_t) {
    if (machine->current() == machine->full) return CUDA_ERROR_OUT_OF_MEMORY;
    machine->blocks[*at = ++machine->last_block] = machine->current();
    return CUDA_SUCCESS;
  };
  driver.cuMemFree = [](CUdeviceptr at) {
    const int device = machine->blocks.at(at);
    machine->blocks.erase(at);
    const Work work = machine->of_context(device);
    machine->done.insert(work.begin(), work.end());
    return machine->waited.push_back(device), CUDA_SUCCESS;
  };
  driver.cuEventCreate = [](CUevent* event, unsigned) {
    machine->events.push_back(std::make_unique<FakeEvent>(FakeEvent{machine->current(), {}}));
    return *event = reinterpret_cast<CUevent>(machine->events.back().get()), CUDA_SUCCESS;
  };
  driver.cuEventDestroy = [](CUevent event) {
    std::erase_if(machine->events, [&](const auto& each) { return each.get() == fake(event); });
    return CUDA_SUCCESS;
  };
  driver.cuEventRecord = [](CUevent event, CUstream stream) {
    if (fake(event)->device != fake(stream)->device) return CUDA_ERROR_INVALID_HANDLE;
    return fake(event)->before = fake(stream)->queued, CUDA_SUCCESS;
  };
  driver.cuEventQuery = [](CUevent event) {
    for (const int each : fake(event)->before) {
      if (!machine->done.contains(each)) return CUDA_ERROR_NOT_READY;
    }
    return CUDA_SUCCESS;
  };
  driver.cuStreamWaitEvent = [](CUstream stream, CUevent event, unsigned) {
    return fake(stream)->queued.merge(Work(fake(event)->before)), CUDA_SUCCESS;
  };
  driver.cuStreamCreateWithPriority = [](CUstream* stream, unsigned flags, int) {
    if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    machine->streams.push_back(std::make_unique<FakeStream>(FakeStream{machine->current(), {}}));
    return *stream = reinterpret_cast<CUstream>(machine->streams.back().get()), CUDA_SUCCESS;
  };
  driver.cuStreamDestroy = [](CUstream stream) {
    std::erase_if(machine->streams, [&](const auto& each) { return each.get() == fake(stream); });
    return CUDA_SUCCESS;
  };
  driver.cuStreamGetCaptureInfo = [](CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*,
                                     const CUgraphNode**, const CUgraphEdgeData**, std::size_t*) {
    return machine->captured.contains(machine->current()) ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
                                                          : CUDA_SUCCESS;
  };
  return driver;
}

class CudaContexts : public testing::Test {
 protected:
  ~CudaContexts() override {
    device_.reset();
    EXPECT_TRUE(machine_.events.empty());
    EXPECT_TRUE(machine_.blocks.empty());
    EXPECT_TRUE(machine_.contexts.empty()) << "the thread's context is as it was";
    for (const int retained : machine_.retained) EXPECT_EQ(retained, 0);
  }

  std::unique_ptr<DriverDevice> open(int ordinal) {
    OpenedContext opened{.ordinal = ordinal, .device = ordinal, .name = "fake"};
    EXPECT_EQ(driver_.cuDevicePrimaryCtxRetain(&opened.context, ordinal), CUDA_SUCCESS);
    return std::make_unique<DriverDevice>(driver_, std::move(opened), PageKind{});
  }
  // Work of a new stream of that device.
  int queue(int device) {
    machine_.streams.push_back(
        std::make_unique<FakeStream>(FakeStream{device, Work{++last_work_}}));
    return last_work_;
  }
  EventHandle recorded() {
    const Result<EventHandle> event = device_->create_event();
    EXPECT_TRUE(event.ok());
    const Status status = device_->record_context(*event);
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message());
    return *event;
  }
  bool is_done(EventHandle event) { return *device_->query(event); }
  void destroy(EventHandle event) { EXPECT_TRUE(device_->destroy_event(event).ok()); }

  FakeMachine machine_;
  const Driver driver_ = fake_driver();
  std::unique_ptr<DriverDevice> device_ = open(0);
  int last_work_ = 0;
};

TEST_F(CudaContexts, AnEventMayBeRecordedAgainAndAnotherOneStandsForWhatItSaw) {
  ASSERT_TRUE(device_->add_peer(1).ok());
  ASSERT_TRUE(device_->add_peer(2).ok());
  const int first = queue(1);
  const EventHandle before = recorded(), after = recorded();
  const int second = queue(2);
  EXPECT_TRUE(device_->record_context(after).ok());
  machine_.done = {first};
  EXPECT_TRUE(is_done(before));
  EXPECT_FALSE(is_done(after));
  machine_.done.insert(second);
  EXPECT_TRUE(is_done(after));
  destroy(before);
  destroy(after);
}

TEST_F(CudaContexts, ACaptureOfABlockingStreamOfAPeerIsNotBroken) {
  ASSERT_TRUE(device_->add_peer(1).ok());
  ASSERT_TRUE(device_->add_peer(2).ok());
  const EventHandle event = *device_->create_event();
  for (const int captured : {0, 1, 2}) {
    machine_.captured = {captured};
    const Status refused = device_->record_context(event);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), ErrorCode::capture);
    EXPECT_THAT(refused.error().message(), HasSubstr("device " + std::to_string(captured)));
  }
  EXPECT_EQ(machine_.records, 0);
  machine_.captured.clear();
  EXPECT_TRUE(device_->record_context(event).ok());
  destroy(event);
}

TEST_F(CudaContexts, APeerThatIsFullNeedsNoMemoryWhereTheWaitWasPrepared) {
  ASSERT_TRUE(device_->add_peer(1).ok());
  machine_.full = 1;
  const Status refused = device_->synchronize_context();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::out_of_memory);
  EXPECT_THAT(refused.error().message(), HasSubstr("device 1"));
  machine_.full = -1;
  ASSERT_TRUE(device_->prepare_to_synchronize().ok());
  machine_.full = 1;
  EXPECT_TRUE(device_->synchronize_context().ok());
}

TEST_F(CudaContexts, APeersContextStaysWhileTheDeviceMayWaitForIt) {
  std::unique_ptr<DriverDevice> peer = open(1);
  ASSERT_TRUE(device_->add_peer(1).ok());
  peer.reset();
  EXPECT_EQ(machine_.retained[1], 1);
}

TEST_F(CudaContexts, APeerThatCannotBeHadChangesNothing) {
  machine_.refusal = CUDA_ERROR_DEVICE_UNAVAILABLE;
  EXPECT_FALSE(device_->add_peer(1).ok());
  EXPECT_TRUE(device_->peer_contexts().empty());
  machine_.refusal = CUDA_SUCCESS;
  EXPECT_TRUE(device_->add_peer(1).ok());
}

TEST_F(CudaContexts, TheDefaultStreamOfAGreenContextWaitsToo) {
  const int work = queue(0);
  const EventHandle event = recorded();
  const Stream null{.handle = nullptr, .id = 1};
  machine_.contexts = {kGreen};
  EXPECT_TRUE(device_->wait(null, event).ok());
  EXPECT_EQ(std::exchange(machine_.contexts, {}), std::vector{kGreen});
  EXPECT_THAT(machine_.default_streams[kGreen].queued, ElementsAre(work));
  EXPECT_THAT(machine_.default_streams[0].queued, ElementsAre(work)) << "other threads use it";
  // Of another device it is another matter.
  for (const int elsewhere : {1, kGreen + 1}) {
    machine_.contexts = {elsewhere};
    EXPECT_TRUE(device_->wait(null, event).ok());
    machine_.contexts.clear();
    EXPECT_TRUE(machine_.default_streams[elsewhere].queued.empty());
  }
  destroy(event);
}

}  // namespace
}  // namespace weir::cuda
