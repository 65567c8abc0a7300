// SPDX-License-Identifier: Apache-2.0
// make_pages FOLDER: writes the pages that the browser's tests open, as NAME.html.
//
// What they show was replayed on the simulated device (so pages, fences and reuse are as Weir makes
// them), and then given stacks, or damaged.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "look/export.h"
#include "look/html.h"
#include "look/load.h"
#include "look/report.h"
#include "suite/fit.h"
#include "tests/events_of.h"
#include "weir/recording.h"

namespace weir {
namespace {

std::string folder;

Loaded loaded(const std::string& path) {
  Result<Loaded> recording = load(path, {.help = suite::help_of});
  if (recording.ok()) return *std::move(recording);
  fmt::print(stderr, "{}\n", recording.error().message());
  std::exit(1);
}

// A file of this text in the folder, loaded.
Loaded loaded_text(const std::string& name, const std::string& text) {
  const std::string path = folder + "/" + name;
  std::ofstream(path) << text;
  return loaded(path);
}

// The recording of a trace's text.
Loaded replayed_text(const std::string& name, const std::string& trace) {
  Loaded recording = loaded_text(name + ".trace", trace);
  recording.source = name;
  return recording;
}

// Three streams; some blocks are used by two of them, and one is never freed.
std::string small_trace() {
  std::string text;
  std::uint64_t time = 0, id = 0;
  for (int step = 0; step < 4; ++step) {
    text += fmt::format("m step {}\n", step);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> blocks;
    for (std::uint64_t i = 0; i < 8; ++i) {
      const std::uint64_t bytes = (i % 3 == 0 ? 12 : 2) * (i + 1) << 18;
      text += fmt::format("a {} {} {} {}\n", id, bytes, i % 3, time += 200);
      if (i % 4 == 3) text += fmt::format("u {} {} {}\n", id, (i + 1) % 3, time += 10);
      blocks.emplace_back(id++, bytes);
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (step == 3 && i == 5) continue;
      const auto [block, bytes] = blocks[i];
      text += fmt::format("r {} {} {} {}\nf {} {} {} {}\n", block, bytes, i % 3, time += 150, block,
                          bytes, i % 3, time);
    }
  }
  return text;
}

// Gives the blocks the stacks in turn.
void give_stacks(Recording& recording, std::vector<RecordedFrame> frames,
                 std::vector<std::vector<std::uint32_t>> stacks) {
  recording.frames = std::move(frames);
  recording.stacks = {{}};
  recording.stacks.insert(recording.stacks.end(), stacks.begin(), stacks.end());
  std::uint32_t next = 0;
  test::change_events(recording, [&](std::vector<Event>& events) {
    for (Event& event : events) {
      if (event.kind == EventKind::allocate)
        event.stack = 1 + next++ % static_cast<std::uint32_t>(stacks.size());
    }
  });
}

Loaded small() {
  Loaded recording = replayed_text("small", small_trace());
  recording.program = "python train.py --batch 8";
  give_stacks(recording,
              {{"Attention::forward", "src/attention.cc", 120},
               {"Model::step", "src/model.cc", 44},
               {"gelu", "src/activation.cc", 9},
               {"", "/opt/program/libstuff.so", 0}},
              {{0, 1}, {2, 1}, {3, 1}});
  return recording;
}

// A training loop on one stream, with Python's stacks: parameters, activations of each layer, the
// logits as the largest block, gradients, and an optimizer's state.
class Training {
 public:
  Loaded recording() {
    for (int layer = 0; layer < kLayers; ++layer)
      allocate(24 << 20, {"Block.__init__", "model.py", 31}, kSetup);
    for (int step = 0; step < 3; ++step) run(step);
    Loaded recording = replayed_text("training", text_);
    recording.program = "train.py --layers 12";
    recording.frames = frames_;
    recording.stacks = stacks_;
    std::size_t next = 0;
    test::change_events(recording, [&](std::vector<Event>& events) {
      for (Event& event : events) {
        if (event.kind == EventKind::allocate) event.stack = stack_of_[next++];
      }
    });
    recording.other_reserved = {{0_ns, 1_GiB}, {60_ms, 3_GiB}, {150_ms, 4_GiB}};
    recording.other_peak_reserved = 4_GiB;
    return recording;
  }

