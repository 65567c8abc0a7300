// SPDX-License-Identifier: Apache-2.0
#include "api/live_recordings.h"

#include <semaphore.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "api/recordings.h"
#include "observe/own_thread.h"

namespace weir::live_recordings {
namespace {

// One of the two signals. Never destroyed, as its handler may be called at any time once it is
// installed: the program may have put its own before it.
struct Signal {
  int number = 0;
  RecordSignal setting = RecordSignal::none;
  sem_t came{};
  struct sigaction previous {};
  bool installed = false;
  bool watched = false;  // a thread waits for `came`
};

struct Live {
  Live() {
    for (Signal& signal : signals) sem_init(&signal.came, 0, 0);
  }

  const std::uint64_t generation = fork_generation();
  std::mutex mutex;
  std::vector<Recordings*> all;  // guarded by mutex
  std::array<Signal, 2> signals{{{SIGUSR1, RecordSignal::usr1, {}, {}, false, false},
                                 {SIGUSR2, RecordSignal::usr2, {}, {}, false, false}}};
};

Live& live() {
  static std::atomic<Live*> current{new Live};
  Live* known = current.load();
  if (known->generation == fork_generation()) return *known;
  // A child of fork() records nothing of its parent's, whose lock may be held for ever.
  auto* const fresh = new Live;
  if (current.compare_exchange_strong(known, fresh)) return *fresh;
  delete fresh;
  return *known;
}

// For the handler, which must not initialise anything.
std::array<Signal, 2>* handled = nullptr;

void handle(int number, siginfo_t* info, void* context) {
  const int error = errno;
  for (Signal& signal : *handled) {
    if (signal.number != number) continue;
    (void)sem_post(&signal.came);
    const struct sigaction& previous = signal.previous;
    if ((previous.sa_flags & SA_SIGINFO) != 0) {
      if (previous.sa_sigaction != nullptr) previous.sa_sigaction(number, info, context);
    } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
      previous.sa_handler(number);
    }
  }
  errno = error;
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == handle;
}

void install(Signal& signal) {
  if (signal.installed) return;
  struct sigaction before {};
  sigaction(signal.number, nullptr, &before);
  // The program's own handler may have ours before it already, from an earlier time.
  if (!is_ours(before)) signal.previous = before;
  struct sigaction ours {};
  ours.sa_sigaction = handle;
  ours.sa_flags = SA_SIGINFO | SA_RESTART;
  sigemptyset(&ours.sa_mask);
  sigaction(signal.number, &ours, nullptr);
  signal.installed = true;
}

// Where the program has put its own handler before ours meanwhile, that stays.
void uninstall(Signal& signal) {
  if (!std::exchange(signal.installed, false)) return;
  struct sigaction now {};
  sigaction(signal.number, nullptr, &now);
  if (is_ours(now)) sigaction(signal.number, &signal.previous, nullptr);
}

// Its thread is there for good: it costs nothing while no signal comes.
void watch(Signal& signal) {
  if (std::exchange(signal.watched, true)) return;
  start_quiet_thread([&signal] {
    while (true) {
      while (sem_wait(&signal.came) != 0) {
      }
      const std::scoped_lock lock(live().mutex);
      for (Recordings* const each : live().all) {
        if (each->signal() == signal.setting) each->on_signal();
      }
    }
  }).detach();
}

void finish_all() {
  const std::scoped_lock lock(live().mutex);
  for (Recordings* const each : live().all) each->finish();
}

}  // namespace

void add(Recordings& recordings) {
  Live& live = live_recordings::live();
  const std::scoped_lock lock(live.mutex);
  static const int registered = std::atexit(finish_all);
  (void)registered;
  live.all.push_back(&recordings);
  handled = &live.signals;
  for (Signal& signal : live.signals) {
    if (signal.setting != recordings.signal()) continue;
    watch(signal);
    install(signal);
  }
}

void remove(Recordings& recordings) {
  Live& live = live_recordings::live();
  const std::scoped_lock lock(live.mutex);
  std::erase(live.all, &recordings);
  for (Signal& signal : live.signals) {
    const bool wanted = std::any_of(live.all.begin(), live.all.end(), [&](const Recordings* each) {
      return each->signal() == signal.setting;
    });
    if (!wanted) uninstall(signal);
  }
}

}  // namespace weir::live_recordings
