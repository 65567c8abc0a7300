#include "comm/bounded.h"

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace weir {
namespace {

struct Call {
  std::mutex mutex;
  std::condition_variable ended;
  std::optional<Status> status;
};

}  // namespace

std::optional<Status> bounded(Nanoseconds patience, std::function<Status()> call) {
  const auto shared = std::make_shared<Call>();
  std::thread([shared, call = std::move(call)]() mutable {
    Status status = call();
    call = nullptr;  // what it holds goes before anybody is told
    const std::lock_guard lock(shared->mutex);
    shared->status = std::move(status);
    shared->ended.notify_one();
  }).detach();
  std::unique_lock lock(shared->mutex);
  shared->ended.wait_for(lock, waitable(patience), [&] { return shared->status.has_value(); });
  return std::move(shared->status);
}

}  // namespace weir
