// SPDX-License-Identifier: Apache-2.0
// Mutex and QueuedMutex: one thread at a time, whatever the holder does meanwhile; what the second
// promises beside; and CachingHeaps, the list that needs no lock.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/queued_mutex.h"
#include "core/heap/caching_heaps.h"

namespace weir {
namespace {

using namespace std::chrono_literals;

template <class Lockable>
class Mutexes : public testing::Test {};
using Kinds = testing::Types<Mutex, QueuedMutex>;
TYPED_TEST_SUITE(Mutexes, Kinds);

// From a thread of its own.
template <class Lockable>
bool could_be_taken(Lockable& mutex) {
  bool taken = false;
  std::thread([&] {
    if (!mutex.try_lock()) return;
    taken = true;
    mutex.unlock();
  }).join();
  return taken;
}

TYPED_TEST(Mutexes, TryLockAndLockExcludeEachOther) {
  constexpr std::uint64_t kRounds = 20'000;
  TypeParam mutex;
  std::uint64_t count = 0, tried = 0;  // guarded by mutex
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, tries = i % 2 == 0] {
      for (std::uint64_t round = 0; round < kRounds;) {
        if (!tries) {
          mutex.lock();
        } else if (!mutex.try_lock()) {
          std::this_thread::yield();
          continue;
        } else {
          ++tried;
        }
        ++count;
        mutex.unlock();
        ++round;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 4 * kRounds);
  EXPECT_EQ(tried, 2 * kRounds);
}

std::chrono::nanoseconds processor_time_of_this_thread() {
  timespec now{};
  EXPECT_EQ(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now), 0);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

TYPED_TEST(Mutexes, WhoWaitsForAHolderThatSleepsSleepsToo) {
  constexpr auto kHeld = 600ms;
  TypeParam mutex;
  bool done = false;  // guarded by mutex
  std::array<std::chrono::nanoseconds, 3> used{};
  std::vector<std::thread> threads;
  mutex.lock();
  std::atomic<int> waiting{0};
  for (std::chrono::nanoseconds& mine : used) {
    threads.emplace_back([&] {
      ++waiting;
      const ScopedLock<TypeParam> lock(mutex);
      EXPECT_TRUE(done);
      mine = processor_time_of_this_thread();
    });
  }
  while (waiting.load() < 3) std::this_thread::yield();
  std::this_thread::sleep_for(kHeld);
  done = true;
  mutex.unlock();
  for (std::thread& thread : threads) thread.join();
  for (const std::chrono::nanoseconds mine : used) EXPECT_LT(mine, kHeld / 2);
}

// One thread takes it again and again, and holds it for most of its time; another one now and then.
TEST(QueuedMutex, WhoComesNowAndThenWaitsNoLongerThanAFewTurns) {
  constexpr auto kHeld = 100us;
  constexpr int kRounds = 60;
  using Clock = std::chrono::steady_clock;
  QueuedMutex mutex;
  std::atomic<bool> done{false};
  std::atomic<std::uint64_t> turns{0};
  std::thread busy([&] {
    while (!done.load()) {
      const QueuedLock lock(mutex);
      turns.fetch_add(1);
      for (const auto end = Clock::now() + kHeld; Clock::now() < end;) {
      }
    }
  });
  while (turns.load() == 0) std::this_thread::yield();
  std::vector<std::uint64_t> waited;  // turns of the other thread's
  for (int round = 0; round < kRounds; ++round) {
    std::this_thread::sleep_for(1ms);
    const std::uint64_t before = turns.load();
    const QueuedLock lock(mutex);
    waited.push_back(turns.load() - before);
  }
  done = true;
  busy.join();
  // Those that are under way when it is promised, and a few more if this thread is descheduled.
  std::sort(waited.begin(), waited.end());
  EXPECT_LE(waited[kRounds * 9 / 10], 5u);
}

// Is the thread of this process asleep, in a call of the system's?
bool sleeps(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text;
  std::getline(file, text);
  const std::size_t name_ends = text.rfind(')');
  return name_ends != std::string::npos && text.compare(name_ends + 2, 1, "S") == 0;
}

// Each waits in the queue, asleep or awake, and has its turn: also where the first one sleeps.
TEST(QueuedMutex, ThreadsThatSleepInTheQueueHaveTheirTurnInOrder) {
  constexpr int kThreads = 8;
  QueuedMutex mutex;
  std::vector<int> order;  // guarded by mutex
  std::vector<std::thread> threads;
  mutex.lock();
  for (int i = 0; i < kThreads; ++i) {
    std::atomic<pid_t> number = 0;
    threads.emplace_back([&, i] {
      number = static_cast<pid_t>(::syscall(SYS_gettid));
      const QueuedLock lock(mutex);
      order.push_back(i);
    });
    while (number == 0 || !sleeps(number)) std::this_thread::sleep_for(1ms);  // it is in the queue
  }
  mutex.unlock();
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(order.size(), std::size_t{kThreads});
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

// A promise is for one turn: afterwards the lock is anybody's again.
TEST(QueuedMutex, IsFreeForAllOnceNobodyWaits) {
  QueuedMutex mutex;
  for (const auto held : {0ms, 20ms}) {
    mutex.lock();
    std::thread waiter([&] { const QueuedLock lock(mutex); });
    std::this_thread::sleep_for(held);
    mutex.unlock();
    waiter.join();
    EXPECT_TRUE(could_be_taken(mutex)) << held.count() << " ms";
  }
}

struct Heap {
  CachingHeaps<Heap>::Link link;
  std::atomic<int> taken{0};
};

TEST(CachingHeaps, EveryHeapThatThreadsPushIsTakenExactlyOnce) {
  constexpr std::size_t kThreads = 3, kHeaps = 20'000;
  CachingHeaps<Heap> caching_heaps;
  std::vector<std::vector<Heap>> heaps;
  for (std::size_t i = 0; i < kThreads; ++i) heaps.emplace_back(kHeaps);
  std::atomic<std::size_t> pushing{kThreads};
  const auto take_all = [&] {
    std::size_t taken = 0;
    for (Heap* heap = caching_heaps.take(); heap != nullptr; heap = heap->link.next, ++taken) {
      heap->taken.fetch_add(1, std::memory_order_relaxed);
    }
    return taken;
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (Heap& heap : heaps[i]) caching_heaps.push(heap, heap.link);
      --pushing;
    });
  }
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (pushing.load() > 0) (void)take_all();
    });
  }
  for (std::thread& thread : threads) thread.join();
  (void)take_all();
  for (const std::vector<Heap>& mine : heaps) {
    for (const Heap& heap : mine) ASSERT_EQ(heap.taken.load(), 1);
  }
}

}  // namespace
}  // namespace weir
