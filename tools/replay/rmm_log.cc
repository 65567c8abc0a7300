// SPDX-License-Identifier: Apache-2.0
#include "replay/rmm_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>
#include <unordered_map>
#include <vector>

#include "replay/failed_mark.h"
#include "replay/gzip_file.h"
#include "replay/trace_reader.h"

namespace weir {
namespace {

constexpr std::int64_t kDayUs = std::int64_t{24} * 3600 * 1'000'000;

std::optional<std::uint64_t> number(std::string_view text, int base = 10) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "0x7f12", "7f12", "(nil)".
std::optional<std::uint64_t> address(std::string_view text) {
  if (text == "(nil)") return 0;
  if (text.starts_with("0x")) text.remove_prefix(2);
  return number(text, 16);
}

// "13:05:59.000123", or with a colon before the microseconds, as older versions wrote it; a date
// may stand before it ("2026-11-28T13:05:59.000123").
std::optional<std::int64_t> time_of_day_us(std::string_view text) {
  constexpr std::size_t kLength = std::string_view("HH:MM:SS.uuuuuu").size();
  constexpr std::size_t kDate = std::string_view("YYYY-MM-DDT").size();
  if (text.size() == kDate + kLength && (text[kDate - 1] == 'T' || text[kDate - 1] == ' ')) {
    text.remove_prefix(kDate);
  }
  if (text.size() != kLength || text[2] != ':' || text[5] != ':') return std::nullopt;
  if (text[8] != '.' && text[8] != ':') return std::nullopt;
  const auto hours = number(text.substr(0, 2)), minutes = number(text.substr(3, 2));
  const auto seconds = number(text.substr(6, 2)), micro = number(text.substr(9));
  if (!hours || !minutes || !seconds || !micro) return std::nullopt;
  return static_cast<std::int64_t>(((*hours * 60 + *minutes) * 60 + *seconds) * 1'000'000 + *micro);
}

class Converter {
 public:
  // False: `why()` says what is wrong with the line.
  bool line(std::string_view text) {
    std::array<std::string_view, 6> columns;
    std::size_t count = 0;
    for (std::size_t begin = 0; begin <= text.size(); ++count) {
      const std::size_t end = std::min(text.find(',', begin), text.size());
      if (count < columns.size()) columns[count] = text.substr(begin, end - begin);
      begin = end + 1;
    }
    if (count != columns.size()) {
      return fail(
          fmt::format("{} columns instead of {}: {}", count, columns.size(), kRmmLogColumns));
    }
    const auto time = time_of_day_us(columns[1]);
    const auto pointer = address(columns[3]), size = number(columns[4]),
               stream = address(columns[5]);
    if (!time) return fail(fmt::format("'{}' is no time of day (HH:MM:SS.uuuuuu)", columns[1]));
    if (!pointer) return fail(fmt::format("'{}' is no pointer", columns[3]));
    if (!size) return fail(fmt::format("'{}' is no size", columns[4]));
    if (!stream) return fail(fmt::format("'{}' is no stream", columns[5]));
    pass_to(*time);
    if (columns[2] == "allocate") return allocate(*pointer, *size, *stream), true;
    if (columns[2] == "free") return free(*pointer, *stream), true;
    if (columns[2] == "allocate failure") return fail_request(*size, *stream), true;
    return fail(fmt::format("'{}' is no action: allocate, free, allocate failure", columns[2]));
  }
  const std::string& why() const { return why_; }

  std::string finish() {
    if (unknown_ > 0) add("# {} blocks were freed that the log does not allocate\n", unknown_);
    return std::move(text_);
  }

 private:
  struct Block {
    std::uint64_t id, bytes, stream;
  };

  template <class... Args>
  void add(fmt::format_string<Args...> text, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), text, std::forward<Args>(args)...);
  }
  bool fail(std::string why) {
    why_ = std::move(why);
    return false;
  }

  // Threads may log out of order by a little; a time that is much earlier is of the next day.
  void pass_to(std::int64_t time) {
    if (time + days_us_ + kDayUs / 2 < now_us_) days_us_ += kDayUs;
    now_us_ = std::max(now_us_, time + days_us_);
  }
  void fail_request(std::uint64_t bytes, std::uint64_t stream) {
    add("m {} at {} us\n", failed_request_mark(bytes, stream), now_us_);
  }
  void allocate(std::uint64_t pointer, std::uint64_t bytes, std::uint64_t stream) {
    end(pointer);  // does nothing, unless the line that frees it is missing
    live_[pointer] = {next_id_, bytes, stream};
    add("a {} {} {} {}\n", next_id_++, bytes, stream, now_us_);
  }
  void free(std::uint64_t pointer, std::uint64_t stream) {
    const auto found = live_.find(pointer);
    if (found == live_.end()) {
      unknown_ += pointer != 0;
      return;
    }
    if (found->second.stream != stream) add("u {} {} {}\n", found->second.id, stream, now_us_);
    end(pointer);
  }
  void end(std::uint64_t pointer) {
    const auto found = live_.find(pointer);
    if (found == live_.end()) return;
    const Block block = found->second;
    live_.erase(found);
    for (const char kind : {'r', 'f'}) {
      add("{} {} {} {} {}\n", kind, block.id, block.bytes, block.stream, now_us_);
    }
  }

  std::string text_ = "# {\"recorder\": \"RMM\"}\n", why_;
  std::unordered_map<std::uint64_t, Block> live_;  // by pointer
  std::uint64_t next_id_ = 0, unknown_ = 0;
  std::int64_t now_us_ = 0, days_us_ = 0;
};

}  // namespace

Result<std::string> trace_of_rmm_log(const std::string& path) {
  const auto error = [&path](std::uint64_t line, std::string_view what) {
    return Error(ErrorCode::invalid_input, fmt::format("{}:{}: {}", path, line, what));
  };
  const GzipFile file = open_gzip(path);
  if (file == nullptr) {
    return Error(ErrorCode::invalid_input, fmt::format("{}: {}", path, std::strerror(errno)));
  }
  Converter converter;
  std::array<char, 4096> buffer{};
  std::uint64_t number = 0;
  while (gzgets(file.get(), buffer.data(), static_cast<int>(buffer.size())) != nullptr) {
    std::string_view line(buffer.data());
    ++number;
    if (!line.ends_with('\n')) {
      if (line.size() + 1 == buffer.size()) return error(number, "no line is this long");
      return Error(ErrorCode::invalid_input,
                   fmt::format("{}: line {} is incomplete: the file was cut off; copy it again",
                               path, number));
    }
    line.remove_suffix(line.ends_with("\r\n") ? 2 : 1);
    if (number == 1) {
      if (line != kRmmLogColumns) return error(1, fmt::format("no RMM log: {}", kRmmLogColumns));
      continue;
    }
    if (!converter.line(line)) return error(number, converter.why());
  }
  int code = Z_OK;
  gzerror(file.get(), &code);
  if (code != Z_OK && code != Z_STREAM_END) {
    return error(number + 1, "the compressed data is damaged or was cut off here: copy it again");
  }
  return converter.finish();
}

Result<Trace> read_rmm_log(const std::string& path) {
  const Result<std::string> text = trace_of_rmm_log(path);
  return text ? parse_trace(*text, path) : Result<Trace>(text.error());
}

}  // namespace weir
