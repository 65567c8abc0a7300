// SPDX-License-Identifier: Apache-2.0
#include "api/recordings.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "api/live_recordings.h"
#include "observe/own_thread.h"
#include "observe/recording_output.h"
#include "weir/log.h"
#include "weir/snapshot.h"

namespace weir {
namespace {

// Snapshots that are written because memory ran out.
constexpr int kMostSnapshots = 16;
constexpr std::string_view kRecord = "WEIR_RECORD";
// A program that fails again and again does not write the same ring again and again.
constexpr std::chrono::seconds kBetweenRings{1};

void log_failure(const Status& status) {
  if (!status.ok()) log(LogLevel::error, status.error().message());
}

// "layout: pool 0: 1200 placements, 9f0c...; pool 1: ..."
std::string text_of(const std::vector<PoolLayout>& layouts) {
  std::string text = "layout";
  for (const PoolLayout& each : layouts) {
    text += fmt::format("{} pool {}: {} placements, {:016x}", text == "layout" ? ":" : ";",
                        each.pool, each.placements, each.hash);
  }
  return text;
}

// "driver calls: create 430, map 983 (19660000 ns)", without times where they were not taken.
std::string text_of(const std::vector<DeviceCallCount>& calls,
                    const std::vector<DeviceCallCount>& before) {
  std::string text = "driver calls";
  for (DeviceCallCount each : calls) {
    const auto old = std::find_if(before.begin(), before.end(),
                                  [&](const auto& other) { return other.call == each.call; });
    if (old != before.end()) {
      each.calls -= old->calls;
      each.time = each.time - old->time;
    }
    if (each.calls == 0) continue;
    text += fmt::format("{} {} {}", text.ends_with("calls") ? ":" : ",", each.call, each.calls);
    if (each.time.count > 0) text += fmt::format(" ({} ns)", each.time.count);
  }
  return text;
}

std::string before_extension(const std::string& path, const std::string& text) {
  const std::size_t name = path.find_last_of('/') + 1;  // npos + 1 is 0
  const std::size_t dot = std::min(path.find('.', name + 1), path.size());
  return path.substr(0, dot) + text + path.substr(dot);
}

}  // namespace

Recordings::Recordings(Device& device, const MeteredDevice& calls, DeviceHeap& heap,
                       const Config& config, int number)
    : device_(device),
      calls_(calls),
      heap_(heap),
      config_(config),
      number_(number),
      generation_(fork_generation()) {}

Recordings::~Recordings() {
  live_recordings::remove(*this);
  finish();
}

RecorderOptions Recordings::options(std::optional<RecordStacks> stacks) const {
  RecorderOptions options{.device = device_.name()};
  if (const Result<MemoryInfo> memory = device_.memory_info(); memory.ok()) {
    options.device_bytes = memory->total;
  }
  if (!stacks && config_.stacks != nullptr) {
    options.stacks = config_.stacks;
  } else if (const RecordStacks kind = stacks.value_or(config_.record_stacks);
             kind != RecordStacks::none) {
    options.stacks = kind == RecordStacks::cpp ? &cpp_stacks() : &python_stacks();
  }
  return options;
}

Status Recordings::begin() {
  if (!config_.record.empty()) {
    Status allowed = check_recording_path(record_path(config_.record, number_));
    if (!allowed) return named_by(kRecord, std::move(allowed));
  }
  if (config_.record_ring > 0_B) {
    ring_ = Recorder::keep(config_.record_ring, options({}));
    heap_.start_recording(*ring_);
  } else if (!config_.record.empty() && config_.record_signal == RecordSignal::none) {
    if (Status status = start(config_.record); !status) return named_by(kRecord, std::move(status));
  }
  live_recordings::add(*this);
  return {};
}

Status Recordings::check_can_start(const std::string& path) const {
  const std::scoped_lock lock(mutex_);
  if (Status idle = check_locked(); !idle) return idle;
  return check_recording_path(record_path(path, number_));
}

Status Recordings::check_locked() const {
  if (file_ == nullptr) return {};
  return Error(ErrorCode::invalid_argument,
               fmt::format("device {} is being recorded into {}: stop that first", number_, path_));
}

Status Recordings::start(const std::string& path, std::optional<RecordStacks> stacks) {
  const std::scoped_lock lock(mutex_);
  if (Status status = check_locked(); !status.ok()) return status;
  return start_locked(path, stacks);
}

Status Recordings::start_locked(const std::string& path, std::optional<RecordStacks> stacks) {
  path_ = record_path(path, number_);
  Result<std::unique_ptr<Recorder>> recorder = Recorder::open(path_, options(stacks));
  if (!recorder.ok()) return std::move(recorder).error();
  file_ = std::move(recorder).value();
  calls_before_ = calls_.made();
  heap_.start_recording(*file_);
  return {};
}

Status Recordings::stop() {
  const std::scoped_lock lock(mutex_);
  return stop_locked();
}

Status Recordings::stop_locked() {
  if (file_ == nullptr) return {};
  mark_end(*file_, calls_before_);
  (void)heap_.stop_recording(*file_);
  const std::unique_ptr<Recorder> file = std::move(file_);
  if (Status closed = file->close(); !closed.ok()) return closed;
  if (file->dropped() > 0) {
    log(LogLevel::warn, fmt::format("{} lacks {} events, which came faster than they could be "
                                    "written",
                                    path_, file->dropped()));
  }
  return {};
}

Status Recordings::write(const std::string& path) {
  if (ring_ == nullptr) {
    return Error(ErrorCode::invalid_argument,
                 "nothing is kept that could be written: set WEIR_RECORD_RING to the memory to "
                 "keep it in");
  }
  mark_end(*ring_, {});
  return ring_->write_to(record_path(path, number_));
}

void Recordings::mark_end(Recorder& recorder, const std::vector<DeviceCallCount>& before) const {
  const Nanoseconds now = device_.now();
  recorder.mark(now, text_of(heap_.layouts()));
  recorder.mark(now, text_of(calls_.made(), before));
}

void Recordings::mark(std::string_view text) {
  const Nanoseconds now = device_.now();
  if (ring_ != nullptr) ring_->mark(now, text);
  const std::scoped_lock lock(mutex_);
  if (file_ != nullptr) file_->mark(now, text);
}

void Recordings::after_failure(const Error& error) {
  if (error.code() != ErrorCode::out_of_memory) return;
  if (!log_enabled(LogLevel::debug)) log(LogLevel::warn, error.message());  // else the event was
  if (generation_ != fork_generation()) return;
  int snapshot = 0;
  bool writes_ring = false;
  {
    const std::scoped_lock lock(mutex_);
    if (!config_.snapshot_on_oom.empty() && snapshots_ < kMostSnapshots) snapshot = ++snapshots_;
    const auto now = std::chrono::steady_clock::now();
    writes_ring = ring_ != nullptr && (!ring_written_ || now - *ring_written_ >= kBetweenRings);
    if (writes_ring) ring_written_ = now;
  }
  if (snapshot > 0) {
    const std::string path = record_path(config_.snapshot_on_oom, number_);
    log_failure(named_by("WEIR_SNAPSHOT_ON_OOM",
                         write_snapshot(heap_.snapshot(), numbered_path(path, snapshot))));
  }
  if (writes_ring) log_failure(named_by(kRecord, write(config_.record)));
}

void Recordings::on_signal() {
  if (ring_ != nullptr) return log_failure(named_by(kRecord, write(config_.record)));
  const std::scoped_lock lock(mutex_);
  if (finished_) return;
  if (file_ != nullptr) return log_failure(stop_locked());
  const int nth = ++started_by_signal_;
  const std::string path = nth == 1 ? config_.record : numbered_path(config_.record, nth);
  log_failure(named_by(kRecord, start_locked(path, {})));
}

void Recordings::finish() {
  if (generation_ != fork_generation()) return;
  {
    const std::scoped_lock lock(mutex_);
    if (std::exchange(finished_, true)) return;
    log_failure(stop_locked());
  }
  if (ring_ == nullptr) return;
  (void)heap_.stop_recording(*ring_);
  log_failure(named_by(kRecord, write(config_.record)));
}

Status named_by(std::string_view setting_or_call, Status status) {
  if (status) return status;
  return Error(status.error().code(),
               fmt::format("{}: {}", setting_or_call, status.error().message()));
}

std::string record_path(const std::string& path, int number) {
  return number == 0 ? path : before_extension(path, fmt::format(".{}", number));
}

std::string numbered_path(const std::string& path, int number) {
  return before_extension(path, fmt::format("-{}", number));
}

}  // namespace weir
