// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <iterator>

#include "look/exporters.h"
#include "look/streams.h"
#include "look/symbols.h"

namespace weir {
namespace {

// RFC 4180: in quotes where it must be, and the quotes in it doubled.
void append_field(std::string& out, std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) {
    out += text;
    return;
  }
  out += '"';
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  out += '"';
}

class Rows {
 public:
  Rows(ReadableStacks stacks, const BlockLifetimes& lifetimes, OutputFile& file)
      : stacks_(std::move(stacks)), lifetimes_(lifetimes), out_(file.text()) {}

  void header() {
    out_ +=
        "block,address,bytes,requested,stream,captured,pool,heap,begin_ns,end_ns,live_at_begin,"
        "live_at_end,fences,fenced_by,reused_by,waited_for,stack\n";
  }

  void row(std::uint32_t block) {
    const BlockLifetime& lifetime = lifetimes_.blocks[block];
    const auto into = std::back_inserter(out_);
    fmt::format_to(into, "{},{},{},{},{},{:d},{},{},{},{},{:d},{:d},{},", block,
                   lifetime.address.value, lifetime.bytes.count, lifetime.requested.count,
                   eager_stream(lifetime.stream), is_captured_stream(lifetime.stream),
                   lifetime.pool, lifetime.heap.value, lifetime.begin.count, lifetime.end.count,
                   lifetime.live_at_begin, lifetime.live_at_end, lifetime.fences);
    for (std::uint32_t i = 0; i < lifetime.fences; ++i) {
      fmt::format_to(into, "{}{}", i > 0 ? " " : "",
                     eager_stream(lifetimes_.fences[lifetime.first_fence + i].stream));
    }
    out_ += ',';
    if (lifetime.reused_by != BlockLifetime::kNone) fmt::format_to(into, "{}", lifetime.reused_by);
    fmt::format_to(into, ",{:d},", lifetime.waited_for);
    stack(lifetime.stack);
    out_ += '\n';
  }

 private:
  void stack(std::uint32_t id) {
    scratch_.clear();
    for (const std::uint32_t i : stacks_.whole(id)) {
      const RecordedFrame& frame = stacks_.frames[i];
      if (!scratch_.empty()) scratch_ += " < ";
      scratch_ += frame.function.empty() ? "??" : frame.function;
      if (frame.file.empty()) continue;
      scratch_ += " (" + frame.file;
      if (frame.line != 0) scratch_ += ":" + std::to_string(frame.line);
      scratch_ += ')';
    }
    append_field(out_, valid_utf8(scratch_));
  }

  const ReadableStacks stacks_;
  const BlockLifetimes& lifetimes_;
  std::string& out_;
  std::string scratch_;
};

}  // namespace

void write_csv(const Recording& recording, const BlockLifetimes& lifetimes, Paths paths,
               OutputFile& file) {
  Rows rows(readable_stacks(recording, paths), lifetimes, file);
  rows.header();
  for (std::uint32_t i = 0; i < lifetimes.blocks.size(); ++i) {
    rows.row(i);
    file.relieve();
  }
}

}  // namespace weir
