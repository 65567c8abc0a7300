// SPDX-License-Identifier: Apache-2.0
#include "observe/recording_blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace weir {
namespace {

using recording_format::BlockHeader;
using recording_format::kBlockHeader;

constexpr std::size_t kRead = std::size_t{1} << 20;

Error refused(const std::string& path, std::string_view why) {
  return {ErrorCode::invalid_input, fmt::format("{}: {}", path, why)};
}

}  // namespace

Result<RecordingBlocks> RecordingBlocks::open(const std::string& path) {
  std::FILE* const file = std::fopen(path.c_str(), "rbe");
  if (file == nullptr) {
    return refused(path, fmt::format("cannot be opened: {}", std::strerror(errno)));
  }
  RecordingBlocks blocks(file);
  const bool whole = blocks.has(recording_format::kFileHeader);
  if (std::ferror(file) != 0) {
    return refused(path, fmt::format("cannot be read: {}", std::strerror(errno)));
  }
  const std::string_view header = blocks.rest().substr(0, recording_format::kFileHeader);
  if (header.empty()) return refused(path, "is empty: the program that was to write it never did");
  const std::size_t known = std::min(header.size(), recording_format::kMagic.size());
  if (header.substr(0, known) != recording_format::kMagic.substr(0, known)) {
    return refused(path, "is no recording of Weir's: make one with WEIR_RECORD=FILE");
  }
  if (!whole) return refused(path, "is cut off within its first 16 bytes: record it again");
  std::uint32_t version = 0;
  for (std::size_t i = 4; i-- > 0;)
    version = version << 8 | static_cast<unsigned char>(header[8 + i]);
  if (version != recording_format::kVersion) {
    return refused(path, fmt::format("has format {}, and this version of Weir reads format {}: "
                                     "read it with the version that wrote it",
                                     version, recording_format::kVersion));
  }
  blocks.pass(recording_format::kFileHeader);
  return blocks;
}

bool RecordingBlocks::has(std::size_t bytes) {
  while (buffer_.size() - at_ < bytes) {
    buffer_.erase(0, std::exchange(at_, 0));
    const std::size_t before = buffer_.size();
    buffer_.resize(before + kRead);
    const std::size_t read = std::fread(buffer_.data() + before, 1, kRead, file_.get());
    buffer_.resize(before + read);
    if (read == 0) return false;
  }
  return true;
}

void RecordingBlocks::pass(std::size_t bytes) {
  at_ += bytes;
  place_ += bytes;
}

void RecordingBlocks::note_bad() {
  if (bad_++ == 0) first_bad_ = place_;
}

// To the next place where a block could begin, after this one; else to the end.
void RecordingBlocks::pass_to_sync() {
  pass(1);
  while (has(recording_format::kSync.size())) {
    const std::size_t found = rest().find(recording_format::kSync);
    if (found != std::string_view::npos) return pass(found);
    pass(rest().size() - (recording_format::kSync.size() - 1));
  }
  pass(rest().size());
}

std::optional<RecordingBlocks::Block> RecordingBlocks::block_here() {
  const std::optional<BlockHeader> header = recording_format::parse_block_header(rest());
  if (!header || !has(kBlockHeader + header->stored)) return std::nullopt;
  const std::string_view stored = rest().substr(kBlockHeader, header->stored);
  if (!recording_format::crc_is_right(rest().substr(0, kBlockHeader), stored)) return std::nullopt;
  std::optional<std::string> plain = recording_format::inflated(stored, header->plain);
  if (!plain) return std::nullopt;
  if (header->number > expected_) missing_ += header->number - expected_;
  expected_ = header->number + 1;
  pass(kBlockHeader + header->stored);
  return Block{header->kind, *std::move(plain)};
}

std::optional<RecordingBlocks::Block> RecordingBlocks::next() {
  bool bad = false;
  while (has(kBlockHeader)) {
    if (std::optional<Block> block = block_here()) return block;
    if (!std::exchange(bad, true)) note_bad();
    pass_to_sync();
  }
  if (!bad && !rest().empty()) note_bad();
  return std::nullopt;
}

}  // namespace weir