 private:
  static constexpr int kLayers = 12;
  static inline const std::vector<RecordedFrame> kSetup = {{"main", "train.py", 88}};
  static inline const std::vector<RecordedFrame> kForward = {
      {"GPT.forward", "model.py", 70}, {"train_step", "train.py", 41}, {"main", "train.py", 95}};
  static inline const std::vector<RecordedFrame> kBackward = {{"train_step", "train.py", 44},
                                                              {"main", "train.py", 95}};

  void run(int step) {
    text_ += fmt::format("m step {}\n", step);
    std::vector<std::uint64_t> activations, gradients;
    for (int layer = 0; layer < kLayers; ++layer) {
      std::vector<RecordedFrame> callers = {{"Block.forward", "model.py", 52}};
      callers.insert(callers.end(), kForward.begin(), kForward.end());
      activations.push_back(allocate(48 << 20, {"Attention.forward", "model.py", 18}, callers));
      const auto scratch = allocate(9 << 20, {"softmax", "functional.py", 210}, callers);
      activations.push_back(allocate(32 << 20, {"MLP.forward", "model.py", 25}, callers));
      activations.push_back(allocate(32 << 20, {"gelu", "functional.py", 77}, callers));
      deallocate(scratch);
    }
    const auto logits = allocate(900 << 20, {"Linear.forward", "linear.py", 12}, kForward);
    const auto log_softmax =
        allocate(900 << 20, {"cross_entropy", "functional.py", 310}, kBackward);
    deallocate(log_softmax);
    deallocate(logits);
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int i = 0; i < 3; ++i) deallocate(activations[activations.size() - 1 - i]);
      activations.resize(activations.size() - 3);
      gradients.push_back(allocate(24 << 20, {"backward", "autograd.py", 9}, kBackward));
    }
    if (step == 0) {
      for (int layer = 0; layer < 2 * kLayers; ++layer)
        allocate(24 << 20, {"Adam.step", "adam.py", 140}, kBackward);
    }
    for (const std::uint64_t gradient : gradients) deallocate(gradient);
  }

  std::uint64_t allocate(std::uint64_t bytes, const RecordedFrame& by,
                         const std::vector<RecordedFrame>& callers) {
    std::vector<std::uint32_t> stack = {frame(by)};
    for (const RecordedFrame& caller : callers) stack.push_back(frame(caller));
    const auto known = std::find(stacks_.begin(), stacks_.end(), stack);
    stack_of_.push_back(static_cast<std::uint32_t>(known - stacks_.begin()));
    if (known == stacks_.end()) stacks_.push_back(stack);
    text_ += fmt::format("a {} {} 0 {}\n", bytes_.size(), bytes, time_ += 900);
    bytes_.push_back(bytes);
    return bytes_.size() - 1;
  }

  void deallocate(std::uint64_t block) {
    text_ += fmt::format("r {0} {1} 0 {2}\nf {0} {1} 0 {2}\n", block, bytes_[block], time_ += 900);
  }

  std::uint32_t frame(const RecordedFrame& wanted) {
    const auto known = std::find(frames_.begin(), frames_.end(), wanted);
    const auto number = static_cast<std::uint32_t>(known - frames_.begin());
    if (known == frames_.end()) frames_.push_back(wanted);
    return number;
  }

  std::string text_;
  std::uint64_t time_ = 0;
  std::vector<std::uint64_t> bytes_;  // by block
  std::vector<RecordedFrame> frames_;
  std::vector<std::vector<std::uint32_t>> stacks_{{}};
  std::vector<std::uint32_t> stack_of_;  // by block
};

