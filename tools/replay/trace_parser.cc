// SPDX-License-Identifier: Apache-2.0
#include "replay/trace_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "replay/failed_mark.h"

namespace weir {
namespace {

// Beyond these, sums over a trace could overflow. No device comes near them.
constexpr Bytes kMostBytes{std::uint64_t{1} << 60};
constexpr Bytes kMostLive{std::uint64_t{1} << 62};
constexpr std::uint64_t kLatestUs = 9'000'000'000'000'000;  // the year 2255, as Unix time
constexpr std::int64_t kLongestUs = 10'000'000'000'000;     // 115 days
constexpr std::uint32_t kMostLines = UINT32_MAX - 1;

// For a message: short, and without characters that a terminal would act on.
std::string quoted(std::string_view text) {
  constexpr std::size_t kMost = 60;
  std::string quote = "\"";
  for (const char c : text.substr(0, kMost)) {
    const auto byte = static_cast<unsigned char>(c);
    quote += byte < 0x20 || byte >= 0x7f ? '?' : c;
  }
  return quote + (text.size() > kMost ? "...\"" : "\"");
}

}  // namespace

bool BlockIndex::insert(std::uint64_t id, std::uint32_t block) {
  if (find(id) != kNone) return false;
  // Dense while the table stays within a small multiple of what it holds.
  if (id > 2 * std::uint64_t{block} + 4096) return sparse_.emplace(id, block).second;
  if (id >= dense_.size()) {
    dense_.resize(std::max<std::size_t>(id + 1, dense_.size() + dense_.size() / 2), kNone);
  }
  dense_[id] = block;
  return true;
}

std::uint32_t BlockIndex::find(std::uint64_t id) const {
  if (id < dense_.size() && dense_[id] != kNone) return dense_[id];
  if (sparse_.empty()) return kNone;
  const auto found = sparse_.find(id);
  return found == sparse_.end() ? kNone : found->second;
}

Error TraceParser::error_here(std::string_view what) const {
  return Error(ErrorCode::invalid_input, fmt::format("{}:{}: {}", trace_.name, line_ + 1, what));
}

Status TraceParser::lines(std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view one = text.substr(0, end);
    if (one.ends_with('\r')) one.remove_suffix(1);
    if (Status status = line(one); !status.ok()) return status;
    if (++line_ == kMostLines) return error_here("the trace has too many lines");
    text.remove_prefix(end + 1);
  }
  return {};
}

Result<Trace> TraceParser::finish() && {
  if (trace_.ops.empty()) {
    return error_here("the trace is empty: no line allocates, frees or marks anything");
  }
  trace_.lines = line_;
  return std::move(trace_);
}

Status TraceParser::line(std::string_view text) {
  const char kind = text.empty() ? '\0' : text.front();
  const bool spaced = text.size() > 2 && text[1] == ' ';
  const std::uint32_t free_before = std::exchange(last_free_, BlockIndex::kNone);
  if (kind == '#') return comment(text);
  if (spaced) {
    switch (kind) {
      case 'a':
      case 'r':
      case 'f':
        return block_line(text, free_before);
      case 'u':
        return fence_line(text);
      case 'w':
        return wait_line(text);
      case 'm':
        if (const auto failed = failed_mark(text.substr(2)); failed && failed->time_us) {
          if (Status passed = time(*failed->time_us); !passed) return passed;
        }
        add(TraceOp::Kind::marker, 0, static_cast<std::uint32_t>(trace_.markers.size()));
        trace_.markers.emplace_back(text.substr(2));
        return {};
      default:
        break;
    }
  }
  return error_here(fmt::format(
      "unknown line {}: a line is one of `a|r|f ID BYTES STREAM TIME_US`, `u ID STREAM TIME_US`, "
      "`w STREAM STREAM TIME_US`, `m TEXT` or a comment `# ...`",
      quoted(text)));
}

Status TraceParser::comment(std::string_view text) {
  if (line_ > 0 || !text.starts_with("# {")) return {};
  trace_.header_json = text.substr(2);
  if (nlohmann::json::accept(trace_.header_json)) return {};
  return error_here("the header `# {json}` is not JSON");
}

Status TraceParser::numbers(std::string_view text, std::string_view columns,
                            std::span<std::uint64_t> fields) {
  const char* at = text.data() + 1;
  const char* const end = text.data() + text.size();
  for (std::uint64_t& field : fields) {
    const bool present = at != end && *at == ' ';
    const auto [rest, code] = std::from_chars(at + (present ? 1 : 0), end, field);
    if (present && code == std::errc{} && (rest == end || *rest == ' ')) {
      at = rest;
      continue;
    }
    const char* why = "too few columns, or one that is not a number";
    if (code == std::errc::result_out_of_range) why = "a number that does not fit into 64 bits";
    if (present && at + 1 != end && at[1] == '-') why = "a negative number";
    return error_here(fmt::format("{} in {}: the columns are {}", why, quoted(text), columns));
  }
  if (at == end) return {};
  return error_here(fmt::format("too many columns in {}: they are {}", quoted(text), columns));
}

