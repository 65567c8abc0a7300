// SPDX-License-Identifier: Apache-2.0
#include "weir/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <type_traits>
#include <vector>

#include "api/edit_distance.h"

extern char** environ;

namespace weir {
namespace {

constexpr std::string_view kPrefix = "WEIR_";

// What others read for themselves, in the same environment: the communication layer
// (docs/comm.md), and the Python package as Python starts.
constexpr std::array<std::string_view, 8> kNotSettings = {
    "WEIR_RANK", "WEIR_WORLD_SIZE",   "WEIR_LOCAL_RANK", "WEIR_LOCAL_WORLD_SIZE",
    "WEIR_MEET", "WEIR_NCCL_LIBRARY", "WEIR_ENABLE",     "WEIR_CHECK_LAYOUTS"};

// One row of the table. `assign` returns false when `value` is malformed; `values` says what is
// allowed, in the table and in the error.
struct Setting {
  std::string_view name;
  std::string_view values;
  std::string_view default_value;
  std::string_view meaning;
  bool (*assign)(Config& config, std::string_view value);
};

std::optional<double> parse_number(std::string_view text) {
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(number)) return {};
  return number;
}

std::optional<MemoryLimit> share_of_device(std::optional<double> share) {
  if (!share || *share <= 0 || *share > 1) return {};
  return MemoryLimit{.bytes = {}, .share = *share};
}

// "80%", "0.8", "none", or a size. A number with a point and no unit is a share.
std::optional<MemoryLimit> parse_limit(std::string_view text) {
  if (text == "none") return MemoryLimit{};
  if (text.ends_with('%')) {
    std::optional<double> percent = parse_number(text.substr(0, text.size() - 1));
    if (percent) *percent /= 100;
    return share_of_device(percent);
  }
  const bool bare_number = text.find_first_not_of("0123456789.") == std::string_view::npos;
  if (bare_number && text.find('.') != std::string_view::npos) {
    return share_of_device(parse_number(text));
  }
  const Result<Bytes> bytes = parse_bytes(text);
  if (!bytes.ok() || *bytes == 0_B) return {};
  return MemoryLimit{.bytes = *bytes, .share = 0};
}

// How many values an enumeration has, from 0 on.
template <class Enum>
constexpr int kChoices = 2;
template <>
constexpr int kChoices<ReusePolicy> = 3;
template <>
constexpr int kChoices<Addresses> = 3;
template <>
constexpr int kChoices<RecordSignal> = 3;
template <>
constexpr int kChoices<RecordStacks> = 3;
template <>
constexpr int kChoices<LogLevel> = 5;

// Each sets `field` if `text` is a value of its type, and returns whether it is.
template <class Enum>
requires std::is_enum_v<Enum>
bool parse(std::string_view text, Enum& field) {
  for (int i = 0; i < kChoices<Enum>; ++i) {
    if (name_of(static_cast<Enum>(i)) == text) return field = static_cast<Enum>(i), true;
  }
  return false;
}

bool parse(std::string_view text, std::optional<Trust>& field) {
  Trust trust{};
  if (!text.empty() && !parse(text, trust)) return false;
  field = text.empty() ? std::nullopt : std::optional(trust);
  return true;
}

bool parse(std::string_view text, bool& field) {
  if (text != "0" && text != "1") return false;
  field = text == "1";
  return true;
}

bool parse(std::string_view text, std::string& field) {
  field = text;
  return true;
}

bool parse(std::string_view text, Bytes& field) {
  const Result<Bytes> bytes = parse_bytes(text);
  if (bytes.ok()) field = *bytes;
  return bytes.ok();
}

bool parse(std::string_view text, MemoryLimit& field) {
  const std::optional<MemoryLimit> limit = parse_limit(text);
  if (limit) field = *limit;
  return limit.has_value();
}

template <auto kField>
bool assign(Config& config, std::string_view value) {
  return parse(value, config.*kField);
}

constexpr std::array kSettings = {
    Setting{"WEIR_DEVICE", "`cuda` or `sim`", "cuda",
            "Where memory comes from: GPUs through the CUDA driver, or a simulated device, to try "
            "things with no GPU.",
            assign<&Config::device>},
    Setting{"WEIR_LIMIT",
            "a size (`20GiB`, `512 MiB`, `1000000000`), a share (`80%`, `0.8`), or `none`", "none",
            "Most physical memory to hold on each device: bytes, or a share of all that the device "
            "has.",
            assign<&Config::limit>},
    Setting{
        "WEIR_REUSE", "`wait`, `balanced` or `no_wait`", "balanced",
        "Whether a request takes free memory whose last use may still be running (`wait`: "
        "least memory), or decides by how recent the last use is, and takes new memory where a "
        "little of it avoids a wait (`balanced`). With `no_wait` no request makes a stream wait "
        "for another: for kernels that wait for flags of the host or of other GPUs.",
        assign<&Config::reuse>},
    Setting{"WEIR_TRUST", "`told` or `context`", "",
            "What Weir relies on to know who uses a block. `told`: uses on other streams are told, "
            "and streams retired. `context`: they need not be, as with PyTorch's own allocator; "
            "memory changes its stream, its pool or its owner only behind an event of the whole "
            "context (guarantees.md). When not set: `context` in PyTorch, `told` elsewhere.",
            assign<&Config::trust>},
    Setting{"WEIR_MEMORY", "`pages` or `plain`", "pages",
            "What memory is made of. `pages`: mapped by Weir, which joins free pieces. `plain`: "
            "segments of cudaMalloc, which other processes and libraries may open; pieces are not "
            "joined, so more is held.",
            assign<&Config::memory>},
    Setting{
        "WEIR_ADDRESSES", "`any`, `fixed` or `prefer`", "any",
        "Whether a program that asks for the same has its memory at the same addresses in every "
        "run, which costs memory where streams or pools share it (guarantees.md). Where the "
        "driver gives other addresses, a request fails (`fixed`), or takes them "
        "(`prefer`).",
        assign<&Config::addresses>},
    Setting{
        "WEIR_GRAPH_SCRATCH", "`keep` or `lend`", "keep",
        "Whether memory that graphs allocate and free within their captures serves eager "
        "requests between launches, where Weir would otherwise hold more than ever (graphs.md).",
        assign<&Config::graph_scratch>},
    Setting{"WEIR_CONTEXT_EVENTS", "`0` or `1`", "1",
            "Whether such events may be recorded. They break a capture that is going on and that "
            "Weir can't know of: `0` is for programs with captures of other libraries' streams. "
            "Memory then changes its stream only where the host waits.",
            assign<&Config::context_events>},
    Setting{
        "WEIR_C10D", "`0` or `1`", "1",
        "In PyTorch, with the full backend: whether operations of torch.distributed's NCCL groups "
        "get fences, so that their tensors may be dropped at once, and may come first inside a "
        "capture (pytorch.md).",
        assign<&Config::c10d>},
    Setting{"WEIR_LOG", "`off`, `error`, `warn`, `info` or `debug`", "warn",
            "What is logged. `debug` writes a line for every event.", assign<&Config::log>},
    Setting{"WEIR_LOG_FILE", "a path", "",
            "The file that the log is appended to; standard error when not set.",
            assign<&Config::log_file>},
    Setting{"WEIR_RECORD", "a path", "",
            "The recording to write: everything that the heap does, for `weir replay` and the "
            "other tools. Each device after the first writes a file of its own, with its number "
            "before the extension (`run.1.weir`).",
            assign<&Config::record>},
    Setting{"WEIR_RECORD_RING", "a size (`64MiB`)", "0",
            "Not zero: keep the latest events in so much memory on each device, and write them to "
            "`WEIR_RECORD` when memory runs out, on `WEIR_RECORD_SIGNAL`, and at the end.",
            assign<&Config::record_ring>},
    Setting{"WEIR_RECORD_SIGNAL", "`none`, `USR1` or `USR2`", "none",
            "The signal that starts the recording, which the next one stops; each further "
            "recording has a number (`run-2.weir`). With `WEIR_RECORD_RING`, the signal writes "
            "what is kept.",
            assign<&Config::record_signal>},
    Setting{"WEIR_RECORD_STACKS", "`none`, `cpp` or `python`", "none",
            "Whether a recording says who asked for each block: `cpp` has the C++ and C functions, "
            "`python` those of Python (C++ where there are none), at some microseconds an "
            "allocation.",
            assign<&Config::record_stacks>},
    Setting{"WEIR_SNAPSHOT_ON_OOM", "a path; compressed when it ends in `.gz`", "",
            "Where to write a snapshot each time that memory ran out, with a number "
            "(`oom-1.json`); the first 16 times.",
            assign<&Config::snapshot_on_oom>},
    Setting{"WEIR_TIME_DRIVER", "`0` or `1`", "0",
            "Whether calls to the driver are timed. They are counted always (statistics.md).",
            assign<&Config::time_driver>},
    Setting{"WEIR_VALIDATE", "`0` or `1`", "0",
            "Check the whole heap after every call, and abort with the latest events when an "
            "invariant is broken. Slow: for finding errors in Weir itself.",
            assign<&Config::validate>},
};

Error unknown_setting(std::string_view name) {
  std::vector<std::string_view> names(kNotSettings.begin(), kNotSettings.end());
  for (const Setting& setting : kSettings) names.push_back(setting.name);
  const auto nearest = std::min_element(names.begin(), names.end(), [&](auto a, auto b) {
    return edit_distance(name, a) < edit_distance(name, b);
  });
  return {ErrorCode::invalid_argument,
          fmt::format("{}: Weir has no such setting; did you mean {}? Every setting is in "
                      "docs/configuration.md",
                      name, *nearest)};
}

}  // namespace

