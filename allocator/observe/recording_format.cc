// SPDX-License-Identifier: Apache-2.0
#include "observe/recording_format.h"

#include <zlib.h>

#include <limits>

namespace weir::recording_format {
namespace {

void put_fixed(std::string& out, std::uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(value >> shift & 0xff);
}

std::uint32_t fixed(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 4; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

std::uint32_t crc_of(std::string_view header, std::string_view payload) {
  const auto bytes = [](std::string_view text) {
    return reinterpret_cast<const Bytef*>(text.data());
  };
  uLong crc = crc32(0, nullptr, 0);
  crc = crc32(crc, bytes(header), kBlockHeader - 4);
  crc = crc32(crc, bytes(payload), static_cast<uInt>(payload.size()));
  return static_cast<std::uint32_t>(crc);
}

}  // namespace

std::string file_header() {
  std::string bytes(kMagic);
  put_fixed(bytes, kVersion);
  put_fixed(bytes, 0);
  return bytes;
}

std::string block_header(BlockHeader header, std::string_view payload) {
  std::string bytes(kSync);
  put_fixed(bytes, static_cast<std::uint32_t>(header.kind));
  put_fixed(bytes, header.stored);
  put_fixed(bytes, header.plain);
  put_fixed(bytes, header.number);
  put_fixed(bytes, crc_of(bytes, payload));
  return bytes;
}

std::optional<BlockHeader> parse_block_header(std::string_view bytes) {
  if (bytes.size() < kBlockHeader || !bytes.starts_with(kSync)) return std::nullopt;
  const std::uint32_t kind = fixed(bytes, 4);
  const BlockHeader header{static_cast<BlockKind>(kind), fixed(bytes, 8), fixed(bytes, 12),
                           fixed(bytes, 16), fixed(bytes, 20)};
  if (kind == 0 || kind > kLastBlockKind) return std::nullopt;
  if (header.plain > kMostPlain || header.stored > kMostPlain) return std::nullopt;
  return header;
}

bool crc_is_right(std::string_view header, std::string_view payload) {
  return crc_of(header, payload) == fixed(header, kBlockHeader - 4);
}

std::string deflated(std::string_view plain) {
  uLongf size = compressBound(static_cast<uLong>(plain.size()));
  std::string stored(size, '\0');
  compress2(reinterpret_cast<Bytef*>(stored.data()), &size,
            reinterpret_cast<const Bytef*>(plain.data()), static_cast<uLong>(plain.size()),
            Z_BEST_SPEED);
  stored.resize(size);
  return stored;
}

std::optional<std::string> inflated(std::string_view stored, std::size_t plain) {
  std::string bytes(plain, '\0');
  uLongf size = static_cast<uLongf>(plain);
  const int code =
      uncompress(reinterpret_cast<Bytef*>(bytes.data()), &size,
                 reinterpret_cast<const Bytef*>(stored.data()), static_cast<uLong>(stored.size()));
  if (code != Z_OK || size != plain) return std::nullopt;
  return bytes;
}

void put(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out += static_cast<char>(value | 0x80);
    value >>= 7;
  }
  out += static_cast<char>(value);
}

void put(std::string& out, std::string_view text) {
  put(out, std::uint64_t{text.size()});
  out += text;
}

std::uint8_t PayloadReader::byte() {
  if (at_end()) return failed_ = true, std::uint8_t{0};
  const auto value = static_cast<std::uint8_t>(rest_.front());
  rest_.remove_prefix(1);
  return value;
}

std::uint64_t PayloadReader::number() {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const std::uint8_t next = byte();
    if (failed_) return 0;
    value |= std::uint64_t{next & 0x7fU} << shift;
    if (next < 0x80) return value;
  }
  failed_ = true;
  return 0;
}

std::string_view PayloadReader::text() {
  const std::uint64_t size = number();
  if (failed_ || size > rest_.size()) return failed_ = true, std::string_view{};
  const std::string_view text = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return text;
}

EventFields fields_of(const Event& event) {
  return {event.address.value,
          event.bytes.count,
          event.requested.count,
          event.stream,
          event.heap.value,
          event.stack,
          event.page.value,
          event.other,
          event.sequence.value,
          event.pool,
          static_cast<std::uint64_t>(event.duration.count)};
}

bool set_fields(Event& event, const EventFields& fields) {
  event.address = Address{fields[0]};
  event.bytes = Bytes{fields[1]};
  event.requested = Bytes{fields[2]};
  event.stream = fields[3];
  event.heap = HeapId{static_cast<std::uint32_t>(fields[4])};
  event.stack = static_cast<std::uint32_t>(fields[5]);
  event.page = PageId{static_cast<std::uint32_t>(fields[6])};
  event.other = fields[7];
  event.sequence = Sequence{fields[8]};
  event.pool = fields[9];
  event.duration = Nanoseconds{static_cast<std::int64_t>(fields[10])};
  constexpr std::uint64_t kMost = std::numeric_limits<std::uint32_t>::max();
  return fields[4] <= kMost && fields[5] <= kMost && fields[6] <= kMost;
}

std::size_t EventCoder::group_of(EventKind kind) {
  if (kind <= EventKind::fence) return 0;
  return kind >= EventKind::create && kind <= EventKind::unlease ? 1 : 2;
}

void EventCoder::encode(const Event& event, std::string& out) {
  const auto kind = static_cast<unsigned char>(event.kind);
  out += static_cast<char>(event.plain ? kind | kPlain : kind);
  const auto time = static_cast<std::uint64_t>(event.time.count);
  put(out, time - time_);
  time_ = time;
  EventFields& last = last_[group_of(event.kind)];
  const EventFields fields = fields_of(event);
  std::uint64_t changed = 0;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    changed |= std::uint64_t{fields[i] != last[i]} << i;
  }
  put(out, changed);
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if ((changed >> i & 1) != 0) put(out, zigzag(fields[i] - last[i]));
  }
  last = fields;
}

std::optional<Event> EventCoder::decode(PayloadReader& in) {
  const std::uint8_t first = in.byte();
  const auto kind = static_cast<std::uint8_t>(first & ~kPlain);
  const std::uint64_t later = in.number();
  constexpr std::uint64_t kLatest = std::numeric_limits<std::int64_t>::max();
  if (later > kLatest - time_) in.fail();
  const std::uint64_t changed = in.number();
  if (changed >> EventFields().size() != 0) in.fail();
  time_ += later;
  Event event{.kind = static_cast<EventKind>(kind), .plain = (first & kPlain) != 0};
  event.time = Nanoseconds{static_cast<std::int64_t>(time_)};
  EventFields& last = last_[group_of(event.kind)];
  for (std::size_t i = 0; i < last.size(); ++i) {
    if ((changed >> i & 1) != 0) last[i] += unzigzag(in.number());
  }
  if (!set_fields(event, last)) in.fail();
  if (in.failed()) return std::nullopt;
  return event;
}

}  // namespace weir::recording_format
