// SPDX-License-Identifier: Apache-2.0
// What is recorded of one device's heap, and written of it when memory runs out: as the settings
// say, and as the program asks.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weir/config.h"
#include "weir/device.h"
#include "weir/device_heap.h"
#include "weir/metered_device.h"
#include "weir/recorder.h"
#include "weir/result.h"

namespace weir {

// Threads: self-synchronised; no call may be made under a lock of the heap's. In a child of fork()
// nothing is written.
class Recordings {
 public:
  // All must outlive this. `calls`: the device as the heap calls it. `number`: of the device in its
  // allocator.
  Recordings(Device& device, const MeteredDevice& calls, DeviceHeap& heap, const Config& config,
             int number);
  // finish(), but for what can only be logged.
  ~Recordings();
  Recordings(const Recordings&) = delete;
  Recordings& operator=(const Recordings&) = delete;

  // As the settings say. Errors: invalid_input (the file can't be written).
  Status begin();

  // Into `path`, with the device's number, and with those stacks; nothing: those of the settings.
  // Errors: invalid_argument (something records already);
  // invalid_input.
  Status check_can_start(const std::string& path) const;
  Status start(const std::string& path, std::optional<RecordStacks> stacks = {});
  // Nothing to stop is fine. Errors: invalid_input (the file could not be written whole).
  Status stop();
  // What the flight recorder keeps. Errors: invalid_argument (there is none); invalid_input.
  Status write(const std::string& path);
  void mark(std::string_view text);

  // An allocation failed with `error`.
  void after_failure(const Error& error);
  // The signal of the settings has come. Takes its time: not in the handler.
  void on_signal();
  // The program ends: what records is brought to its end. Trouble is logged.
  void finish();

  RecordSignal signal() const { return config_.record_signal; }

 private:
  RecorderOptions options(std::optional<RecordStacks> stacks) const;
  Status check_locked() const;
  Status start_locked(const std::string& path, std::optional<RecordStacks> stacks);
  Status stop_locked();
  // What a recording ends with: marks that say where memory was placed, and which calls the driver
  // got since it had `before`.
  void mark_end(Recorder& recorder, const std::vector<DeviceCallCount>& before) const;

  Device& device_;
  const MeteredDevice& calls_;
  DeviceHeap& heap_;
  const Config config_;
  const int number_;
  const std::uint64_t generation_;  // of forks
  std::unique_ptr<Recorder> ring_;  // constant from begin() on; null: none

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::unique_ptr<Recorder> file_;             // null: none
  std::string path_;                           // of file_
  std::vector<DeviceCallCount> calls_before_;  // those when file_ began
  int started_by_signal_ = 0;
  int snapshots_ = 0;
  std::optional<std::chrono::steady_clock::time_point> ring_written_;  // when memory ran out last
  bool finished_ = false;
};

// `status`, with the setting or the call that named the file before its error.
Status named_by(std::string_view setting_or_call, Status status);

// The file of device `number`: `path` itself for device 0, "run.1.weir" for device 1 of "run.weir".
std::string record_path(const std::string& path, int number);

// "run-2.weir" of "run.weir".
std::string numbered_path(const std::string& path, int number);

}  // namespace weir