std::string_view name_of(DeviceKind kind) { return kind == DeviceKind::cuda ? "cuda" : "sim"; }

std::string_view name_of(ReusePolicy policy) {
  if (policy == ReusePolicy::wait) return "wait";
  return policy == ReusePolicy::balanced ? "balanced" : "no_wait";
}

std::string_view name_of(Trust trust) { return trust == Trust::told ? "told" : "context"; }

std::string_view name_of(MemoryKind memory) {
  return memory == MemoryKind::pages ? "pages" : "plain";
}

std::string_view name_of(Addresses addresses) {
  if (addresses == Addresses::any) return "any";
  return addresses == Addresses::fixed ? "fixed" : "prefer";
}

std::string_view name_of(GraphScratch scratch) {
  return scratch == GraphScratch::keep ? "keep" : "lend";
}

std::string_view name_of(RecordSignal signal) {
  if (signal == RecordSignal::none) return "none";
  return signal == RecordSignal::usr1 ? "USR1" : "USR2";
}

std::string_view name_of(RecordStacks stacks) {
  if (stacks == RecordStacks::none) return "none";
  return stacks == RecordStacks::cpp ? "cpp" : "python";
}

Result<RecordStacks> record_stacks_of(std::string_view name) {
  RecordStacks stacks{};
  if (parse(name, stacks)) return stacks;
  return Error(ErrorCode::invalid_argument,
               fmt::format("stacks are \"none\", \"cpp\" or \"python\", and not \"{}\"", name));
}

