// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "tests/gpu/gpu.h"
#include "weir/sim_device.h"

namespace weir::test {
namespace {

constexpr Nanoseconds kKernel = 2_us;  // how long one takes, besides its delay

class SimGpu final : public Gpu {
 public:
  explicit SimGpu(const SimOptions& options) : device_(options) {}

  Device& device() override { return device_; }
  Result<Stream> new_stream() override { return device_.new_stream(); }
  Status destroy_stream(Stream stream) override { return device_.destroy_stream(stream); }

  Status write(Stream stream, const Contents& contents, Nanoseconds delay) override {
    return device_.launch(stream, Writes(contents.pointer, contents.bytes), delay + kKernel);
  }
  Status check(Stream stream, const Contents& contents, Nanoseconds delay) override {
    return device_.launch(stream, Reads(contents.pointer, contents.bytes), delay + kKernel);
  }

  Status order(Stream earlier, Stream later) override {
    Result<EventHandle> event = device_.create_event();
    if (!event.ok()) return std::move(event).error();
    if (Status done = device_.record(*event, earlier); !done) return done;
    if (Status done = device_.wait(later, *event); !done) return done;
    return device_.destroy_event(*event);
  }

  Status synchronize(Stream stream) override {
    Result<EventHandle> event = device_.create_event();
    if (!event.ok()) return std::move(event).error();
    if (Status done = device_.record(*event, stream); !done) return done;
    if (Status done = device_.synchronize(*event); !done) return done;
    return device_.destroy_event(*event);
  }

  Result<Findings> findings() override {
    const std::uint64_t count = device_.race_count();
    std::string description = std::to_string(count) + " races";
    if (count != 0) description += ", the first: " + device_.races().front().describe();
    return Findings{.wrong = count, .description = std::move(description)};
  }

 private:
  SimDevice device_;
};

}  // namespace

std::unique_ptr<Gpu> open_sim_gpu(const SimOptions& options) {
  return std::make_unique<SimGpu>(options);
}

}  // namespace weir::test
