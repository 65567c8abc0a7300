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

void JsonWriter::value(std::string_view json) {
  separate();
  out_ += json;
}

void JsonWriter::string(std::string_view text) { value(quoted(text)); }
void JsonWriter::integer(std::int64_t number) { value(fmt::to_string(number)); }
void JsonWriter::unsigned_integer(std::uint64_t number) { value(fmt::to_string(number)); }
void JsonWriter::real(double number) {
  value(fmt::to_string(std::isfinite(number) ? number : 0.0));
}
void JsonWriter::boolean(bool is) { value(is ? "true" : "false"); }

bool JsonWriter::again(std::uint32_t id) {
  const auto found = kept_.find(id);
  if (found != kept_.end()) value(found->second);
  return found != kept_.end();
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

void PickleWriter::bytes(std::uint64_t value, int count) {
  for (int i = 0; i < count; ++i) out_ += static_cast<char>(value >> (8 * i));
}

void PickleWriter::memo(char near, char far, std::uint32_t number) {
  out_ += number < 256 ? near : far;
  bytes(number, number < 256 ? 1 : 4);
}

void PickleWriter::text(std::string_view utf8) {
  out_ += 'X';
  bytes(utf8.size(), 4);
  out_ += utf8;
}

void PickleWriter::key(std::string_view name) {
  const auto [known, added] = strings_.try_emplace(std::string(name), memos_);
  if (!added) return memo('h', 'j', known->second);
  text(valid_utf8(name));
  memo('q', 'r', memos_++);
}

void PickleWriter::string(std::string_view text) {
  before_value();
  key(text);
}

void PickleWriter::integer(std::int64_t value) {
  before_value();
  const auto bits = static_cast<std::uint64_t>(value);
  if (bits < 256) return out_ += 'K', bytes(bits, 1);
  if (bits < 65536) return out_ += 'M', bytes(bits, 2);
  if (value == static_cast<std::int32_t>(value)) return out_ += 'J', bytes(bits, 4);
  out_ += "\x8a\x08";
  bytes(bits, 8);
}

void PickleWriter::unsigned_integer(std::uint64_t value) {
  if (value <= INT64_MAX) return integer(static_cast<std::int64_t>(value));
  before_value();
  out_ += "\x8a\x09";
  bytes(value, 8);
  out_ += '\0';
}

void PickleWriter::real(double value) {
  before_value();
  out_ += 'G';
  bytes(__builtin_bswap64(std::bit_cast<std::uint64_t>(value)), 8);
}

void PickleWriter::boolean(bool value) {
  before_value();
  out_ += value ? '\x88' : '\x89';
}

bool PickleWriter::again(std::uint32_t id) {
  const auto found = kept_.find(id);
  if (found == kept_.end()) return false;
  before_value();
  memo('h', 'j', found->second);
  return true;
}

void PickleWriter::end_shared(std::uint32_t id) {
  kept_.emplace(id, memos_);
  memo('q', 'r', memos_++);
}

}  // namespace weir
