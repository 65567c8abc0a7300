// SPDX-License-Identifier: Apache-2.0
// An environment of a test's own, and an NCCL that makes ids and nothing else.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "weir/comm/launch.h"

namespace weir {

class FakeEnvironment final : public Environment {
 public:
  using Variables = std::map<std::string, std::string>;

  FakeEnvironment() = default;
  explicit FakeEnvironment(Variables variables) : variables_(std::move(variables)) {}

  std::optional<std::string> get(const std::string& name) const override {
    const auto found = variables_.find(name);
    if (found == variables_.end() || found->second.empty()) return {};
    return found->second;
  }
  void set(const std::string& name, const std::string& value) override { variables_[name] = value; }
  void unset(const std::string& name) override { variables_.erase(name); }

 private:
  Variables variables_;
};

// Its id has what NCCL_COMM_ID says, as NCCL's own does, or else `name`.
class FakeNccl final : public Nccl {
 public:
  explicit FakeNccl(const Environment& environment, std::string name = "made")
      : environment_(environment), name_(std::move(name)) {}

  static UniqueId id_of(const std::string& text) {
    UniqueId id;
    text.copy(id.bytes.data(), id.bytes.size());
    id.bytes.back() = '\x80';  // a byte that is no character
    return id;
  }

  int ids_made = 0;
  bool fails = false;

  Result<UniqueId> unique_id() override {
    ++ids_made;
    if (fails) return Error(ErrorCode::device, "ncclGetUniqueId: no network");
    return id_of(environment_.get("NCCL_COMM_ID").value_or(name_));
  }

  std::string version() const override { return "0"; }
  bool connects_at_once() const override { return true; }
  Result<CommHandle> init(const UniqueId&, int, int, const CommConfig&) override { return none(); }
  Result<CommHandle> split(CommHandle, int, int, const CommConfig&) override { return none(); }
  Status destroy(CommHandle) override { return none(); }
  Status abort(CommHandle) override { return none(); }
  Status revoke(CommHandle) override { return none(); }
  Status async_error(CommHandle) override { return none(); }
  Result<int> size(CommHandle) override { return none(); }
  Result<int> rank(CommHandle) override { return none(); }
  Status enqueue(CommHandle, const Operation&, Stream) override { return none(); }
  Status group_start() override { return none(); }
  Status group_end() override { return none(); }
  Result<Address> allocate_segment(Bytes) override { return none(); }
  Status free_segment(Address) override { return none(); }
  Result<RegistrationHandle> register_range(CommHandle, Address, Bytes) override { return none(); }
  Status deregister(CommHandle, RegistrationHandle) override { return none(); }
  Result<Stream> create_stream() override { return none(); }
  Status destroy_stream(Stream) override { return none(); }
  Result<std::vector<std::vector<std::byte>>> host_all_gather(CommHandle,
                                                              std::span<const std::byte>,
                                                              Nanoseconds) override {
    return none();
  }

 private:
  static Error none() { return {ErrorCode::unavailable, "an NCCL that makes ids alone"}; }

  const Environment& environment_;
  const std::string name_;
};

}  // namespace weir
