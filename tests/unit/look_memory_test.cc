// SPDX-License-Identifier: Apache-2.0
// How much memory looking at a trace takes: so much for each line that 15 million of them take less
// than 1 GiB. Counted by operator new, whatever runs beside the test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "look/export.h"
#include "look/load.h"
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

TEST_F(LookMemory, OfConvertingIsLittle) {
  expect_little([this] { ASSERT_TRUE(convert_to_trace(program_, folder_ / "out").ok()); });
}

TEST_F(LookMemory, OfCsvIsLittle) { expect_little_timeline(LookFormat::csv, "out"); }
TEST_F(LookMemory, OfMemoryVizIsLittle) {
  expect_little_timeline(LookFormat::memory_viz, "out.pickle");
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
#endif

}  // namespace
}  // namespace weir
