// SPDX-License-Identifier: Apache-2.0
#include "look/plain_writer.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>

namespace weir {
namespace {

// As JSON has it. What is no UTF-8 is replaced.
std::string quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

std::string valid_utf8(std::string_view text) {
  return nlohmann::json::parse(quoted(text)).get<std::string>();
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
  ((out_ += '"') += name) += "\":";
  first_ = true;
}

void JsonWriter::string(std::string_view text) {
  separate();
  out_ += quoted(text);
}

void JsonWriter::integer(std::int64_t value) {
  separate();
  out_ += fmt::to_string(value);
}

void JsonWriter::unsigned_integer(std::uint64_t value) {
  separate();
  out_ += fmt::to_string(value);
}

void JsonWriter::real(double value) {
  separate();
  out_ += fmt::to_string(std::isfinite(value) ? value : 0.0);
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
