// SPDX-License-Identifier: Apache-2.0
#include "tests/property/history.h"

#include <array>
#include <sstream>

namespace weir::test {
namespace {

constexpr std::array kNames = {"allocate", "deallocate", "fence",       "record_stream",
                               "find",     "snapshot",   "statistics",  "validate",
                               "trim",     "set_limit",  "reset_peaks", "retire"};

}  // namespace

std::string hex(Address address) {
  std::ostringstream text;
  text << "0x" << std::hex << address.value;
  return text.str();
}

std::string describe(const Call& call) {
  std::ostringstream text;
  text << "[" << call.begin << ", " << call.end << "] thread " << call.thread << " "
       << kNames[static_cast<std::size_t>(call.kind)] << "(";
  const bool gives = call.kind == Call::Kind::allocate;
  if (!gives) {
    for (const Address address : call.addresses) text << hex(address) << " ";
  }
  if (call.bytes > 0_B) text << call.bytes.count << " bytes ";
  if (call.stream != 0) text << "stream " << call.stream;
  text << ")";
  if (call.error) text << " -> " << name_of(*call.error) << ": " << call.message;
  if (gives && !call.addresses.empty()) text << " -> " << hex(call.addresses.front());
  if (call.kind == Call::Kind::find && !call.error) {
    text << " -> " << (call.blocks.empty() ? "nothing" : hex(call.blocks.front().address));
  }
  return text.str();
}

}  // namespace weir::test