Bytes MemoryLimit::on_device_with(Bytes total) const {
  if (bytes > 0_B || share == 0) return bytes;
  // At least a byte: zero would say that there is no limit.
  return {std::max<std::uint64_t>(
      1, static_cast<std::uint64_t>(share * static_cast<double>(total.count)))};
}

Result<Config> Config::from_environment() { return from_environment(environ); }

Result<Config> Config::from_environment(const char* const* block) {
  Config config;
  for (; block != nullptr && *block != nullptr; ++block) {
    const std::string_view entry = *block;
    if (!entry.starts_with(kPrefix)) continue;
    const std::size_t equals = std::min(entry.find('='), entry.size());
    const std::string_view value = entry.substr(std::min(equals + 1, entry.size()));
    const std::string_view name = entry.substr(0, equals);
    if (std::find(kNotSettings.begin(), kNotSettings.end(), name) != kNotSettings.end()) continue;
    if (Status status = config.set(name, value); !status.ok()) {
      return std::move(status).error();
    }
  }
  return config;
}

Result<Config> Config::from_pairs(std::span<const Pair> pairs) {
  Config config;
  for (const auto& [name, value] : pairs) {
    if (Status status = config.set(name, value); !status.ok()) return std::move(status).error();
  }
  return config;
}

Status Config::check() const {
  const auto needs_file = [](std::string_view name) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{} is set, and WEIR_RECORD is not: set WEIR_RECORD to the file that "
                             "is to be written",
                             name)};
  };
  if (addresses != Addresses::any && memory == MemoryKind::plain) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("WEIR_ADDRESSES={}: the driver chooses where plain memory lies; set "
                             "WEIR_MEMORY=pages, or leave WEIR_ADDRESSES unset",
                             name_of(addresses))};
  }
  if (!record.empty()) return {};
  if (record_ring > 0_B) return needs_file("WEIR_RECORD_RING");
  if (record_signal != RecordSignal::none) return needs_file("WEIR_RECORD_SIGNAL");
  return {};
}

