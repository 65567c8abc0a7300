// SPDX-License-Identifier: Apache-2.0
// An Nccl that passes every call on to another one, and notes where two calls that work with one
// communicator are made side by side, which NCCL does not allow. For one communicator.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "weir/comm/nccl.h"

namespace weir::test {

class OneAtATime final : public Nccl {
 public:
  explicit OneAtATime(Nccl& inner) : inner_(inner) {}

  // The next call of this name stays until another one is made beside it, or 0.3 s.
  void hold(const std::string& call) {
    const std::lock_guard lock(mutex_);
    held_ = call;
  }
  // Until the call that is to be held is there.
  void await_held() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return held_.empty(); });
  }
  std::vector<std::string> side_by_side() const {
    const std::lock_guard lock(mutex_);
    return side_by_side_;
  }

  Status revoke(CommHandle comm) override {
    return alone("revoke", [&] { return inner_.revoke(comm); });
  }
  Result<CommHandle> split(CommHandle comm, int color, int key, const CommConfig& with) override {
    return alone("split", [&] { return inner_.split(comm, color, key, with); });
  }
  Status enqueue(CommHandle comm, std::span<const Operation> group, Stream stream) override {
    return alone("enqueue", [&] { return inner_.enqueue(comm, group, stream); });
  }
  Result<std::vector<std::vector<std::byte>>> host_all_gather(CommHandle comm,
                                                              std::span<const std::byte> mine,
                                                              Nanoseconds timeout) override {
    return alone("host_all_gather", [&] { return inner_.host_all_gather(comm, mine, timeout); });
  }

  std::string version() const override { return inner_.version(); }
  Result<UniqueId> unique_id() override { return inner_.unique_id(); }
  Result<CommHandle> init(const UniqueId& id, int ranks, int rank,
                          const CommConfig& with) override {
    return inner_.init(id, ranks, rank, with);
  }
  Status destroy(CommHandle comm) override { return inner_.destroy(comm); }
  Status abort(CommHandle comm) override { return inner_.abort(comm); }
  Status async_error(CommHandle comm) override { return inner_.async_error(comm); }
  Result<int> size(CommHandle comm) override { return inner_.size(comm); }
  Result<int> rank(CommHandle comm) override { return inner_.rank(comm); }
  Result<Address> allocate_segment(Bytes bytes) override { return inner_.allocate_segment(bytes); }
  Status free_segment(Address segment) override { return inner_.free_segment(segment); }
  Result<RegistrationHandle> register_range(CommHandle comm, Address address,
                                            Bytes bytes) override {
    return inner_.register_range(comm, address, bytes);
  }
  Status deregister(CommHandle comm, RegistrationHandle registration) override {
    return inner_.deregister(comm, registration);
  }
  Result<Stream> create_stream() override { return inner_.create_stream(); }
  Status destroy_stream(Stream stream) override { return inner_.destroy_stream(stream); }

 private:
  template <class Call>
  std::invoke_result_t<Call> alone(const std::string& name, Call&& call) {
    {
      std::unique_lock lock(mutex_);
      for (const std::string& other : going_on_) {
        side_by_side_.push_back(name + " beside " + other);
      }
      going_on_.push_back(name);
      const bool held = held_ == name;
      if (held) held_.clear();
      changed_.notify_all();
      if (held) {
        changed_.wait_for(lock, std::chrono::milliseconds(300),
                          [&] { return going_on_.size() > 1; });
      }
    }
    std::invoke_result_t<Call> result = call();
    const std::lock_guard lock(mutex_);
    going_on_.erase(std::find(going_on_.begin(), going_on_.end(), name));
    return result;
  }

  Nccl& inner_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string held_;
  std::vector<std::string> going_on_, side_by_side_;
};

}  // namespace weir::test
