// SPDX-License-Identifier: Apache-2.0
// Source of the schema: torch.cuda.memory._snapshot(), PyTorch 2.11.
#include "look/pytorch_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "look/plain_writer.h"

namespace weir {
namespace {

using Kind = PickleValue::Kind;
// Of a name: a small file can refer to a long one many times.
constexpr std::size_t kMostText = 512;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;  // so that no sum overflows
constexpr std::string_view kNoFile = "??";                  // what its C++ frames have
constexpr std::string_view kActive = "active_allocated", kPending = "active_pending_free";

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
    const auto next = static_cast<std::uint32_t>(stacks.stacks.size());
    const auto [same, is_new] = by_frames_.try_emplace(stack, next);
    if (is_new) stacks.stacks.push_back(std::move(stack));
    return known->second = same->second;
  }

  TraceStacks stacks;

 private:
  std::uint32_t frame_id(PickleValue value) {
    RecordedFrame frame{text_of(value.at("name")), text_of(value.at("filename")),
                        static_cast<std::uint32_t>(value.at("line").integer())};
    if (frame.file == kNoFile) frame.file.clear();
    const auto next = static_cast<std::uint32_t>(stacks.frames.size());
    const auto [same, is_new] = frames_.try_emplace({frame.function, frame.file, frame.line}, next);
    if (is_new) stacks.frames.push_back(std::move(frame));
    return same->second;
  }

  std::unordered_map<std::uint64_t, std::uint32_t> by_identity_;
  std::map<std::vector<std::uint32_t>, std::uint32_t> by_frames_;
  std::map<std::tuple<std::string, std::string, std::uint32_t>, std::uint32_t> frames_;
};

class Converter {
 public:
  Converter(PickleValue snapshot, int device) : snapshot_(snapshot), device_(device) {}

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
  };

  const std::vector<PickleValue>& history() const {
    return snapshot_.at("device_traces").list()[static_cast<std::size_t>(device_)].list();
  }
  void header();
  void find_early();
  void find_early_in_segments(const std::unordered_map<std::uint64_t, bool>& live);
  void find_reserved();
  void entry(PickleValue entry);
  void allocate(std::uint64_t address, std::uint64_t bytes, std::uint64_t stream,
                PickleValue frames);
  void free(std::uint64_t address, bool completed);
  void write_free(char kind, const Block& block);
  void marks_until(std::int64_t time_us);
  void marker(std::string text);

  static std::uint64_t number(PickleValue of, std::string_view key) {
    return static_cast<std::uint64_t>(of.at(key).integer());
  }
  static std::uint64_t bytes_of(PickleValue of, std::string_view key) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(of.at(key).integer(), 0));
  }
  template <class... Args>
  void line(fmt::format_string<Args...> text, Args&&... args) {
    fmt::format_to(std::back_inserter(trace_.text), text, std::forward<Args>(args)...);
  }

  const PickleValue snapshot_;
  const int device_;
  PytorchTrace trace_;
  StackTable stacks_;
  std::map<std::uint64_t, Early> early_;           // by address
  std::unordered_map<std::uint64_t, Block> live_;  // by address
  std::uint64_t next_id_ = 0;
  std::int64_t start_us_ = 0, time_us_ = 0;
  std::vector<std::pair<std::int64_t, std::string>> marks_;  // by time
  std::size_t next_mark_ = 0;
};

PytorchTrace Converter::run() {
  header();
  if (!history().empty()) start_us_ = time_of(history().front());
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
  }
  for (const PickleValue& each : history()) entry(each);
  marks_until(INT64_MAX);
  find_reserved();
  trace_.stacks.frames = std::move(stacks_.stacks.frames);
  trace_.stacks.stacks = std::move(stacks_.stacks.stacks);
  trace_.device = device_;
  return std::move(trace_);
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
      early_.try_emplace(
          address,
          Early{bytes_of(each, "size"), number(each, "stream"), {}, action == "free_completed"});
    }
  }
  find_early_in_segments(live);
}

void Converter::find_early_in_segments(const std::unordered_map<std::uint64_t, bool>& live) {
  std::unordered_set<std::uint64_t> seen;  // a file can refer to one segment any number of times
  for (const PickleValue& segment : snapshot_.at("segments").list()) {
    if (segment.at("device").integer() != device_) continue;
    if (!seen.insert(segment.at("blocks").identity()).second) continue;
    std::uint64_t address = number(segment, "address");
    for (const PickleValue& block : segment.at("blocks").list()) {
      const std::uint64_t size = bytes_of(block, "size");
      const std::uint64_t at =
          block.at("address").is(Kind::integer) ? number(block, "address") : address;
      address += size;
      const std::string_view state = block.at("state").string();
      if ((state != kActive && state != kPending) || live.contains(at)) continue;
      const std::uint64_t requested = bytes_of(block, "requested_size");
      early_.try_emplace(at, Early{requested == 0 ? size : requested, number(segment, "stream"),
                                   block.at("frames"), state == kPending});
    }
  }
}

