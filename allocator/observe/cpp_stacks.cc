// SPDX-License-Identifier: Apache-2.0
// Stacks of C++ and C code: taken as return addresses, named only when they are written.
#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "observe/own_frames.h"
#include "observe/own_thread.h"
#include "observe/stack_table.h"
#include "weir/recorder.h"

namespace weir {
namespace {

constexpr std::size_t kMostCppFrames = 64;

RecordedFrame frame_of(std::uintptr_t place) {
  // A return address is after the call, perhaps in the next function.
  const void* const call = reinterpret_cast<const char*>(place - 1);
  Dl_info info{};
  if (dladdr(call, &info) == 0 || info.dli_fname == nullptr) {
    return {fmt::format("{:#x}", reinterpret_cast<std::uintptr_t>(call)), "", 0};
  }
  RecordedFrame frame{"", info.dli_fname, 0};
  if (info.dli_sname != nullptr) {
    frame.function = demangled(info.dli_sname);
  } else {
    const std::string_view binary = std::string_view(frame.file);
    const auto offset = static_cast<std::uintptr_t>(static_cast<const char*>(call) -
                                                    static_cast<const char*>(info.dli_fbase));
    frame.function = fmt::format("{}+{:#x}", binary.substr(binary.rfind('/') + 1), offset);
  }
  return frame;
}

class CppStacks final : public StackSource {
 public:
  CppStacks() {
    void* place = nullptr;
    (void)backtrace(&place, 1);  // the first call loads a library, which must not happen later
  }

  std::uint32_t here() override {
    // In a child of fork() other threads' locks are held for ever, and nothing is recorded.
    if (generation_ != fork_generation()) return 0;
    std::array<void*, kMostCppFrames> places;
    const int count = backtrace(places.data(), kMostCppFrames);
    if (count <= 1) return 0;
    std::array<std::uintptr_t, kMostCppFrames> words;
    const auto size = static_cast<std::size_t>(count) - 1;
    for (std::size_t i = 0; i < size; ++i) {
      words[i] = reinterpret_cast<std::uintptr_t>(places[i + 1]);
    }
    thread_local constinit StackTable::Memory memory{};
    return stacks_.number_of(std::span(words).first(size), memory, [] {});
  }

  std::vector<RecordedFrame> frames(std::uint32_t stack) override {
    std::vector<RecordedFrame> frames;
    for (const std::uintptr_t place : stacks_.words_of(stack)) {
      RecordedFrame frame = frame_of(place);
      if (!frames.empty() || !is_own_function(frame.function)) frames.push_back(std::move(frame));
    }
    return frames;
  }

 private:
  const std::uint64_t generation_ = fork_generation();
  StackTable stacks_;
};

}  // namespace

StackSource& cpp_stacks() {
  // Never destroyed: threads may allocate until the very end.
  static CppStacks& stacks = *new CppStacks;
  return stacks;
}

}  // namespace weir
