// SPDX-License-Identifier: Apache-2.0
// The files that a command line names, compared before any of them is opened for writing.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "weir/result.h"

namespace weir {

struct NamedFile {
  std::string option;  // as the command's help calls it: "TRACE", "--json"
  std::string path;    // as given; it need not exist
};

// True if both paths lead to the same regular file, or would once it is created: through symbolic
// links, hard links or relative paths. Never true of what exists and is no regular file (a pipe,
// /dev/null, a folder).
bool is_same_file(const std::string& a, const std::string& b);

// Follows symbolic links whose target does not exist.
std::filesystem::path behind_dangling_links(std::filesystem::path path);

// The number of the open descriptor that the path of an output such as "-", /dev/stdout or
// /dev/fd/3 names. Such a file
// is written through the descriptor, so that several outputs follow one another.
std::optional<int> descriptor_named(const std::string& path);

// Every command calls this before it opens or replaces a file. An output may not be one of the
// inputs, nor another output; an input may be named twice. Standard output is an output too, where
// it is redirected to a regular file. Several outputs may name descriptors (/dev/stdout) or a file
// that is not regular.
//
// Errors: invalid_argument, with both options, both paths and the remedy; also for an output whose
// name is empty.
Status check_files(const std::vector<NamedFile>& inputs, const std::vector<NamedFile>& outputs);

}  // namespace weir
