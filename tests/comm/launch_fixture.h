// SPDX-License-Identifier: Apache-2.0
// An environment of a test's own.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

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

}  // namespace weir
