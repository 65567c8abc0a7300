// SPDX-License-Identifier: Apache-2.0
// Source of the schema: torch.cuda.memory._snapshot(), PyTorch 2.11.
#include "look/pytorch_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "look/numbering.h"
#include "look/plain_writer.h"
#include "look/pytorch_memory.h"
#include "look/stack_calls.h"
#include "replay/failed_mark.h"

namespace weir {
namespace {

using Kind = PickleValue::Kind;
// Of a name: a small file can refer to a long one many times.
constexpr std::size_t kMostText = 512;
constexpr std::string_view kNoFile = "??";  // what its C++ frames have

std::string text_of(PickleValue value) { return std::string(value.string().substr(0, kMostText)); }

// Times that can be subtracted from each other.
std::int64_t time_of(PickleValue value) {
  return std::clamp<std::int64_t>(value.at("time_us").integer(), 0, std::int64_t{1} << 60);
}

// Stacks by what they say, so that each is kept once.
class StackTable {
 public:
  std::uint32_t of(PickleValue frames) {
    if (frames.list().empty()) return 0;
    const auto [known, added] = by_identity_.try_emplace(frames.identity(), 0);
    if (!added) return known->second;
    std::vector<std::uint32_t> stack;
    for (const PickleValue& frame : frames.list()) stack.push_back(frame_id(frame));
    return known->second = stacks_.of(stack);
  }

  void move_into(TraceStacks& into) {
    by_identity_ = {};
    into.stacks = stacks_.take();
    for (auto& [function, file, line] : frames_.take()) {
      into.frames.push_back({std::move(function), std::move(file), line});
    }
  }

 private:
  std::uint32_t frame_id(PickleValue value) {
    std::string file = text_of(value.at("filename"));
    if (file == kNoFile) file.clear();
    return frames_.of({text_of(value.at("name")), std::move(file),
                       static_cast<std::uint32_t>(value.at("line").integer())});
  }

  std::unordered_map<std::uint64_t, std::uint32_t> by_identity_;
  Numbering<std::vector<std::uint32_t>> stacks_{TraceStacks{}.stacks};
  Numbering<std::tuple<std::string, std::string, std::uint32_t>> frames_;
};

class Converter {
 public:
  Converter(PickleValue snapshot, int device)
      : snapshot_(snapshot), device_(device), memory_(snapshot, device) {}

  PytorchTrace run();

 private:
  struct Block {
    std::uint64_t id, bytes, stream;
    bool requested = false;  // to be freed: its `r` is written
  };
  struct Early {  // there before the history begins
    std::uint64_t bytes, stream;
    PickleValue frames;
    bool requested;
    bool stays;  // until the end
  };

  std::span<const PickleValue> history() const { return memory_.history(); }
  void header();
  void name_unknown();
  void find_early();
  void find_held();
  void entry(PickleValue entry);
  void fail(PickleValue entry);
  void allocate(std::uint64_t address, std::uint64_t bytes, std::uint64_t stream,
                PickleValue frames);
  void free(std::uint64_t address, bool completed);
  void write_free(char kind, const Block& block);
  void marks_until(std::int64_t time_us);
  void marker(std::string text);

  template <class... Args>
  void line(fmt::format_string<Args...> text, Args&&... args) {
    fmt::format_to(std::back_inserter(trace_.text), text, std::forward<Args>(args)...);
  }

