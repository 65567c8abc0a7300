// SPDX-License-Identifier: Apache-2.0
#include "observe/own_thread.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <utility>

namespace weir {
namespace {

std::atomic<std::uint64_t> generation{0};

void count_fork() { generation.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

std::thread start_quiet_thread(std::function<void()> body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

std::uint64_t fork_generation() {
  static const int registered = pthread_atfork(nullptr, nullptr, count_fork);
  (void)registered;
  return generation.load(std::memory_order_relaxed);
}

}  // namespace weir