Status TraceParser::time(std::uint64_t time_us) {
  if (time_us > kLatestUs) {
    return error_here(fmt::format("the time {} us is too large: is it in microseconds?", time_us));
  }
  const auto now = static_cast<std::int64_t>(time_us);
  if (!timed_) {
    timed_ = true;
    trace_.start_us = trace_.end_us = now;
    for (TraceOp& marker : trace_.ops) marker.time_us = now;  // nothing else can be there yet
  }
  if (now < trace_.end_us) {
    return error_here(
        fmt::format("time goes back from {} to {} us: sort the lines by time", trace_.end_us, now));
  }
  if (now - trace_.start_us > kLongestUs) {
    return error_here(
        fmt::format("the trace is longer than {} us: is the time in microseconds?", kLongestUs));
  }
  trace_.end_us = now;
  return {};
}

std::uint32_t TraceParser::stream(std::uint64_t number) {
  if (trace_.streams.empty() || number != last_stream_) {
    const auto next = static_cast<std::uint32_t>(trace_.streams.size());
    const auto [found, added] = stream_index_.try_emplace(number, next);
    if (added) trace_.streams.push_back(number);
    last_stream_ = number;
    last_stream_index_ = found->second;
  }
  return last_stream_index_;
}

void TraceParser::add(TraceOp::Kind kind, std::uint32_t stream, std::uint32_t target) {
  trace_.ops.push_back({kind, stream, target, line_ + 1, trace_.end_us});
}

Status TraceParser::block_line(std::string_view text, std::uint32_t free_before) {
  std::array<std::uint64_t, 4> fields;
  if (Status status = numbers(text, "ID BYTES STREAM TIME_US", fields); !status.ok()) return status;
  const auto [id, bytes, stream_number, time_us] = fields;
  if (Status status = time(time_us); !status.ok()) return status;
  const BlockLine block{text.front(), id, Bytes{bytes}, stream(stream_number)};
  return block.kind == 'a' ? allocate(block) : free(block, free_before);
}

Status TraceParser::allocate(const BlockLine& line) {
  const auto block = static_cast<std::uint32_t>(trace_.blocks.size());
  if (line.bytes > kMostBytes) {
    return error_here(fmt::format("a block of {} bytes is beyond any device", line.bytes.count));
  }
  if (!index_.insert(line.id, block)) {
    return error_here(
        fmt::format("block {} is allocated again: each allocation takes a new id", line.id));
  }
  live_ += round_up(line.bytes, kGrain);
  if (live_ > kMostLive) return error_here("the blocks in use together are beyond any device");
  trace_.peak_live = std::max(trace_.peak_live, live_);
  trace_.blocks.push_back({.id = line.id, .bytes = line.bytes, .stream = line.stream});
  states_.push_back(State::live);
  add(TraceOp::Kind::allocate, line.stream, block);
  return {};
}

Status TraceParser::free(const BlockLine& line, std::uint32_t free_before) {
  const std::uint32_t target = index_.find(line.id);
  if (target == BlockIndex::kNone) {
    return error_here(fmt::format(
        "block {} is freed but was never allocated: is the start of the trace missing?", line.id));
  }
  TraceBlock& block = trace_.blocks[target];
  if (block.bytes != line.bytes || block.stream != line.stream) {
    return error_here(fmt::format(
        "block {} is freed as {} bytes of stream {}, but was allocated as {} bytes of stream {}",
        line.id, line.bytes.count, trace_.streams[line.stream], block.bytes.count,
        trace_.streams[block.stream]));
  }
  State& state = states_[target];
  if (state == State::reusable || (state == State::freed && line.kind == 'r')) {
    return error_here(
        fmt::format("block {} is freed twice: it takes one `r` and one `f`", line.id));
  }
  if (state == State::live) {
    live_ -= round_up(block.bytes, kGrain);
    add(TraceOp::Kind::free, block.stream, target);
  }
  if (line.kind == 'r') {
    state = State::freed;
    block.last_use_us = trace_.end_us;  // so long as no `f` says more
    last_free_ = target;
  } else if (std::exchange(state, State::reusable) == State::freed) {
    // Beside its `r`, it says that nothing else used the block: the times differ by the time that
    // the recorder itself took.
    block.last_use_us = free_before == target ? TraceBlock::kFree : trace_.end_us;
  }
  return {};
}

Status TraceParser::fence_line(std::string_view text) {
  std::array<std::uint64_t, 3> fields;
  if (Status status = numbers(text, "ID STREAM TIME_US", fields); !status.ok()) return status;
  const auto [id, user, time_us] = fields;
  if (Status status = time(time_us); !status.ok()) return status;
  const std::uint32_t block = index_.find(id);
  if (block == BlockIndex::kNone || states_[block] != State::live) {
    return error_here(fmt::format("block {} is used while it is not allocated", id));
  }
  add(TraceOp::Kind::fence, stream(user), block);
  return {};
}

Status TraceParser::wait_line(std::string_view text) {
  std::array<std::uint64_t, 3> fields;
  if (Status status = numbers(text, "STREAM STREAM TIME_US", fields); !status.ok()) return status;
  const auto [waiter, awaited, time_us] = fields;
  if (Status status = time(time_us); !status.ok()) return status;
  const std::uint32_t first = stream(waiter);
  add(TraceOp::Kind::wait, first, stream(awaited));
  return {};
}

}  // namespace weir
