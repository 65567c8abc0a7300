// SPDX-License-Identifier: Apache-2.0
// What the driver permits while a stream is being captured: the rules that Weir's capture path
// rests on, each as a test. And that no call of CudaDevice's own breaks a capture.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <thread>
#include <tuple>

#include "tests/conformance/cuda_rig.h"

namespace weir::conformance {
namespace {

constexpr std::size_t kSize = std::size_t{1} << 20;
alignas(4096) std::array<std::byte, 4096> host_page;  // for cuMemHostRegister

// How a capture stood at its end.
struct Ending {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;  // just before
  CUresult result = CUDA_SUCCESS;
};

// A stream to capture, one that is left alone, and what the calls of the table need or make. The
// device's context is current in the thread that made it.
class Scene {
 public:
  explicit Scene(CudaRig& the_rig) : rig(the_rig) {
    CUdevice device = 0;
    expect_driver(driver.cuCtxGetDevice(&device));
    page.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    page.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
    expect_driver(calls.cuMemAlloc(&filled, kSize));
    expect_driver(calls.cuMemAlloc(&spare, kSize));
    // The pool that asynchronous allocations come from is made now, not during the capture.
    CUdeviceptr first = 0;
    expect_driver(calls.cuMemAllocAsync(&first, kSize, eager));
    expect_driver(calls.cuMemFreeAsync(first, eager));
    expect_driver(driver.cuEventCreate(&captured_event, CU_EVENT_DISABLE_TIMING));
    expect_driver(driver.cuEventCreate(&eager_event, CU_EVENT_DISABLE_TIMING));
    expect_driver(driver.cuEventRecord(eager_event, eager));
    expect_driver(driver.cuEventSynchronize(eager_event));
  }
  Scene(const Scene&) = delete;
  Scene& operator=(const Scene&) = delete;
  ~Scene() {
    expect_driver(calls.cuStreamSynchronize(eager));
    for (const CUdeviceptr memory : {filled, spare, allocated, allocated_async}) {
      if (memory != 0) expect_driver(calls.cuMemFree(memory));
    }
    if (host_memory != nullptr) expect_driver(calls.cuMemFreeHost(host_memory));
    if (registered) expect_driver(calls.cuMemHostUnregister(host_page.data()));
    for (const CUevent event : {captured_event, eager_event, new_event}) {
      if (event != nullptr) expect_driver(driver.cuEventDestroy(event));
    }
    if (new_stream != nullptr) expect_driver(calls.cuStreamDestroy(new_stream));
    rig.destroy_stream(captured_stream);
    rig.destroy_stream(eager_stream);
  }

  // The capture has one node, and an event recorded after it.
  void begin(CUstreamCaptureMode mode) {
    expect_driver(calls.cuStreamBeginCapture(captured, mode));
    rig.fill(captured_stream, Address{filled}, Bytes{kSize}, 1);
    expect_driver(driver.cuEventRecord(captured_event, captured));
  }
  Ending end() {
    Ending ending;
    expect_driver(driver.cuStreamGetCaptureInfo(captured, &ending.status, nullptr, nullptr, nullptr,
                                                nullptr, nullptr));
    CUgraph graph = nullptr;
    ending.result = calls.cuStreamEndCapture(captured, &graph);
    if (graph != nullptr) expect_driver(calls.cuGraphDestroy(graph));
    EXPECT_EQ(graph != nullptr, ending.result == CUDA_SUCCESS);
    return ending;
  }

