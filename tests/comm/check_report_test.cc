// What is printed for people and for programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "comm/check/rules.h"
#include "tests/comm/check_machines.h"
#include "tests/temporary_folder.h"

namespace weir {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Check check_of(const EnvironmentVariables& environment) {
  Check check{.machine = test::eight_gpus(), .settings = test::settings_of(environment)};
  check.findings = examine(check.machine, check.settings);
  return check;
}

std::size_t widest(const std::string& text) {
  std::istringstream lines(text);
  std::size_t most = 0;
  for (std::string line; std::getline(lines, line);) most = std::max(most, line.size());
  return most;
}

TEST(CheckReport, TellsOfEachPart) {
  const std::string text = check_text(check_of({{"NCCL_DEBUG", "INFO"}, {"NCCL_DBUG", "x"}}));
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("575.57.08, open kernel modules"), HasSubstr("NCCL            2.28.9"),
            HasSubstr("0000:88:00.0"), HasSubstr("18 of 18"), HasSubstr("28 of 28 pairs of GPUs"),
            HasSubstr("mlx5_7"), HasSubstr("64 GiB, 60 GiB free"), HasSubstr("unlimited")));
  EXPECT_THAT(text, AllOf(HasSubstr("NCCL_DEBUG=INFO"), HasSubstr("how much NCCL logs"),
                          HasSubstr("Findings: 0 errors, 1 warning, 0 notes"),
                          HasSubstr("[unknown_variable]")));
  EXPECT_LE(widest(text), 100u);
}

TEST(CheckReport, IsNeverWiderThanAHundredColumnsNorUnprintable) {
  Check check = check_of({{"NCCL_SOCKET_IFNAME", std::string(5000, 'x')},
                          {"NCCL_DEBUG", "\x1b[31m\xff\n"},
                          {"NCCL_" + std::string(3000, 'Y'), "1"}});
  const std::string odd = std::string(300, 'w') + "\x1b[2J\x07\xc3\n";
  check.machine.kernel = check.machine.driver = check.machine.nccl = odd;
  for (PciGpu& gpu : check.machine.gpus) gpu.model = gpu.link_speed = gpu.pci = odd;
  for (NvmlGpu& gpu : check.machine.nvml->gpus) gpu.name = gpu.pci = odd;
  for (RdmaDevice& device : check.machine.rdma) device.name = device.firmware = odd;
  check.machine.interfaces.push_back({odd, true, true, {}, {}});
  for (int i = 0; i < 100; ++i) check.machine.unread.push_back({odd, odd});
  const std::string text = check_text(check);
  EXPECT_LE(widest(text), 100u);
  for (const char c : text) EXPECT_TRUE(c == '\n' || (c >= 0x20 && c < 0x7F)) << int{c};
  EXPECT_THAT(text, HasSubstr("90 more"));
  EXPECT_THAT(text, HasSubstr("(5000 bytes)"));
}

TEST(CheckReport, AMachineWithNothingIsToldInAFewLines) {
  Check check;
  check.machine.root = "/";
  check.machine.no_nvml = "no such library";
  check.machine.no_nccl = "no such library";
  const std::string text = check_text(check);
  EXPECT_THAT(text, AllOf(HasSubstr("GPUs            none"), HasSubstr("RDMA devices    none"),
                          HasSubstr("none: no such library"), HasSubstr("unknown; NVML: no such")));
  EXPECT_THAT(text, Not(HasSubstr("PCI")));
}

