// SPDX-License-Identifier: Apache-2.0
// A communicator's life: the watchdog, the end. What it runs is in run.cc, what connects it in
// prepare.cc.
#include "comm/comm_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <thread>
#include <utility>

#include "comm/bounded.h"
#include "weir/log.h"

namespace weir {
namespace {

constexpr std::chrono::seconds kLongestCall{1};  // that waits for nobody

}  // namespace

CommState::CommState(std::shared_ptr<void> owner_of_context, CommContext of, CommHandle its,
                     int size, int number, CommunicatorOptions with)
    : owner(std::move(owner_of_context)),
      context(of),
      handle(its),
      ranks(size),
      rank(number),
      options(std::move(with)),
      captures_(of.nccl, of.device, of.heap),
      watchdog_(of.device, options.timeout, size) {
  if (options.watch_every <= Nanoseconds{}) return;
  ticker_ = std::jthread([this](const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any never;  // but for the stop
    std::unique_lock lock(mutex);
    do {
      never.wait_for(lock, stop, waitable(options.watch_every), [] { return false; });
    } while (!stop.stop_requested() && poll());
  });
}

std::shared_ptr<CommState> open_comm_state(std::shared_ptr<CommState> state) {
  CommState& its = *state;
  // The deleter lives as long as `open_` does, which is the state's: it must not keep the state.
  std::shared_ptr<CommState> open(&its, [state = std::move(state)](CommState*) mutable {
    const std::shared_ptr<CommState> last = std::move(state);
    if (const Status closed = last->close(); !closed) {
      log(LogLevel::error, closed.error().message());
    }
  });
  its.open_ = open;
  return open;
}

Status host_wait(EventCalls& device, Stream stream) {
  Result<EventHandle> event = device.create_event();
  if (!event) return std::move(event).error();
  Status ended = device.record(*event, stream);
  if (ended) ended = device.synchronize(*event);
  (void)device.destroy_event(*event);
  return ended;
}

Error CommState::error(ErrorCode code, const std::string& what) const {
  return {code,
          fmt::format("communicator '{}', rank {} of {}: {}", options.name, rank, ranks, what)};
}

Status CommState::status() const {
  if (!ended_.load(std::memory_order_acquire)) return {};
  const std::lock_guard lock(state_mutex_);
  if (failure_) return *failure_;
  if (closed_) return error(ErrorCode::invalid_argument, "it was closed");
  return {};
}

Status CommState::poll() {
  if (Status already = status(); !already) return already;
  Status found = context.nccl.async_error(handle);
  if (found) found = watchdog_.poll();
  if (!found) fail(found.error());
  return status();
}

// The first failure is the one that is told. A call of NCCL's that takes longer than kLongestCall
// waits for other ranks, and nothing but the revoke ends it.
void CommState::fail(const Error& why) {
  if (!status()) return;
  std::unique_lock nccl_call(nccl_calls_, std::defer_lock);
  // (By the system's clock: ThreadSanitizer does not see locks that are taken by the steady one.)
  const auto until = std::chrono::system_clock::now() + kLongestCall;
  (void)nccl_call.try_lock_until(until);
  std::unique_lock control_call(control_calls_, std::defer_lock);
  (void)control_call.try_lock_until(until);
  {
    const std::lock_guard lock(state_mutex_);
    if (failure_ || closed_) return;
    failure_ = error(why);
    ended_.store(true, std::memory_order_release);
  }
  log(LogLevel::error, status().error().message());
  (void)context.nccl.revoke(handle);  // kernels that wait for other ranks end: streams go on
  if (!prepared || !control_call.owns_lock()) end_agreement();
}

void CommState::end_agreement() {
  prepared = false;
  if (const CommHandle control = control_; control.value != 0) (void)context.nccl.revoke(control);
}

// Who does not watch it can't tell that it hangs. (To launch it again would run it twice.)
Status CommState::launched(Stream stream) {
  if (const Status watched = watchdog_.queued({}, stream); !watched) fail(watched.error());
  return status();
}

std::optional<Status> CommState::in_time(Nanoseconds host_timeout, std::function<Status()> call) {
  BoundedCall made([state = shared_from_this(), call = std::move(call)] { return call(); });
  std::optional<Status> ended = made.wait(host_timeout);
  if (ended) return ended;
  const std::lock_guard lock(state_mutex_);
  late_.push_back(std::move(made));
  return {};
}

Status in_own_time(CommState& comm, const std::string& late, std::function<Status()> call) {
  const std::optional<Status> ended = comm.in_time(comm.options.host_timeout, std::move(call));
  if (!ended) return comm.error(ErrorCode::device, late);
  return *ended ? Status() : Status(comm.error(ended->error()));
}

Status check_not_captured(const CommState& comm, Stream stream, const std::string& remedy) {
  const Result<CaptureInfo::Status> status = comm.context.device.capture_status(stream);
  if (!status) return comm.error(status.error());
  if (*status == CaptureInfo::Status::none) return {};
  return comm.error(ErrorCode::capture,
                    fmt::format("stream {} is being captured: {}", stream.id, remedy));
}

Status await_graphs(const CommState& comm) {
  // The driver says so in a thread of its own, some tenths of a millisecond after the call that
  // asks for it (docs/decisions.md, 017).
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  while (comm.graphs->load() > 0 && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  if (comm.graphs->load() == 0) return {};
  return comm.error(
      ErrorCode::invalid_argument,
      fmt::format("{} graphs that captured its operations, or their launches, are alive, and NCCL "
                  "would wait for them for ever: destroy them first",
                  comm.graphs->load()));
}

Status CommState::finish(std::optional<Stream> stream) {
  std::optional<Status> ended = in_time(options.host_timeout, [this, stream] {
    Status done = watchdog_.synchronize();
    if (done && stream) done = host_wait(context.device, *stream);
    return done;
  });
  if (ended) return *std::move(ended);
  const std::string open = watchdog_.first_open();
  return Error(ErrorCode::device,
               fmt::format("its operations have not ended in {}{}{}", seconds(options.host_timeout),
                           open.empty() ? "" : ": the first that may not have is ", open));
}

// What was waited for in vain has been ended by now, so that those calls return; they use the
// device, which may go when the communicator is closed.
void CommState::await_late(Nanoseconds longest) {
  std::vector<BoundedCall> late;
  {
    const std::lock_guard lock(state_mutex_);
    late.swap(late_);
  }
  for (BoundedCall& call : late) (void)call.wait(longest);
}

Status CommState::close() {
  if (Status gone = await_graphs(*this); !gone) return gone;
  if (registered > 0) {
    return error(ErrorCode::invalid_argument,
                 "registered buffers are open: close them first; if work hangs, abort() the "
                 "communicator, then close registered buffers");
  }
  ticker_.request_stop();
  if (ticker_.joinable()) ticker_.join();
  const std::lock_guard calls(calls_);
  bool failed = false;
  {
    const std::lock_guard lock(state_mutex_);
    if (closed_) return {};
    failed = failure_.has_value();
  }
  Status first;
  const auto note = [&](Status status) {
    if (first && !status) first = std::move(status);
  };
  if (!failed) {
    if (const Status ended = finish(); !ended) {
      fail(ended.error());  // so that what goes on is ended
      note(error(ended.error()));
    }
  }
  {
    const std::lock_guard lock(state_mutex_);
    closed_ = true;
    ended_.store(true, std::memory_order_release);
    failed = failure_.has_value();
  }
  if (prepared.exchange(false) && failed) end_agreement();
  await_late(std::max(options.host_timeout, kSecond));  // they use what goes next
  if (!left_segments_.empty()) {
    note(in_own_time(*this,
                     "work of the device did not end in time: memory of registered buffers is kept",
                     [this, left = std::exchange(left_segments_, {})] {
                       Status first = context.device.synchronize_context();
                       for (const auto& release : left) {
                         if (first) first = release();
                       }
                       return first;
                     }));
  }
  for (const CommHandle each : {control_.load(), handle}) {
    if (each.value == 0) continue;
    note(in_own_time(
        *this,
        "NCCL did not end it in time: graphs that captured its operations, or work of other ranks, "
        "hold it",
        [this, each] { return context.nccl.destroy(each); }));
  }
  await_late(kSecond);  // NCCL itself may go next
  note(watchdog_.close());
  note(captures_.destroy());
  return first;
}

void CommState::leave_to_close(std::function<Status()> left) {
  const std::lock_guard lock(state_mutex_);
  left_segments_.push_back(std::move(left));
}

}  // namespace weir
