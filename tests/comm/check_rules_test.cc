// Each rule speaks where something is wrong, and is silent where nothing is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "comm/check/rules.h"
#include "tests/comm/check_machines.h"

namespace weir {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

using enum Severity;

using Change = std::function<void(Machine&)>;

void nothing(Machine&) {}
void no_gpus(Machine& m) { m.gpus.clear(), m.nvml.reset(), m.nvswitches = 0; }
void no_rdma(Machine& m) { m.rdma.clear(); }
void all_down(Machine& m) {
  for (RdmaDevice& device : m.rdma) device.ports[0].state = "DOWN";
}
void no_gpu_direct(Machine& m) { m.peermem = m.open_driver = false; }
void roce(Machine& m) {
  m.rdma.resize(1);
  m.rdma[0].ports[0].layer = "Ethernet";
  m.rdma[0].ports[0].gids = {{0, "IB/RoCE v1"}, {3, "RoCE v2"}};
}
void old_driver(Machine& m) { m.driver = "550.54.15"; }
void second_interface(Machine& m, bool up, int speed, int mtu) {
  m.interfaces.push_back({"eth1", up, false, speed, mtu});
}

// On the machine with eight GPUs, changed. `says`: a part of what is found.
struct Spoken {
  const char* id;
  EnvironmentVariables environment;
  Change change;
  Severity severity;
  const char* says;
};
struct Silent {
  const char* id;
  EnvironmentVariables environment;
  Change change;
};

const std::vector<Spoken> kSpoken{
    {"unknown_variable", {{"NCCL_DBUG", "INFO"}}, nothing, warning, "NCCL_DEBUG"},
    {"unknown_variable", {{"NCCL_SOMETHING_ELSE", "1"}}, nothing, note, "NCCL_SOMETHING_ELSE"},
    {"wrong_value", {{"NCCL_P2P_DISABLE", "yes"}}, nothing, warning, "reads it as 0"},
    {"wrong_value", {{"NCCL_DEBUG", "LOUD"}}, nothing, warning, "LOUD"},
    {"wrong_value", {{"NCCL_ALGO", "Rong"}}, nothing, error, "Rong"},
    {"wrong_value", {{"NCCL_PROTO", "LL64"}}, nothing, error, "LL64"},
    {"configuration_file", {{"NCCL_CONF_FILE", "/none"}}, nothing, warning, "/none"},
    {"rendezvous", {{"NCCL_COMM_ID", "localhost"}}, nothing, error, "HOST:PORT"},
    {"rendezvous", {{"NCCL_COMM_ID", ":29500"}}, nothing, error, "HOST:PORT"},
    {"rendezvous", {{"NCCL_COMM_ID", "a:99999"}}, nothing, error, "HOST:PORT"},
    {"rendezvous", {{"NCCL_COMM_ID", "[::1]:29500"}}, nothing, note, "nccl#730"},
    {"topology_file", {{"NCCL_TOPO_FILE", "/none.xml"}}, nothing, warning, "no such file"},
    {"topology_file", {{"NCCL_TOPO_FILE", "/"}}, nothing, warning, "it is a folder"},
    {"topology_file", {{"NCCL_TOPO_FILE", "none.xml"}}, nothing, warning, "no such file"},
    {"nccl_library", {{"WEIR_NCCL_LIBRARY", "/none.so"}}, nothing, error, "no such file"},
    {"nccl_library", {{"WEIR_NCCL_LIBRARY", "/"}}, nothing, error, "it is a folder"},
    {"nccl_library",
     {{"WEIR_NCCL_LIBRARY", "libnone.so"}},
     [](Machine& m) { m.nccl.clear(), m.no_nccl = "libnone.so: cannot open"; },
     error,
     "libnone.so: cannot open"},
    {"weir_setting", {{"WEIR_LIMIT", "banana"}}, nothing, error, "WEIR_LIMIT=\"banana\": allowed"},
    {"weir_setting", {{"WEIR_LIMT", "8GiB"}}, nothing, error, "did you mean WEIR_LIMIT?"},
    {"weir_setting", {{"WEIR_RECORD_RING", "1MiB"}}, nothing, error, "WEIR_RECORD is not"},
    {"launch_variables", {{"WEIR_RANK", "0"}}, nothing, error, "WEIR_LOCAL_RANK"},
    {"launch_variables", {{"WEIR_LOCAL_WORLD_SIZE", "2"}}, nothing, error, "WEIR_WORLD_SIZE"},
    {"launch_variables", {{"WEIR_MEET", "a:29500"}}, nothing, error, "which rank this is"},
    {"launch_variables", {{"LOCAL_WORLD_SIZE", "4"}}, nothing, note, "LOCAL_WORLD_SIZE=4"},
    {"launch_variables", {{"RANK", "0"}}, nothing, error, "WORLD_SIZE, LOCAL_RANK not"},
    {"launch_variables",
     {{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}},
     nothing,
     error,
     "ranks count from 0"},
    {"launch_variables",
     {{"WEIR_RANK", "0"},
      {"WEIR_WORLD_SIZE", "2"},
      {"WEIR_LOCAL_RANK", "0"},
      {"WEIR_MEET", "junk"}},
     nothing,
     error,
     "allowed is host:port"},
    {"launch_variables",
     {{"WEIR_RANK", "0"}, {"WEIR_WORLD_SIZE", "2"}, {"WEIR_LOCAL_RANK", "0"}},
     nothing,
     error,
     "WEIR_MEET is not set"},
    {"rendezvous", {{"NCCL_COMM_ID", "a:b:1"}}, nothing, error, "HOST:PORT"},
    {"rendezvous", {{"NCCL_COMM_ID", "::1:500"}}, nothing, error, "HOST:PORT"},
    {"wrong_value", {{"NCCL_NTHREADS", "7"}}, nothing, warning, "none of 64 128 256 512"},
    {"wrong_value", {{"NCCL_CUMEM_ENABLE", "9"}}, nothing, warning, "not from 0 to 1"},
    {"wrong_value", {{"NCCL_CROSS_NIC", "7"}}, nothing, warning, "not from 0 to 2"},
    {"wrong_value", {{"NCCL_IB_TIMEOUT", "99"}}, nothing, warning, "not from 0 to 31"},
    {"wrong_value", {{"NCCL_MIN_NCHANNELS", "0"}}, nothing, warning, "less than 1"},
    {"wrong_value", {{"NCCL_MAX_NCHANNELS", "-4"}}, nothing, warning, "less than 1"},
    {"wrong_value", {{"NCCL_MIN_CTAS", "0"}}, nothing, warning, "less than 1"},
    {"wrong_value", {{"NCCL_MAX_CTAS", "-1"}}, nothing, warning, "less than 1"},
    {"debug_without_effect", {{"NCCL_DEBUG_SUBSYS", "NET"}}, nothing, note, "NCCL_DEBUG=INFO"},
    {"debug_without_effect", {{"NCCL_DEBUG_FILE", "x"}}, nothing, note, "NCCL_DEBUG=WARN"},
    {"debug_without_effect",
     {{"NCCL_DEBUG", "WARN"}, {"NCCL_DEBUG_SUBSYS", "NET"}},
     nothing,
     note,
     "NCCL_DEBUG=WARN logs no such lines"},

    {"ib_disabled_and_set",
     {{"NCCL_IB_DISABLE", "1"}, {"NCCL_IB_HCA", "mlx5"}},
     nothing,
     warning,
     "NCCL_IB_HCA"},
    {"ib_disabled_and_set",
     {{"NCCL_NET", "socket"}, {"NCCL_IB_TC", "3"}},
     nothing,
     warning,
     "NCCL_NET=socket"},
    {"ib_disabled_and_set", {{"NCCL_IB_DISABLE", "1"}, {"NCCL_NET", "IB"}}, nothing, error, "IB"},
    {"network_without_rdma", {{"NCCL_NET", "ib"}}, no_rdma, error, "no RDMA device"},
    {"network_without_rdma", {{"NCCL_NET", "IB"}}, all_down, error, "no port"},
    {"socket_interface", {{"NCCL_SOCKET_IFNAME", "eth9"}}, nothing, error, "eth0, lo"},
    {"socket_interface", {{"NCCL_SOCKET_IFNAME", "=eth"}}, nothing, error, "no interface"},
    {"socket_interface", {{"NCCL_SOCKET_IFNAME", "^eth,lo"}}, nothing, error, "no interface"},
    {"socket_interface", {{"NCCL_SOCKET_IFNAME", "eth,ib"}}, nothing, note, "'ib'"},
    {"socket_interface",
     {{"NCCL_SOCKET_IFNAME", "eth1"}},
     [](Machine& m) { second_interface(m, false, 1000, 1500); },
     warning,
     "down"},
    {"rdma_device", {{"NCCL_IB_HCA", "ib0"}}, nothing, error, "mlx5_0"},
    {"rdma_device", {{"NCCL_IB_HCA", "=mlx5"}}, nothing, error, "mlx5_0"},
    {"rdma_device", {{"NCCL_IB_HCA", "mlx5_0:2"}}, nothing, error, "mlx5_0"},
    {"rdma_device", {{"NCCL_IB_HCA", "^mlx5"}}, nothing, error, "mlx5_0"},
    {"rdma_device", {{"NCCL_IB_HCA", "=mlx5_0,mlx5_9"}}, nothing, warning, "mlx5_9"},
    {"rdma_gid", {{"NCCL_IB_GID_INDEX", "5"}}, roce, error, "no such entry"},
    {"rdma_gid", {{"NCCL_IB_GID_INDEX", "99999999"}}, roce, error, "no such entry"},
    {"rdma_gid", {{"NCCL_IB_GID_INDEX", "0"}}, roce, warning, "RoCE v1"},
    {"rdma_port_down",
     {},
     [](Machine& m) { m.rdma[3].ports[0].state = "DOWN"; },
     warning,
     "mlx5_3 port 1"},
    {"gpu_direct_missing", {}, no_gpu_direct, warning, "nvidia_peermem"},
    {"gpu_direct_missing",
     {{"NCCL_DMABUF_ENABLE", "0"}},
     [](Machine& m) { m.peermem = false; },
     warning,
     "NCCL_DMABUF_ENABLE=0"},
    {"gpu_direct_refused", {{"NCCL_NET_GDR_LEVEL", "LOC"}}, nothing, warning, "not used"},
    {"locked_memory", {}, [](Machine& m) { m.locked_memory = 8 << 20; }, warning, "8192 KiB"},
    {"mtu_differs",
     {},
     [](Machine& m) { second_interface(m, true, 100000, 1500); },
     warning,
     "eth0 9000, eth1 1500"},
    {"no_network", {}, [](Machine& m) { m.interfaces[0].up = false; }, note, "loopback"},

    {"driver_missing", {}, [](Machine& m) { m.driver.clear(); }, error, "driver"},
    {"p2p_disabled_and_set",
     {{"NCCL_P2P_DISABLE", "1"}, {"NCCL_P2P_LEVEL", "NVL"}},
     nothing,
     warning,
     "NCCL_P2P_LEVEL=NVL"},
    {"no_direct_way",
     {{"NCCL_P2P_DISABLE", "1"}, {"NCCL_SHM_DISABLE", "1"}},
     nothing,
     warning,
     "through the network"},
    {"peer_access",
     {},
     [](Machine& m) {
       m.nvml->apart = {{0, 3}};
     },
     warning,
     "0-3"},
    {"peer_access",
     {},
     [](Machine& m) {
       m.nvml->gpus.resize(2);
       m.nvml->apart = {{0, 1}};
     },
     warning,
     "No GPU can read"},
    {"nvlink_down",
     {},
     [](Machine& m) { m.nvml->gpus[5].active_links = 17; },
     warning,
     "GPU 5 has 17"},
    {"pcie_link_narrow", {}, [](Machine& m) { m.gpus[2].link_width = 8; }, warning, "8 of 16"},
    {"nvls_without_nvswitch",
     {{"NCCL_NVLS_ENABLE", "1"}},
     [](Machine& m) { m.nvswitches = 0; },
     warning,
     "NVSwitch"},
    {"nvls_disabled",
     {{"NCCL_NVLS_ENABLE", "0"}, {"NCCL_ALGO", "NVLS,NVLSTree"}},
     nothing,
     error,
     "no collective can run"},
    {"iommu", {}, [](Machine& m) { m.iommu_passthrough = false; }, note, "iommu=pt"},
    {"shared_memory", {}, [](Machine& m) { m.shm->size = 64_MiB; }, warning, "64 MiB"},
    {"shared_memory", {}, [](Machine& m) { m.shm->free = 1_MiB; }, warning, "1 MiB free"},
    {"shared_memory", {}, [](Machine& m) { m.shm.reset(); }, warning, "no file system"},
    {"open_files", {}, [](Machine& m) { m.open_files = 1024; }, note, "1024"},

    {"cumem_disabled", {{"NCCL_CUMEM_ENABLE", "0"}}, nothing, warning, "cudaIpc"},
    {"graph_register", {{"NCCL_GRAPH_REGISTER", "1"}}, nothing, warning, "NCCL_GRAPH_REGISTER=0"},
    {"runtime_connect",
     {{"NCCL_RUNTIME_CONNECT", "1"}},
     nothing,
     warning,
     "NCCL_RUNTIME_CONNECT=0"},
    {"launch_order", {{"NCCL_LAUNCH_ORDER_IMPLICIT", "1"}}, nothing, note, "slower"},
    {"launch_order", {{"NCCL_LAUNCH_ORDER_IMPLICIT", "1"}}, old_driver, note, "550.54.15"},
    {"graph_mixing", {{"NCCL_GRAPH_MIXING_SUPPORT", "0"}}, nothing, warning, "overlap"},
    {"comm_blocking", {{"NCCL_COMM_BLOCKING", "0"}}, nothing, error, "before they are done"},
    {"launch_blocking", {{"CUDA_LAUNCH_BLOCKING", "1"}}, nothing, warning, "nccl#750"},
    {"device_connections", {{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}}, nothing, note, "one queue"},
    {"device_connections", {{"CUDA_DEVICE_MAX_CONNECTIONS", "99"}}, nothing, warning, "1 to 32"},
    {"device_connections", {{"CUDA_DEVICE_MAX_CONNECTIONS", "x"}}, nothing, warning, "1 to 32"},
    {"channels",
     {{"NCCL_MIN_NCHANNELS", "16"}, {"NCCL_MAX_NCHANNELS", "8"}},
     nothing,
     warning,
     "NCCL_MIN_NCHANNELS=16 is more than NCCL_MAX_NCHANNELS=8"},
    {"channels", {{"NCCL_MIN_CTAS", "4"}, {"NCCL_MAX_CTAS", "2"}}, nothing, warning, "CTAS"},
};

const std::vector<Silent> kSilent{
    {"unknown_variable", {{"NCCL_DEBUG", "INFO"}, {"NCCL_LL_BUFFSIZE", "1"}}, nothing},
    {"wrong_value", {{"NCCL_P2P_DISABLE", "1"}, {"NCCL_ALGO", "^NVLS"}}, nothing},
    {"wrong_value", {{"NCCL_P2P_DISABLE", ""}, {"NCCL_SOMETHING_ELSE", "x"}}, nothing},
    {"configuration_file", {{"NCCL_DEBUG", "INFO"}}, nothing},
    {"rendezvous", {}, nothing},
    {"topology_file", {{"NCCL_TOPO_FILE", "/proc/self/stat"}}, nothing},
    {"topology_file",
     {{"NCCL_TOPO_FILE", "relative.xml"}},
     [](Machine& m) { m.root = "/another"; }},
    {"nccl_library", {{"WEIR_NCCL_LIBRARY", "/proc/self/stat"}}, nothing},
    {"nccl_library", {{"WEIR_NCCL_LIBRARY", "libnccl.so.2"}}, nothing},
    {"weir_setting", {{"WEIR_LIMIT", "8GiB"}, {"WEIR_NCCL_LIBRARY", "x"}}, nothing},
    {"weir_setting", {{"WEIR_RECORD_RING", "1MiB"}, {"WEIR_RECORD", "run.weir"}}, nothing},
    {"launch_variables",
     {{"WEIR_RANK", "0"}, {"WEIR_WORLD_SIZE", "2"}, {"WEIR_LOCAL_RANK", "0"}, {"WEIR_MEET", "a:1"}},
     nothing},
    {"launch_variables",
     {{"RANK", "0"},
      {"WORLD_SIZE", "2"},
      {"LOCAL_RANK", "0"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"MASTER_ADDR", "node1"},
      {"MASTER_PORT", "29500"}},
     nothing},
    {"launch_variables",  // a shell within a job: its launcher speaks of steps
     {{"SLURM_JOB_ID", "7"}, {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}},
     nothing},
    {"launch_variables",
     {{"SLURM_JOB_ID", "7"},
      {"SLURM_STEP_ID", "0"},
      {"SLURM_PROCID", "1"},
      {"SLURM_STEP_NUM_TASKS", "2"},
      {"SLURM_LOCALID", "0"},
      {"SLURM_STEP_NODELIST", "node[1-2]"}},
     nothing},
    {"launch_variables",  // rendezvous says it
     {{"NCCL_COMM_ID", "localhost"}},
     nothing},
    {"debug_without_effect",
     {{"NCCL_DEBUG", "info"}, {"NCCL_DEBUG_SUBSYS", "NET"}, {"NCCL_DEBUG_FILE", "x"}},
     nothing},
    {"ib_disabled_and_set", {{"NCCL_IB_DISABLE", "1"}}, nothing},
    {"ib_disabled_and_set", {{"NCCL_IB_DISABLE", "0"}, {"NCCL_IB_HCA", "mlx5"}}, nothing},
    {"network_without_rdma", {{"NCCL_NET", "IB"}}, nothing},
    {"network_without_rdma", {{"NCCL_NET", "Socket"}}, no_rdma},
    {"socket_interface", {{"NCCL_SOCKET_IFNAME", "eth"}}, nothing},
    {"socket_interface", {{"NCCL_SOCKET_IFNAME", "^docker,lo"}}, nothing},
    {"rdma_device", {{"NCCL_IB_HCA", "mlx5"}}, nothing},
    {"rdma_device", {{"NCCL_IB_HCA", "^=mlx5_0"}}, nothing},
    {"rdma_device", {{"NCCL_IB_HCA", "x"}, {"NCCL_IB_DISABLE", "1"}}, nothing},
    {"rdma_gid", {{"NCCL_IB_GID_INDEX", "3"}}, roce},
    {"rdma_gid", {{"NCCL_IB_GID_INDEX", "-1"}}, roce},
    {"rdma_gid", {{"NCCL_IB_GID_INDEX", "7"}}, nothing},  // InfiniBand
    {"rdma_port_down", {}, nothing},
    {"rdma_port_down",
     {{"NCCL_IB_HCA", "^=mlx5_3"}},
     [](Machine& m) { m.rdma[3].ports[0].state = "DOWN"; }},
    {"gpu_direct_missing", {}, nothing},
    {"gpu_direct_missing", {}, [](Machine& m) { m.peermem = false; }},  // dma-buf does
    {"gpu_direct_missing", {{"NCCL_IB_DISABLE", "1"}}, no_gpu_direct},
    {"gpu_direct_refused", {{"NCCL_NET_GDR_LEVEL", "SYS"}}, nothing},
    {"gpu_direct_refused", {{"NCCL_NET_GDR_LEVEL", "LOC"}}, no_gpu_direct},
    {"locked_memory", {}, nothing},
    {"locked_memory", {}, [](Machine& m) { m.locked_memory = 8 << 20, m.rdma.clear(); }},
    {"mtu_differs", {}, [](Machine& m) { second_interface(m, true, 1000, 1500); }},
    {"mtu_differs", {}, [](Machine& m) { second_interface(m, false, 100000, 1500); }},
    {"mtu_differs",
     {{"NCCL_SOCKET_IFNAME", "eth0"}},
     [](Machine& m) { second_interface(m, true, 100000, 1500); }},
    {"no_network", {}, nothing},
    {"no_network", {}, [](Machine& m) { m.interfaces.clear(); }},
    {"driver_missing", {}, nothing},
    {"driver_missing", {}, [](Machine& m) { m.driver.clear(), no_gpus(m); }},
    {"p2p_disabled_and_set", {{"NCCL_P2P_LEVEL", "NVL"}}, nothing},
    {"no_direct_way", {{"NCCL_P2P_DISABLE", "1"}}, nothing},
    {"peer_access", {}, nothing},
    {"peer_access", {}, [](Machine& m) { m.nvml.reset(); }},
    {"peer_access",
     {{"NCCL_P2P_DISABLE", "1"}},
     [](Machine& m) {
       m.nvml->apart = {{0, 3}};
     }},
    {"nvlink_down", {}, nothing},
    {"pcie_link_narrow", {}, nothing},
    {"pcie_link_narrow", {}, [](Machine& m) { m.gpus[0].link_width.reset(); }},
    {"nvls_without_nvswitch", {{"NCCL_NVLS_ENABLE", "1"}}, nothing},
    {"nvls_without_nvswitch", {{"NCCL_NVLS_ENABLE", "2"}}, [](Machine& m) { m.nvswitches = 0; }},
    {"nvls_disabled", {{"NCCL_NVLS_ENABLE", "0"}, {"NCCL_ALGO", "NVLS,Ring"}}, nothing},
    {"nvls_disabled", {{"NCCL_NVLS_ENABLE", "0"}, {"NCCL_ALGO", "^NVLS"}}, nothing},
    {"nvls_disabled", {{"NCCL_NVLS_ENABLE", "0"}, {"NCCL_ALGO", "allreduce:NVLS"}}, nothing},
    {"iommu", {}, nothing},
    {"iommu", {}, [](Machine& m) { m.iommu_passthrough = false, no_gpus(m); }},
    {"shared_memory", {}, nothing},
    {"shared_memory", {}, [](Machine& m) { m.shm.reset(), no_gpus(m); }},
    {"shared_memory", {{"NCCL_SHM_DISABLE", "1"}}, [](Machine& m) { m.shm->size = 64_MiB; }},
    {"open_files", {}, nothing},
    {"cumem_disabled", {{"NCCL_CUMEM_ENABLE", "1"}}, nothing},
    {"graph_register", {{"NCCL_GRAPH_REGISTER", "0"}}, nothing},
    {"runtime_connect", {{"NCCL_RUNTIME_CONNECT", "0"}}, nothing},
    {"launch_order", {{"NCCL_LAUNCH_ORDER_IMPLICIT", "0"}}, nothing},
    {"launch_order", {}, old_driver},
    {"graph_mixing", {{"NCCL_GRAPH_MIXING_SUPPORT", "1"}}, nothing},
    {"comm_blocking", {{"NCCL_COMM_BLOCKING", "1"}}, nothing},
    {"launch_blocking", {{"CUDA_LAUNCH_BLOCKING", "0"}}, nothing},
    {"device_connections", {{"CUDA_DEVICE_MAX_CONNECTIONS", "8"}}, nothing},
    {"channels", {{"NCCL_MIN_NCHANNELS", "8"}, {"NCCL_MAX_NCHANNELS", "8"}}, nothing},
    {"channels", {{"NCCL_MIN_NCHANNELS", "16"}}, nothing},
};

Findings found(const char* id, const EnvironmentVariables& environment, const Change& change) {
  Machine machine = test::eight_gpus();
  change(machine);
  Findings findings;
  for (Finding& finding : examine(machine, test::settings_of(environment))) {
    if (finding.id == id) findings.push_back(std::move(finding));
  }
  return findings;
}

TEST(CheckRules, SpeakWhereSomethingIsWrong) {
  for (std::size_t i = 0; i < kSpoken.size(); ++i) {
    const Spoken& speaks = kSpoken[i];
    SCOPED_TRACE(std::string(speaks.id) + ", case " + std::to_string(i));
    const Findings findings = found(speaks.id, speaks.environment, speaks.change);
    const bool said = std::any_of(findings.begin(), findings.end(), [&](const Finding& finding) {
      const std::string all = finding.what + '\n' + finding.why + '\n' + finding.remedy;
      return finding.severity == speaks.severity && all.find(speaks.says) != std::string::npos &&
             !finding.what.empty() && !finding.why.empty() && !finding.remedy.empty();
    });
    EXPECT_TRUE(said) << findings.size() << " findings: "
                      << (findings.empty() ? "" : findings[0].what + "; " + findings[0].why);
  }
}

TEST(CheckRules, AreSilentWhereNothingIs) {
  for (std::size_t i = 0; i < kSilent.size(); ++i) {
    const Silent& quiet = kSilent[i];
    const Findings findings = found(quiet.id, quiet.environment, quiet.change);
    EXPECT_THAT(findings, IsEmpty()) << quiet.id << ", case " << i << ": " << findings[0].what;
  }
}

TEST(CheckRules, AllHaveACaseOfEach) {
  std::set<std::string_view> speak, quiet, ids;
  for (const Spoken& one : kSpoken) speak.insert(one.id);
  for (const Silent& one : kSilent) quiet.insert(one.id);
  for (const check::Rule& rule : check::rules()) {
    EXPECT_TRUE(speak.contains(rule.id)) << rule.id;
    EXPECT_TRUE(quiet.contains(rule.id)) << rule.id;
    EXPECT_TRUE(ids.insert(rule.id).second) << rule.id << " is in the table twice";
  }
  EXPECT_EQ(speak, ids);  // no case is of a rule that is no more
  EXPECT_EQ(quiet, ids);
}

TEST(CheckRules, FindNothingOnASoundMachine) {
  EXPECT_THAT(examine(test::eight_gpus(), {}), IsEmpty());
  Machine nothing_at_all{.root = "/"};
  nothing_at_all.interfaces = {{"eth0", true, true, {}, 1500}};
  EXPECT_THAT(examine(nothing_at_all, {}), IsEmpty());
}

TEST(CheckRules, PutErrorsFirst) {
  const Settings settings = test::settings_of(
      {{"NCCL_DEBUG_FILE", "x"}, {"NCCL_DBUG", "x"}, {"NCCL_SOCKET_IFNAME", "none"}});
  const Findings findings = examine(test::eight_gpus(), settings);
  ASSERT_THAT(findings, SizeIs(3));
  EXPECT_EQ(findings[0].severity, error);
  EXPECT_EQ(findings[1].severity, warning);
  EXPECT_EQ(findings[2].severity, note);
  EXPECT_TRUE(has_error(findings));
  EXPECT_FALSE(has_error({findings[1], findings[2]}));
}

TEST(CheckRules, OddLinesOfAFileAreFound) {
  Settings settings;
  settings.odd_lines.push_back({"/etc/nccl.conf", 7, "it has no '='"});
  const Findings findings = examine(test::eight_gpus(), settings);
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_EQ(findings[0].id, "configuration_file");
  EXPECT_THAT(findings[0].what, AllOf(HasSubstr("/etc/nccl.conf"), HasSubstr("line 7")));
}

TEST(CheckRules, CutValuesThatAreLong) {
  const Settings settings = test::settings_of({{"NCCL_SOCKET_IFNAME", std::string(100000, 'x')}});
  for (const Finding& finding : examine(test::eight_gpus(), settings)) {
    EXPECT_LT(finding.what.size(), 300u);
  }
}

TEST(CheckRules, SayNothingOfPortsWhereTheListLeavesThemOut) {
  const Findings findings =
      found("rdma_port_down", {{"NCCL_IB_HCA", "=mlx5_0"}}, [](Machine& m) { all_down(m); });
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_THAT(findings[0].what, AllOf(HasSubstr("mlx5_0"), Not(HasSubstr("mlx5_1"))));
}

}  // namespace
}  // namespace weir
