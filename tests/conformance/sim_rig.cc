// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/rig.h"
#include "weir/sim_device.h"

namespace weir::conformance {
namespace {

// How long held work takes before it begins.
constexpr Nanoseconds kHold = 10_ms;

class SimRig final : public Rig {
 public:
  Device& device() override { return device_; }
  Stream new_stream() override { return device_.new_stream(); }
  void destroy_stream(Stream stream) override { EXPECT_TRUE(device_.destroy_stream(stream).ok()); }

  Device* peer() override { return peer_.get(); }
  void add_peer() override { device_.add_peer(*peer_); }
  Stream new_stream_of_peer() override { return peer_->new_stream(); }

  void hold(Stream stream) override { EXPECT_TRUE(device_.launch(stream, kHold).ok()); }
  void let_go() override { device_.advance(kHold); }
  void let_go_soon() override {}  // synchronize() moves the clock on

  void fill(Stream stream, Address address, Bytes bytes, std::uint32_t) override {
    const Status done = device_.launch(stream, Writes(address.pointer(), bytes), 1_us);
    EXPECT_TRUE(done.ok()) << done.error().message();
  }
  void expect_filled(Address address, Bytes bytes, std::uint32_t) override {
    const Status done = device_.launch(device_.new_stream(), Reads(address.pointer(), bytes), 1_us);
    EXPECT_TRUE(done.ok()) << done.error().message();
    for (const Race& race : device_.races()) ADD_FAILURE() << race.describe();
    device_.finish();
  }
  Bytes memory_info_slack() const override { return 0_B; }

 private:
  SimDevice device_;
  const std::unique_ptr<SimDevice> peer_ = device_.new_device();
};

}  // namespace

RigOrReason make_sim_rig() { return {std::make_unique<SimRig>(), ""}; }

}  // namespace weir::conformance
