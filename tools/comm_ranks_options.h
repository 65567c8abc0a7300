// What the commands of `weir comm` have in common; ranks: `bench` and `scenario`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/ranks.h"
#include "command.h"
#include "look/output_file.h"
#include "replay/named_files.h"

namespace weir {

struct RanksCommand {
  std::string device = "auto";
  std::optional<int> ranks;
};
void add_ranks_options(CLI::App& command, RanksCommand& ranks);
// Errors: invalid_argument; those of cuda_ranks().
Result<OpenRanks> open_as(const RanksCommand& command);

// `--json`; without it `json` stays empty. It takes no empty name: such is a variable of the shell
// that was not set, and a script would find no file.
void add_json_option(CLI::App& command, std::string& json);

// The NCCL that WEIR_NCCL_LIBRARY names, which no output may replace; empty: it names none.
std::vector<NamedFile> named_nccl_library();

// Where `--json` goes: a file, standard output ("-"), or nowhere (empty).
class JsonTarget {
 public:
  // Call it before anything is measured: a file that can't be written is known then. Where a
  // launcher made several processes, rank 0's alone has one. Errors: those of check_files()
  // and OutputFile::open().
  static Result<JsonTarget> open(const std::string& json);

  bool is_standard_output() const { return standard_output_; }
  bool is_wanted() const { return standard_output_ || file_.has_value(); }
  // Prints the text, or the JSON in its stead; else writes that to the file, if there is one.
  // Errors: those of OutputFile::commit().
  Status write(const std::string& text, const std::string& json);

 private:
  bool standard_output_ = false;
  std::optional<OutputFile> file_;
};
// To standard error.
ExitCode complain(const std::string& command, const Error& error);

}  // namespace weir
