// SPDX-License-Identifier: Apache-2.0
#include "comm/bounded.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <utility>

namespace weir {

struct BoundedCall::Shared {
  std::mutex mutex;
  std::condition_variable ended;
  std::optional<Status> status;
};

BoundedCall::BoundedCall(std::function<Status()> call) : shared_(std::make_shared<Shared>()) {
  std::thread([shared = shared_, call = std::move(call)]() mutable {
    Status status = call();
    call = nullptr;  // what it holds goes before anybody is told
    const std::lock_guard lock(shared->mutex);
    shared->status = std::move(status);
    shared->ended.notify_one();
  }).detach();
}

std::optional<Status> BoundedCall::wait(Nanoseconds host_timeout) {
  std::unique_lock lock(shared_->mutex);
  shared_->ended.wait_for(lock, waitable(host_timeout),
                          [&] { return shared_->status.has_value(); });
  return std::exchange(shared_->status, std::nullopt);
}

Ticker::Ticker(Nanoseconds period, std::function<bool()> look) {
  if (period <= Nanoseconds{}) return;
  thread_ = std::jthread([period, look = std::move(look)](const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any never;  // but for the stop
    std::unique_lock lock(mutex);
    do {
      never.wait_for(lock, stop, waitable(period), [] { return false; });
    } while (!stop.stop_requested() && look());
  });
}

void Ticker::stop() {
  thread_.request_stop();
  if (thread_.joinable()) thread_.join();
}

}  // namespace weir
