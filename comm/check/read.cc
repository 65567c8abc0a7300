// SPDX-License-Identifier: Apache-2.0
// What is read: a machine's files, NCCL's configuration files, the version of a library. None of it
// is trusted: reads are bounded, and do not block.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "comm/numbers.h"
#include "weir/comm/check.h"
#include "weir/comm/launch.h"

namespace weir {
namespace {

constexpr std::size_t kMostRead = 1 << 16;    // bytes of one file
constexpr std::size_t kMostListed = 4096;     // names of one folder
constexpr std::size_t kMostNcclValue = 1023;  // bytes that NCCL takes from a file for one value

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace(" \t\r\n\v\f\0", 7);
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

// Files below a root folder.
class Tree {
 public:
  explicit Tree(const std::string& root) : root_(root.substr(0, root.find_last_not_of('/') + 1)) {}

  // A file's text without the white space at its ends; empty: there is no such file, it has no
  // content now, or it can't be read, which is noted.
  std::string text(const std::string& path, std::vector<Unread>& unread) const {
    // A pipe in place of a file must not be waited for.
    const int file = ::open((root_ + path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    int error = file < 0 ? errno : 0;
    struct stat status {};
    if (error == 0 && ::fstat(file, &status) != 0) error = errno;
    if (error == 0 && !S_ISREG(status.st_mode)) error = S_ISDIR(status.st_mode) ? EISDIR : EBADF;
    std::string text;
    char piece[4096];
    while (error == 0 && text.size() < kMostRead) {
      const ssize_t got = ::read(file, piece, std::min(sizeof piece, kMostRead - text.size()));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) error = errno;
      if (got <= 0) break;
      text.append(piece, static_cast<std::size_t>(got));
    }
    if (file >= 0) ::close(file);
    if (error == 0) return std::string(trimmed(text));
    // Other errors are how the kernel says that a device has no such property now.
    constexpr int kReported[] = {EACCES, EPERM, EISDIR, EBADF, ELOOP, ENAMETOOLONG};
    if (std::find(std::begin(kReported), std::end(kReported), error) != std::end(kReported)) {
      unread.push_back({path, error == EBADF ? "it is no regular file" : std::strerror(error)});
    }
    return {};
  }

  // The names in a folder, sorted; empty: none, or no such folder.
  std::vector<std::string> list(const std::string& path) const {
    std::vector<std::string> names;
    std::error_code error;
    std::filesystem::directory_iterator entry(root_ + path, error);
    for (; !error && entry != std::filesystem::directory_iterator() && names.size() < kMostListed;
         entry.increment(error)) {
      names.push_back(entry->path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  bool exists(const std::string& path) const { return ::access((root_ + path).c_str(), F_OK) == 0; }
  bool is_this_machine() const { return root_.empty(); }

 private:
  const std::string root_;  // without a slash at its end
};

std::vector<RdmaPort> read_rdma(const Tree& tree, std::vector<Unread>& unread) {
  const std::string root = "/sys/class/infiniband/";
  std::vector<RdmaPort> all;
  for (const std::string& device : tree.list(root)) {
    for (const std::string& port : tree.list(root + device + "/ports")) {
      const std::optional<std::uint64_t> number = whole_number(port, 255);
      if (number.value_or(0) == 0) continue;
      const std::string path = root + device + "/ports/" + port;
      const std::string state = tree.text(path + "/state", unread);  // "4: ACTIVE"
      const std::size_t colon = state.find(": ");
      all.push_back({.device = device,
                     .number = static_cast<int>(*number),
                     .state = colon == state.npos ? state : state.substr(colon + 2),
                     .link_layer = tree.text(path + "/link_layer", unread)});
    }
  }
  return all;
}

// The variables that matter to NCCL, and those that give a process its rank.
bool is_relevant(std::string_view name) {
  constexpr std::string_view kOthers[] = {"CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING",
                                          "CUDA_MODULE_LOADING", "CUDA_VISIBLE_DEVICES",
                                          "WEIR_NCCL_LIBRARY"};
  return name.starts_with("NCCL_") || is_of_a_launch(name) ||
         std::find(std::begin(kOthers), std::end(kOthers), name) != std::end(kOthers);
}

// As NCCL: no white space is dropped, nothing is quoted, and what is set stays as it is.
void read_file(const Tree& tree, const std::string& path, Settings& settings,
               std::map<std::string, Setting>& in_force) {
  if (!tree.exists(path)) return;
  const std::size_t unread = settings.unread.size();
  std::istringstream text(tree.text(path, settings.unread));
  if (settings.unread.size() > unread) return;
  settings.files.push_back(path);
  for (std::string line; std::getline(text, line);) {
    if (line.empty() || line.front() == '#') continue;
    const std::size_t equals = line.find('=');
    const std::string name = line.substr(0, equals);
    if (equals == std::string::npos || trimmed(name) != name || !is_relevant(name)) continue;
    in_force.emplace(name, Setting{name, line.substr(equals + 1, kMostNcclValue), path});
  }
}

}  // namespace

// NCCL's header is not needed, and the library is never closed: it may have started threads.
Result<std::string> nccl_version_of(const std::string& library) {
  void* const opened = ::dlopen(library.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (opened == nullptr) return Error(ErrorCode::unavailable, ::dlerror());
  auto* const get_version = reinterpret_cast<int (*)(int*)>(::dlsym(opened, "ncclGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0) {
    return Error(ErrorCode::unavailable,
                 library + (get_version == nullptr ? " is no NCCL: it lacks ncclGetVersion"
                                                   : ": ncclGetVersion failed"));
  }
  return nccl_version_text(version);
}

Machine read_machine(const std::string& root, const std::string& nccl_library) {
  Machine machine{.root = root};
  const Tree tree(root);
  const auto text = [&](const char* path) { return tree.text(path, machine.unread); };
  machine.gpus = static_cast<int>(tree.list("/proc/driver/nvidia/gpus").size());
  machine.kernel = text("/proc/sys/kernel/osrelease");
  machine.open_driver =
      text("/proc/driver/nvidia/version").find("Open Kernel Module") != std::string::npos;
  // A module that is built in has no line there, nor has one where /proc is hidden.
  const std::string modules = '\n' + text("/proc/modules");
  machine.peermem = modules.find("\nnvidia_peermem ") != std::string::npos ||
                    modules.find("\nnv_peer_mem ") != std::string::npos ||
                    tree.exists("/sys/module/nvidia_peermem") ||
                    tree.exists("/sys/module/nv_peer_mem");
  machine.rdma = read_rdma(tree, machine.unread);
  machine.no_nccl = "not asked: it would speak of this machine, not of the root";
  if (nccl_library.empty()) return machine;
  const Result<std::string> version = nccl_version_of(nccl_library);
  machine.nccl = version ? *version : "";
  machine.no_nccl = version ? "" : version.error().message();
  return machine;
}

bool Machine::has_dma_buf() const {
  int major = 0, minor = 0;
  if (!open_driver || std::sscanf(kernel.c_str(), "%4d.%4d", &major, &minor) != 2) return false;
  return major > 5 || (major == 5 && minor >= 12);
}

const Setting* Settings::find(std::string_view name) const {
  const auto found = std::find_if(list.begin(), list.end(),
                                  [&](const Setting& setting) { return setting.name == name; });
  return found == list.end() || found->value.empty() ? nullptr : &*found;
}

std::optional<std::int64_t> Settings::number(std::string_view name) const {
  const Setting* setting = find(name);
  if (setting == nullptr) return std::nullopt;
  return nccl_number_in(setting->value);
}

EnvironmentVariables environment_of(const char* const* entries) {
  EnvironmentVariables environment;
  for (; entries != nullptr && *entries != nullptr; ++entries) {
    const std::string entry = *entries;
    const std::size_t equals = entry.find('=');
    if (equals != std::string::npos) {
      environment.emplace(entry.substr(0, equals), entry.substr(equals + 1));
    }
  }
  return environment;
}

Settings read_settings(const std::string& root, const EnvironmentVariables& environment,
                       const std::string& home) {
  Settings settings;
  std::map<std::string, Setting> in_force;
  for (const auto& [name, value] : environment) {
    if (is_relevant(name)) in_force.emplace(name, Setting{name, value, "environment"});
  }
  const Tree tree(root);
  const auto named = environment.find("NCCL_CONF_FILE");
  if (named != environment.end() && !named->second.empty()) {
    const std::string& path = named->second;
    // Below another root a relative path leads nowhere.
    if ((path.front() != '/' && !tree.is_this_machine()) || !tree.exists(path)) {
      settings.unread.push_back({path, "there is no such file"});
    } else {
      read_file(tree, path, settings, in_force);
    }
  } else if (!home.empty()) {
    read_file(tree, home + "/.nccl.conf", settings, in_force);
  }
  read_file(tree, "/etc/nccl.conf", settings, in_force);
  for (auto& [name, setting] : in_force) settings.list.push_back(std::move(setting));
  return settings;
}

}  // namespace weir
