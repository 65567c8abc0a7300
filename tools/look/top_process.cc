// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string_view>
#include <system_error>

#include "look/top.h"
#include "observe/recording_format.h"

namespace weir {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kHowTo =
    "start it with WEIR_RECORD=run.weir, or, to record on demand, with WEIR_RECORD_SIGNAL=USR1 "
    "too, and send it that signal";

// Opens nothing that could block or be a device.
bool is_recording(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return false;
  std::ifstream file(path, std::ios::binary);
  std::array<char, recording_format::kMagic.size()> begin{};
  file.read(begin.data(), begin.size());
  return file && std::string_view(begin.data(), begin.size()) == recording_format::kMagic;
}

Error not_permitted(const std::string& pid) {
  return {ErrorCode::unavailable,
          fmt::format("process {} belongs to another user: run weir top as that user or as root, "
                      "or name the recording's file",
                      pid)};
}

// Files that the process has open, by their numbers there.
Result<std::vector<std::string>> open_recordings(const fs::path& process, const std::string& pid) {
  std::error_code error;
  fs::directory_iterator files(process / "fd", error);
  if (error) return not_permitted(pid);
  std::vector<std::pair<int, std::string>> found;
  for (; files != fs::directory_iterator(); files.increment(error)) {
    if (error) break;
    if (!is_recording(files->path())) continue;
    found.emplace_back(std::atoi(files->path().filename().c_str()), files->path().string());
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> paths;
  paths.reserve(found.size());
  for (auto& [number, path] : found) paths.push_back(std::move(path));
  return paths;
}

// What the process was started with: it may have been changed since, which only it knows.
std::map<std::string, std::string> environment_of(const fs::path& process) {
  std::ifstream file(process / "environ", std::ios::binary);
  std::map<std::string, std::string> environment;
  for (std::string variable; std::getline(file, variable, '\0');) {
    const std::size_t equals = variable.find('=');
    if (equals == std::string::npos) continue;
    environment[variable.substr(0, equals)] = variable.substr(equals + 1);
  }
  return environment;
}

Error records_nothing(const std::string& pid, std::map<std::string, std::string>& environment) {
  std::string why;
  if (!environment["WEIR_RECORD_RING"].empty() && environment["WEIR_RECORD_RING"] != "0") {
    why =
        "keeps its recording in memory (WEIR_RECORD_RING) and writes no file that grows: start "
        "it without WEIR_RECORD_RING";
  } else if (const std::string& signal = environment["WEIR_RECORD_SIGNAL"];
             !signal.empty() && signal != "none") {
    why = fmt::format("is not recording now: `kill -{} {}` starts it", signal, pid);
  } else if (const std::string& file = environment["WEIR_RECORD"]; !file.empty()) {
    why = fmt::format("was told to record into {}, and has not begun, or has stopped", file);
  } else {
    why = fmt::format("is not recording: {}", kHowTo);
  }
  return {ErrorCode::invalid_argument, fmt::format("process {} {}", pid, why)};
}

}  // namespace

Result<std::vector<std::string>> recordings_of_process(const std::string& pid,
                                                       const std::string& proc) {
  const fs::path process = fs::path(proc) / pid;
  std::error_code error;
  if (!fs::exists(process, error)) {
    return Error(
        ErrorCode::unavailable,
        fmt::format("there is no process {}; to follow a file of that name, write ./{}", pid, pid));
  }
  Result<std::vector<std::string>> open = open_recordings(process, pid);
  if (!open.ok() || !open->empty()) return open;
  std::map<std::string, std::string> environment = environment_of(process);
  const std::string named = environment["WEIR_RECORD"];
  // Its path is from the process's own folder, where that has not changed.
  const fs::path file = named.empty() ? fs::path() : process / "cwd" / named;
  if (!named.empty() && is_recording(file)) return std::vector<std::string>{file.string()};
  return records_nothing(pid, environment);
}

}  // namespace weir
