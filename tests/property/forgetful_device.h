// SPDX-License-Identifier: Apache-2.0
// A device that says once that it did what it did not: the `nth` call of a kind that orders work.
// The core goes on as if that wait or record had been made, and whoever checks must notice.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "weir/interposed_device.h"

namespace weir::test {

// The `nth` call of `kind`, which returns a Status or (a query: yes, it is done) a Result<bool>.
struct Omission {
  DeviceCall kind;
  std::uint64_t nth;
};

class ForgetfulDevice final : public InterposedDevice<ForgetfulDevice> {
 public:
  ForgetfulDevice(Device& inner, Omission omission) : InterposedDevice(inner), omits_(omission) {}

  bool has_omitted() const { return made_ >= omits_.nth; }

  template <class Make>
  std::invoke_result_t<Make> pass(DeviceCall call, Make&& make) {
    using Answer = std::invoke_result_t<Make>;
    if (call == omits_.kind && ++made_ == omits_.nth) {
      if constexpr (std::is_same_v<Answer, Status>) return {};
      if constexpr (std::is_same_v<Answer, Result<bool>>) return true;
    }
    return std::forward<Make>(make)();
  }

 private:
  const Omission omits_;
  std::uint64_t made_ = 0;  // of its kind
};

}  // namespace weir::test
