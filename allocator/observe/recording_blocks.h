// SPDX-License-Identifier: Apache-2.0
// Finds the blocks of a recording, in a file of any size and in any state. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "observe/recording_format.h"
#include "weir/result.h"

namespace weir {

class RecordingBlocks {
 public:
  // Reads the file's own header. Errors: invalid_input (names the file, what is wrong with it, and
  // the remedy).
  static Result<RecordingBlocks> open(const std::string& path);

  struct Block {
    recording_format::BlockKind kind;
    std::string plain;
  };
  // The next block that is sound; passes over what is not. Nothing: there is none.
  std::optional<Block> next();

  // Stretches of the file that could not be read; where the first of them begins.
  std::uint64_t bad_stretches() const { return bad_; }
  std::uint64_t first_bad() const { return first_bad_; }
  // Blocks that others' numbers show to be missing, bad ones included.
  std::uint64_t missing() const { return missing_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { (void)std::fclose(file); }
  };
  explicit RecordingBlocks(std::FILE* file) : file_(file) {}

  // Are there `bytes` more? They are at the start of rest() then.
  bool has(std::size_t bytes);
  std::string_view rest() const { return std::string_view(buffer_).substr(at_); }
  void pass(std::size_t bytes);
  void pass_to_sync();
  std::optional<Block> block_here();
  void note_bad();

  std::unique_ptr<std::FILE, Close> file_;
  std::string buffer_;
  std::size_t at_ = 0;       // what is before it has been read
  std::uint64_t place_ = 0;  // of at_ in the file
  std::uint32_t expected_ = 0;
  std::uint64_t bad_ = 0, first_bad_ = 0, missing_ = 0;
};

}  // namespace weir