Status Config::set(std::string_view name, std::string_view value) {
  const auto setting = std::find_if(kSettings.begin(), kSettings.end(),
                                    [&](const Setting& s) { return s.name == name; });
  if (setting == kSettings.end()) return unknown_setting(name);
  if (value.empty()) value = setting->default_value;
  if (setting->assign(*this, value)) return {};
  return Error{ErrorCode::invalid_argument,
               fmt::format("{}=\"{}\": allowed is {}", name, value, setting->values)};
}

std::string Config::describe() {
  std::string table =
      "| variable | values | default | what it does |\n"
      "| --- | --- | --- | --- |\n";
  for (const Setting& setting : kSettings) {
    const std::string shown =
        setting.default_value.empty() ? "not set" : fmt::format("`{}`", setting.default_value);
    table += fmt::format("| `{}` | {} | {} | {} |\n", setting.name, setting.values, shown,
                         setting.meaning);
  }
  return table;
}

Result<Bytes> parse_bytes(std::string_view text) {
  struct Unit {
    std::string_view name;
    double bytes;
  };
  static constexpr std::array kUnits = {Unit{"", 1},         Unit{"B", 1},    Unit{"K", 0x1p10},
                                        Unit{"KiB", 0x1p10}, Unit{"KB", 1e3}, Unit{"M", 0x1p20},
                                        Unit{"MiB", 0x1p20}, Unit{"MB", 1e6}, Unit{"G", 0x1p30},
                                        Unit{"GiB", 0x1p30}, Unit{"GB", 1e9}, Unit{"T", 0x1p40},
                                        Unit{"TiB", 0x1p40}, Unit{"TB", 1e12}};
  const auto malformed = [&] {
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("\"{}\" is not a size: write a number and a unit, such as 512MiB", text)};
  };
  const std::size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  std::string_view name = text.substr(digits);
  if (name.starts_with(' ')) name.remove_prefix(1);
  const auto unit =
      std::find_if(kUnits.begin(), kUnits.end(), [&](const Unit& u) { return u.name == name; });
  if (digits == 0 || unit == kUnits.end()) return malformed();

  // A whole number keeps all its digits; doubles lose some past 2^53.
  std::uint64_t whole = 0;
  const char* end = text.data() + digits;
  if (unit->bytes == 1) {
    const auto [stop, error] = std::from_chars(text.data(), end, whole);
    if (error != std::errc{} || stop != end) return malformed();
    return Bytes{whole};
  }
  const std::optional<double> number = parse_number(text.substr(0, digits));
  if (!number || *number * unit->bytes >= 0x1p63) return malformed();
  return Bytes{static_cast<std::uint64_t>(std::llround(*number * unit->bytes))};
}

}  // namespace weir
