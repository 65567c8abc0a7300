// SPDX-License-Identifier: Apache-2.0
#include "unknown_argument.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <string_view>
#include <vector>

#include "api/edit_distance.h"

namespace weir {
namespace {

const CLI::App& innermost_command(const CLI::App& app, std::string& path) {
  const CLI::App* command = &app;
  path = app.get_name();
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    path += " " + command->get_name();
  }
  return *command;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

std::string unknown(std::string_view what, const std::string& word,
                    const std::vector<std::string>& known) {
  const std::string_view nearest = nearest_name(word, known);
  std::string text = fmt::format("unknown {} '{}'", what, word);
  if (!nearest.empty()) text += fmt::format("; did you mean '{}'?", nearest);
  return text;
}

}  // namespace

std::string unknown_argument(const CLI::App& app) {
  std::string path;
  const CLI::App& command = innermost_command(app, path);
  const std::vector<std::string> commands = command_names(command);
  std::vector<std::string> words = app.remaining(true);
  std::erase(words, "--");
  const auto option = std::find_if(words.begin(), words.end(),
                                   [](const std::string& word) { return word.starts_with('-'); });
  if (option != words.end()) {
    const std::string name = option->substr(0, option->find('='));
    const std::vector<std::string> known = option_names(command);
    if (std::ranges::find(known, name) == known.end()) {
      const char* const hint = name == "--open" ? "; weir look FILE opens a browser" : "";
      return path + ": " + unknown("option", name, known) + hint;
    }
    return fmt::format("'{}' stands before the command that it belongs to: {} {}", name, path,
                       name);
  }
  if (commands.empty()) {
    if (words.empty()) return {};
    const std::string text = fmt::format("{}: unexpected argument '{}'", path, words.front());
    // "--json out.json FILE": the first of the two was taken for the input.
    const CLI::Option* const json = command.get_option_no_throw("--json");
    const bool has_json = json != nullptr && json->count() > 0;
    return has_json ? text + "; the file for JSON is named by --json=FILE" : text;
  }
  const std::string all = fmt::format("the commands are {}", fmt::join(commands, ", "));
  if (words.empty()) return fmt::format("{}: a command is missing; {}", path, all);
  if (&command == &app && std::filesystem::exists(words.front())) {
    return fmt::format("{0}: '{1}' is a file: say what to do with it, such as {0} look {1}", path,
                       words.front());
  }
  if (&command == &app && (words.front() == "info" || words.front() == "run")) {
    return fmt::format("{}: '{}' is a command of the Python package: python -m weir {}", path,
                       words.front(), words.front());
  }
  const std::string text = path + ": " + unknown("command", words.front(), commands);
  return text.ends_with('?') ? text : text + "; " + all;
}

std::string failure_text(const CLI::App* app, const CLI::Error& error) {
  const auto is = [&error](CLI::ExitCodes code) {
    return error.get_exit_code() == static_cast<int>(code);
  };
  std::string path, text;
  const CLI::App& command = innermost_command(*app, path);
  if (is(CLI::ExitCodes::RequiredError) || is(CLI::ExitCodes::ExtrasError)) {
    text = unknown_argument(*app);
  }
  if (text.empty()) text = path + ": " + error.what();
  const auto formatter = std::dynamic_pointer_cast<CLI::Formatter>(app->get_formatter());
  if (formatter) text += "\n" + formatter->make_usage(&command, path);
  return fmt::format("{}Run '{} --help' for more information.\n", text, path);
}

}  // namespace weir
