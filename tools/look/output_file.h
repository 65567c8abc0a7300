// SPDX-License-Identifier: Apache-2.0
// A file that is there whole or not at all.
#pragma once

#include <memory>
#include <string>

#include "weir/result.h"

namespace weir {

// Collects text and writes it in pieces; the file gets its name when all of it is written, so that
// a killed run leaves what was there before. Compressed with gzip when the name ends with ".gz".
// What exists and is no regular file (a pipe, /dev/null) is written directly; "-", /dev/stdout,
// /dev/stderr and /dev/fd/N through the open descriptor, after what was printed before. Not
// thread-safe.
class OutputFile {
 public:
  // A command calls check_names() first: `path` is no file that it reads.
  // Errors: invalid_argument: the name is empty; invalid_input, naming the file and why: it can't
  // be made.
  static Result<OutputFile> open(const std::string& path);

  OutputFile(OutputFile&&) noexcept;
  OutputFile& operator=(OutputFile&&) noexcept;
  ~OutputFile();  // without commit(): nothing is left of it

  // To append to.
  std::string& text();
  // Writes what was appended, once that is a lot. An error is kept for commit().
  void relieve();
  // Writes the rest and names the file. Errors: invalid_input, naming the file and why.
  Status commit();

 private:
  class Impl;
  explicit OutputFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weir