// No stack has half of the peak, and one function has: 12 lines of it, as a model without a loop.
Loaded layers() {
  std::string text;
  for (int i = 0; i < 16; ++i) text += fmt::format("a {} {} 0 {}\n", i, (i + 8) << 20, 100 * i);
  for (int i = 0; i < 16; ++i)
    text += fmt::format("r {0} {1} 0 {2}\nf {0} {1} 0 {2}\n", i, (i + 8) << 20, 5000 + i);
  Loaded recording = replayed_text("layers", text);
  std::vector<RecordedFrame> frames = {{"main", "train.py", 9}, {"setup", "train.py", 3}};
  std::vector<std::vector<std::uint32_t>> stacks;
  for (std::uint32_t i = 0; i < 16; ++i) {
    const auto next = static_cast<std::uint32_t>(frames.size());
    frames.push_back({"relu", "functional.py", 100 + i});
    frames.push_back({"Net.forward", "net.py", 20 + i});
    stacks.push_back(i % 4 == 3 ? std::vector<std::uint32_t>{next, 1, 0}
                                : std::vector<std::uint32_t>{next, next + 1, 0});
  }
  give_stacks(recording, frames, stacks);
  return recording;
}

Loaded hostile() {
  const std::string bad =
      "</script><script>window.hurt = 1</script><img src=x onerror='hurt=1'>\"'&";
  Loaded recording = small();
  recording.source = "<script>hurt = 1;<img src=x onerror='hurt=1'>\"'&\xff.weir";  // no slash
  recording.program = recording.device = recording.damage = bad;
  for (RecordedMark& mark : recording.marks) mark.text = bad;
  give_stacks(recording, {{bad + " @script@ @data@", bad, 1}, {"-->", "<!--", 2}}, {{0, 1}});
  return recording;
}

Loaded cut() {
  Loaded recording = small();
  recording.source = "cut";
  test::change_events(recording, [](auto& events) { events.resize(events.size() / 2); });
  recording.damage =
      "the file ends within an event, at byte 1,234 of 5,678: the program was killed";
  recording.dropped = 17;
  return recording;
}

// The first block's fence is one of all streams.
Loaded context() {
  Loaded recording = small();
  recording.source = "context";
  test::change_events(recording, [](std::vector<Event>& events) {
    std::find_if(events.begin(), events.end(), [](const Event& event) {
      return event.kind == EventKind::fence;
    })->other = Stream::all().id;
  });
  return recording;
}

// All at its beginning: what a snapshot is.
Loaded moment() {
  Loaded recording = small();
  recording.source = "moment";
  test::change_events(recording, [](std::vector<Event>& events) {
    events.resize(events.size() / 2);
    for (Event& event : events) event.time = {};
  });
  recording.initial = recording.events.size();
  recording.marks.clear();
  return recording;
}

