// SPDX-License-Identifier: Apache-2.0
// Two devices of one machine under Trust::context (docs/guarantees.md): kernels of one use memory
// of the other, of which nobody tells, and captures of one are to stay whole whatever the other
// does.
#include <memory>

#include "tests/unit/contract_pools.h"

namespace weir {
namespace {

// The fixture's device is the one whose memory the peer uses.
class UntoldPeers : public test::ContractPools {
 protected:
  UntoldPeers() { device_.add_peer(*peer_); }

  // A block of s_'s that the peer reads for a long time from now on.
  void* read_by_peer() {
    void* const x = written(kBlock, s_);
    host_wait(s_);
    read(x, kBlock, reader_, kLong);
    return x;
  }
  bool peer_is_at_work() {
    const EventHandle event = *peer_->create_event();
    EXPECT_TRUE(peer_->record(event, reader_).ok());
    const bool is_at_work = !peer_->finished(event);
    EXPECT_TRUE(peer_->destroy_event(event).ok());
    return is_at_work;
  }
  // A capture that began on a stream of the peer's.
  void expect_whole(Stream stream) {
    const Result<GraphHandle> graph = peer_->end_capture(stream);
    ASSERT_TRUE(graph.ok()) << graph.error().message();
    EXPECT_TRUE(peer_->destroy_graph(*graph).ok());
  }
  // With nothing else to be had, one stream's memory goes to another behind an event of the
  // context, or once the host has waited.
  void expect_memory_moves_behind_an_event(bool it_does = true) {
    EXPECT_TRUE(heap_.trim(0_B, Trim::waits).ok());
    const std::uint64_t events = device_.calls(DeviceCall::record_context);
    free(written(kBlock, device_.new_stream(), kLong));
    heap_.set_limit(reserved());
    free(written(kBlock, device_.new_stream()));
    heap_.set_limit(0_B);
    EXPECT_EQ(device_.calls(DeviceCall::record_context) > events, it_does);
  }

  const std::unique_ptr<SimDevice> peer_ = device_.new_device();
  const Stream reader_ = peer_->new_stream();
  DeviceHeap heap_of_peer_{*peer_, untold()};
};

TEST_F(UntoldPeers, WhatAPeerReadsServesAnotherStreamBehindThePeersWork) {
  void* const x = read_by_peer();
  const std::uint64_t host_waits = device_.host_waits();
  heap_.set_limit(reserved());
  free(x);
  void* const y = written(kBlock, t_);
  EXPECT_EQ(y, x);
  EXPECT_EQ(device_.host_waits(), host_waits);
  EXPECT_GE(device_.stream_waited(t_), kLong - 1_ms);
  free(y);
}

TEST_F(UntoldPeers, WhatAPeerReadsIsUnmappedOnceThePeerIsDone) {
  free(read_by_peer());
  EXPECT_TRUE(heap_.trim().ok());
  EXPECT_GE(reserved(), kBlock) << "the peer still reads it";
  EXPECT_TRUE(heap_.trim(0_B, Trim::waits).ok());
  EXPECT_EQ(reserved(), 0_B);
  EXPECT_FALSE(peer_is_at_work());
}

// A peer's own memory is no business of the device that it reaches.
TEST_F(UntoldPeers, TheWorkOfADeviceThatIsNoPeerIsNotWaitedFor) {
  const Stream first = peer_->new_stream(), second = peer_->new_stream();
  void* const x = *heap_of_peer_.allocate(kBlock, first);
  heap_of_peer_.set_limit(Bytes{heap_of_peer_.statistics().reserved_bytes.current});
  EXPECT_TRUE(device_.launch(m_, kLong).ok());
  EXPECT_TRUE(heap_of_peer_.deallocate(x).ok());
  void* const y = *heap_of_peer_.allocate(kBlock, second);
  EXPECT_EQ(y, x);
  EXPECT_EQ(peer_->stream_waited(second), 0_ns);
  EXPECT_TRUE(heap_of_peer_.deallocate(y).ok());
}

TEST_F(UntoldPeers, ACaptureThatThePeersHeapKnowsStaysWhole) {
  const Stream captured = peer_->new_stream();
  EXPECT_TRUE(heap_of_peer_.deallocate(*heap_of_peer_.allocate(1_MiB, captured)).ok());
  GraphPool pool(heap_of_peer_);
  Result<PoolBinding> binding =
      pool.capture([captured](Stream asking) { return asking == captured; }, captured);
  ASSERT_TRUE(binding.ok());
  expect_memory_moves_behind_an_event(false);  // it is about to begin
  EXPECT_TRUE(peer_->begin_capture(captured, CaptureMode::global).ok());
  void* const x = *heap_of_peer_.allocate(1_MiB, captured);
  expect_memory_moves_behind_an_event(false);
  expect_whole(captured);
  binding->close();
  EXPECT_TRUE(heap_of_peer_.deallocate(x).ok());
  expect_memory_moves_behind_an_event();
}

// Of a stream that may be captured and gone at any time.
TEST_F(UntoldPeers, AStreamThatMayEndOnAPeerEndsTheEvents) {
  expect_memory_moves_behind_an_event();
  heap_of_peer_.captures().forgo_context_events(ContextEventsLost::external_stream);
  expect_memory_moves_behind_an_event(false);
}

// The order in which a process closes its devices is its own.
TEST(UntoldPeersThatEnd, TheWorkOfAPeerThatWasClosedStillCounts) {
  SimDevice device;
  DeviceHeap heap(device, {.trust = Trust::context});
  std::unique_ptr<SimDevice> peer = device.new_device();
  device.add_peer(*peer);
  const Stream s = device.new_stream(), t = device.new_stream();
  void* const x = *heap.allocate(64_MiB, s);
  EXPECT_TRUE(peer->launch(peer->new_stream(), Reads(x, 64_MiB), 50_ms).ok());
  peer.reset();
  EXPECT_TRUE(heap.deallocate(x).ok());
  void* const y = *heap.allocate(64_MiB, t);
  EXPECT_TRUE(device.launch(t, Writes(y, 64_MiB), 1_us).ok());
  EXPECT_EQ(device.race_count(), 0u);
  EXPECT_TRUE(heap.deallocate(y).ok());
}

}  // namespace
}  // namespace weir
