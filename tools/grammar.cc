// SPDX-License-Identifier: Apache-2.0
#include "grammar.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "api/edit_distance.h"
#include "option_checks.h"
#include "replay/report_table.h"
#include "suite/fit.h"
#include "terminal.h"

namespace weir {
namespace {

constexpr const char* kStandard = "-";
constexpr std::size_t kNames = 30;  // columns of the names of options in the help
constexpr std::size_t kWidestHelp = 100;

Error unwritable() {
  return {ErrorCode::invalid_input,
          fmt::format("standard output could not be written: {}", std::strerror(errno))};
}

std::size_t help_width() {
  return std::clamp<std::size_t>(columns_of(STDOUT_FILENO).value_or(kWidestHelp), 60, kWidestHelp);
}

class Formatter final : public CLI::Formatter {
 public:
  Formatter() { column_width(kNames); }

  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    return line(make_option_name(option, is_positional) + make_option_opts(option),
                make_option_desc(option));
  }

  std::string make_subcommand(const CLI::App* command) const override {
    return line(command->get_name(), command->get_description());
  }

  // As wide as the terminal, but for lists and examples: paragraphs with an indented line.
  std::string make_footer(const CLI::App* app) const override {
    const std::string& footer = app->get_footer();
    std::string text;
    for (std::size_t begin = 0; begin < footer.size();) {
      const std::size_t end = std::min(footer.find("\n\n", begin), footer.size());
      const std::string paragraph = footer.substr(begin, end - begin);
      const bool is_prose = paragraph.find("\n  ") == std::string::npos;
      text += is_prose ? wrapped(paragraph, 0, help_width()) : paragraph;
      text += footer.substr(end, 2);
      begin = end + 2;
    }
    return text.empty() ? "" : text + "\n";
  }

  std::string make_description(const CLI::App* app) const override {
    return wrapped(app->get_description(), 0, help_width()) + "\n";
  }

  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    std::string name = CLI::Formatter::make_option_name(option, is_positional);
    const std::size_t brace = name.find('{');  // the value that the flag alone stands for
    return brace == std::string::npos ? name : name.substr(0, brace) + "[=FILE]";
  }

  std::string make_usage(const CLI::App* app, std::string name) const override {
    std::string line = "Usage:" + (name.empty() ? "" : " " + name);
    for (const CLI::Option* option : app->get_options()) {
      if (option->get_positional() || !option->get_required()) continue;
      const auto& shorts = option->get_snames();
      line += shorts.empty() ? " --" + option->get_lnames().front() : " -" + shorts.front();
      line += " " + option->get_type_name();
    }
    line += " [OPTIONS]";
    for (const CLI::Option* option : app->get_options()) {
      if (!option->get_positional()) continue;
      const std::string& shown = option->get_name(true, false);
      line += " " + shown;
      if (option->get_expected_max() >= CLI::detail::expected_max_vector_size) {
        line += "...";
      } else if (option->get_expected_max() > 1) {
        line += " [" + shown + "]";
      }
    }
    const auto any = [](const CLI::App*) { return true; };
    if (!app->get_subcommands(any).empty()) line += " COMMAND";
    return wrapped(line, 7, help_width()) + "\n";
  }

 private:
  static std::string line(const std::string& names, const std::string& description) {
    std::string text = "  " + names;
    if (text.size() + 1 > kNames) {
      text += "\n" + std::string(kNames, ' ');
    } else {
      text.resize(kNames, ' ');
    }
    return text + wrapped(description, kNames, help_width()) + "\n";
  }
};

// The option that names "-", where another has named it already.
std::optional<std::pair<std::string, std::string>> twice_standard(
    const std::vector<NamedFile>& files) {
  const NamedFile* first = nullptr;
  for (const NamedFile& file : files) {
    if (file.path != kStandard) continue;
    if (first != nullptr) return std::pair(first->option, file.option);
    first = &file;
  }
  return std::nullopt;
}

std::vector<NamedFile> with_standard(std::vector<NamedFile> files, const char* path) {
  for (NamedFile& file : files) {
    if (file.path == kStandard) file.path = path;
  }
  return files;
}

}  // namespace

CLI::Option* add_input(CLI::App& command, const std::string& name, std::string& file,
                       const std::string& help) {
  return command.add_option(name, file, help)->required()->transform(not_empty());
}

void add_device_option(CLI::App& command, std::optional<int>& device) {
  command
      .add_option("--device", device,
                  "Of a PyTorch snapshot: the device; default: the one that ran out of memory, or "
                  "held most")
      ->transform(whole_number(0, 1023))
      ->type_name("N");
}

void add_paths_option(CLI::App& command, Paths& paths) {
  add_choice<Paths>(command, "--paths", paths, {{"cut", Paths::cut}, {"full", Paths::full}},
                    "How much of the paths of source files html and csv show; cut: the last two "
                    "folders, so that what is passed on names nobody's home",
                    one_of({"cut", "full"}));
}

Result<Loaded> load_shown(const std::string& file, std::optional<int> device, bool with_help) {
  ProgressBar bar("reading " + (file == kStandard ? "standard input" : file), true);
  LoadOptions options{.device = device};
  options.progress = [&bar](std::uint64_t done, std::uint64_t all) { bar.update(done, all); };
  if (with_help) options.help = suite::help_of;
  return load(file, options);
}

void add_file_output(CLI::App& command, std::string& output) {
  command.add_option("-o,--output", output, "The file to write; -: standard output")
      ->type_name("FILE")
      ->required()
      ->transform(not_empty());
}