// Calls of the driver of each kind, and waits of the host, two of which overlap.
Loaded driver() {
  Loaded recording;
  recording.source = "driver";
  std::int64_t time = 0;
  const auto add = [&](Event event, std::int64_t after) {
    event.time = {time += after};
    recording.events.push_back(event);
  };
  constexpr Address kHome{1ULL << 40};
  for (std::uint32_t round = 0; round < 7; ++round) {
    const Bytes size = 8_MiB * (round + 1);
    const std::uint64_t at = kHome.value + (std::uint64_t{round} << 32);
    add({.kind = EventKind::create, .page = {round}, .bytes = size, .pool = round == 1 ? 6U : 0U},
        400'000);
    add({.kind = EventKind::map, .page = {round}, .address = {at}, .bytes = size}, 90'000);
    add({.kind = EventKind::map, .page = {round}, .address = {at + (1U << 30)}, .bytes = size},
        90'000);
    add({.kind = EventKind::allocate, .address = {at}, .bytes = size, .requested = size}, 1'000);
    if (round % 3 == 0) {
      add({.kind = EventKind::host_wait, .duration = Nanoseconds{250'000 * (round + 1)}},
          2'000'000);
      add({.kind = EventKind::host_wait, .duration = 700_us}, 100'000);
    }
    add({.kind = EventKind::deallocate, .address = {at}}, 900'000);
    add({.kind = EventKind::unmap, .page = {round}, .address = {at + (1U << 30)}, .bytes = size},
        60'000);
    if (round % 2 == 1) continue;
    add({.kind = EventKind::unmap, .page = {round}, .address = {at}, .bytes = size}, 60'000);
    add({.kind = EventKind::release, .page = {round}, .bytes = size}, 120'000);
  }
  return recording;
}

// How many events the largest page has.
#ifdef WEIR_SHORT_PAGES
constexpr int kDense = 100'000;
#else
constexpr int kDense = 1'000'000;
#endif

// Beginnings and ends in no order, on four streams; up to 20,000 blocks live at once.
Loaded dense() {
  Loaded recording;
  recording.source = "dense";
  std::mt19937 random(3);  // NOLINT: the same page each time
  std::vector<std::uint64_t> live;
  std::int64_t time = 0;
  std::uint64_t address = 1ULL << 40;
  recording.events.push_back({.kind = EventKind::create, .bytes = 8_GiB});
  for (int i = 0; i < kDense; ++i) {
    Event event{.time = {time += 1000 + static_cast<std::int64_t>(random() % 3000)}};
    if (live.size() >= 20'000 || (!live.empty() && random() % 1000 < 490)) {
      std::swap(live[random() % live.size()], live.back());
      event.kind = EventKind::deallocate;
      event.address = {live.back()};
      live.pop_back();
    } else {
      event.stream = random() % 4;
      event.heap = {static_cast<std::uint32_t>(event.stream)};
      event.bytes = event.requested = {512ULL << (random() % 11)};
      event.address = {address};
      live.push_back(address);
      address += event.bytes.count;
    }
    recording.events.push_back(event);
  }
  return recording;
}

// A request that failed when half of what PyTorch held had no block; then all is freed.
Loaded failed() {
  return loaded_text("failed.snapshot.json", R"json({"segments": [
    {"device": 0, "address": 67108864, "total_size": 20971520, "stream": 0, "segment_type": "large",
     "blocks": [{"size": 20971520, "state": "inactive"}]}],
   "device_traces": [
    [{"action": "segment_alloc", "addr": 67108864, "size": 20971520, "stream": 0, "time_us": 1000},
     {"action": "alloc", "addr": 67108864, "size": 10485760, "stream": 0, "time_us": 2000, "frames": [
       {"name": "at::_ops::relu::call()", "filename": "??", "line": 0},
       {"name": "forward", "filename": "/x/somebody/nets/net/model.py", "line": 7}]},
     {"action": "oom", "size": 15728640, "device_free": 1048576, "stream": 0, "time_us": 9000,
      "frames": [{"name": "loss", "filename": "/x/somebody/nets/net/model.py", "line": 9}]},
     {"action": "free_completed", "addr": 67108864, "size": 10485760, "stream": 0, "time_us": 9500}],
    []]})json");
}

// A program under PyTorch, out of memory: 1,000 MiB live, 400 in pieces of at most 200 without a
// block.
Loaded pytorch() {
  const auto frames = [](const std::string& inner, const std::string& file) {
    return fmt::format(
        R"([{{"name": "{}", "filename": "/venv/site-packages/torch/{}", "line": 5}},
            {{"name": "train_step", "filename": "/x/nets/train.py", "line": 20}}])",
        inner, file);
  };
  constexpr std::uint64_t kMiB = 1 << 20, kFirst = 1 << 30, kSecond = 2U << 30, kThird = 3U << 30;
  std::string segments, events;
  std::uint64_t time = 0;
  const auto event = [&](const char* action, std::uint64_t address, std::uint64_t mib,
                         const std::string& stack = "[]") {
    events += fmt::format(
        R"({}{{"action": "{}", "addr": {}, "size": {}, "stream": 0, "time_us": {}, "frames": {}}})",
        events.empty() ? "" : ",\n", action, address, mib * kMiB, time += 1000, stack);
  };
  for (const auto& [address, mib] : {std::pair{kFirst, 400}, {kSecond, 800}, {kThird, 200}}) {
    segments += fmt::format(
        R"({}{{"device": 0, "address": {}, "total_size": {}, "stream": 0, "segment_type": "large",
              "blocks": []}})",
        segments.empty() ? "" : ",", address, mib * kMiB);
    event("segment_alloc", address, static_cast<std::uint64_t>(mib));
  }
  event("alloc", kFirst, 100, frames("Linear.__init__", "nn/modules/linear.py"));
  event("alloc", kFirst + 100 * kMiB, 200, frames("_init_group", "optim/adamw.py"));
  event("alloc", kSecond, 300, frames("Module._call_impl", "nn/modules/module.py"));
  event("alloc", kSecond + 400 * kMiB, 300, frames("Module._call_impl", "nn/modules/module.py"));
  event("alloc", kFirst + 300 * kMiB, 100, frames("_engine_run_backward", "autograd/graph.py"));
  event("oom", 0, 250, frames("Module._call_impl", "nn/modules/module.py"));
  for (const std::uint64_t each :
       {kFirst, kFirst + 100 * kMiB, kSecond, kSecond + 400 * kMiB, kFirst + 300 * kMiB}) {
    const std::uint64_t mib = each == kFirst + 100 * kMiB ? 200 : each >= kSecond ? 300 : 100;
    event("free_completed", each, mib);
  }
  return loaded_text("pytorch.snapshot.json",
                     R"({"segments": [)" + segments + R"(], "device_traces": [[)" + events + "]]}");
}

// A history that begins after its peak: of 300 MiB from before 100 stay, and little is allocated.
Loaded before() {
  return loaded_text("before.snapshot.json", R"json({"segments": [
    {"device": 0, "address": 1073741824, "total_size": 419430400, "stream": 0,
     "segment_type": "large", "blocks": [{"size": 104857600, "state": "active_allocated"},
                                         {"size": 314572800, "state": "inactive"}]}],
   "device_traces": [[
    {"action": "free_completed", "addr": 1178599424, "size": 209715200, "time_us": 1000},
    {"action": "alloc", "addr": 1178599424, "size": 20971520, "stream": 0, "time_us": 2000, "frames":
      [{"name": "Module._call_impl", "filename": "/v/site-packages/torch/module.py", "line": 5},
       {"name": "train_step", "filename": "/x/nets/train.py", "line": 20}]},
    {"action": "free_completed", "addr": 1178599424, "size": 20971520, "time_us": 3000}]]})json");
}

// Most was allocated by a backward pass, whose stack has no line of the program's.
Loaded backward() {
  return loaded_text("backward.snapshot.json", R"json({"segments": [
    {"device": 0, "address": 1073741824, "total_size": 838860800, "stream": 0, "segment_type": "large",
     "blocks": [{"size": 629145600, "state": "active_allocated"},
                {"size": 209715200, "state": "active_allocated"}]}],
   "device_traces": [[
    {"action": "segment_alloc", "addr": 1073741824, "size": 838860800, "stream": 0, "time_us": 1000},
    {"action": "alloc", "addr": 1073741824, "size": 629145600, "stream": 0, "time_us": 2000, "frames":
      [{"name": "torch::autograd::generated::MulBackward0::apply()", "filename": "??", "line": 0},
       {"name": "torch::autograd::Engine::thread_main()", "filename": "??", "line": 0}]},
    {"action": "alloc", "addr": 1702887424, "size": 209715200, "stream": 0, "time_us": 3000, "frames":
      [{"name": "forward", "filename": "/x/nets/model.py", "line": 7}]}]]})json");
}

