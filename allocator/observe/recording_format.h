// SPDX-License-Identifier: Apache-2.0
// How a recording is laid out in bytes; README.md describes it. Whole numbers are little
// endian, or (in payloads) varints: seven bits a byte, the lowest first, the top bit set on all but
// the last.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "weir/event.h"
#include "weir/types.h"

namespace weir::recording_format {

inline constexpr std::string_view kMagic{"\x89WEIR\r\n\x1a", 8};
inline constexpr std::uint32_t kVersion = 1;
// The magic, the version, and four bytes of zero.
inline constexpr std::size_t kFileHeader = 16;

enum class BlockKind : std::uint8_t {
  header = 1,   // pairs of strings: program, device, device_bytes
  stacks = 2,   // frames and stacks that events after it name
  initial = 3,  // events: what was there when the recording began
  events = 4,   // events
  marks = 5,    // times and texts
  end = 6,      // how many events there are, and how many were dropped
};
inline constexpr std::uint8_t kLastBlockKind = static_cast<std::uint8_t>(BlockKind::end);

// Before each block's payload: the sync word; kind and three bytes of zero; the payload's size as
// stored and as inflated; the block's number, from 0; a CRC-32 of all these and the payload.
inline constexpr std::string_view kSync = "WBLK";
inline constexpr std::size_t kBlockHeader = 24;
// A block is full with this much; no sound one inflates to more than the other.
inline constexpr std::size_t kFullBlock = 64 << 10;
inline constexpr std::size_t kMostPlain = 4 << 20;

struct BlockHeader {
  BlockKind kind = BlockKind::events;
  std::uint32_t stored = 0, plain = 0;
  std::uint32_t number = 0;
  std::uint32_t crc = 0;
};

std::string file_header();
// Of a block with that payload; sets the CRC.
std::string block_header(BlockHeader header, std::string_view payload);
// Nothing: these 24 bytes begin no block.
std::optional<BlockHeader> parse_block_header(std::string_view bytes);
bool crc_is_right(std::string_view header, std::string_view payload);
std::string deflated(std::string_view plain);
// Nothing: it does not inflate to just so many bytes.
std::optional<std::string> inflated(std::string_view stored, std::size_t plain);

// Payloads are made of these.
void put(std::string& out, std::uint64_t value);
void put(std::string& out, std::string_view text);

// Reads what put() wrote. Past the end, or where a number has too many bytes, it has failed, and
// gives zeros and empty texts from then on.
class PayloadReader {
 public:
  explicit PayloadReader(std::string_view payload) : rest_(payload) {}
  std::uint64_t number();
  std::string_view text();
  std::uint8_t byte();
  bool failed() const { return failed_; }
  bool at_end() const { return rest_.empty() || failed_; }
  std::size_t left() const { return rest_.size(); }
  void fail() { failed_ = true; }

 private:
  std::string_view rest_;
  bool failed_ = false;
};

// Differences of either sign: small ones take few bytes, and sums wrap around.
constexpr std::uint64_t zigzag(std::uint64_t difference) {
  return difference << 1 ^ (0 - (difference >> 63));
}
constexpr std::uint64_t unzigzag(std::uint64_t code) { return code >> 1 ^ (0 - (code & 1)); }

// Event::plain, beside the kind in its byte.
inline constexpr std::uint8_t kPlain = 0x80;
static_assert(kEventKinds <= kPlain);

// An event's numbers, but for its kind and time: address, bytes, requested, and the others.
using EventFields = std::array<std::uint64_t, 11>;
EventFields fields_of(const Event& event);
// False: a value does not fit, and is cut.
bool set_fields(Event& event, const EventFields& fields);

// Events of one block, each as what changed since the one before of its group. Not thread-safe.
class EventCoder {
 public:
  // Times never fall.
  void encode(const Event& event, std::string& out);
  // Nothing: `in` has failed. A kind from kEventKinds on is a later version's.
  std::optional<Event> decode(PayloadReader& in);

 private:
  static constexpr std::size_t kGroups = 3;
  static std::size_t group_of(EventKind kind);

  std::uint64_t time_ = 0;
  std::array<EventFields, kGroups> last_{};
};

}  // namespace weir::recording_format
