// SPDX-License-Identifier: Apache-2.0
// Stacks of Python code: taken as code objects and places in them; each is named when it is first
// seen, since the recorder's thread can't ask Python (whoever waits for it may hold Python's lock).
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "observe/own_thread.h"
#include "observe/python_api.h"
#include "observe/stack_table.h"
#include "weir/recorder.h"

namespace weir {
namespace {

constexpr std::size_t kMostPythonFrames = 128;
constexpr std::chrono::seconds kLongestGoodbye{2};

class PythonStacks final : public StackSource {
 public:
  std::uint32_t here() override {
    // In a child of fork() other threads' locks are held for ever, and nothing is recorded.
    if (generation_ != fork_generation()) return 0;
    const PythonApi* const python = PythonApi::get();
    const std::uint32_t number = python == nullptr ? 0 : number_in(*python);
    // One kind has the even numbers, the other the odd ones.
    if (number != 0) return number * 2;
    const std::uint32_t cpp = cpp_stacks().here();
    return cpp == 0 ? 0 : cpp * 2 + 1;
  }

  std::vector<RecordedFrame> frames(std::uint32_t stack) override {
    if (stack % 2 == 1) return cpp_stacks().frames(stack / 2);
    const std::vector<std::uintptr_t> words = stacks_.words_of(stack / 2);
    std::vector<RecordedFrame> frames;
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i + 1 < words.size(); i += 2) {
      frames.push_back(names_.at({words[i], words[i + 1]}));
    }
    return frames;
  }

  void stop() {
    stopped_.store(true);
    if (generation_ != fork_generation()) return;
    const auto until = std::chrono::steady_clock::now() + kLongestGoodbye;
    while (waiting_.load() != 0 && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  struct Place {
    std::uintptr_t code, place;
    friend bool operator==(const Place&, const Place&) = default;
  };
  struct Hash {
    std::size_t operator()(const Place& place) const {
      return (place.code ^ place.place) * 0x9e3779b97f4a7c15;
    }
  };

  // PyTorch's functions let go of Python's lock before they allocate, so that it has to be taken:
  // only where the thread has met Python, and never once it ends.
  std::uint32_t number_in(const PythonApi& python) {
    if (!python.runs() || !python.knows_thread()) return 0;
    if (python.holds_lock()) return number_of_frames(python);
    std::uint32_t number = 0;
    ++waiting_;
    if (!stopped_.load()) {
      const int state = python.take_lock();
      number = number_of_frames(python);
      python.give_lock(state);
    }
    --waiting_;
    return number;
  }

  // 0: the thread runs no Python function. With Python's lock held, and no other while Python is
  // asked anything.
  std::uint32_t number_of_frames(const PythonApi& python) {
    thread_local constinit StackTable::Memory memory{};
    std::array<std::uintptr_t, 2 * kMostPythonFrames> words;
    std::size_t size = 0;
    python.for_each_frame([&](void*, void* code, int place) {
      words[size++] = reinterpret_cast<std::uintptr_t>(code);
      words[size++] = static_cast<std::uintptr_t>(place);
      return size < words.size();
    });
    if (size == 0) return 0;
    return stacks_.number_of(std::span(words).first(size), memory, [&] { name_frames(python); });
  }

  void name_frames(const PythonApi& python) {
    std::size_t count = 0;
    python.for_each_frame([&](void* frame, void* code, int place) {
      const Place key{reinterpret_cast<std::uintptr_t>(code), static_cast<std::uintptr_t>(place)};
      if (!is_named(key)) {
        const int line = python.line_of(frame);
        RecordedFrame named{python.function_of(code), python.file_of(code),
                            line < 0 ? 0u : static_cast<std::uint32_t>(line)};
        // Kept for ever: else its address might become another function's.
        python.keep(code);
        const std::lock_guard lock(mutex_);
        names_.try_emplace(key, std::move(named));
      }
      return ++count < kMostPythonFrames;
    });
  }

  bool is_named(const Place& place) const {
    const std::lock_guard lock(mutex_);
    return names_.contains(place);
  }

  const std::uint64_t generation_ = fork_generation();
  std::atomic<bool> stopped_{false};
  std::atomic<int> waiting_{0};  // threads that may be waiting for Python's lock
  StackTable stacks_;
  mutable std::mutex mutex_;
  std::unordered_map<Place, RecordedFrame, Hash> names_;  // guarded by mutex_
};

PythonStacks& the_stacks() {
  // Never destroyed: threads may allocate until the very end.
  static PythonStacks& stacks = *new PythonStacks;
  return stacks;
}

}  // namespace

StackSource& python_stacks() { return the_stacks(); }

void python_ends() { the_stacks().stop(); }

}  // namespace weir
