// SPDX-License-Identifier: Apache-2.0
// Kernels that fill memory with a pattern and check it, byte by byte, on a real GPU.
//
// A pattern is named by a seed; no two seeds give alike patterns, and every byte depends on the
// seed and on its place in the block. So a block that another wrote into, in whole or in part, is
// found.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "weir/result.h"
#include "weir/types.h"

namespace weir {

// What the checks found.
struct PatternReport {
  std::uint64_t checked_bytes = 0;
  std::uint64_t wrong_bytes = 0;
  // The first wrong word seen, if any: which block, and where in it.
  Address first_block;
  Bytes first_offset;
  std::uint64_t first_seed = 0;
  std::uint64_t first_expected = 0;
  std::uint64_t first_found = 0;

  std::string describe() const;
};

// Threads: every call may be made from any thread at any time. A call leaves the device current for
// the calling thread, as the CUDA runtime sees it.
class PatternKernels {
 public:
  // On device `ordinal`, whose primary context is used. Errors: unavailable; device.
  static Result<std::unique_ptr<PatternKernels>> open(int ordinal);
  ~PatternKernels();
  PatternKernels(const PatternKernels&) = delete;
  PatternKernels& operator=(const PatternKernels&) = delete;

  // Queues a kernel that waits for `delay`, and then writes (checks) all the bytes. Any count of
  // bytes; `pointer` is a multiple of 16. Errors: invalid_argument; device.
  Status write(Stream stream, void* pointer, Bytes bytes, std::uint64_t seed,
               Nanoseconds delay = {});
  Status check(Stream stream, const void* pointer, Bytes bytes, std::uint64_t seed,
               Nanoseconds delay = {});

  // What the checks that are done found since the start. Waits for none of them.
  Result<PatternReport> report() const;

 private:
  struct Impl;
  explicit PatternKernels(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weir
