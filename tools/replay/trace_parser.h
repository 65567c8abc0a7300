// SPDX-License-Identifier: Apache-2.0
// The trace format, a line at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "replay/trace.h"
#include "weir/result.h"

namespace weir {

// Where in `Trace::blocks` a block is, by its id in the file: a table for ids that are counters, as
// all known recorders write them, a hash map for the rest.
class BlockIndex {
 public:
  // Adds `id`; false when it is there already.
  bool insert(std::uint64_t id, std::uint32_t block);
  static constexpr std::uint32_t kNone = UINT32_MAX;
  std::uint32_t find(std::uint64_t id) const;

 private:
  std::vector<std::uint32_t> dense_;
  std::unordered_map<std::uint64_t, std::uint32_t> sparse_;
};

// Builds a Trace from lines, and checks that they make sense together. After an error it must not
// be used again.
class TraceParser {
 public:
  explicit TraceParser(std::string name) { trace_.name = std::move(name); }

  // The next lines of the file: `text` ends with a line end.
  Status lines(std::string_view text);
  // After the last line.
  Result<Trace> finish() &&;

  // An error at the line after those seen so far.
  Error error_here(std::string_view what) const;

 private:
  // What a block is waiting for.
  enum class State : std::uint8_t { live, freed, reusable };

  Status line(std::string_view text);
  struct BlockLine {
    char kind;
    std::uint64_t id;
    Bytes bytes;
    std::uint32_t stream;
  };
  // `free_before`: the block of the line before, if that was its `r`.
  Status block_line(std::string_view text, std::uint32_t free_before);
  Status allocate(const BlockLine& line);
  Status free(const BlockLine& line, std::uint32_t free_before);
  Status fence_line(std::string_view text);
  Status wait_line(std::string_view text);
  Status comment(std::string_view text);
  // Exactly `fields.size()` numbers after the line's first character.
  Status numbers(std::string_view text, std::string_view columns, std::span<std::uint64_t> fields);
  Status time(std::uint64_t time_us);
  std::uint32_t stream(std::uint64_t number);
  void add(TraceOp::Kind kind, std::uint32_t stream, std::uint32_t target);

  Trace trace_;
  BlockIndex index_;
  std::unordered_map<std::uint64_t, std::uint32_t> stream_index_;
  std::uint64_t last_stream_ = 0;        // the one looked up last, and
  std::uint32_t last_stream_index_ = 0;  // where it is; meaningful once there are streams
  std::vector<State> states_;            // of trace_.blocks
  Bytes live_;
  bool timed_ = false;                           // a line with a time was seen
  std::uint32_t line_ = 0;                       // lines seen
  std::uint32_t last_free_ = BlockIndex::kNone;  // the block of the line before, if that was an `r`
};

}  // namespace weir
