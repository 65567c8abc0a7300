// SPDX-License-Identifier: Apache-2.0
// Fields of protocol buffers, appended to a string. Source: "Encoding", protobuf.dev.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weir {

inline void put_raw_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

// An unsigned integer, or a bool or enum.
inline void put_varint(std::string& out, std::uint32_t field, std::uint64_t value) {
  put_raw_varint(out, std::uint64_t{field} << 3);
  put_raw_varint(out, value);
}

// A string, bytes, or a message that was written before.
inline void put_bytes(std::string& out, std::uint32_t field, std::string_view bytes) {
  put_raw_varint(out, std::uint64_t{field} << 3 | 2);
  put_raw_varint(out, bytes.size());
  out += bytes;
}

// A message; `fill` appends its fields to the string that it is given.
template <class Fill>
void put_message(std::string& out, std::uint32_t field, const Fill& fill) {
  put_raw_varint(out, std::uint64_t{field} << 3 | 2);
  const std::size_t at = out.size();
  out += '\0';
  fill(out);
  const std::size_t length = out.size() - at - 1;
  if (length < 0x80) {
    out[at] = static_cast<char>(length);
    return;
  }
  std::string varint;
  put_raw_varint(varint, length);
  out.replace(at, 1, varint);
}

}  // namespace weir
