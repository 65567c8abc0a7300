// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/check_rules_cases.h"

namespace weir::test {
namespace {

using enum Severity;

void nothing(Machine&) {}
void no_gpu_direct(Machine& m) { m.peermem = m.open_driver = false; }
void no_gpu(Machine& m) {
  no_gpu_direct(m);
  m.gpus = 0;
}
void no_active_port(Machine& m) {
  no_gpu_direct(m);
  for (RdmaPort& port : m.rdma) port.state = "DOWN";
}

}  // namespace

const std::vector<Spoken> kSpoken{
    {"configuration_file", {{"NCCL_CONF_FILE", "/none"}}, nothing, warning, "/none"},

    {"rdma_port_down", {}, [](Machine& m) { m.rdma[3].state = "DOWN"; }, warning, "mlx5_3 port 1"},
    {"gpu_direct_missing", {}, no_gpu_direct, warning, "nvidia_peermem"},
    {"gpu_direct_missing",
     {{"NCCL_DMABUF_ENABLE", "0"}},
     [](Machine& m) { m.peermem = false; },
     warning,
     "NCCL_DMABUF_ENABLE=0"},
    {"cumem_disabled", {{"NCCL_CUMEM_ENABLE", "0"}}, nothing, warning, "cudaIpc"},
    {"graph_register", {{"NCCL_GRAPH_REGISTER", "1"}}, nothing, error, "NCCL_GRAPH_REGISTER=0"},
    {"launch_order", {{"NCCL_LAUNCH_ORDER_IMPLICIT", "1"}}, nothing, note, "slower"},
    {"graph_mixing", {{"NCCL_GRAPH_MIXING_SUPPORT", "0"}}, nothing, warning, "overlap"},
    {"comm_blocking", {{"NCCL_COMM_BLOCKING", "0"}}, nothing, error, "before they are done"},
    {"launch_blocking", {{"CUDA_LAUNCH_BLOCKING", "1"}}, nothing, warning, "nccl#750"},
    {"device_connections", {{"CUDA_DEVICE_MAX_CONNECTIONS", "1"}}, nothing, note, "one queue"},
};

const std::vector<Silent> kSilent{
    {"configuration_file", {{"NCCL_DEBUG", "INFO"}}, nothing},
    {"rdma_port_down", {}, nothing},
    {"rdma_port_down", {{"NCCL_IB_HCA", "^=mlx5_3"}}, [](Machine& m) { m.rdma[3].state = "DOWN"; }},
    {"rdma_port_down", {{"NCCL_IB_DISABLE", "1"}}, [](Machine& m) { m.rdma[3].state = "DOWN"; }},
    {"rdma_port_down", {{"NCCL_NET", "socket"}}, [](Machine& m) { m.rdma[3].state = "DOWN"; }},
    {"gpu_direct_missing", {}, nothing},
    {"gpu_direct_missing", {}, [](Machine& m) { m.peermem = false; }},  // dma-buf does
    {"gpu_direct_missing", {}, no_gpu},
    {"gpu_direct_missing", {}, no_active_port},
    {"gpu_direct_missing", {{"NCCL_IB_DISABLE", "1"}}, no_gpu_direct},
    {"cumem_disabled", {{"NCCL_CUMEM_ENABLE", "1"}}, nothing},
    {"graph_register", {{"NCCL_GRAPH_REGISTER", "0"}}, nothing},
    {"launch_order", {{"NCCL_LAUNCH_ORDER_IMPLICIT", "0"}}, nothing},
    {"graph_mixing", {{"NCCL_GRAPH_MIXING_SUPPORT", "1"}}, nothing},
    {"comm_blocking", {{"NCCL_COMM_BLOCKING", "1"}}, nothing},
    {"launch_blocking", {{"CUDA_LAUNCH_BLOCKING", "0"}}, nothing},
    {"device_connections", {{"CUDA_DEVICE_MAX_CONNECTIONS", "8"}}, nothing},
    {"device_connections", {{"CUDA_DEVICE_MAX_CONNECTIONS", "x"}}, nothing},
};

}  // namespace weir::test
