// SPDX-License-Identifier: Apache-2.0
#include "replay/trace_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include "replay/failed_mark.h"
#include "replay/gzip_file.h"

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

constexpr std::size_t kChunk = 1 << 20;  // also the longest line
constexpr std::string_view kCutOff =
    "the file ends within this line: it was cut off (if it is whole, end the line)";

// Why reading failed, or ended before the end of the compressed data.
Status gzip_state(gzFile file, const TraceParser& parser) {
  int code = Z_OK;
  const char* message = gzerror(file, &code);
  if (code == Z_OK || code == Z_STREAM_END) return {};
  if (code == Z_BUF_ERROR)
    return parser.error_here("the compressed file was cut off here: copy it again");
  if (code == Z_ERRNO) return parser.error_here(std::strerror(errno));
  return parser.error_here(
      fmt::format("the compressed data is damaged: {}; copy it again", message));
}

}  // namespace

Result<Trace> parse_trace(std::string_view text, std::string name) {
  TraceParser parser(std::move(name));
  const std::size_t whole = text.rfind('\n') + 1;  // 0: no line is whole
  if (Status status = parser.lines(text.substr(0, whole)); !status.ok()) return status.error();
  if (whole != text.size()) return parser.error_here(kCutOff);
  return std::move(parser).finish();
}

Result<Trace> read_trace(const std::string& path) {
  TraceParser parser(path);
  const GzipFile file = open_gzip(path);
  if (file == nullptr) {
    return Error(ErrorCode::invalid_input, fmt::format("{}: {}", path, std::strerror(errno)));
  }
  gzbuffer(file.get(), 1 << 17);
  std::vector<char> buffer(kChunk);
  std::size_t partial = 0;  // of a line whose end was not read yet, at the buffer's start
  for (;;) {
    const int read =
        gzread(file.get(), buffer.data() + partial, static_cast<unsigned>(buffer.size() - partial));
    const std::string_view text(buffer.data(), partial + (read > 0 ? read : 0));
    const std::size_t whole = text.rfind('\n') + 1;
    if (Status status = parser.lines(text.substr(0, whole)); !status.ok()) return status.error();
    partial = text.size() - whole;
    if (read <= 0) break;
    if (partial == buffer.size()) return parser.error_here("no line is this long");
    std::memmove(buffer.data(), buffer.data() + whole, partial);
  }
  if (Status status = gzip_state(file.get(), parser); !status.ok()) return status.error();
  if (partial != 0) return parser.error_here(kCutOff);
  return std::move(parser).finish();
}

}  // namespace weir
