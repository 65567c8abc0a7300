// Machines that were made up: as a folder of files, and as a value.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "weir/comm/check.h"

namespace weir::test {

// A folder with the files of a machine; gone when the test is.
class MachineTree {
 public:
  MachineTree() {
    const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
    std::string name = std::string(test.test_suite_name()) + "_" + test.name();
    for (char& c : name) c = c == '/' ? '_' : c;  // of a test with parameters
    root_ = ::testing::TempDir() + "weir_machine_" + name;
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }
  ~MachineTree() {
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }
  MachineTree(const MachineTree&) = delete;
  MachineTree& operator=(const MachineTree&) = delete;

  const std::string& root() const { return root_; }
  std::string at(const std::string& path) const { return root_ + path; }
  void write(const std::string& path, std::string_view text) const {
    folder(std::filesystem::path(path).parent_path().string());
    std::ofstream(at(path), std::ios::binary) << text;
  }
  void folder(const std::string& path) const { std::filesystem::create_directories(at(path)); }
  void link(const std::string& path, const std::string& target) const {
    folder(std::filesystem::path(path).parent_path().string());
    std::filesystem::create_symlink(target, at(path));
  }

  void gpu(const std::string& pci, int numa_node, const std::string& lanes = "16") const;
  void rdma(const std::string& name, const std::string& pci, int numa_node,
            const std::string& state, const std::string& layer) const;
  void interface(const std::string& name, bool up, bool is_device, const std::string& speed,
                 int mtu) const;
  // Eight GPUs, four NVSwitches, eight RDMA cards, and what belongs to them, all in order.
  void make_eight_gpus() const;

 private:
  std::string root_;
};

// The same machine as a value, with what NVML says of it.
Machine eight_gpus();
// Settings as the environment would give them.
Settings settings_of(const EnvironmentVariables& environment);

}  // namespace weir::test
