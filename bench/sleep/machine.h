// SPDX-License-Identifier: Apache-2.0
// What weir_sleep measures on: a GPU, or the simulated device, whose times are its cost model's.
#pragma once

#include <memory>
#include <string>

#include "weir/device.h"

namespace weir::sleep_bench {

class Machine {
 public:
  virtual ~Machine() = default;
  virtual Device& device() = 0;
  virtual std::string name() const = 0;
  virtual Stream new_stream() = 0;
  // Work of the stream, which a capture takes as any other.
  virtual void fill(void* memory, Bytes bytes, unsigned char value, Stream stream) = 0;
  virtual void copy(void* to, const void* from, Bytes bytes, Stream stream) = 0;
  virtual void synchronize() = 0;
  // Says of the bytes now what is the same later, if and only if they are.
  virtual std::string digest(const void* memory, Bytes bytes) = 0;
};

std::unique_ptr<Machine> simulated();
// Null: there is no GPU, or none was built for.
std::unique_ptr<Machine> gpu();

}  // namespace weir::sleep_bench
