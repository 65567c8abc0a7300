// SPDX-License-Identifier: Apache-2.0
// An allocator for `weir bench --allocator` that does wrong what WEIR_FAULT says, and gives every
// request an address of its own otherwise.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "suite/suite_allocator.h"

namespace {

const std::string_view kFault = WEIR_FAULT;

[[noreturn]] void hang() {
  for (;;) ::pause();
}

struct State {
  std::uint64_t next = std::uint64_t{1} << 40, held = 0;
  unsigned allocated = 0;
};

void* create(std::uint32_t) { return kFault == "create" ? nullptr : new State; }
void destroy(void* self) { delete static_cast<State*>(self); }

void* allocate(void* self, std::uint64_t bytes, std::uint32_t, std::uint32_t) {
  State& state = *static_cast<State*>(self);
  ++state.allocated;
  if (kFault == "crash" && state.allocated == 3) std::abort();
  if (kFault == "exit" && state.allocated == 3) std::_Exit(7);
  if (kFault == "hang" && state.allocated == 3) hang();
  if (kFault == "refuse" && state.allocated == 3) return nullptr;
  const std::uint64_t pages = (bytes + (2 << 20) - 1) >> 21 << 21;
  std::uint64_t at = state.next;
  if (kFault == "overlap" && state.allocated == 3) at -= 4 << 20;  // the block before
  if (kFault == "unaligned") at += 128;
  state.next += pages + (2 << 20);
  state.held += kFault == "less" ? bytes / 2 : pages;
  return reinterpret_cast<void*>(at);  // NOLINT(performance-no-int-to-ptr)
}
int use(void*, void*, std::uint32_t, std::uint32_t) { return kFault == "use" ? 1 : 0; }
int give_back(void* self, void*, std::uint64_t bytes, std::uint32_t) {
  static_cast<State*>(self)->held -=
      kFault == "less" ? bytes / 2 : (bytes + (2 << 20) - 1) >> 21 << 21;
  return 0;
}
void figures(void* self, weir_suite_figures* figures) {
  *figures = {static_cast<State*>(self)->held, 0, WEIR_SUITE_UNKNOWN, WEIR_SUITE_UNKNOWN};
}
const char* error(void*) { return "as the test wants it"; }

}  // namespace

#ifdef WEIR_NO_SYMBOL
#define weir_suite_allocator weir_suite_another
#endif

extern "C" __attribute__((visibility("default"))) const weir_suite_functions*
weir_suite_allocator() {
  static weir_suite_functions functions = {
      WEIR_SUITE_VERSION, "faulty", create,  destroy, allocate, use,
      give_back,          nullptr,  figures, error};
  if (kFault == "hang_load") hang();
  if (kFault == "version") functions.version = 99;
  if (kFault == "name") functions.name = "a b";
  if (kFault == "function") functions.figures = nullptr;
  return kFault == "unavailable" ? nullptr : &functions;
}
extern "C" __attribute__((visibility("default"))) const char* weir_suite_reason() {
  return "there is no moon";
}
