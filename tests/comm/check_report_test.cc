// SPDX-License-Identifier: Apache-2.0
// What is printed for people and for programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

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

TEST(CheckReport, TellsOfEachPart) {
  const std::string text =
      check_text(check_of({{"NCCL_DEBUG", "INFO"}, {"NCCL_CUMEM_ENABLE", "0"}}));
  EXPECT_THAT(text, AllOf(HasSubstr("Kernel          6.8.0-60-generic"),
                          HasSubstr("NCCL            2.28.9"),
                          HasSubstr("nvidia_peermem loaded, dma-buf possible"),
                          HasSubstr("mlx5_7 port 1: ACTIVE, InfiniBand")));
  EXPECT_THAT(text, AllOf(HasSubstr("NCCL_DEBUG=INFO (environment)"),
                          HasSubstr("Findings: 0 errors, 1 warning, 0 notes"),
                          HasSubstr("[cumem_disabled]")));
}

TEST(CheckReport, IsNeverUnprintable) {
  Check check = check_of({{"NCCL_IB_HCA", std::string(5000, 'x')},
                          {"NCCL_DEBUG", "\x1b[31m\xff\n"},
                          {"NCCL_" + std::string(3000, 'Y'), "1"}});
  const std::string odd = std::string(300, 'w') + "\x1b[2J\x07\xc3\n";
  check.machine.kernel = check.machine.nccl = odd;
  for (RdmaPort& port : check.machine.rdma) port.device = port.link_layer = odd;
  check.machine.unread.push_back({odd, odd});
  const std::string text = check_text(check);
  for (const char c : text) EXPECT_TRUE(c == '\n' || (c >= 0x20 && c < 0x7F)) << int{c};
  EXPECT_THAT(text, HasSubstr("(5000 bytes)"));
}

TEST(CheckReport, AMachineWithNothingIsToldInAFewLines) {
  Check check;
  check.machine.root = "/";
  check.machine.no_nccl = "no such library";
  const std::string text = check_text(check);
  EXPECT_THAT(text, AllOf(HasSubstr("GPUs            0"), HasSubstr("RDMA ports      0"),
                          HasSubstr("none: no such library")));
  EXPECT_THAT(text, Not(HasSubstr(" port ")));
}

TEST(CheckReport, JsonHasWhatTheDocumentSays) {
  const auto json = nlohmann::json::parse(
      check_json(check_of({{"NCCL_COMM_BLOCKING", "0"}, {"NCCL_SOMETHING_ELSE", "1"}})));
  EXPECT_EQ(json["weir_comm_check"], 3);
  const auto& machine = json["machine"];
  EXPECT_EQ(machine["gpus"], 8);
  EXPECT_EQ(machine["rdma_ports"][0]["device"], "mlx5_0");
  EXPECT_EQ(machine["rdma_ports"][0]["state"], "ACTIVE");
  EXPECT_TRUE(machine["dma_buf"]);
  EXPECT_TRUE(machine["nvidia_peermem"]);
  EXPECT_EQ(json["settings"][0]["name"], "NCCL_COMM_BLOCKING");
  EXPECT_EQ(json["settings"][0]["source"], "environment");
  EXPECT_EQ(json["findings"][0]["severity"], "error");
  EXPECT_EQ(json["findings"][0]["id"], "comm_blocking");
}

TEST(CheckReport, JsonOfNothingAndOfGarbageIsSound) {
  Check check;
  check.machine.no_nccl = "no \xff NCCL";
  check.settings = test::settings_of({{"NCCL_DEBUG", "\xc3\x28\x01"}});
  const auto json = nlohmann::json::parse(check_json(check));
  EXPECT_TRUE(json["machine"]["nccl_missing"].is_string());
  EXPECT_TRUE(json["machine"]["kernel"].is_null());
  EXPECT_EQ(json["settings"].size(), 1u);
  EXPECT_EQ(json["findings"].size(), 0u);
}

// A machine with a port down, and settings with an error and warnings.
TEST(CheckReport, TheDocumentShowsWhatIsPrinted) {
  const test::MachineTree tree;
  tree.make_eight_gpus();
  tree.write("/sys/class/infiniband/mlx5_3/ports/1/state", "1: DOWN\n");
  tree.write("/etc/nccl.conf", "NCCL_GRAPH_REGISTER=1\nNCCL_SOCKET_IFNAME = eth\n");
  Check check{.machine = read_machine(tree.root(), "")};
  check.machine.root = "/";
  check.machine.nccl = test::eight_gpus().nccl;
  check.settings =
      read_settings(tree.root(), {{"NCCL_DEBUG", "INFO"}, {"NCCL_COMM_BLOCKING", "0"}}, "");
  check.findings = examine(check.machine, check.settings);
  EXPECT_THAT(test::content_of("docs/comm.md"),
              HasSubstr("```\n$ weir comm check\n" + check_text(check) + "```"));
}

// Every finding has a line in the document, and no line is of a finding that is no more.
TEST(CheckReport, TheDocumentListsEveryFinding) {
  std::ifstream document("docs/comm.md");
  std::vector<std::string> listed, expected;
  std::string line;
  while (std::getline(document, line) && !line.starts_with("| finding |")) {
  }
  while (std::getline(document, line) && !line.empty()) {
    if (line.starts_with("| `")) listed.push_back(line.substr(3, line.find('`', 3) - 3));
  }
  for (const std::string_view id : rule_ids()) expected.emplace_back(id);
  EXPECT_THAT(listed, ::testing::UnorderedElementsAreArray(expected));
}

}  // namespace
}  // namespace weir