void add_result_options(CLI::App& command, ResultOptions& options) {
  command
      .add_option("-o,--output", options.output,
                  "Write the result to this file; -: to standard output, as without it")
      ->type_name("FILE")
      ->transform(not_empty());
  command
      .add_flag(fmt::format("--json{{{}}}", ResultOptions::kInstead), options.json,
                "JSON instead of text; with a file, JSON there beside the text; -: to standard "
                "output")
      ->multi_option_policy(CLI::MultiOptionPolicy::Throw);  // else the last one counts
  command
      .add_option_function<std::string>(
          "--to",
          [&options](const std::string& word) {
            if (word == "json" && options.json.empty()) options.json = ResultOptions::kInstead;
          },
          "The format of the result: --to json is --json")
      ->check(one_of({"text", "json"}))
      ->type_name("text|json");
}

Result<ResultOutput> ResultOutput::open(const ResultOptions& options, std::vector<NamedFile> inputs,
                                        bool is_written) {
  std::vector<NamedFile> outputs;
  if (!options.output.empty()) outputs.push_back({"-o", options.output});
  if (!options.json.empty() && options.json != ResultOptions::kInstead) {
    outputs.push_back({"--json", options.json});
  }
  Status allowed = check_names(std::move(inputs), std::move(outputs));
  if (!allowed) return std::move(allowed).error();
  ResultOutput result;
  result.wants_json_ = !options.json.empty();
  result.json_instead_ = options.json == ResultOptions::kInstead;
  const bool json_is_printed = options.json == kStandard;
  // Text and JSON on one stream could not be told apart.
  result.wants_text_ = !result.json_instead_ && !(json_is_printed && options.output.empty());
  if (!is_written) return result;
  if (!options.output.empty() && options.output != kStandard) {
    Result<OutputFile> file = OutputFile::open(options.output);
    if (!file) return std::move(file).error();
    result.output_ = *std::move(file);
  }
  if (result.wants_json_ && !result.json_instead_ && !json_is_printed) {
    Result<OutputFile> file = OutputFile::open(options.json);
    if (!file) return std::move(file).error();
    result.json_ = *std::move(file);
  }
  return result;
}

Status ResultOutput::add(std::optional<OutputFile>& file, const std::string& text) {
  if (file) {
    file->text() += text;
    file->relieve();
    return {};
  }
  errno = 0;
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  return written && std::fflush(stdout) == 0 ? Status() : Status(unwritable());
}

Status ResultOutput::text(const std::string& text) {
  return wants_text_ ? add(output_, text) : Status();
}

Status ResultOutput::json(const std::string& json) {
  if (!wants_json_) return {};
  return add(json_instead_ ? output_ : json_, json);
}

Status ResultOutput::write(const std::string& text, const std::function<std::string()>& json) {
  if (Status shown = this->text(text); !shown) return shown;
  if (wants_json_) {
    if (Status shown = this->json(json()); !shown) return shown;
  }
  return finish();
}

Status ResultOutput::finish() {
  for (std::optional<OutputFile>* const file : {&output_, &json_}) {
    if (!*file) continue;
    if (Status written = (*file)->commit(); !written) return written;
  }
  return {};
}

Status check_names(std::vector<NamedFile> inputs, std::vector<NamedFile> outputs) {
  if (const auto both = twice_standard(inputs)) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{} and {} are both standard input, which can be read once: name a "
                             "file for one of them",
                             both->first, both->second));
  }
  if (const auto both = twice_standard(outputs)) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{} and {} are both standard output, where they could not be told "
                             "apart: name a file for one of them",
                             both->first, both->second));
  }
  return check_files(with_standard(std::move(inputs), "/dev/stdin"),
                     with_standard(std::move(outputs), "/dev/stdout"));
}

ExitCode exit_code_of(const Status& status, std::string_view command) {
  if (status.ok()) return ExitCode::ok;
  const std::string& message = status.error().message();
  complain(command.empty() ? message : fmt::format("{}: {}", command, message));
  return exit_code_of(status.error().code());
}

void complain(std::string_view text) {
  std::string shown;  // the name of a file may have characters that a terminal acts on
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (begin > 0) shown += '\n';
    shown += printable(text.substr(begin, end - begin));
    begin = end + 1;
  }
  fmt::print(stderr, "{} {}\n", as_trouble("weir:", STDERR_FILENO), shown);
}

void add_top_option(CLI::App& command, std::size_t& top) {
  command.add_option("--top", top, "Most rows of a list")
      ->transform(whole_number(1, 1'000'000))
      ->type_name("N")
      ->capture_default_str();
}

CLI::Validator one_of(std::vector<std::string> words) {
  const auto check = [words = std::move(words)](const std::string& word) -> std::string {
    if (std::find(words.begin(), words.end(), word) != words.end()) return {};
    const std::string nearest(nearest_name(word, words));
    if (!nearest.empty()) {
      return fmt::format("unknown value '{}'; did you mean '{}'?", word, nearest);
    }
    return fmt::format("unknown value '{}'; it is one of {}", word, fmt::join(words, ", "));
  };
  return {check, ""};
}

std::shared_ptr<CLI::Formatter> make_formatter() { return std::make_shared<Formatter>(); }

void accept_equals_after_o(std::vector<std::string>& arguments) {
  for (std::string& argument : arguments) {
    if (argument.starts_with("-o=")) argument.erase(2, 1);
  }
}

}  // namespace weir
