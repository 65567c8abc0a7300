// SPDX-License-Identifier: Apache-2.0
// Every setting of the allocator and its default. Nothing else in the C++ library reads these from
// the environment.
//
// The variables, their values and what they do are one table in config.cc: parsing, describe(),
// docs/configuration.md and the error messages all come from it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "weir/device_heap.h"
#include "weir/log.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir {

enum class DeviceKind { cuda, sim };
std::string_view name_of(DeviceKind kind);
std::string_view name_of(ReusePolicy policy);
std::string_view name_of(Trust trust);
std::string_view name_of(MemoryKind memory);
std::string_view name_of(Addresses addresses);
std::string_view name_of(GraphScratch scratch);

// Most physical memory to hold: a number of bytes, or a share of what the device has in all.
// Neither (zero): no limit.
struct MemoryLimit {
  Bytes bytes;
  double share = 0;  // in (0, 1]; used when `bytes` is zero

  // In bytes, on a device with `total`; zero: none.
  Bytes on_device_with(Bytes total) const;
  friend bool operator==(const MemoryLimit&, const MemoryLimit&) = default;
};

// The signal that starts and stops a recording.
enum class RecordSignal { none, usr1, usr2 };
std::string_view name_of(RecordSignal signal);
// Whose stacks a recording has.
enum class RecordStacks { none, cpp, python };
std::string_view name_of(RecordStacks stacks);
// By its name. Errors: invalid_argument.
Result<RecordStacks> record_stacks_of(std::string_view name);

struct Config {
  DeviceKind device = DeviceKind::cuda;
  MemoryLimit limit;
  ReusePolicy reuse = ReusePolicy::balanced;
  std::optional<Trust> trust;  // none: context in PyTorch, else told
  MemoryKind memory = MemoryKind::pages;
  bool context_events = true;
  Addresses addresses = Addresses::any;
  GraphScratch graph_scratch = GraphScratch::keep;
  bool c10d = true;  // PyTorch only: operations of torch.distributed get fences
  LogLevel log = LogLevel::warn;
  std::string log_file;  // empty: stderr
  std::string record;    // file to record into; empty: none
  Bytes record_ring;     // keep only the latest events, in this many bytes of memory; zero: no
  RecordSignal record_signal = RecordSignal::none;
  RecordStacks record_stacks = RecordStacks::none;
  std::string snapshot_on_oom;  // where to write a snapshot; empty: nowhere
  bool time_driver = false;     // time the heap's driver calls
  bool validate = false;

  // Not from the environment. The program's own StackSource, which must outlive the allocator;
  // null: as record_stacks says.
  StackSource* stacks = nullptr;

  using Pair = std::pair<std::string_view, std::string_view>;

  // Read the process's environment, a block of the same form ("NAME=value", ended by a null), or
  // names and values. A setting that is not named, or empty, keeps its default. In an environment,
  // variables that do not begin with WEIR_ are ignored, and so are WEIR_ENABLE, WEIR_CHECK_LAYOUTS
  // and those of the communication layer (docs/comm.md). Any other unknown name is an error.
  // Errors: invalid_argument, naming the variable, its value and what is allowed.
  static Result<Config> from_environment();
  static Result<Config> from_environment(const char* const* block);
  static Result<Config> from_pairs(std::span<const Pair> pairs);

  // Do the settings make sense together? Errors: invalid_argument.
  Status check() const;

  // Changes one setting by its name ("WEIR_LIMIT"); on an error nothing is changed.
  Status set(std::string_view name, std::string_view value);

  // The table of every variable, as Markdown: variable, values, default, what it does.
  static std::string describe();

  friend bool operator==(const Config&, const Config&) = default;
};

// A size such as "4096", "64KiB", "1.5 GiB", "2GB" (1 GB = 10^9 bytes; K, M, G and T alone are
// KiB, MiB, GiB and TiB). Errors: invalid_argument.
Result<Bytes> parse_bytes(std::string_view text);

}  // namespace weir
