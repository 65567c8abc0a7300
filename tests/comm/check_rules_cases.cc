#include "tests/comm/check_rules_cases.h"

namespace weir::test {
namespace {

using enum Severity;

void nothing(Machine&) {}
void no_gpu_direct(Machine& m) { m.peermem = m.open_driver = false; }
void roce(Machine& m) {
  m.rdma.resize(1);
  m.rdma[0].ports[0].link_layer = "Ethernet";
  m.rdma[0].ports[0].gids = {{0, "IB/RoCE v1"}, {3, "RoCE v2"}};
}
void old_driver(Machine& m) { m.driver = "550.54.15"; }

}  // namespace

void all_down(Machine& m) {
  for (RdmaDevice& device : m.rdma) device.ports[0].state = "DOWN";
}

const std::vector<Spoken> kSpoken{
    {"configuration_file", {{"NCCL_CONF_FILE", "/none"}}, nothing, warning, "/none"},

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
    {"locked_memory", {}, [](Machine& m) { m.locked_memory = 8 << 20; }, warning, "8192 KiB"},

    {"cumem_disabled", {{"NCCL_CUMEM_ENABLE", "0"}}, nothing, warning, "cudaIpc"},
    {"graph_register", {{"NCCL_GRAPH_REGISTER", "1"}}, nothing, error, "NCCL_GRAPH_REGISTER=0"},
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
};

const std::vector<Silent> kSilent{
    {"configuration_file", {{"NCCL_DEBUG", "INFO"}}, nothing},
    {"ib_disabled_and_set", {{"NCCL_IB_DISABLE", "1"}}, nothing},
    {"ib_disabled_and_set", {{"NCCL_IB_DISABLE", "0"}, {"NCCL_IB_HCA", "mlx5"}}, nothing},
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
    {"locked_memory", {}, nothing},
    {"locked_memory", {}, [](Machine& m) { m.locked_memory = 8 << 20, m.rdma.clear(); }},
    {"cumem_disabled", {{"NCCL_CUMEM_ENABLE", "1"}}, nothing},
    {"graph_register", {{"NCCL_GRAPH_REGISTER", "0"}}, nothing},
    {"runtime_connect", {{"NCCL_RUNTIME_CONNECT", "0"}}, nothing},
    {"launch_order", {{"NCCL_LAUNCH_ORDER_IMPLICIT", "0"}}, nothing},
    {"launch_order", {}, old_driver},
    {"graph_mixing", {{"NCCL_GRAPH_MIXING_SUPPORT", "1"}}, nothing},
    {"comm_blocking", {{"NCCL_COMM_BLOCKING", "1"}}, nothing},
    {"launch_blocking", {{"CUDA_LAUNCH_BLOCKING", "0"}}, nothing},
    {"device_connections", {{"CUDA_DEVICE_MAX_CONNECTIONS", "8"}}, nothing},
    {"device_connections", {{"CUDA_DEVICE_MAX_CONNECTIONS", "x"}}, nothing},
};

}  // namespace weir::test