// A file without a history, of two devices.
Loaded unrecorded() {
  return loaded_text("unrecorded.snapshot.json", R"json({"segments": [
    {"device": 0, "address": 1073741824, "total_size": 838860800, "stream": 0, "segment_type": "large",
     "blocks": [{"size": 629145600, "state": "active_allocated"},
                {"size": 2097152, "state": "active_allocated", "frames":
                  [{"name": "forward", "filename": "/x/nets/model.py", "line": 7}]},
                {"size": 207618048, "state": "inactive"}]}],
   "device_traces": [[], []]})json");
}

// A program with captures.
Loaded pooled() { return loaded("bench/traces/graph_two_stream.trace.gz"); }

int write(const std::string& name, const std::vector<Loaded>& recordings) {
  std::vector<const Loaded*> pointers;
  pointers.reserve(recordings.size());
  for (const Loaded& recording : recordings) pointers.push_back(&recording);
  const std::clock_t begin = std::clock();  // of this process: others want the processor, too
  const std::string path = folder + "/" + name + ".html";
  const Status written = write_html(path, pointers);
  const double took = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  if (!written.ok()) {
    fmt::print(stderr, "{}\n", written.error().message());
    return written.error().code() == ErrorCode::unavailable ? 77 : 1;
  }
  // What the page's figures are compared with: the same, counted by `weir report`.
  if (!recordings.empty()) {
    std::ofstream(folder + "/" + name + ".json")
        << report_json(report_of(recordings.front(), {.top = 1000}));
  }
  fmt::print("{}: {:.2f} s, {:.2f} MiB\n", path, took,
             static_cast<double>(std::filesystem::file_size(path)) / (1 << 20));
#ifdef NDEBUG
  if (took > 3) return fmt::print(stderr, "{} took more than 3 s\n", path), 1;
#endif
  return 0;
}

}  // namespace
}  // namespace weir

