// SPDX-License-Identifier: Apache-2.0
// Machines that were made up: as a folder of files, and as a value.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "tests/temporary_folder.h"
#include "weir/comm/check.h"

namespace weir::test {

// A folder with the files of a machine; gone when the test is.
class MachineTree {
 public:
  // Paths below begin with a slash, as on the machine.
  const std::string& root() const { return root_.path(); }
  std::string at(const std::string& path) const { return root() + path; }
  void write(const std::string& path, std::string_view text) const {
    root_.write(path.substr(1), text);
  }
  void folder(const std::string& path) const { std::filesystem::create_directories(at(path)); }
  void link(const std::string& path, const std::string& target) const {
    folder(std::filesystem::path(path).parent_path().string());
    std::filesystem::create_symlink(target, at(path));
  }

  void rdma(const std::string& name, const std::string& state, const std::string& layer) const;
  // Eight GPUs, eight RDMA cards, and what belongs to them, all in order.
  void make_eight_gpus() const;

 private:
  const TemporaryFolder root_;
};

// The same machine as a value, with a version of NCCL.
Machine eight_gpus();
// Settings as the environment would give them.
Settings settings_of(const EnvironmentVariables& environment);

}  // namespace weir::test
