// SPDX-License-Identifier: Apache-2.0
#include "core/base/mutex.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace weir {
namespace {

// Looks at the lock are this many pauses apart at first, and four times as many each time, up to:
constexpr int kFirstPauses = 2;
constexpr int kMostPauses = 512;
// How often the processor is offered to others before sleeping.
constexpr int kYields = 16;
constexpr std::chrono::microseconds kFirstSleep{20};
constexpr std::chrono::microseconds kLongestSleep{200};

}  // namespace

void Mutex::wait_and_lock() WEIR_NO_THREAD_ANALYSIS {
  for (int pauses = kFirstPauses; pauses <= kMostPauses; pauses *= 4) {
    for (int i = 0; i < pauses; ++i) pause_processor();
    if (looks_free() && try_lock()) return;
  }
  for (int i = 0; i < kYields; ++i) {
    std::this_thread::yield();
    if (looks_free() && try_lock()) return;
  }
  auto sleep = kFirstSleep;
  do {
    std::this_thread::sleep_for(sleep);
    sleep = std::min(sleep * 2, kLongestSleep);
  } while (!looks_free() || !try_lock());
}

}  // namespace weir