int main(int argc, char** argv) {
  using weir::loaded;
  if (argc != 2) return std::fputs("usage: make_pages FOLDER\n", stderr), 2;
  weir::folder = argv[1];
  std::filesystem::create_directories(weir::folder);
  const std::vector<std::pair<std::string, std::function<std::vector<weir::Loaded>()>>> pages = {
      {"small", [] { return std::vector{weir::small()}; }},
      {"training", [] { return std::vector{weir::Training().recording()}; }},
      {"hostile", [] { return std::vector{weir::hostile()}; }},
      {"cut", [] { return std::vector{weir::cut()}; }},
      {"context", [] { return std::vector{weir::context()}; }},
      {"moment", [] { return std::vector{weir::moment()}; }},
      {"driver", [] { return std::vector{weir::driver()}; }},
      {"layers", [] { return std::vector{weir::layers()}; }},
      {"failed", [] { return std::vector{weir::failed()}; }},
      {"pytorch", [] { return std::vector{weir::pytorch()}; }},
      {"backward", [] { return std::vector{weir::backward()}; }},
      {"unrecorded", [] { return std::vector{weir::unrecorded()}; }},
      {"before", [] { return std::vector{weir::before()}; }},
      {"drop", [] { return std::vector<weir::Loaded>{}; }},
      {"empty", [] { return std::vector<weir::Loaded>(1); }},
      {"two",
       [] {
         return std::vector{weir::small(), weir::cut()};
       }},
      {"same",
       [] {
         return std::vector{weir::small(), weir::small()};
       }},
      {"dense", [] { return std::vector{weir::dense()}; }},
      {"pools", [] { return std::vector{weir::pooled()}; }},
      {"serve",
       [] {
         return std::vector{loaded("bench/traces/serve_multistream.trace.gz"),
                            loaded("bench/traces/serve_multistream7.trace.gz")};
       }},
      {"generate", [] { return std::vector{loaded("bench/traces/generate.trace.gz")}; }},
  };
  for (const auto& [name, make] : pages) {
    if (const int failed = weir::write(name, make()); failed != 0) return failed;
  }
  return 0;
}
