// SPDX-License-Identifier: Apache-2.0
// A program's memory while it runs: its recording, followed as the file grows.
//
// The recorder writes what has happened 200 ms later at the latest; a follower reads on from where
// it stopped. docs/report.md says what `weir top` shows.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "look/streams.h"
#include "weir/event.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir {

// What a stream, or a graph pool, has and did.
struct TopCounts {
  std::uint64_t blocks = 0;
  Bytes live, leased;
  std::uint64_t allocations = 0, deallocations = 0, fences = 0, waits = 0;
  Bytes allocated;
};

// Memory now, and what was done so far.
struct TopNumbers {
  TopCounts all;
  std::map<std::uint64_t, TopCounts> streams, pools;
  Bytes requested, reserved, idle, peak_live, peak_reserved;
  std::uint64_t pages = 0, mappings = 0, host_waits = 0, out_of_memory = 0, created = 0,
                released = 0;
  Nanoseconds host_wait_time, begin, end;
};

// The numbers as a fold of events. Memory for each live block and page. Not thread-safe.
class TopState {
 public:
  // `initial`: it says what was there when the recording began; nothing is counted as done.
  void apply(const Event& event, bool initial);
  const TopNumbers& numbers() const { return now_; }

 private:
  struct Block {
    Bytes bytes, requested;
    std::uint64_t stream = 0, pool = 0;
  };
  void apply_to_blocks(const Event& event, bool initial);
  void apply_to_pages(const Event& event, bool initial);
  void apply_waits(const Event& event);
  // Of the stream, and of the pool if it is one.
  template <class Change>
  void change(std::uint64_t stream, std::uint64_t pool, Change&& change);

  TopNumbers now_;
  std::map<std::uint64_t, Block> blocks_;               // by address
  std::map<std::uint32_t, HeapServes> heaps_, leases_;  // by HeapId; by PageId
  bool begun_ = false;
};

// Whose memory it is.
struct TopView {
  std::string program, device, file;
  Bytes device_bytes;
  std::uint64_t dropped = 0;  // events that came too fast to be recorded
  bool ended = false;
  std::optional<std::uint64_t> damaged_at;  // the first byte that makes no sense
};

// What one look says. `before`: the look before, `interval` of wall-clock time ago, from which
// rates are taken; null: they are over the whole recording. `top`: most rows of a list. Ends with a
// line end.
std::string top_text(const TopView& view, const TopNumbers& now, const TopNumbers* before,
                     Nanoseconds interval, std::size_t top);

// Likewise for programs: one object on one line. docs/report.md defines the members.
std::string top_json(const TopView& view, const TopNumbers& now);

// Reads a recording as it grows. Not thread-safe.
class TopFollower {
 public:
  // Errors: invalid_input (no recording; names the file and the remedy).
  static Result<TopFollower> open(const std::string& path, std::string shown_as = {});
  TopFollower(TopFollower&&) noexcept;
  TopFollower& operator=(TopFollower&&) noexcept;
  ~TopFollower();

  // Takes what has come since the last call. Parts of the file that make no sense are passed over.
  // Errors: invalid_input (the file was cut shorter, or can't be read any more).
  Status poll();
  const TopNumbers& numbers() const;
  // After the end of the recording nothing more comes.
  const TopView& view() const;

 private:
  class Impl;
  explicit TopFollower(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The recordings that process `pid` writes: files that it has open, else what its WEIR_RECORD
// names. At least one. `proc`: where the system shows processes.
// Errors: unavailable (no such process, or no permission to look at it), invalid_argument (it
// records nothing); the message says what to do.
Result<std::vector<std::string>> recordings_of_process(const std::string& pid,
                                                       const std::string& proc = "/proc");

}  // namespace weir
