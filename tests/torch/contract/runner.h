// SPDX-License-Identifier: Apache-2.0
// Runs a program on an allocator over the simulated device, and tells what went wrong first.
//
// What a program's steps mean follows PyTorch: a capture begins with its pool's binding and ends
// before it, a graph that is reset releases its pool first. A tensor whose allocation was refused
// for want of memory is left out of the steps after.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/torch/contract/native_model.h"
#include "tests/torch/contract/program.h"
#include "tests/torch/contract/torch_allocator.h"
#include "weir/sim_device.h"

namespace weir::contract {

struct Failure {
  enum class Kind : std::uint8_t {
    overwritten,     // two uses of the same bytes that nothing orders
    unmapped,        // memory was unmapped while a kernel may still use it
    illegal_access,  // a kernel was launched on memory that is not mapped
    capture_lost,    // a capture did not end well
    refused,         // the allocator raised an error where the native one raises none
    wrong_pool,      // memory came from another pool than the newest that takes the request
    hang,            // the host waits for a kernel that waits for the host
    host_wait,       // the host waited where the native allocator never does
    broken_books,    // the allocator's own books are wrong
    leaked,          // what the program dropped is live at its end
    too_much,        // the allocator held far more memory than the native one
    stays_apart,     // memory no longer moves between streams
    moved_in_time,   // the same calls, on a slower GPU, had their memory elsewhere
  };
  Kind kind = Kind::refused;
  std::size_t step = 0;  // steps.size(): at the end
  std::string what;
};
const char* name_of(Failure::Kind kind);

struct RunOptions {
  bool host_waits_fail = false;
  // Ask the allocator to check its books after every so many steps; 0: at the end only.
  std::uint32_t validate_every = 16;
  // Zero: any. Else the most physical memory that the allocator may hold.
  Bytes most_memory;
  // All that was dropped has to be free at the end of the program, and to go back to the device
  // once its pools are released (which has to be an error in the end), ...
  bool leaks_fail = false;
  bool goes_back = false;
  // ... and memory that one stream is done with has to serve another one.
  bool moves_memory = false;
  // Addresses are fixed: where tensors lie must depend neither on how long kernels and calls of the
  // driver take, nor on where the driver puts what may lie anywhere. So a program runs twice.
  bool fixed_addresses = false;
  // Kernels take so many times as long, and calls of the driver do.
  std::int64_t slowness = 1;
  std::uint64_t address_seed = 0;  // SimOptions::address_seed
};

struct Outcome {
  std::optional<Failure> failure;
  std::uint64_t host_waits = 0;  // where the native allocator never waits
  std::uint64_t out_of_memory = 0;
  Bytes peak;                       // most physical memory that was held
  std::vector<Address> addresses;   // of the tensors that Weir has given memory, in order
  std::vector<PoolLayout> layouts;  // at the end
};

using MakeAllocator = std::function<std::unique_ptr<TorchAllocator>(SimDevice&)>;

Outcome run(const Program& program, const MakeAllocator& make, const RunOptions& options = {});
// On the model of the native allocator: a failure is one of the program.
Outcome run_on_native(const Program& program, NativeDefect defect = NativeDefect::none);
// On Weir, which has to hold little more than the model of the native allocator does, to leak
// nothing, and, unless streams are made or captured outside PyTorch, to move memory between streams
// to the end.
Outcome run_on_weir(const Program& program, const RunOptions& options = {});

}  // namespace weir::contract
