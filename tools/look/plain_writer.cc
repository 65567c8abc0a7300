// SPDX-License-Identifier: Apache-2.0
#include "look/plain_writer.h"

#include <array>
#include <bit>
#include <charconv>
#include <cmath>

namespace weir {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// The length of the UTF-8 sequence at the start of `text`; 0: it is none. Source: Unicode 15, table
// 3-7.
std::size_t sequence_length(std::string_view text) {
  const auto byte = [&text](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const unsigned first = byte(0);
  const auto follows = [&byte](std::size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool sound = (first != 0xE0 || byte(1) >= 0xA0) && (first != 0xED || byte(1) <= 0x9F);
    return sound && follows(1) && follows(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool sound = (first != 0xF0 || byte(1) >= 0x90) && (first != 0xF4 || byte(1) <= 0x8F);
    return sound && follows(1) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

template <class Number>
void append(std::string& out, Number value) {
  std::array<char, 32> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  out.append(digits.data(), end);
}

void append_escaped(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out += '"';
  while (!text.empty()) {
    const char c = text.front();
    const std::size_t length = sequence_length(text);
    if (length == 0) {
      out += kReplacement;
    } else if (c == '"' || c == '\\') {
      (out += '\\') += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += "\\u00";
      (out += kHex[static_cast<unsigned char>(c) >> 4]) += kHex[c & 15];
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  out += '"';
}

}  // namespace

void append_number(std::string& out, std::int64_t value) { append(out, value); }
void append_number(std::string& out, std::uint64_t value) { append(out, value); }

std::string valid_utf8(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = sequence_length(text);
    valid += length == 0 ? kReplacement : text.substr(0, length);
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return valid;
}

void JsonWriter::separate() {
  if (!first_) out_ += ',';
  first_ = false;
}

void JsonWriter::begin(char bracket) {
  separate();
  out_ += bracket;
  first_ = true;
}

void JsonWriter::end(char bracket) {
  out_ += bracket;
  first_ = false;
}

void JsonWriter::key(std::string_view name) {
  separate();
  append_escaped(out_, name);
  out_ += ':';
  first_ = true;
}

void JsonWriter::string(std::string_view text) {
  separate();
  append_escaped(out_, text);
}

void JsonWriter::integer(std::int64_t value) {
  separate();
  append(out_, value);
}

void JsonWriter::unsigned_integer(std::uint64_t value) {
  separate();
  append(out_, value);
}

void JsonWriter::real(double value) {
  separate();
  append(out_, std::isfinite(value) ? value : 0.0);
}

void JsonWriter::boolean(bool value) {
  separate();
  out_ += value ? "true" : "false";
}

bool JsonWriter::again(std::uint32_t id) {
  const auto found = kept_.find(id);
  if (found == kept_.end()) return false;
  separate();
  out_ += found->second;
  return true;
}

void JsonWriter::begin_shared() {
  separate();
  first_ = true;
  shared_ = out_.size();
}

void JsonWriter::end_shared(std::uint32_t id) {
  first_ = false;
  kept_.emplace(id, out_.substr(shared_));
}

PickleWriter::PickleWriter(std::string& out) : out_(out) { out_ += "\x80\x02"; }

void PickleWriter::begin(char make) {
  before_value();
  out_ += make;
  out_ += '(';
  open_.push_back({make == '}', 0});
}

void PickleWriter::end(char close) {
  out_ += close;
  open_.pop_back();
}

// A reader keeps the values of a batch on its stack until the batch is closed.
void PickleWriter::before_value() {
  constexpr std::size_t kBatch = 1000;
  if (open_.empty() || open_.back().dict) return;
  if (open_.back().values++ % kBatch == kBatch - 1) out_ += "e(";
}

void PickleWriter::put() {
  if (memos_ < 256) {
    (out_ += 'q') += static_cast<char>(memos_);
  } else {
    out_ += 'r';
    for (int shift = 0; shift < 32; shift += 8) out_ += static_cast<char>(memos_ >> shift);
  }
  ++memos_;
}

void PickleWriter::get(std::uint32_t memo) {
  if (memo < 256) {
    (out_ += 'h') += static_cast<char>(memo);
    return;
  }
  out_ += 'j';
  for (int shift = 0; shift < 32; shift += 8) out_ += static_cast<char>(memo >> shift);
}

void PickleWriter::text(std::string_view utf8) {
  out_ += 'X';
  const auto length = static_cast<std::uint32_t>(utf8.size());
  for (int shift = 0; shift < 32; shift += 8) out_ += static_cast<char>(length >> shift);
  out_ += utf8;
}

void PickleWriter::key(std::string_view name) {
  const auto [memo, added] = strings_.try_emplace(std::string(name), memos_);
  if (!added) return get(memo->second);
  text(valid_utf8(name));
  put();
}

void PickleWriter::string(std::string_view text) {
  before_value();
  key(text);
}

void PickleWriter::integer(std::int64_t value) {
  before_value();
  if (value >= 0 && value < 256) {
    (out_ += 'K') += static_cast<char>(value);
  } else if (value >= 0 && value < 65536) {
    ((out_ += 'M') += static_cast<char>(value)) += static_cast<char>(value >> 8);
  } else if (value >= INT32_MIN && value <= INT32_MAX) {
    out_ += 'J';
    for (int shift = 0; shift < 32; shift += 8) out_ += static_cast<char>(value >> shift);
  } else {
    out_ += "\x8a\x08";
    for (int shift = 0; shift < 64; shift += 8) out_ += static_cast<char>(value >> shift);
  }
}

void PickleWriter::unsigned_integer(std::uint64_t value) {
  if (value <= INT64_MAX) return integer(static_cast<std::int64_t>(value));
  before_value();
  out_ += "\x8a\x09";
  for (int shift = 0; shift < 64; shift += 8) out_ += static_cast<char>(value >> shift);
  out_ += '\0';
}

void PickleWriter::real(double value) {
  before_value();
  out_ += 'G';
  const auto bits = std::bit_cast<std::uint64_t>(value);
  for (int shift = 56; shift >= 0; shift -= 8) out_ += static_cast<char>(bits >> shift);
}

void PickleWriter::boolean(bool value) {
  before_value();
  out_ += value ? '\x88' : '\x89';
}

bool PickleWriter::again(std::uint32_t id) {
  const auto found = kept_.find(id);
  if (found == kept_.end()) return false;
  before_value();
  get(found->second);
  return true;
}

void PickleWriter::end_shared(std::uint32_t id) {
  kept_.emplace(id, memos_);
  put();
}

}  // namespace weir
