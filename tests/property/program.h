// SPDX-License-Identifier: Apache-2.0
// Programs that use a device heap: a list of typed operations, made from a seed or from a fuzzer's
// bytes. Any list of operations is a correct program (the runner adds the fences that the contract
// asks for, and skips what names a block that is not live), so that one can be shortened freely.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "weir/device_heap.h"
#include "weir/types.h"

namespace weir::test {

struct Operation {
  enum class Kind : std::uint8_t {
    allocate,       // block `id` of `bytes` for stream `stream`
    launch,         // a kernel on `stream` reads or writes block `id` for `duration`
    fence,          // on `stream`: for block `id`, or for all that need one when `all`
    record_stream,  // of block `id` on `stream`
    deallocate,     // block `id`
    misuse,         // deallocate what is no block: must be refused
    trim,           // to `bytes`
    set_limit,      // to `bytes`
    retire,         // `stream`; a new one takes its number
    advance,        // the host is busy for `duration`
    sleep,          // all memory is given away, until
    wake,           // it is had back, with its bytes; launches in between are left out
  };
  static constexpr int kKinds = static_cast<int>(Kind::wake) + 1;
  static constexpr int kKindsAwake = static_cast<int>(Kind::advance) + 1;

  Kind kind = Kind::advance;
  std::uint32_t id = 0;
  std::uint32_t stream = 0;
  Bytes bytes;
  Nanoseconds duration;
  bool write = false;
  bool all = false;
};

struct Program {
  std::uint64_t seed = 0;  // 0: not from a seed
  std::uint32_t streams = 1;
  Bytes memory;  // of the device
  Bytes limit;   // of the heap; zero: none
  ReusePolicy reuse = ReusePolicy::balanced;
  MemoryKind kind = MemoryKind::pages;
  std::uint64_t most_mappings = kPlentyOfMappings;
  std::vector<Operation> operations;

  static constexpr std::uint64_t kPlentyOfMappings = 400'000;
};

std::string describe(const Operation& operation);
std::string describe(const Program& program);

struct ProgramShape {
  std::uint32_t operations = 200;
  std::uint32_t most_streams = 6;
  Bytes least_memory = 48_MiB;
  Bytes most_memory = 1_GiB;
  bool retires = true;
  bool sleeps = false;
  MemoryKind kind = MemoryKind::pages;
};

// The same seed and shape give the same program, on every machine.
Program random_program(std::uint64_t seed, const ProgramShape& shape = {});

// Every string of bytes is some program; a longer string has more operations.
Program decode_program(std::span<const std::uint8_t> bytes);

}  // namespace weir::test
