// SPDX-License-Identifier: Apache-2.0
// Frames that a recording knows only as an offset into a binary.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "look/symbols.h"
#include "tests/temporary_folder.h"

namespace weir {
namespace {

using test::TemporaryFolder;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

constexpr std::uint32_t kLine = __LINE__ + 1;
[[gnu::noinline]] int function_without_a_symbol(int value) { return value + 1; }

// As a recorder writes the function above when the dynamic symbol table does not have it.
RecordedFrame offset_of_the_function() {
  Dl_info info{};
  void* const place = reinterpret_cast<void*>(&function_without_a_symbol);
  EXPECT_NE(dladdr(place, &info), 0);
  const std::string binary = std::filesystem::read_symlink("/proc/self/exe");
  const auto offset =
      static_cast<std::uintptr_t>(static_cast<char*>(place) - static_cast<char*>(info.dli_fbase));
  return {fmt::format("{}+{:#x}", binary.substr(binary.rfind('/') + 1), offset), binary, 0};
}

bool has_a_tool() {
  return std::system("llvm-symbolizer --version > /dev/null 2>&1") == 0 ||
         std::system("addr2line --version > /dev/null 2>&1") == 0;
}

TEST(Symbols, AnOffsetGetsItsFunctionFileAndLine) {
  if (!has_a_tool()) GTEST_SKIP() << "neither llvm-symbolizer nor addr2line is installed";
  EXPECT_EQ(function_without_a_symbol(1), 2);
  Recording recording;
  recording.frames = {{"main", "", 0}, offset_of_the_function()};
  const std::vector<RecordedFrame> frames = readable_stacks(recording).frames;
  EXPECT_EQ(frames[0], recording.frames[0]);
  EXPECT_THAT(frames[1].function, HasSubstr("function_without_a_symbol"));
  EXPECT_THAT(frames[1].file, EndsWith("look_symbols_test.cc"));
  EXPECT_EQ(frames[1].line, kLine);
}

TEST(Symbols, MangledNamesBecomeReadable) {
  Recording recording;
  recording.frames = {{"_ZN4weir5thingEi", "a.cc", 3}, {"_Zwrong", "", 0}};
  EXPECT_THAT(
      readable_stacks(recording).frames,
      ElementsAre(RecordedFrame{"weir::thing(int)", "a.cc", 3}, RecordedFrame{"_Zwrong", "", 0}));
}

TEST(Symbols, ABinaryThatWasBuiltAfterTheRecordingIsNotAsked) {
  const TemporaryFolder folder;
  Recording recording;
  recording.source = folder.write("run.weir", "");
  recording.frames = {offset_of_the_function()};
  const auto built = std::filesystem::last_write_time(recording.frames[0].file);
  std::filesystem::last_write_time(recording.source, built - std::chrono::seconds{1});
  EXPECT_EQ(readable_stacks(recording).frames, recording.frames);
}

TEST(Symbols, WhatCannotBeResolvedStaysAsItIs) {
  const TemporaryFolder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::string text = folder.write("text", "no binary"), cut = folder.write("cut",
                                                                                 "\x7f"
                                                                                 "ELF");
  Recording recording;
  for (const std::string& file : {folder / "gone", pipe, text, cut, std::string("relative")}) {
    recording.frames.push_back({file.substr(file.rfind('/') + 1) + "+0x10", file, 0});
  }
  recording.frames.push_back({"text+0xnumber", text, 0});
  recording.frames.push_back({"text+0x", text, 0});
  recording.frames.push_back({"text+0x99999999999999999999", text, 0});
  EXPECT_EQ(readable_stacks(recording).frames, recording.frames);
}

TEST(Symbols, ARelativeNameIsFoundBesideTheRecording) {
  if (!has_a_tool()) GTEST_SKIP() << "neither llvm-symbolizer nor addr2line is installed";
  const TemporaryFolder folder;
  RecordedFrame frame = offset_of_the_function();
  std::filesystem::create_symlink(frame.file, folder / "program");
  frame = {"program" + frame.function.substr(frame.function.rfind('+')), "./program", 0};
  Recording recording;
  recording.source = folder.write("run.weir", "");
  recording.frames = {frame};
  EXPECT_EQ(readable_stacks(recording).frames[0].line, kLine);
}

TEST(Symbols, InnermostFunctionsOfWeirAreLeftOutAndStacksThatAreEqualThenAreOne) {
  Recording recording;
  recording.frames = {{"weir::DeviceHeap::allocate()", "", 0},
                      {"_ZN4weir9Allocator8allocateEv", "", 0},
                      {"program", "", 0},
                      {"main", "", 0}};
  recording.stacks = {{}, {0, 1, 2, 3}, {1, 2, 3}, {2, 0, 3}, {99, 3}};
  const ReadableStacks readable = readable_stacks(recording);
  EXPECT_THAT(readable.stacks,
              ElementsAre(ElementsAre(), ElementsAre(2, 3), ElementsAre(2, 0, 3), ElementsAre(3)));
  EXPECT_THAT(readable.number, ElementsAre(0, 1, 1, 2, 3));
}

TEST(Symbols, NoMoreTimeIsTakenThanIsGiven) {
  Recording recording;
  recording.frames = {offset_of_the_function()};
  EXPECT_EQ(readable_stacks(recording, Paths::full, std::chrono::milliseconds{0}).frames,
            recording.frames);
}

}  // namespace
}  // namespace weir
