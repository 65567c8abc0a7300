// SPDX-License-Identifier: Apache-2.0
// What the conformance suite needs around a device, and each kind of device gives in its own way.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "weir/device.h"

namespace weir::conformance {

class Rig {
 public:
  Rig() = default;
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;
  virtual ~Rig() = default;

  virtual Device& device() = 0;

  // A stream that waits for no other by itself.
  virtual Stream new_stream() = 0;
  virtual void destroy_stream(Stream stream) = 0;

  // Another device, whose work may use device()'s memory once add_peer() was called. Null where the
  // machine has none that could.
  virtual Device* peer() = 0;
  virtual void add_peer() = 0;
  virtual Stream new_stream_of_peer() = 0;

  // Work queued on `stream` from now on does not begin before let_go().
  virtual void hold(Stream stream) = 0;
  virtual void let_go() = 0;
  // As let_go(), but a little later, while the caller is in synchronize().
  virtual void let_go_soon() = 0;

  // Queues a write of `value` over the bytes, which are a multiple of 4.
  virtual void fill(Stream stream, Address address, Bytes bytes, std::uint32_t value) = 0;
  // Fails the test unless the bytes hold `value`. The caller has waited for the writes. A device
  // that keeps no bytes checks that every access so far was ordered.
  virtual void expect_filled(Address address, Bytes bytes, std::uint32_t value) = 0;

  // By how much memory_info() may be off after the same memory was taken and given back.
  virtual Bytes memory_info_slack() const = 0;
};

// A rig, or why there can be none on this machine.
struct RigOrReason {
  std::unique_ptr<Rig> rig;
  std::string reason;
};
RigOrReason make_sim_rig();
RigOrReason make_cuda_rig();

struct RigKind {
  const char* name;
  RigOrReason (*make)();
};

// Each TEST_P of a suite runs on every kind of device; it is skipped where there is no such device.
// What a test makes by these helpers goes at its end, or, by drop(), before.
class Conformance : public testing::TestWithParam<RigKind> {
 protected:
  void SetUp() override {
    RigOrReason made = GetParam().make();
    if (made.rig == nullptr) GTEST_SKIP() << made.reason;
    rig_ = std::move(made.rig);
  }
  void TearDown() override {
    while (!events_.empty()) drop(*events_.begin());
    while (!mappings_.empty()) unmap(mappings_.begin()->first);
    while (!reservations_.empty()) unreserve(reservations_.begin()->first);
    while (!handles_.empty()) drop(*handles_.begin());
  }

  Rig& rig() { return *rig_; }
  Device& device() { return rig_->device(); }
  Bytes page_size() { return device().granularity(); }

  Address reserve(Bytes size) {
    Result<Address> address = device().reserve(size, device().granularity());
    EXPECT_TRUE(address.ok()) << address.error().message();
    if (!address.ok()) return {};
    const std::scoped_lock lock(mutex_);
    reservations_[*address] = size;
    return *address;
  }
  void unreserve(Address address) {
    expect_ok(device().unreserve(address, take(reservations_, address)));
  }
  PhysicalHandle create(Bytes size) {
    Result<PhysicalHandle> handle = device().create(size);
    EXPECT_TRUE(handle.ok()) << handle.error().message();
    if (!handle.ok()) return {};
    const std::scoped_lock lock(mutex_);
    handles_.insert(*handle);
    return *handle;
  }
  void drop(PhysicalHandle handle) {
    {
      const std::scoped_lock lock(mutex_);
      handles_.erase(handle);
    }
    expect_ok(device().release(handle));
  }
  // Maps `handle` at `address`, and gives access.
  void map(Address address, Bytes size, PhysicalHandle handle) {
    expect_ok(device().map(address, size, handle));
    expect_ok(device().set_access(address, size));
    const std::scoped_lock lock(mutex_);
    mappings_[address] = size;
  }
  // At addresses of its own.
  Address map(PhysicalHandle handle, Bytes size) {
    const Address address = reserve(size);
    map(address, size, handle);
    return address;
  }
  void unmap(Address address) { expect_ok(device().unmap(address, take(mappings_, address))); }
  EventHandle new_event() {
    Result<EventHandle> event = device().create_event();
    EXPECT_TRUE(event.ok()) << event.error().message();
    if (!event.ok()) return {};
    const std::scoped_lock lock(mutex_);
    events_.insert(*event);
    return *event;
  }
  void drop(EventHandle event) {
    {
      const std::scoped_lock lock(mutex_);
      events_.erase(event);
    }
    expect_ok(device().destroy_event(event));
  }
  EventHandle record(Stream stream) {
    const EventHandle event = new_event();
    expect_ok(device().record(event, stream));
    return event;
  }
  // The host waits for the work queued so far on `stream`.
  void finish(Stream stream) {
    const EventHandle event = record(stream);
    expect_ok(device().synchronize(event));
    drop(event);
  }
  static void expect_ok(const Status& status) {
    EXPECT_TRUE(status.ok()) << status.error().message();
  }
  template <class T>
  static void expect_refused(const Result<T>& result) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code(), ErrorCode::device) << result.error().message();
    EXPECT_FALSE(result.error().message().empty());
  }

 private:
  Bytes take(std::map<Address, Bytes>& from, Address address) {
    const std::scoped_lock lock(mutex_);
    const Bytes size = from.at(address);
    from.erase(address);
    return size;
  }

  std::unique_ptr<Rig> rig_;
  std::mutex mutex_;
  // Guarded by mutex_: what is there.
  std::map<Address, Bytes> reservations_, mappings_;
  std::set<PhysicalHandle> handles_;
  std::set<EventHandle> events_;
};

// With one page, mapped, and streams to use it on.
class ConformanceOnAPage : public Conformance {
 protected:
  void SetUp() override {
    Conformance::SetUp();
    if (IsSkipped()) return;
    handle_ = create(page_size());
    address_ = map(handle_, page_size());
    for (Stream* const stream : {&a_, &b_, &c_}) *stream = rig().new_stream();
  }
  bool done(EventHandle event) {
    const Result<bool> answer = device().query(event);
    EXPECT_TRUE(answer.ok()) << answer.error().message();
    return answer.ok() && *answer;
  }
  // `later` waits for the work queued so far on `earlier`.
  void order(Stream earlier, Stream later) {
    const EventHandle event = record(earlier);
    expect_ok(device().wait(later, event));
    drop(event);
  }
  void fill(Stream stream, std::uint32_t value) {
    rig().fill(stream, address_, page_size(), value);
  }
  void expect_filled(std::uint32_t value) { rig().expect_filled(address_, page_size(), value); }

  PhysicalHandle handle_;
  Address address_;
  Stream a_, b_, c_;
};

inline auto each_kind_of_device() {
  return testing::Values(RigKind{"Sim", make_sim_rig}, RigKind{"Cuda", make_cuda_rig});
}
inline std::string kind_name(const testing::TestParamInfo<RigKind>& each) {
  return each.param.name;
}

}  // namespace weir::conformance
