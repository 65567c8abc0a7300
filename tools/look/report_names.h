// Streams, pools, sizes and stacks, as a report calls them.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "look/block_lifetimes.h"
#include "weir/recording.h"

namespace weir {

// Numbers in order of first use, from 0.
class Ordinals {
 public:
  Ordinals() = default;
  explicit Ordinals(const std::vector<std::uint64_t>& in_order);
  // Of `id`, which gets the next number if it has none.
  std::uint32_t of(std::uint64_t id);

 private:
  std::unordered_map<std::uint64_t, std::uint32_t> numbers_;
};

// "7"; "7, captured" for what a graph pool captured on stream 7.
std::string stream_name(std::uint64_t stream);
// "3", or "none" for memory of no pool.
std::string pool_name(std::uint64_t pool);

// The largest size of the class that `bytes` is in: a power of two, 512 at least.
Bytes size_class(Bytes bytes);
// "(1 MiB, 2 MiB]" as "1 - 2 MiB"; the smallest as "up to 512 B".
std::string size_class_name(Bytes largest);

// "forward (model.py:42)"; "?" where nothing is known.
std::string frame_text(const RecordedFrame& frame);
// Its frames, innermost first.
std::vector<std::string> stack_text(const Recording& recording, std::uint32_t stack);
// The innermost frames in one line, as far as main(); "unknown" for an empty stack.
std::string place_text(const std::vector<std::string>& frames);

}  // namespace weir
