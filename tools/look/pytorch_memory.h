// SPDX-License-Identifier: Apache-2.0
// What PyTorch's allocator held on a device, at any moment of a snapshot's history.
//
// A snapshot has the segments and blocks of its end, and the events before that. Going backwards
// from the end gives every earlier moment, however much of the beginning is missing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "look/origin.h"
#include "look/pickle_reader.h"
#include "weir/recording.h"

namespace weir {

// A live block of the final segments.
struct FinalBlock {
  std::uint64_t address = 0;
  Bytes bytes, requested;
  std::uint64_t stream = 0;
  bool pending = false;  // freed, and waits for another stream
  PickleValue frames;
};

// Of what is no count 0.
std::uint64_t number(PickleValue of, std::string_view key);
Bytes bytes_of(PickleValue of, std::string_view key);

class PytorchMemory {
 public:
  // The snapshot must outlive it.
  PytorchMemory(PickleValue snapshot, int device);

  std::span<const PickleValue> history() const { return history_.list(); }
  const std::vector<FinalBlock>& blocks() const { return blocks_; }  // at the end
  // What was reserved at first, and after each entry of the history that changes it: its index.
  struct Change {
    std::size_t entry;
    Bytes reserved;
  };
  Bytes reserved_at_first() const { return first_; }
  const std::vector<Change>& changes() const { return changes_; }
  Bytes peak_reserved() const { return peak_; }
  // The history has memory that no segment of the file accounts for: all else here is unknown.
  bool lacks_segments() const { return lacks_segments_; }
  // Which values can't be read; the rest is. "": none.
  std::string damage() const;
  // The last request that failed: an index into the history.
  std::optional<std::size_t> failure() const { return failure_; }

  // Once the first `entries` of the history had happened.
  Held at(std::size_t entries) const;
  // When the last request failed; else when most was reserved, and of those moments most was live.
  std::size_t worst() const;

 private:
  void unread(std::string value);
  void read_segments(PickleValue snapshot, int device);

  PickleValue history_;
  std::vector<FinalBlock> blocks_;
  // Addresses in a row, at the end.
  struct Range {
    std::uint64_t address = 0;
    Bytes bytes;
    std::uint64_t stream = 0;
    bool small = false, graph_pool = false;
  };
  class Ranges;
  std::uint64_t read_blocks(PickleValue list, const std::string& path, const Range& segment);
  static Inactive cause_of(const Range& range, bool has_live, std::uint64_t main_stream);

  std::vector<Range> segments_;
  std::vector<Change> changes_;
  Bytes first_, peak_;
  std::size_t fullest_ = 0;
  std::optional<std::size_t> failure_;
  bool lacks_segments_ = false;
  std::uint64_t unread_ = 0;  // values
  std::string first_unread_;  // "segments[3].blocks[0].size"
};

}  // namespace weir
