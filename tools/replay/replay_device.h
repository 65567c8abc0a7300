// SPDX-License-Identifier: Apache-2.0
// What a replay runs on: a device, and the work that the recorded program does there.
//
// The heap under test gets device(), whose calls are counted; the program's own streams, events and
// kernels are not.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "weir/metered_device.h"
#include "weir/result.h"
#include "weir/sim_device.h"
#include "weir/types.h"

namespace weir {

// A block as the program uses it. `pattern` tells its contents from every other block's.
struct BlockUse {
  void* pointer = nullptr;
  Bytes bytes;
  std::uint64_t pattern = 0;
};

// Not thread-safe.
class ReplayDevice {
 public:
  virtual ~ReplayDevice() = default;

  virtual std::string_view name() const = 0;
  virtual MeteredDevice& device() = 0;

  // Physical memory as the driver counts it.
  virtual Result<MemoryInfo> memory() = 0;

  virtual Result<Stream> new_stream() = 0;
  // Queues work that writes the whole block, or that reads it for `duration`.
  virtual Status write(Stream stream, const BlockUse& block) = 0;
  virtual Status read(Stream stream, const BlockUse& block, Nanoseconds duration) = 0;
  // Work queued on `later` from now on runs after all that is queued on `earlier` now.
  virtual Status order(Stream later, Stream earlier) = 0;
  // The program does something else until `time` on the device's clock.
  virtual void advance_to(Nanoseconds time) = 0;
  // Runs a captured graph in `orders` random orders that its edges allow; races() counts what was
  // read wrongly. Nothing, where the device runs it as it likes.
  virtual void run_in_random_orders(GraphHandle /*graph*/, std::uint64_t /*orders*/) {}
  // Returns once all work has run: at the end, before the heap goes.
  virtual Status finish() = 0;

  // Accesses found not to be ordered: all known after finish(); none: nobody looked.
  virtual std::optional<std::uint64_t> races() const = 0;
  // The first of them in words; empty: no more is known.
  virtual std::string first_race() const = 0;
};

// The simulated device. Its races are what the happens-before checker finds.
// `timed`: its calls cost the host time, so that events come later than in the trace. `checked`:
// for races, for which memory grows with the square of the streams that wait for each other.
std::unique_ptr<ReplayDevice> make_sim_replay_device(Bytes memory = SimOptions{}.memory,
                                                     bool timed = true, bool checked = true);

// The first CUDA device. With `verify`, blocks are filled with patterns, and each byte found
// changed counts as a race; without, the program does no work, and nobody looks for races. Errors:
// unavailable; device.
Result<std::unique_ptr<ReplayDevice>> make_cuda_replay_device(bool verify);

// The length of a piece of work that nothing is known about.
inline constexpr Nanoseconds kShortWork = 1_us;

}  // namespace weir
