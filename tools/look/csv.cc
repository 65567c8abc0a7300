// SPDX-License-Identifier: Apache-2.0
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
    number(block);
    number(lifetime.address.value);
    number(lifetime.bytes.count);
    number(lifetime.requested.count);
    number(eager_stream(lifetime.stream));
    number(std::uint64_t{is_captured_stream(lifetime.stream)});
    number(lifetime.pool);
    number(lifetime.heap.value);
    number(lifetime.begin.count);
    number(lifetime.end.count);
    number(std::uint64_t{lifetime.live_at_begin});
    number(std::uint64_t{lifetime.live_at_end});
    number(lifetime.fences);
    fenced_by(lifetime);
    if (lifetime.reused_by != BlockLifetime::kNone)
      append_number(out_, std::uint64_t{lifetime.reused_by});
    out_ += ',';
    number(std::uint64_t{lifetime.waited_for});
    stack(lifetime.stack);
    out_ += '\n';
  }

 private:
  void number(std::uint64_t value) {
    append_number(out_, value);
    out_ += ',';
  }
  void number(std::int64_t value) {
    append_number(out_, value);
    out_ += ',';
  }
  void number(std::uint32_t value) { number(std::uint64_t{value}); }

  void fenced_by(const BlockLifetime& lifetime) {
    for (std::uint32_t i = 0; i < lifetime.fences; ++i) {
      if (i > 0) out_ += ' ';
      append_number(out_, eager_stream(lifetimes_.fences[lifetime.first_fence + i].stream));
    }
    out_ += ',';
  }

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