  CudaRig& rig;
  const cuda::ContextScope scope = rig.current();
  const cuda::Driver& driver = **cuda::Driver::get();
  const TestDriver& calls = rig.calls();
  const Stream captured_stream = rig.new_stream();
  const Stream eager_stream = rig.new_stream();
  const CUstream captured = CudaRig::driver_stream(captured_stream);
  const CUstream eager = CudaRig::driver_stream(eager_stream);
  CUmemAllocationProp page{};
  CUevent captured_event = nullptr;
  CUevent eager_event = nullptr;  // recorded on the eager stream, and done
  CUdeviceptr filled = 0;
  CUdeviceptr spare = 0;
  // Made by the call that is tested.
  CUdeviceptr allocated = 0;
  CUdeviceptr allocated_async = 0;
  void* host_memory = nullptr;
  bool registered = false;
  CUevent new_event = nullptr;
  CUstream new_stream = nullptr;
};

CUresult free_memory(Scene& s) {
  const CUresult result = s.calls.cuMemFree(s.spare);
  if (result == CUDA_SUCCESS) s.spare = 0;
  return result;
}

CUresult register_host_memory(Scene& s) {
  const CUresult result = s.calls.cuMemHostRegister(host_page.data(), host_page.size(), 0);
  s.registered = result == CUDA_SUCCESS;
  return result;
}

// Reserve, create, map, set access, unmap, release and free the addresses: the first that fails.
CUresult use_physical_memory(Scene& s) {
  const cuda::Driver& driver = s.driver;
  const std::size_t size = s.rig.device().granularity().count;
  const CUmemAccessDesc access{.location = s.page.location,
                               .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle handle = 0;
  CUresult result = driver.cuMemAddressReserve(&address, size, 0, 0, 0);
  if (result == CUDA_SUCCESS) result = driver.cuMemCreate(&handle, size, &s.page, 0);
  if (result == CUDA_SUCCESS) result = driver.cuMemMap(address, size, 0, handle, 0);
  if (result == CUDA_SUCCESS) result = driver.cuMemSetAccess(address, size, &access, 1);
  if (result == CUDA_SUCCESS) result = driver.cuMemUnmap(address, size);
  if (result == CUDA_SUCCESS) result = driver.cuMemRelease(handle);
  if (result == CUDA_SUCCESS) result = driver.cuMemAddressFree(address, size);
  return result;
}

// CUDA_ERROR_NOT_SUPPORTED where pages can't be made exportable on this machine.
CUresult export_physical_memory(Scene& s) {
  CUmemAllocationProp exportable = s.page;
  exportable.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemGenericAllocationHandle handle = 0;
  const CUresult created =
      s.driver.cuMemCreate(&handle, s.rig.device().granularity().count, &exportable, 0);
  if (created != CUDA_SUCCESS) return CUDA_ERROR_NOT_SUPPORTED;
  int file = -1;
  const CUresult exported = s.calls.cuMemExportToShareableHandle(
      &file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (exported == CUDA_SUCCESS) close(file);
  const CUresult released = s.driver.cuMemRelease(handle);
  return exported != CUDA_SUCCESS ? exported : released;
}

enum class Rule {
  unsafe,           // breaks a capture, unless it is relaxed or the thread has exchanged to relaxed
  never,            // breaks a capture of any mode
  always,           // breaks none
  always_captured,  // breaks none; a call on the captured stream
};

struct Call {
  const char* name;
  Rule rule;
  CUresult (*make)(Scene& scene);
};

// "Another stream" is one that is not captured.
constexpr std::array kCalls{
    Call{"MemAlloc", Rule::unsafe,
         [](Scene& s) { return s.calls.cuMemAlloc(&s.allocated, kSize); }},
    Call{"MemFree", Rule::unsafe, free_memory},
    Call{"MemHostAlloc", Rule::unsafe,
         [](Scene& s) { return s.calls.cuMemHostAlloc(&s.host_memory, kSize, 0); }},
    Call{"MemHostRegister", Rule::unsafe, register_host_memory},
    Call{"MemAllocAsyncOnAnotherStream", Rule::unsafe,
         [](Scene& s) { return s.calls.cuMemAllocAsync(&s.allocated_async, kSize, s.eager); }},
    Call{"QueryOfAnEagerEvent", Rule::unsafe,
         [](Scene& s) { return s.driver.cuEventQuery(s.eager_event); }},
    Call{"SynchronizeOfAnEagerEvent", Rule::unsafe,
         [](Scene& s) { return s.driver.cuEventSynchronize(s.eager_event); }},
    Call{"QueryOfAnotherStream", Rule::unsafe,
         [](Scene& s) { return s.calls.cuStreamQuery(s.eager); }},
    Call{"SynchronizeOfAnotherStream", Rule::unsafe,
         [](Scene& s) { return s.calls.cuStreamSynchronize(s.eager); }},
    Call{"SynchronizeOfTheDevice", Rule::never,
         [](Scene& s) { return s.calls.cuCtxSynchronize(); }},
    Call{"QueryOfACapturedEvent", Rule::never,
         [](Scene& s) { return s.driver.cuEventQuery(s.captured_event); }},
    Call{"WaitForAnEagerEvent", Rule::never,
         [](Scene& s) { return s.driver.cuStreamWaitEvent(s.captured, s.eager_event, 0); }},
    Call{"ExternalWaitForAnEagerEvent", Rule::always_captured,
         [](Scene& s) {
           return s.driver.cuStreamWaitEvent(s.captured, s.eager_event, CU_EVENT_WAIT_EXTERNAL);
         }},
    Call{"UseOfPhysicalMemory", Rule::always, use_physical_memory},
    Call{"ExportOfPhysicalMemory", Rule::always, export_physical_memory},
    Call{"EventCreate", Rule::always,
         [](Scene& s) { return s.driver.cuEventCreate(&s.new_event, CU_EVENT_DISABLE_TIMING); }},
    Call{"EventRecordOnAnotherStream", Rule::always,
         [](Scene& s) { return s.driver.cuEventRecord(s.eager_event, s.eager); }},
    Call{"StreamCreate", Rule::always,
         [](Scene& s) { return s.calls.cuStreamCreate(&s.new_stream, CU_STREAM_NON_BLOCKING); }},
    Call{"MemGetInfo", Rule::always,
         [](Scene& s) {
           std::size_t free = 0;
           std::size_t total = 0;
           return s.driver.cuMemGetInfo(&free, &total);
         }},
};

constexpr std::array kModes{CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                            CU_STREAM_CAPTURE_MODE_RELAXED};

std::string name_of_mode(CUstreamCaptureMode mode) {
  if (mode == CU_STREAM_CAPTURE_MODE_GLOBAL) return "Global";
  return mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL ? "ThreadLocal" : "Relaxed";
}

// Who makes a call during the capture, and whether inside an exchange to relaxed.
struct Caller {
  const char* name;
  bool another_thread;
  bool exchanged;
};
constexpr Caller kPlain{"the capturing thread", false, false};
constexpr Caller kExchanged{"the capturing thread, exchanged to relaxed", false, true};
constexpr Caller kOther{"another thread", true, false};
constexpr Caller kOtherExchanged{"another thread, exchanged to relaxed", true, true};

template <class Action>
void act_as(const Caller& caller, const Scene& scene, Action&& action) {
  const auto act = [&] {
    const cuda::ContextScope scope = scene.rig.current();
    std::optional<cuda::RelaxedCaptureScope> relaxed;
    if (caller.exchanged) relaxed.emplace(scene.driver);
    action();
  };
  if (!caller.another_thread) return act();
  std::thread(act).join();
}

bool breaks(Rule rule, CUstreamCaptureMode mode, const Caller& caller) {
  if (rule != Rule::unsafe) return rule == Rule::never;
  if (caller.exchanged || mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  return mode == CU_STREAM_CAPTURE_MODE_GLOBAL || !caller.another_thread;
}

// One rig for all tests of a suite: opening a context takes longer than any of them.
template <class Parameter>
class OnOneCudaRig : public testing::TestWithParam<Parameter> {
 protected:
  static void SetUpTestSuite() { made_ = make_cuda_rig(); }
  static void TearDownTestSuite() { made_ = {}; }
  void SetUp() override {
    if (made_.rig == nullptr) GTEST_SKIP() << made_.reason;
  }
  static CudaRig& rig() { return static_cast<CudaRig&>(*made_.rig); }

 private:
  static inline RigOrReason made_;
};

class CudaCaptureRule : public OnOneCudaRig<std::tuple<Call, CUstreamCaptureMode>> {
 protected:
  void expect_rule(const Caller& caller) {
    SCOPED_TRACE(caller.name);
    const auto& [call, mode] = GetParam();
    Scene scene(rig());
    CUresult made = CUDA_ERROR_UNKNOWN;
    scene.begin(mode);
    act_as(caller, scene, [&, &call = call] { made = call.make(scene); });
    const Ending ending = scene.end();
    if (made == CUDA_ERROR_NOT_SUPPORTED) GTEST_SKIP() << "this machine can't do it at all";
    const bool broken = ending.result != CUDA_SUCCESS;
    EXPECT_EQ(broken, breaks(call.rule, mode, caller))
        << "the call gave " << made << ", the capture's end " << ending.result;
    EXPECT_EQ(ending.status == CU_STREAM_CAPTURE_STATUS_ACTIVE, !broken);
    EXPECT_EQ(made == CUDA_SUCCESS, !broken) << "the call gave " << made;
  }
};

INSTANTIATE_TEST_SUITE_P(Cuda, CudaCaptureRule,
                         testing::Combine(testing::ValuesIn(kCalls), testing::ValuesIn(kModes)),
                         [](const auto& each) {
                           return std::string(std::get<0>(each.param).name) + "_" +
                                  name_of_mode(std::get<1>(each.param));
                         });

TEST_P(CudaCaptureRule, Holds) {
  expect_rule(kPlain);
  expect_rule(kExchanged);
  // The other rules are a matter of what is captured, not of who calls.
  const Rule rule = std::get<0>(GetParam()).rule;
  if (rule != Rule::unsafe && rule != Rule::always) return;
  expect_rule(kOther);
  expect_rule(kOtherExchanged);
}

void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.error().message(); }

// Each call of the seam that an allocator makes for its eager side, `b` after `a`.
void make_eager_calls(Device& device, Stream a, Stream b) {
  const Bytes size = device.granularity();
  EXPECT_TRUE(device.memory_info().ok());
  EXPECT_TRUE(device.stream(a.handle).ok());
  EXPECT_TRUE(device.capture_info(a).ok());
  const Result<Address> address = device.reserve(size, size);
  const Result<PhysicalHandle> handle = device.create(size);
  const Result<EventHandle> event = device.create_event();
  ASSERT_TRUE(address.ok() && handle.ok() && event.ok());
  expect_ok(device.map(*address, size, *handle));
  expect_ok(device.set_access(*address, size));
  expect_ok(device.record(*event, a));
  expect_ok(device.wait(b, *event));
  EXPECT_TRUE(device.query(*event).ok());
  expect_ok(device.synchronize(*event));
  expect_ok(device.destroy_event(*event));
  expect_ok(device.unmap(*address, size));
  expect_ok(device.release(*handle));
  expect_ok(device.unreserve(*address, size));
}

class CudaDeviceDuringACapture : public OnOneCudaRig<CUstreamCaptureMode> {
 protected:
  // Fails the test if `action` breaks a capture.
  template <class Action>
  void expect_harmless(const Caller& caller, Scene& scene, Action&& action) {
    SCOPED_TRACE(caller.name);
    scene.begin(GetParam());
    act_as(caller, scene, action);
    const Ending ending = scene.end();
    EXPECT_EQ(ending.status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    EXPECT_EQ(ending.result, CUDA_SUCCESS);
  }
};

INSTANTIATE_TEST_SUITE_P(Cuda, CudaDeviceDuringACapture, testing::ValuesIn(kModes),
                         [](const auto& each) { return name_of_mode(each.param); });

TEST_P(CudaDeviceDuringACapture, EagerCallsBreakNothing) {
  for (const Caller& caller : {kPlain, kOther}) {
    Scene scene(rig());
    const Stream third = rig().new_stream();
    expect_harmless(caller, scene,
                    [&] { make_eager_calls(rig().device(), scene.eager_stream, third); });
    rig().destroy_stream(third);
  }
}

// What is opened has all that a device may make, and gives all of it back.
TEST_P(CudaDeviceDuringACapture, AnotherDeviceIsOpenedAndClosed) {
  for (const Caller& caller : {kPlain, kOther}) {
    Scene scene(rig());
    expect_harmless(caller, scene, [&] {
      const Result<std::unique_ptr<CudaDevice>> opened = CudaDevice::open(0);
      ASSERT_TRUE(opened.ok()) << opened.error().message();
      CudaDevice& device = **opened;
      const Result<PhysicalHandle> page = device.create(device.granularity());
      ASSERT_TRUE(page.ok()) << page.error().message();
      expect_ok(device.release(*page));
      for (const auto direction : {Device::Direction::to_host, Device::Direction::to_device}) {
        EXPECT_TRUE(device.copy_stream(direction).ok());
      }
      expect_ok(device.synchronize_context());
    });
  }
}

TEST_P(CudaDeviceDuringACapture, AnotherGraphIsMadeAndLaunched) {
  Device& device = rig().device();
  for (const Caller& caller : {kPlain, kOther}) {
    Scene scene(rig());
    expect_ok(device.begin_capture(scene.eager_stream, CaptureMode::relaxed));
    rig().fill(scene.eager_stream, Address{scene.spare}, Bytes{kSize}, 5);
    const Result<GraphHandle> graph = device.end_capture(scene.eager_stream);
    ASSERT_TRUE(graph.ok()) << graph.error().message();
    expect_harmless(caller, scene, [&] {
      const Result<ExecutableHandle> executable = device.instantiate(*graph);
      ASSERT_TRUE(executable.ok()) << executable.error().message();
      expect_ok(device.destroy_graph(*graph));
      expect_ok(device.launch_graph(*executable, scene.eager_stream));
      const Result<EventHandle> event = device.create_event();
      ASSERT_TRUE(event.ok()) << event.error().message();
      expect_ok(device.record(*event, scene.eager_stream));
      expect_ok(device.synchronize(*event));
      expect_ok(device.destroy_event(*event));
      expect_ok(device.destroy_executable(*executable));
    });
    rig().expect_filled(Address{scene.spare}, Bytes{kSize}, 5);
  }
}

}  // namespace
}  // namespace weir::conformance
