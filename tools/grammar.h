// SPDX-License-Identifier: Apache-2.0
// The grammar of the `weir` command, which all its commands share: docs/command.md.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "look/load.h"
#include "look/output_file.h"
#include "look/symbols.h"
#include "progress.h"
#include "replay/exit_code.h"
#include "replay/named_files.h"
#include "weir/result.h"

namespace weir {

// --- Files to read

// A positional argument that names a file to read; "-": standard input.
CLI::Option* add_input(CLI::App& command, const std::string& name, std::string& file,
                       const std::string& help);
// `--device`: which of several in a file is read.
void add_device_option(CLI::App& command, std::optional<int>& device);

// `--paths`: how much of a source file's path is shown.
void add_paths_option(CLI::App& command, Paths& paths);

// Loads `file`, and shows on a terminal how far that is. Says what the recording lacks.
Result<Loaded> load_shown(const std::string& file, std::optional<int> device,
                          bool with_help = false);

// --- What a command writes

// A file in the format that `--to` names: `-o`, which must be given; "-": standard output.
void add_file_output(CLI::App& command, std::string& output);

// Text for people, or JSON: `-o`, `--json[=FILE]`, `--to text|json`.
struct ResultOptions {
  std::string output;  // where the text goes, or the JSON in its stead; empty: standard output
  std::string json;    // a file; kInstead; empty: no JSON is wanted

  static constexpr const char* kInstead = "instead of the text";
};
void add_result_options(CLI::App& command, ResultOptions& options);

// Where the result goes. Its files are opened before the work begins, so that one that can't be
// written is known then.
class ResultOutput {
 public:
  // `inputs`: what the command reads. `is_written`: false of a process that prints nothing, such as
  // a rank other than 0. Errors: those of check_names() and OutputFile::open().
  static Result<ResultOutput> open(const ResultOptions& options, std::vector<NamedFile> inputs,
                                   bool is_written = true);

  bool wants_json() const { return wants_json_; }
  // Appends. What goes to standard output is shown at once. Errors: cannot be written.
  Status text(const std::string& text);
  Status json(const std::string& json);
  // text(), json() where it is wanted, and finish(). Errors: the first of theirs.
  Status write(const std::string& text, const std::function<std::string()>& json);
  // Writes what is left. Errors: those of OutputFile::commit().
  Status finish();

 private:
  Status add(std::optional<OutputFile>& file, const std::string& text);

  bool wants_text_ = true, wants_json_ = false, json_instead_ = false;
  std::optional<OutputFile> output_, json_;  // none: standard output
};

// Calls check_files() (replay/named_files.h), and refuses "-" for two inputs, or for two outputs.
Status check_names(std::vector<NamedFile> inputs, std::vector<NamedFile> outputs);

// --- Errors

// Says on standard error what went wrong, if anything; what the command returns to its caller.
// `command`: said before the message, if it is not empty.
ExitCode exit_code_of(const Status& status, std::string_view command = {});
// One line on standard error, after "weir: ".
void complain(std::string_view text);

// --- Options

void add_top_option(CLI::App& command, std::size_t& top);
// Allows one of the words; of another it says which the nearest is.
CLI::Validator one_of(std::vector<std::string> words);

// Usage lines, descriptions as wide as the terminal.
std::shared_ptr<CLI::Formatter> make_formatter();

// CLI11 would take `-o=FILE` for a file "=FILE".
void accept_equals_after_o(std::vector<std::string>& arguments);

}  // namespace weir
