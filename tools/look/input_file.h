// SPDX-License-Identifier: Apache-2.0
// A file that is read more than once, whatever it is.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "weir/result.h"

namespace weir {

// The folder for temporary files, as other programs name it: TMPDIR, else /tmp.
std::string temporary_folder();

// A file can be opened again under path(). A pipe (standard input, "<(zcat x)") can be read only
// once, so open() copies it into a temporary file without a name, in TMPDIR or /tmp.
class InputFile {
 public:
  // `path`: "-" is standard input. Errors: invalid_input: it can't be read; it is a folder; the
  // copy can't be made. The message names it and why.
  static Result<InputFile> open(const std::string& path);

  const std::string& path() const { return path_; }  // to open
  const std::string& name() const { return name_; }  // for people
  // The error of a reader that was given path(), with name() in its stead.
  Error named(const Error& error) const;

 private:
  InputFile(std::string path, std::string name, std::shared_ptr<const int> copy = {})
      : path_(std::move(path)), name_(std::move(name)), copy_(std::move(copy)) {}

  std::string path_, name_;
  std::shared_ptr<const int> copy_;  // its descriptor, which is closed with it; null: none was made
};

}  // namespace weir
