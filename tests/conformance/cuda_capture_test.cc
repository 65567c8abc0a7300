// CudaDevice beside and inside the capture of a graph. (SimDevice has no captures yet.)
#include <gtest/gtest.h>

#include "tests/conformance/cuda_rig.h"

namespace weir::conformance {
namespace {

class CudaCapture : public Conformance {
 protected:
  void SetUp() override {
    Conformance::SetUp();
    if (IsSkipped()) return;
    stream_ = rig().new_stream();
    address_ = reserve(page_size());
    handle_ = create(page_size());
    map(address_, page_size(), handle_);
  }
  void TearDown() override {
    if (IsSkipped()) return;
    expect_ok(device().unmap(address_, page_size()));
    expect_ok(device().release(handle_));
    expect_ok(device().unreserve(address_, page_size()));
  }

  CudaRig& cuda_rig() { return static_cast<CudaRig&>(rig()); }
  void begin() {
    const cuda::ContextScope scope = cuda_rig().current();
    expect_driver(cuda_rig().calls().cuStreamBeginCapture(CudaRig::driver_stream(stream_),
                                                          CU_STREAM_CAPTURE_MODE_GLOBAL));
  }
  // Fails the test if the capture was broken.
  void end() {
    const cuda::ContextScope scope = cuda_rig().current();
    CUgraph graph = nullptr;
    expect_driver(cuda_rig().calls().cuStreamEndCapture(CudaRig::driver_stream(stream_), &graph));
    ASSERT_NE(graph, nullptr);
    expect_driver(cuda_rig().calls().cuGraphDestroy(graph));
  }

  Stream stream_;
  Address address_;
  PhysicalHandle handle_;
};

INSTANTIATE_TEST_SUITE_P(Devices, CudaCapture, testing::Values(RigKind{"Cuda", make_cuda_rig}),
                         kind_name);

TEST_P(CudaCapture, ACapturedStreamSaysSoAndEachCaptureHasItsOwnId) {
  begin();
  const Result<CaptureInfo> first = device().capture_info(stream_);
  end();
  begin();
  const Result<CaptureInfo> second = device().capture_info(stream_);
  end();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->status, CaptureInfo::Status::active);
  EXPECT_NE(first->id, second->id);
  EXPECT_EQ(device().capture_info(stream_)->status, CaptureInfo::Status::none);
}

TEST_P(CudaCapture, TipsAreTheNodesThatTheNextDependsOnAndCanBeAddedTo) {
  begin();
  EXPECT_TRUE(device().capture_tips(stream_)->empty());
  rig().fill(stream_, address_, page_size(), 1);
  const std::vector<GraphNode> first = *device().capture_tips(stream_);
  ASSERT_EQ(first.size(), 1u);
  rig().fill(stream_, address_, page_size(), 2);
  const std::vector<GraphNode> second = *device().capture_tips(stream_);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_NE(first[0], second[0]);
  expect_ok(device().add_capture_dependencies(stream_, first));
  EXPECT_EQ(device().capture_tips(stream_)->size(), 2u);
  end();
}

TEST_P(CudaCapture, EagerWorkInTheCapturingThreadDoesNotBreakAGlobalCapture) {
  const Stream eager = rig().new_stream();
  begin();
  const EventHandle event = record(eager);
  EXPECT_TRUE(device().query(event).ok());
  expect_ok(device().synchronize(event));
  expect_ok(device().destroy_event(event));
  EXPECT_TRUE(device().memory_info().ok());
  const Address range = reserve(page_size());
  const PhysicalHandle page = create(page_size());
  map(range, page_size(), page);
  expect_ok(device().unmap(range, page_size()));
  expect_ok(device().release(page));
  expect_ok(device().unreserve(range, page_size()));
  EXPECT_EQ(device().capture_info(stream_)->status, CaptureInfo::Status::active);
  end();
}

}  // namespace
}  // namespace weir::conformance
