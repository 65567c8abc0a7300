// Stacks of C++ and C code: taken as return addresses, named only when they are written.
#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "weir/recorder.h"

namespace weir {
namespace {

constexpr std::size_t kMostFrames = 64;
// Past this many different stacks, new ones are unknown.
constexpr std::size_t kMostStacks = std::size_t{1} << 20;

using Places = std::vector<void*>;

std::uint64_t hash_of(void* const* places, std::size_t count) {
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, a word at a time, then mixed
  for (std::size_t i = 0; i < count; ++i) {
    hash = (hash ^ reinterpret_cast<std::uintptr_t>(places[i])) * 0x100000001b3;
    hash ^= hash >> 29;
  }
  return hash == 0 ? 1 : hash;
}

std::string demangled(const char* name) {
  int status = 0;
  char* const readable = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string text = status == 0 ? readable : name;
  std::free(readable);
  return text;
}

RecordedFrame frame_of(void* place) {
  // A return address is after the call, perhaps in the next function.
  const void* const call = static_cast<const char*>(place) - 1;
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

// The way from the allocation to here, which is the same in all.
bool is_own(const RecordedFrame& frame) {
  constexpr std::array<std::string_view, 6> kOwn{"weir::(anonymous namespace)::CppStacks",
                                                 "weir::Observer::",
                                                 "weir::DeviceHeap::",
                                                 "weir::Allocator::",
                                                 "weir::Buffer::",
                                                 "weir_allocate"};
  return std::any_of(kOwn.begin(), kOwn.end(),
                     [&](std::string_view own) { return frame.function.starts_with(own); });
}

class CppStacks final : public StackSource {
 public:
  CppStacks() {
    void* place = nullptr;
    (void)backtrace(&place, 1);  // the first call loads a library, which must not happen later
  }

  std::uint32_t here() override {
    std::array<void*, kMostFrames> places;
    const int count = backtrace(places.data(), kMostFrames);
    if (count <= 1) return 0;
    return number_of(places.data() + 1, static_cast<std::size_t>(count) - 1);
  }

  std::vector<RecordedFrame> frames(std::uint32_t stack) override {
    Places places;
    {
      const std::lock_guard lock(mutex_);
      if (stack == 0 || stack > stacks_.size()) return {};
      places = stacks_[stack - 1];
    }
    std::vector<RecordedFrame> frames;
    for (void* const place : places) {
      RecordedFrame frame = frame_of(place);
      if (!frames.empty() || !is_own(frame)) frames.push_back(std::move(frame));
    }
    return frames;
  }

 private:
  struct Known {
    std::uint64_t hash = 0;
    std::uint32_t number = 0;
  };

  // A thread asks for few stacks, again and again: it remembers them without a lock.
  std::uint32_t number_of(void* const* places, std::size_t count) {
    thread_local constinit std::array<Known, 256> known_here{};
    const std::uint64_t hash = hash_of(places, count);
    Known& known = known_here[hash % known_here.size()];
    if (known.hash == hash) return known.number;
    const std::lock_guard lock(mutex_);
    const auto found = numbers_.find(hash);
    if (found != numbers_.end()) {
      known = {hash, found->second};
    } else if (stacks_.size() < kMostStacks) {
      stacks_.emplace_back(places, places + count);
      known = {hash, static_cast<std::uint32_t>(stacks_.size())};
      numbers_[hash] = known.number;
    } else {
      known = {hash, 0};
    }
    return known.number;
  }

  std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::uint32_t> numbers_;  // by hash; guarded by mutex_
  std::vector<Places> stacks_;                                // guarded by mutex_
};

}  // namespace

StackSource& cpp_stacks() {
  // Never destroyed: threads may allocate until the very end.
  static CppStacks& stacks = *new CppStacks;
  return stacks;
}

}  // namespace weir
