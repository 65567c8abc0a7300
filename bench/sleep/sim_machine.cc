// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <sstream>
#include <stdexcept>

#include "bench/sleep/machine.h"
#include "weir/sim_device.h"

namespace weir::sleep_bench {
namespace {

class Simulated final : public Machine {
 public:
  Device& device() override { return device_; }
  std::string name() const override { return device_.name(); }
  Stream new_stream() override { return device_.new_stream(); }
  void fill(void* memory, Bytes bytes, unsigned char, Stream stream) override {
    check(device_.launch(stream, Writes(memory, bytes), 10_us));
  }
  void copy(void* to, const void* from, Bytes bytes, Stream stream) override {
    const std::array<Access, 2> accesses{Reads(from, bytes), Writes(to, bytes)};
    check(device_.launch(stream, accesses, 10_us));
  }
  void synchronize() override { device_.finish(); }
  std::string digest(const void* memory, Bytes bytes) override {
    std::ostringstream text;
    for (const SimContent& part : device_.contents(Address::of(memory), bytes)) {
      text << part.offset.count << ' ' << part.bytes.count << ' ' << part.first << ';';
    }
    return text.str();
  }

 private:
  static void check(const Status& status) {
    if (!status) throw std::runtime_error(status.error().message());
  }
  SimDevice device_{{.track_contents = true}};
};

}  // namespace

std::unique_ptr<Machine> simulated() { return std::make_unique<Simulated>(); }

}  // namespace weir::sleep_bench