  const PickleValue snapshot_;
  const int device_;
  const PytorchMemory memory_;
  PytorchTrace trace_;
  StackTable stacks_;
  std::map<std::uint64_t, Early> early_;           // by address
  std::unordered_map<std::uint64_t, Block> live_;  // by address
  std::uint64_t next_id_ = 0;
  std::uint64_t changes_ = 0;  // beginnings and ends of blocks that have bytes
  std::int64_t start_us_ = 0, time_us_ = 0;
  std::vector<bool> stays_;                                  // by early block
  std::vector<std::pair<std::int64_t, std::string>> marks_;  // by time
  std::size_t next_mark_ = 0;
};

PytorchTrace Converter::run() {
  constexpr std::size_t kLine = 48;  // or less; memory that is not written costs nothing
  trace_.text.reserve(history().size() * kLine);
  header();
  if (!history().empty()) start_us_ = time_of(history().front());
  trace_.stacks.has_times = std::any_of(history().begin(), history().end(), [](PickleValue entry) {
    return entry.at("time_us").integer() > 0;
  });
  find_early();
  for (const PickleValue& annotation : snapshot_.at("external_annotations").list()) {
    if (annotation.at("stage").string() != "START") continue;
    if (annotation.at("device").integer() != device_) continue;
    marks_.emplace_back(time_of(annotation), text_of(annotation.at("name")));
  }
  std::stable_sort(marks_.begin(), marks_.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [address, early] : early_) {
    allocate(address, early.bytes, early.stream, early.frames);
    if (early.requested) free(address, false);
    stays_.push_back(early.stays);
  }
  trace_.stacks.early_blocks = early_.size();
  std::size_t at = 0, before_worst = 0;
  for (const PickleValue& each : history()) {
    if (at++ <= memory_.worst()) before_worst = changes_;
    entry(each);
  }
  if (at == memory_.worst()) before_worst = changes_;
  marks_until(INT64_MAX);
  find_held();
  if (trace_.held) trace_.held->events = before_worst;
  stacks_.move_into(trace_.stacks);
  name_unknown();
  trace_.device = device_;
  trace_.damage = memory_.damage();
  return std::move(trace_);
}

// Where other blocks have stacks, it is known why these have none.
void Converter::name_unknown() {
  TraceStacks& known = trace_.stacks;
  if (known.stacks.size() < 2) return;
  std::uint32_t early = 0, passing = 0, later = 0;
  const auto stack_of = [&](std::uint32_t& stack, std::string_view text) {
    if (stack == 0) {
      stack = static_cast<std::uint32_t>(known.stacks.size());
      known.stacks.push_back({static_cast<std::uint32_t>(known.frames.size())});
      known.frames.push_back({.function = std::string(text)});
    }
    return stack;
  };
  // A stack with C++ frames is never empty; one of Python's is, in the engine's threads.
  const bool python_only = std::all_of(known.frames.begin(), known.frames.end(), is_python);
  for (std::size_t block = 0; block < known.of_block.size(); ++block) {
    std::uint32_t& stack = known.of_block[block];
    if (stack != 0) continue;
    if (block < known.early_blocks) {
      stack = stays_[block]
                  ? stack_of(early, kEarlyBlocks)
                  : stack_of(passing, history().empty() ? kUnrecordedBlocks : kPassingBlocks);
    } else if (python_only) {
      stack = stack_of(later, "a backward pass, most likely (no Python stack)");
    }
  }
}

void Converter::header() {
  nlohmann::ordered_json header;
  header["workload"] = "PyTorch memory snapshot";
  header["recorder"] = "torch.cuda.memory";
  header["device"] = device_;
  header["columns"] = "op id bytes stream time_us; m = phase marker";
  trace_.text += "# " + header.dump() + "\n";
}

// What the history frees before it allocates it was there; and what lives on at the end without a
// word of it.
void Converter::find_early() {
  std::unordered_map<std::uint64_t, bool> live;  // address -> allocated, or freed, last
  for (const PickleValue& each : history()) {
    const std::string_view action = each.at("action").string();
    const std::uint64_t address = number(each, "addr");
    if (action == "alloc") {
      live[address] = true;
    } else if (action == "free_requested" || action == "free_completed" || action == "free") {
      const bool first = live.try_emplace(address, false).second;
      live[address] = false;
      if (!first) continue;
      early_.try_emplace(address, Early{bytes_of(each, "size").count,
                                        number(each, "stream"),
                                        {},
                                        action == "free_completed",
                                        false});
    }
  }
  for (const FinalBlock& block : memory_.blocks()) {
    if (live.contains(block.address)) continue;
    early_.try_emplace(block.address, Early{block.requested.count, block.stream, block.frames,
                                            block.pending, !block.pending && !history().empty()});
  }
}

// What PyTorch held over time, and where it was fullest or failed.
void Converter::find_held() {
  // Weir's own pages, written for PyTorch's viewer.
  const PickleValue settings = snapshot_.at("allocator_settings");
  if (settings.at("allocator").string() == "weir") return;
  trace_.lacks_segments = memory_.lacks_segments();
  if (memory_.peak_reserved() == 0_B) return;
  trace_.expandable_segments = settings.at("expandable_segments").integer() != 0;
  if (const std::int64_t most = settings.at("max_split_size").integer(); most > 0) {
    trace_.max_split = Bytes{static_cast<std::uint64_t>(most)};
  }
  trace_.reserved.push_back({Nanoseconds{}, memory_.reserved_at_first()});
  for (const PytorchMemory::Change& change : memory_.changes()) {
    const std::int64_t since = time_of(history()[change.entry]) - start_us_;
    trace_.reserved.push_back(
        {Nanoseconds{std::max<std::int64_t>(since, 0) * 1000}, change.reserved});
  }
  trace_.held = memory_.at(memory_.worst());
}

void Converter::entry(PickleValue entry) {
  const std::int64_t time = time_of(entry);
  marks_until(time);
  time_us_ = std::max(time_us_, time - start_us_);
  const std::string_view action = entry.at("action").string();
  const std::uint64_t address = number(entry, "addr");
  if (action == "alloc") {
    allocate(address, bytes_of(entry, "size").count, number(entry, "stream"), entry.at("frames"));
  } else if (action == "free_requested") {
    free(address, false);
  } else if (action == "free_completed") {
    free(address, true);
  } else if (action == "free") {
    free(address, false);
    free(address, true);
  } else if (action == "annotate") {  // since PyTorch 2.14
    marker(fmt::format("annotation of {} bytes: {}", bytes_of(entry, "size").count,
                       text_of(entry.at("user_metadata"))));
  } else if (action == "oom") {
    fail(entry);
  }
}

void Converter::fail(PickleValue entry) {
  trace_.failed_request = bytes_of(entry, "size");
  marker(failed_request_mark(trace_.failed_request.count, number(entry, "stream")));
  trace_.stacks.failures.push_back({Nanoseconds{time_us_ * 1000}, stacks_.of(entry.at("frames"))});
  trace_.failed_with.reset();
  if (entry.at("device_free").is(Kind::integer)) {
    trace_.failed_with = bytes_of(entry, "device_free");
  }
}

void Converter::allocate(std::uint64_t address, std::uint64_t bytes, std::uint64_t stream,
                         PickleValue frames) {
  free(address, true);  // does nothing, unless its own end is missing
  const Block block{next_id_++, bytes, stream};
  live_.insert_or_assign(address, block);
  trace_.stacks.of_block.push_back(stacks_.of(frames));
  trace_.addresses.push_back(address);
  changes_ += bytes > 0;
  line("a {} {} {} {}\n", block.id, block.bytes, block.stream, time_us_);
}

void Converter::free(std::uint64_t address, bool completed) {
  const auto found = live_.find(address);
  if (found == live_.end()) return;
  Block& block = found->second;
  if (!std::exchange(block.requested, true)) write_free('r', block);
  if (!completed) return;
  write_free('f', block);
  live_.erase(found);
}

void Converter::write_free(char kind, const Block& block) {
  changes_ += kind == 'r' && block.bytes > 0;
  line("{} {} {} {} {}\n", kind, block.id, block.bytes, block.stream, time_us_);
}

void Converter::marks_until(std::int64_t time_us) {
  for (; next_mark_ < marks_.size() && marks_[next_mark_].first <= time_us; ++next_mark_) {
    marker(marks_[next_mark_].second);
  }
}

void Converter::marker(std::string text) {
  for (char& c : text) c = static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  // A marker that begins so would have what follows captured into a graph.
  if (text.starts_with("capture")) text = "annotation " + text;
  line("m {}\n", valid_utf8(text));
}

Error bad(const std::string& name, std::string_view what) {
  return Error(ErrorCode::invalid_input, fmt::format("{}: {}", name, what));
}

constexpr const char* kNoHistory =
    "the snapshot has no history; call torch.cuda.memory._record_memory_history() before what is "
    "to be recorded";

// How many devices the file has something of: a history, or segments.
Result<std::size_t> devices_of(PickleValue root, const std::string& name) {
  constexpr std::int64_t kMost = 1024;
  std::int64_t count = static_cast<std::int64_t>(root.at("device_traces").list().size());
  for (const PickleValue& segment : root.at("segments").list()) {
    count = std::max(count, segment.at("device").integer() + 1);
  }
  if (count > 0 && count <= kMost) return static_cast<std::size_t>(count);
  return bad(name, count > kMost ? fmt::format("a segment of device {}: more devices than are read",
                                               count - 1)
                                 : kNoHistory);
}

}  // namespace

Result<PytorchTrace> pytorch_trace(const Pickle& pickle, const std::string& name,
                                   std::optional<int> device) {
  const PickleValue root = pickle.root();
  const PickleValue histories = root.at("device_traces");
  if (!root.is(Kind::dict) || !histories.is(Kind::list) || !root.at("segments").is(Kind::list)) {
    return bad(name,
               "no memory snapshot of PyTorch's (a dictionary with device_traces and "
               "segments), nor of Weir's; torch.cuda.memory._dump_snapshot() writes one");
  }
  const Result<std::size_t> devices = devices_of(root, name);
  if (!devices) return devices.error();
  std::vector<DeviceInFile> found;
  std::string used;
  for (int i = 0; std::cmp_less(i, *devices); ++i) {
    const PytorchMemory memory(root, i);
    found.push_back({.events = memory.history().size(),
                     .peak_reserved = memory.peak_reserved(),
                     .ran_out = memory.failure().has_value()});
    if (found.back().is_used()) used += fmt::format("{}{}", used.empty() ? "" : ", ", i);
  }
  if (device) {
    const bool exists = *device >= 0 && std::cmp_less(*device, found.size());
    if (!exists || (!found[static_cast<std::size_t>(*device)].is_used() && !used.empty())) {
      if (const auto last = used.rfind(", "); last != used.npos) used.replace(last, 2, " or ");
      return bad(name, fmt::format("device {} was not used; {}", *device,
                                   used.empty() ? "no other was either" : "name " + used));
    }
  } else {
    // The one that ran out; else the one that held most; else the longest history.
    const auto before = [&](std::size_t a, std::size_t b) {
      return std::tuple(found[a].ran_out, found[a].peak_reserved, found[a].events) <
             std::tuple(found[b].ran_out, found[b].peak_reserved, found[b].events);
    };
    device = 0;
    for (std::size_t i = 1; i < found.size(); ++i) {
      if (before(static_cast<std::size_t>(*device), i)) device = static_cast<int>(i);
    }
  }
  PytorchTrace trace = Converter(root, *device).run();
  const bool has_only_a_header = trace.text.find('\n') + 1 == trace.text.size();
  if (has_only_a_header) return bad(name, kNoHistory);
  trace.devices = std::move(found);
  return trace;
}

Result<PytorchTrace> read_pytorch_trace(const std::string& path, std::optional<int> device,
                                        const Pickle::Progress& progress) {
  const Result<Pickle> pickle = Pickle::read(path, progress);
  if (!pickle.ok()) return pickle.error();
  return pytorch_trace(*pickle, path, device);
}

}  // namespace weir
