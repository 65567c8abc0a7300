// SPDX-License-Identifier: Apache-2.0
#include "tests/soak/ledger_device.h"

namespace weir::soak {
namespace {

constinit thread_local std::uint64_t calls_to_go = 0;  // 0: none fails
constinit thread_local bool was_hit = false;

}  // namespace

LedgerDevice::Fault::Fault(std::uint64_t nth) {
  calls_to_go = nth;
  was_hit = false;
}
LedgerDevice::Fault::~Fault() { calls_to_go = 0; }
bool LedgerDevice::Fault::hit() const { return was_hit; }

bool LedgerDevice::fails() { return calls_to_go != 0 && --calls_to_go == 0 && (was_hit = true); }

std::int64_t LedgerDevice::out(DeviceCall given, DeviceCall got_back) const {
  // What came back first: of what goes out meanwhile there is then rather too much than too little.
  const std::int64_t back = done_[static_cast<std::size_t>(got_back)].load();
  return done_[static_cast<std::size_t>(given)].load() - back;
}

Ledger LedgerDevice::ledger() const {
  using enum DeviceCall;
  return {.events = out(create_event, destroy_event),
          .pages = out(create, release),
          .mappings = out(map, unmap),
          .reservations = out(reserve, unreserve),
          .segments = out(allocate_segment, free_segment),
          .graphs = out(end_capture, destroy_graph),
          .executables = out(instantiate, destroy_executable),
          .host_blocks = out(allocate_host, free_host)};
}

}  // namespace weir::soak