// The final segments say what was reserved at the end; the history, how it came to that.
void Converter::find_reserved() {
  // Weir's own pages, written for PyTorch's viewer.
  if (snapshot_.at("allocator_settings").at("allocator").string() == "weir") return;
  const auto size = [](PickleValue of, std::string_view key) {
    return std::clamp<std::int64_t>(of.at(key).integer(), 0, kMostBytes);
  };
  std::int64_t now = 0;
  std::unordered_set<std::uint64_t> seen;
  for (const PickleValue& segment : snapshot_.at("segments").list()) {
    if (segment.at("device").integer() != device_) continue;
    if (!seen.insert(segment.at("blocks").identity()).second) continue;
    now = std::min(now + size(segment, "total_size"), kMostBytes);
  }
  std::vector<RecordedReserved> backwards;
  const auto& entries = history();
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    const std::string_view action = entry->at("action").string();
    const bool more = action == "segment_alloc" || action == "segment_map";
    const bool less = action == "segment_free" || action == "segment_unmap";
    if (!more && !less) continue;
    const std::int64_t since = std::max<std::int64_t>(time_of(*entry) - start_us_, 0);
    backwards.push_back({Nanoseconds{since * 1000}, Bytes{static_cast<std::uint64_t>(now)}});
    now += more ? -size(*entry, "size") : size(*entry, "size");
    now = std::clamp<std::int64_t>(now, 0, kMostBytes);
  }
  if (now == 0 && backwards.empty()) return;
  trace_.reserved.push_back({Nanoseconds{}, Bytes{static_cast<std::uint64_t>(now)}});
  trace_.reserved.insert(trace_.reserved.end(), backwards.rbegin(), backwards.rend());
}

void Converter::entry(PickleValue entry) {
  const std::int64_t time = time_of(entry);
  marks_until(time);
  time_us_ = std::max(time_us_, time - start_us_);
  const std::string_view action = entry.at("action").string();
  const std::uint64_t address = number(entry, "addr");
  if (action == "alloc") {
    allocate(address, bytes_of(entry, "size"), number(entry, "stream"), entry.at("frames"));
  } else if (action == "free_requested") {
    free(address, false);
  } else if (action == "free_completed") {
    free(address, true);
  } else if (action == "free") {
    free(address, false);
    free(address, true);
  } else if (action == "oom") {
    marker(fmt::format("out of memory: {} bytes on stream {}", bytes_of(entry, "size"),
                       number(entry, "stream")));
  }
}

void Converter::allocate(std::uint64_t address, std::uint64_t bytes, std::uint64_t stream,
                         PickleValue frames) {
  free(address, true);  // does nothing, unless its own end is missing
  const Block block{next_id_++, bytes, stream};
  live_.insert_or_assign(address, block);
  trace_.stacks.of_block.push_back(stacks_.of(frames));
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

}  // namespace

Result<PytorchTrace> pytorch_trace(const Pickle& pickle, const std::string& name,
                                   std::optional<int> device) {
  const PickleValue root = pickle.root();
  const PickleValue histories = root.at("device_traces");
  if (!root.is(Kind::dict) || !histories.is(Kind::list) || !root.at("segments").is(Kind::list)) {
    return bad(name,
               "the pickle is no memory snapshot of PyTorch (a dictionary with device_traces and "
               "segments); torch.cuda.memory._dump_snapshot() writes one");
  }
  const auto& devices = histories.list();
  if (devices.empty()) {
    return bad(name,
               "the snapshot has no history; call torch.cuda.memory._record_memory_history() "
               "before what is to be recorded");
  }
  if (device && (*device < 0 || static_cast<std::size_t>(*device) >= devices.size())) {
    return bad(name,
               fmt::format("there is no device {}: the snapshot has {}", *device, devices.size()));
  }
  if (!device) {
    const auto longest = std::max_element(devices.begin(), devices.end(),
                                          [](const PickleValue& a, const PickleValue& b) {
                                            return a.list().size() < b.list().size();
                                          });
    device = static_cast<int>(longest - devices.begin());
  }
  return Converter(root, *device).run();
}

Result<PytorchTrace> read_pytorch_trace(const std::string& path, std::optional<int> device) {
  const Result<Pickle> pickle = Pickle::read(path);
  if (!pickle.ok()) return pickle.error();
  return pytorch_trace(*pickle, path, device);
}

}  // namespace weir
