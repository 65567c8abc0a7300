// SPDX-License-Identifier: Apache-2.0
// What `weir comm check` reads of a machine that was made up, and what it says of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "comm_check.h"
#include "tests/temporary_folder.h"

namespace weir {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using test::TemporaryFolder;
using enum Severity;

std::string port_file(int card) {
  return "sys/class/infiniband/mlx5_" + std::to_string(card) + "/ports/1/state";
}

// A machine with eight ports, all in order.
class Checks : public ::testing::Test {
 protected:
  Checks() {
    for (int card = 0; card < 8; ++card) {
      const std::string state = port_file(card);
      root_.write(state, "4: ACTIVE\n");
      root_.write(state.substr(0, state.rfind('/')) + "/link_layer", "InfiniBand\n");
    }
  }
  Check check(const Environment& environment = {}, const std::string& home = "") const {
    return check_machine(root_.path(), environment, home);
  }
  const TemporaryFolder root_;
};

// A setting, and the rule that speaks of it; or `port_is_down`.
struct Case {
  const char* id;
  Environment speaks, silent;
  Severity severity;
  const char* says;
  bool port_is_down = false;
};
const Case kCases[] = {
    {"configuration_file", {{"NCCL_CONF_FILE", "/none"}}, {}, warning, "/none"},
    {"rdma_port_down", {}, {{"NCCL_IB_HCA", "^=mlx5_3"}}, warning, "mlx5_3 port 1", true},
    {"rdma_port_down", {}, {{"NCCL_IB_DISABLE", "1"}}, warning, "DOWN", true},
    {"rdma_port_down", {}, {{"NCCL_NET", "socket"}}, warning, "cable", true},
    {"cumem_disabled",
     {{"NCCL_CUMEM_ENABLE", "0"}},
     {{"NCCL_CUMEM_ENABLE", "1"}},
     warning,
     "cudaIpc"},
    {"graph_register",
     {{"NCCL_GRAPH_REGISTER", "1"}},
     {{"NCCL_GRAPH_REGISTER", "0"}},
     error,
     "NCCL_GRAPH_REGISTER=0"},
    {"graph_mixing",
     {{"NCCL_GRAPH_MIXING_SUPPORT", "0"}},
     {{"NCCL_GRAPH_MIXING_SUPPORT", "1"}},
     warning,
     "overlap"},
    {"comm_blocking",
     {{"NCCL_COMM_BLOCKING", "0"}},
     {{"NCCL_COMM_BLOCKING", "1"}},
     error,
     "before they are done"},
    {"launch_blocking",
     {{"CUDA_LAUNCH_BLOCKING", "1"}},
     {{"CUDA_LAUNCH_BLOCKING", "0"}},
     warning,
     "nccl#750"},
};

TEST_F(Checks, SpeakWhereSomethingIsWrongAndOnlyThere) {
  EXPECT_THAT(check().findings, IsEmpty());
  for (const Case& one : kCases) {
    SCOPED_TRACE(one.id);
    root_.write(port_file(3), one.port_is_down ? "1: DOWN\n" : "4: ACTIVE\n");
    const std::vector<Finding> findings = check(one.speaks).findings;
    ASSERT_THAT(findings, SizeIs(1));
    EXPECT_EQ(findings[0].id, one.id);
    EXPECT_EQ(findings[0].severity, one.severity);
    EXPECT_THAT(findings[0].what + findings[0].why + findings[0].remedy, HasSubstr(one.says));
    EXPECT_FALSE(findings[0].what.empty() || findings[0].why.empty() || findings[0].remedy.empty());
    EXPECT_THAT(check(one.silent).findings, IsEmpty());
  }
}

TEST_F(Checks, HaveALineInTheDocumentForEachRule) {
  std::set<std::string> cases, listed;
  for (const Case& one : kCases) cases.insert(one.id);
  std::ifstream document("docs/comm.md");
  std::string line;
  while (std::getline(document, line) && !line.starts_with("| finding |")) {
  }
  while (std::getline(document, line) && !line.empty()) {
    if (line.starts_with("| `")) listed.insert(line.substr(3, line.find('`', 3) - 3));
  }
  EXPECT_EQ(listed, cases);
}

TEST_F(Checks, PutErrorsFirstAndCutLongValues) {
  const Check found =
      check({{"NCCL_CUMEM_ENABLE", "0"}, {"NCCL_GRAPH_REGISTER", "1" + std::string(100000, 'x')}});
  ASSERT_THAT(found.findings, SizeIs(2));
  EXPECT_EQ(found.findings[0].severity, error);
  EXPECT_EQ(found.findings[1].severity, warning);
  EXPECT_TRUE(found.has_error());
  EXPECT_FALSE(check({{"NCCL_CUMEM_ENABLE", "0"}}).has_error());
  EXPECT_LT(check_text(found).size(), 3000u);
}

TEST_F(Checks, TakeTheEnvironmentThenTheUsersFileThenTheSystems) {
  root_.write("etc/nccl.conf", "NCCL_DEBUG=WARN\nNCCL_NET=Socket\nNCCL_ALGO=Ring\n");
  root_.write("folks/me/.nccl.conf", "# mine\nNCCL_DEBUG=INFO\nNCCL_NET=IB\n");
  const Check found = check({{"NCCL_DEBUG", "TRACE"}, {"PATH", "x"}}, "/folks/me");
  std::vector<std::string> settings;
  for (const Setting& one : found.settings) {
    settings.push_back(one.name + "=" + one.value + " of " + one.source);
  }
  EXPECT_THAT(settings,
              ElementsAre("NCCL_ALGO=Ring of /etc/nccl.conf", "NCCL_DEBUG=TRACE of environment",
                          "NCCL_NET=IB of /folks/me/.nccl.conf"));
  EXPECT_THAT(found.files, ElementsAre("/folks/me/.nccl.conf", "/etc/nccl.conf"));
}

TEST_F(Checks, TakeAFileThatIsNamedInPlaceOfTheUsers) {
  const std::string file = root_.write("job.conf", "NCCL_DEBUG=WARN");
  root_.write("folks/me/.nccl.conf", "NCCL_NET=IB\n");
  const Check found = check({{"NCCL_CONF_FILE", "/job.conf"}}, "/folks/me");
  EXPECT_THAT(found.files, ElementsAre("/job.conf"));
  EXPECT_EQ(found.find("NCCL_NET"), nullptr);
  // A relative name is of this machine alone. Slashes at a root's end are none of its name.
  const std::string here = std::filesystem::relative(file);
  for (const std::string& root : {std::string("/"), root_.path() + "//"}) {
    const Check named = check_machine(root, {{"NCCL_CONF_FILE", here}}, "");
    EXPECT_EQ(named.find("NCCL_DEBUG") != nullptr, root == "/");
    EXPECT_THAT(named.unread, SizeIs(root == "/" ? 0 : 1));
  }
}

TEST_F(Checks, NeitherWaitForNorTakeWhatIsNoFile) {
  ASSERT_EQ(::mkfifo((root_ / "pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("loop", root_ / "loop");
  std::filesystem::create_directories(root_ / "folder");
  for (const std::string name : {"/pipe", "/folder", "/loop", "/none", "none"}) {
    const Check found = check({{"NCCL_CONF_FILE", name}});
    EXPECT_THAT(found.unread, ElementsAre(name));
    EXPECT_THAT(found.files, IsEmpty());
  }
  for (const char* port : {"0", "256", "x"}) {
    std::filesystem::create_directories(root_ / "sys/class/infiniband/mlx5_0/ports/" + port);
  }
  EXPECT_THAT(check().ports, SizeIs(8));
}

TEST_F(Checks, OfGarbageArePrintableAndSoundJson) {
  const std::string garbage =
      std::string("\x00\xff\xfe%n\x1b[2J\n\n", 12) + std::string(200000, 'A');
  for (int card = 0; card < 8; ++card) root_.write(port_file(card), garbage);
  root_.write("etc/nccl.conf", garbage);
  const Check found = check({{"NCCL_DEBUG", "\x1b[31m\xff\n"}, {"NCCL_NET", "\xc3\x28\x01"}});
  EXPECT_LE(found.ports.at(0).state.size(), 65536u);
  for (const char c : check_text(found)) {
    EXPECT_TRUE(c == '\n' || (c >= 0x20 && c < 0x7F)) << int{c};
  }
  EXPECT_EQ(nlohmann::json::parse(check_json(found))["rdma_ports"].size(), 8u);
}

TEST_F(Checks, ReadNumbersAsNcclDoes) {
  const Check found = check({{"NCCL_MAX_CTAS", "0x10"},
                             {"NCCL_MIN_CTAS", "true"},
                             {"NCCL_NTHREADS", "12abc"},
                             {"NCCL_BUFFSIZE", ""}});
  EXPECT_EQ(found.number("NCCL_MAX_CTAS"), 16);
  EXPECT_EQ(found.number("NCCL_MIN_CTAS"), 0);
  EXPECT_EQ(found.number("NCCL_NTHREADS"), 12);
  EXPECT_FALSE(found.number("NCCL_BUFFSIZE"));
  EXPECT_FALSE(found.number("NCCL_IB_TC"));
}

// A machine with a port down, and settings with an error and a warning.
TEST_F(Checks, AreShownInTheDocument) {
  root_.write(port_file(3), "1: DOWN\n");
  root_.write("etc/nccl.conf", "NCCL_GRAPH_REGISTER=1\nNCCL_SOCKET_IFNAME = eth\n");
  const Check found = check({{"NCCL_DEBUG", "INFO"}, {"NCCL_COMM_BLOCKING", "0"}});
  EXPECT_THAT(test::content_of("docs/comm.md"),
              HasSubstr("```\n$ weir comm check\n" + check_text(found) + "```"));
  const auto json = nlohmann::json::parse(check_json(found));
  EXPECT_EQ(json["weir_comm_check"], 5);
  EXPECT_EQ(json["rdma_ports"][3]["device"], "mlx5_3");
  EXPECT_EQ(json["rdma_ports"][3]["state"], "DOWN");
  EXPECT_EQ(json["settings"][2]["name"], "NCCL_GRAPH_REGISTER");
  EXPECT_EQ(json["settings"][2]["source"], "/etc/nccl.conf");
  EXPECT_EQ(json["findings"][0]["severity"], "error");
  EXPECT_EQ(json["findings"][0]["id"], "comm_blocking");
}

}  // namespace
}  // namespace weir