TEST(CheckReport, JsonHasWhatTheDocumentSays) {
  const auto json = nlohmann::json::parse(
      check_json(check_of({{"NCCL_SOCKET_IFNAME", "none"}, {"NCCL_SOMETHING_ELSE", "1"}})));
  EXPECT_EQ(json["weir_comm_check"], 1);
  const auto& machine = json["machine"];
  EXPECT_EQ(machine["gpus"].size(), 8u);
  EXPECT_EQ(machine["gpus"][0]["max_link_width"], 16);
  EXPECT_EQ(machine["nvml"]["gpus"][7]["active_nvlinks"], 18);
  EXPECT_EQ(machine["nvml"]["no_peer_access"].size(), 0u);
  EXPECT_EQ(machine["rdma"][0]["ports"][0]["state"], "ACTIVE");
  EXPECT_EQ(machine["rdma"][0]["ports"][0]["gid_types"]["0"], "IB/RoCE v1");
  EXPECT_EQ(machine["interfaces"][0]["mbit_per_second"], 100000);
  EXPECT_TRUE(machine["interfaces"][1]["mbit_per_second"].is_null());
  EXPECT_EQ(machine["shm"]["bytes"], std::uint64_t{64} << 30);
  EXPECT_EQ(machine["locked_memory_bytes"], "unlimited");
  EXPECT_EQ(machine["open_files"], 1048576);
  EXPECT_TRUE(machine["dma_buf"]);
  EXPECT_EQ(json["settings"][0]["name"], "NCCL_SOCKET_IFNAME");
  EXPECT_EQ(json["settings"][0]["source"], "environment");
  EXPECT_TRUE(json["settings"][1]["meaning"].is_null());
  EXPECT_EQ(json["findings"][0]["severity"], "error");
  EXPECT_EQ(json["findings"][0]["id"], "socket_interface");
}

TEST(CheckReport, JsonOfNothingAndOfGarbageIsSound) {
  Check check;
  check.machine.no_nvml = "no \xff NVML";
  check.settings = test::settings_of({{"NCCL_DEBUG", "\xc3\x28\x01"}});
  const auto json = nlohmann::json::parse(check_json(check));
  EXPECT_TRUE(json["machine"]["nvml"].is_object());
  EXPECT_TRUE(json["machine"]["nvml"].contains("missing"));
  EXPECT_TRUE(json["machine"]["shm"].is_null());
  EXPECT_TRUE(json["machine"]["kernel"].is_null());
  EXPECT_EQ(json["settings"].size(), 1u);
  EXPECT_EQ(json["findings"].size(), 0u);
}

TEST(CheckReport, PairsThatAreApartAreListed) {
  Check check = check_of({});
  check.machine.nvml->no_peer_access = {{0, 3}, {1, 2}};
  EXPECT_THAT(check_text(check), HasSubstr("26 of 28 pairs"));
  const auto json = nlohmann::json::parse(check_json(check));
  EXPECT_EQ(json["machine"]["nvml"]["no_peer_access"], (nlohmann::json::array({{0, 3}, {1, 2}})));
}

// A machine with a port down, and settings with an error of each kind.
TEST(CheckReport, TheDocumentShowsWhatIsPrinted) {
  const test::MachineTree tree;
  tree.make_eight_gpus();
  tree.write("/sys/class/infiniband/mlx5_3/ports/1/state", "1: DOWN\n");
  tree.write("/proc/self/limits", "Max open files  1048576\nMax locked memory  8388608\n");
  tree.write("/etc/nccl.conf", "NCCL_GRAPH_REGISTER=1\n");
  Check check{.machine = read_machine(tree.root(), {})};
  const Machine whole = test::eight_gpus();  // what no file says
  check.machine.root = "/";
  check.machine.nvml = whole.nvml;
  check.machine.nccl = whole.nccl;
  check.machine.shm = whole.shm;
  check.settings = read_settings(
      tree.root(), {{"NCCL_DBUG", "INFO"}, {"NCCL_IB_HCA", "=mlx5"}, {"NCCL_SOCKET_IFNAME", "eth"}},
      "");
  check.findings = examine(check.machine, check.settings);
  EXPECT_THAT(test::content_of("docs/comm-check.md"),
              HasSubstr("```\n$ weir comm check\n" + check_text(check) + "```"));
}

// Every finding has a line in the document, and no line is of a finding that is no more.
TEST(CheckReport, TheDocumentListsEveryFinding) {
  std::ifstream document("docs/comm-check.md");
  std::vector<std::string> listed, expected;
  for (std::string line; std::getline(document, line);) {
    if (line.starts_with("| `") && line.find("` | ") != std::string::npos) {
      listed.push_back(line.substr(3, line.find('`', 3) - 3));
    }
  }
  for (const check::Rule& rule : check::rules()) expected.emplace_back(rule.id);
  EXPECT_THAT(listed, ::testing::UnorderedElementsAreArray(expected));
}

}  // namespace
}  // namespace weir
