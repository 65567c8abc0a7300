// SPDX-License-Identifier: Apache-2.0
// How much memory looking at a trace takes: so much for each line that 15 million of them take less
// than 1 GiB. Counted by operator new, whatever runs beside the test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <new>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "look/export.h"
#include "look/load.h"
#include "look/plain_writer.h"
#include "look/report.h"
#include "replay/replay.h"
#include "replay/trace_reader.h"
#include "tests/temporary_folder.h"
#ifdef WEIR_TEST_PAGE
#include "look/html.h"
#endif

namespace {

std::size_t allocated = 0, most_allocated = 0;  // by this process's one thread

void* counted(void* block) {
  if (block == nullptr) throw std::bad_alloc();
  allocated += malloc_usable_size(block);
  most_allocated = std::max(most_allocated, allocated);
  return block;
}

}  // namespace

void* operator new(std::size_t size) { return counted(std::malloc(size)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  const auto at = static_cast<std::size_t>(alignment);
  return counted(std::aligned_alloc(at, (size + at - 1) / at * at));
}
void operator delete(void* block) noexcept {
  allocated -= malloc_usable_size(block);
  std::free(block);
}
void operator delete(void* block, std::size_t) noexcept { operator delete(block); }
void operator delete(void* block, std::align_val_t) noexcept { operator delete(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept {
  operator delete(block);
}

namespace weir {
namespace {

// So many that what grows in powers of two is nearly full.
constexpr std::uint32_t kFew = 15'000, kMany = 60'000;
constexpr double kMostPerLine = double{1 << 30} / 15e6;

// Blocks of 24 sizes on four streams, 300 of them at once, some with a fence: what a heap has for
// them is there early. Returns the lines.
std::size_t write_program(const std::string& path, std::uint32_t blocks) {
  std::ofstream file(path);
  std::mt19937 random(2);  // NOLINT: the same program each time
  struct Block {
    std::uint32_t id, bytes, stream;
  };
  std::vector<Block> live;
  std::size_t lines = 0;
  for (std::uint32_t i = 0; i < blocks; ++i) {
    if (live.size() == 300) {
      std::swap(live[random() % live.size()], live.back());
      const auto [id, bytes, stream] = live.back();
      live.pop_back();
      if (random() % 10 == 0) ++lines, file << "u " << id << " 4 " << i << '\n';
      file << "r " << id << ' ' << bytes << ' ' << stream << ' ' << i << '\n';
      file << "f " << id << ' ' << bytes << ' ' << stream << ' ' << i << '\n';
      lines += 2;
    }
    const std::uint32_t bytes = (300U + random() % 2 * 150) << (random() % 12);
    live.push_back({i, bytes, static_cast<std::uint32_t>(random() % 4)});
    file << "a " << i << ' ' << bytes << ' ' << live.back().stream << ' ' << i << '\n';
    ++lines;
  }
  return lines;
}

// A snapshot in PyTorch's shape: blocks that come and go, each with a list of its own of 40 frames
// that others have too. Returns the bytes of the file.
std::size_t write_snapshot(const std::string& path, std::uint32_t blocks) {
  std::string text;
  PickleWriter writer(text);
  const auto numbers = [&](std::initializer_list<std::pair<const char*, std::int64_t>> of) {
    for (const auto& [name, value] : of) writer.key(name), writer.integer(value);
  };
  const auto event = [&](const char* action, std::uint32_t block, std::uint32_t frames) {
    const std::int64_t address = std::int64_t{0x7f0000000000} + block % 300 * 4096;
    writer.begin_dict();
    writer.key("action"), writer.string(action);
    numbers(
        {{"addr", address}, {"size", 4096}, {"stream", 0}, {"time_us", 1700000000000000 + block}});
    writer.key("frames"), writer.begin_list();
    for (std::uint32_t i = 0; i < frames; ++i) {
      const std::uint32_t frame = (block * 7 + i * 13) % 500;
      writer.shared(frame, [&] {
        writer.begin_dict();
        writer.key("name"), writer.string("forward_" + std::to_string(frame));
        writer.key("filename"), writer.string("model.py");
        numbers({{"line", frame}});
        writer.end_dict();
      });
    }
    writer.end_list();
    writer.end_dict();
  };
  writer.begin_dict();
  writer.key("segments"), writer.begin_list(), writer.end_list();
  writer.key("device_traces"), writer.begin_list(), writer.begin_list();
  for (std::uint32_t block = 0; block < blocks; ++block) {
    event("alloc", block, 40);
    if (block < 200) continue;
    event("free_requested", block - 200, 0);
    event("free_completed", block - 200, 0);
  }
  writer.end_list(), writer.end_list();
  writer.end_dict();
  writer.finish();
  std::ofstream(path, std::ios::binary) << text;
  return text.size();
}

class LookMemory : public testing::Test {
 protected:
  template <class Use>
  void expect_little(const Use& use) {
    const auto [few_lines, few_bytes] = measured(kFew, use);
    const auto [many_lines, many_bytes] = measured(kMany, use);
    const double each = (many_bytes - few_bytes) / (many_lines - few_lines);
    EXPECT_LT(each, kMostPerLine) << "bytes for each further line";
    RecordProperty("bytes_per_line", std::to_string(each));
  }
  void expect_little_timeline(LookFormat format, const std::string& name) {
    expect_little([&] {
      const Result<Loaded> recording = load(program_);
      ASSERT_TRUE(recording.ok());
      ASSERT_TRUE(export_timeline(*recording, format, folder_ / name).ok());
    });
  }

  const test::TemporaryFolder folder_;
  const std::string program_ = folder_ / "program.trace";

 private:
  struct Measured {
    double lines, bytes;
  };
  template <class Use>
  Measured measured(std::uint32_t blocks, const Use& use) {
    const std::size_t lines = write_program(program_, blocks);
    const std::size_t before = most_allocated = allocated;
    use();
    return {static_cast<double>(lines), static_cast<double>(most_allocated - before)};
  }
};

TEST_F(LookMemory, OfAReplayIsLittle) {
  expect_little([this] {
    const Result<Trace> trace = read_trace(program_);
    ASSERT_TRUE(trace.ok());
    const auto device = make_sim_replay_device();
    ASSERT_TRUE(replay(*trace, *device, {}).ok());
  });
}

TEST_F(LookMemory, OfAReportIsLittle) {
  expect_little([this] {
    const Result<Loaded> recording = load(program_);
    ASSERT_TRUE(recording.ok());
    (void)report_text(report_of(*recording));
  });
}

// Streams that never hear of each other.
TEST_F(LookMemory, OfAReportGrowsNoFasterThanTheStreams) {
  const auto measured = [this](int streams) {
    std::ofstream trace(program_);
    for (int i = 0; i < streams; ++i) {
      trace << "a " << i << " 4096 " << i << " 0\nr " << i << " 4096 " << i << " 0\n";
    }
    trace.close();
    const std::size_t before = most_allocated = allocated;
    const Result<Loaded> recording = load(program_);
    EXPECT_TRUE(recording.ok());
    if (recording.ok()) (void)report_text(report_of(*recording));
    return static_cast<double>(most_allocated - before);
  };
  EXPECT_LT(measured(8000), 5 * measured(2000)) << "four times as many streams";
}

TEST_F(LookMemory, OfConvertingIsLittle) {
  expect_little([this] { ASSERT_TRUE(convert_to_trace(program_, folder_ / "out").ok()); });
}

TEST_F(LookMemory, OfCsvIsLittle) { expect_little_timeline(LookFormat::csv, "out"); }
TEST_F(LookMemory, OfPerfettoIsLittle) { expect_little_timeline(LookFormat::perfetto, "out"); }
TEST_F(LookMemory, OfMemoryVizIsLittle) {
  expect_little_timeline(LookFormat::memory_viz, "out.pickle");
}

TEST_F(LookMemory, OfASnapshotIsLittle) {
  const auto measured = [this](std::uint32_t blocks) {
    const std::size_t file = write_snapshot(program_, blocks);
    const std::size_t before = most_allocated = allocated;
    EXPECT_TRUE(load(program_).ok());
    return std::pair(static_cast<double>(file), static_cast<double>(most_allocated - before));
  };
  const auto [few_file, few_bytes] = measured(kFew);
  const auto [many_file, many_bytes] = measured(4 * kMany);
  const double each = (many_bytes - few_bytes) / (many_file - few_file);
  EXPECT_LT(each, 2.5) << "bytes for each further byte of the file, some of them never written";
  RecordProperty("bytes_per_byte", std::to_string(each));
}

#ifdef WEIR_TEST_PAGE
TEST_F(LookMemory, OfAPageIsLittle) {
  expect_little([this] {
    const Result<Loaded> recording = load(program_);
    ASSERT_TRUE(recording.ok());
    const Loaded* const shown[] = {&*recording};
    ASSERT_TRUE(write_html(folder_ / "out", shown).ok());
  });
}

TEST_F(LookMemory, OfAPageOfManyStacksIsLittle) {  // that differ in PyTorch's own calls
  constexpr std::uint32_t kStacks = 20000, kCalls = 40, kFunctions = 500;
  std::mt19937 random(1);
  Loaded program;
  for (std::uint32_t i = 0; i < kFunctions; ++i)
    program.frames.push_back({.function = "at::f" + std::to_string(i)});
  program.frames.push_back({.function = "train", .file = "/x/train.py", .line = 7});
  program.stacks = {{}};
  for (std::uint32_t i = 0; i < kStacks; ++i) {
    program.stacks.emplace_back();
    for (std::uint32_t j = 0; j < kCalls; ++j)
      program.stacks.back().push_back(static_cast<std::uint32_t>(random() % kFunctions));
    program.stacks.back().push_back(kFunctions);
    program.events.push_back({.kind = EventKind::allocate,
                              .address = {std::uint64_t{i} * 512},
                              .bytes = 512_B,
                              .requested = 512_B,
                              .stack = i + 1});
  }
  const std::size_t before = most_allocated = allocated;
  const Loaded* const shown[] = {&program};
  ASSERT_TRUE(write_html(folder_ / "out", shown).ok());
  const double each = static_cast<double>(most_allocated - before) / (kStacks * kCalls);
  EXPECT_LT(each, 20) << "bytes for each call of a stack";
  RecordProperty("bytes_per_call", std::to_string(each));
}
#endif

}  // namespace
}  // namespace weir
