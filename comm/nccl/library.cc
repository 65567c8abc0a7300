// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "comm/numbers.h"
#include "weir/log.h"

namespace weir {
namespace {

// The first that has ncclCommRevoke: without it what hangs could not be ended while graphs live.
constexpr int kOldest = 22807;

constexpr const char* kRemedy =
    "; install NCCL 2.28.7 or later, or name its library in WEIR_NCCL_LIBRARY";

Error unavailable(const std::string& why) {
  return {ErrorCode::unavailable, "NCCL is not available: " + why + kRemedy};
}

// As NCCL reads it. Absent: not set, or empty.
std::optional<std::int64_t> number_in_environment(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr || *value == '\0') return {};
  return std::strtoll(value, nullptr, 0);
}

// What NCCL reads once, when it is first used; the user's own are kept. Rings and trees are
// connected with the communicator; and NCCL registers no buffers of captures, since it would
// register whole physical handles, which several buffers share here.
void make_settings() {
  for (const char* const name : {"NCCL_RUNTIME_CONNECT", "NCCL_GRAPH_REGISTER"}) {
    if (number_in_environment(name)) continue;
    ::setenv(name, "0", 1);
    log(LogLevel::info, fmt::format("{}=0 was set, for captures", name));
  }
}

Result<NcclLibrary> load() {
  const char* const named = std::getenv("WEIR_NCCL_LIBRARY");
  const std::string path = named != nullptr && *named != '\0' ? named : "libnccl.so.2";
  make_settings();
  // Never closed: its threads run as long as the process.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    return unavailable(why != nullptr ? why : path + " can't be loaded");
  }
  NcclLibrary nccl;
  const auto version =
      reinterpret_cast<decltype(&ncclGetVersion)>(dlsym(library, "ncclGetVersion"));
  if (version == nullptr || version(&nccl.version) != ncclSuccess) {
    return unavailable(path + " tells no version");
  }
  if (nccl.version < kOldest) {
    return unavailable(
        fmt::format("{} is version {}, which is too old", path, nccl_version_text(nccl.version)));
  }
#define WEIR_NCCL_LOAD(name)                                                \
  nccl.name = reinterpret_cast<decltype(nccl.name)>(dlsym(library, #name)); \
  if (nccl.name == nullptr) return unavailable(path + " lacks " #name);
  WEIR_NCCL_CALLS(WEIR_NCCL_LOAD)
#undef WEIR_NCCL_LOAD
  return nccl;
}

}  // namespace

Error calls_that_do_not_wait() {
  return {ErrorCode::invalid_argument,
          "NCCL_COMM_BLOCKING=0 is set, in the environment or a configuration file of NCCL's: its "
          "calls return before they are done, and a capture would end without what they launch. "
          "Unset it, or set it to 1"};
}

Status check_settings() {
  if (number_in_environment("NCCL_COMM_BLOCKING") == 0) return calls_that_do_not_wait();
  if (number_in_environment("NCCL_GRAPH_REGISTER").value_or(0) == 0) return {};
  return Error(ErrorCode::invalid_argument,
               "NCCL_GRAPH_REGISTER=" + std::string(std::getenv("NCCL_GRAPH_REGISTER")) +
                   " is set in the environment: NCCL would register the physical memory under the "
                   "buffers of captured operations, whole, which Weir shares between buffers and "
                   "maps elsewhere while the graph lives. Unset it, or set it to 0, and make "
                   "a RegisteredBuffer");
}

Result<const NcclLibrary*> NcclLibrary::get() {
  static const Result<NcclLibrary> library = load();
  if (!library) return library.error();
  return &*library;
}

Status NcclLibrary::check(std::string_view call, ncclResult_t result, ncclComm_t comm) const {
  if (result == ncclSuccess || result == ncclInProgress) return {};
  const char* const last = ncclGetLastError(comm);
  const bool has_words = last != nullptr && *last != '\0';
  return Error(ErrorCode::device, fmt::format("{}: {}{}", call, ncclGetErrorString(result),
                                              has_words ? fmt::format(" ({})", last) : ""));
}

}  // namespace weir
