// SPDX-License-Identifier: Apache-2.0
// Where the blocks of a recording go: into a file, or into memory, where the latest are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "observe/recorded_state.h"
#include "observe/recording_format.h"
#include "weir/result.h"

namespace weir {

struct SealedBlock {
  recording_format::BlockKind kind;
  std::uint32_t plain = 0;  // bytes when inflated
  std::uint64_t events = 0;
  std::string stored;
};
SealedBlock seal(recording_format::BlockKind kind, std::string_view plain,
                 std::uint64_t events = 0);

class RecordingOutput {
 public:
  virtual ~RecordingOutput() = default;
  virtual void put(SealedBlock block) = 0;
  // Errors: invalid_input (something could not be written).
  virtual Status status() const { return {}; }
};

// Errors: invalid_input: no recording may be written to `path`, since its folder does not exist or
// a file that is no recording would be lost.
Status check_recording_path(const std::string& path);

// Not thread-safe. What put() was given is with the system once it returns.
class FileOutput final : public RecordingOutput {
 public:
  // Replaces an earlier recording. Errors: invalid_input (the file can't be written; names it and
  // says why).
  static Result<std::unique_ptr<FileOutput>> open(const std::string& path);
  ~FileOutput() override;
  void put(SealedBlock block) override;
  // Closes the file, and says whether all of it was written; a second call only says that.
  Status close();
  Status status() const override;

 private:
  FileOutput(int file, std::string path) : path_(std::move(path)), file_(file) {}
  void write(std::string_view bytes);

  const std::string path_;
  int file_;
  std::uint32_t number_ = 0;
  std::string error_;  // of the first write that failed; none are tried after it
};

// Keeps the blocks of events that came last, and what there was before the oldest of them. Threads:
// put() from one; write_to() from any.
class KeptOutput final : public RecordingOutput {
 public:
  explicit KeptOutput(std::size_t most) : most_(most) {}
  void put(SealedBlock block) override;
  // What is kept, as a whole recording, of which `dropped` events are missing.
  // Errors: invalid_input.
  Status write_to(const std::string& path, std::uint64_t dropped) const;

 private:
  void apply(const SealedBlock& block);
  std::vector<SealedBlock> initial_blocks() const;
  Status write_blocks(FileOutput& file, std::uint64_t dropped) const;

  const std::size_t most_;
  mutable std::mutex mutex_;
  // All guarded by mutex_.
  std::vector<SealedBlock> always_;  // header and stacks
  std::deque<SealedBlock> latest_;
  std::size_t stored_ = 0;  // bytes of latest_
  RecordedState edge_;      // before latest_
  Nanoseconds edge_time_;
  std::uint64_t calls_before_ = 0;  // is_call(), of the events before latest_
};

// The events of a block's payload, as far as they can be read: false if not to the end. Calls
// then(event) for each. The first number, of events dropped so far, goes to `dropped`.
template <class Then>
bool decode_events(std::string_view payload, std::uint64_t& dropped, Then&& then) {
  recording_format::PayloadReader in(payload);
  recording_format::EventCoder coder;
  const std::uint64_t so_far = in.number();
  if (in.failed()) return false;
  dropped = so_far;
  while (!in.at_end()) {
    const std::optional<Event> event = coder.decode(in);
    if (!event) return false;
    if (!then(*event)) return true;
  }
  return !in.failed();
}

}  // namespace weir
