#include <nlohmann/json.hpp>

#include "comm/check/variables.h"
#include "weir/comm/check.h"

namespace weir {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

// A number for "no limit" would be taken for one.
Json limit(const std::optional<std::uint64_t>& value) {
  if (value == ~std::uint64_t{0}) return "unlimited";
  return or_null(value);
}

Json gpus_json(const Machine& machine) {
  Json list = Json::array();
  for (const PciGpu& gpu : machine.gpus) {
    list.push_back({{"pci", gpu.pci},
                    {"model", or_null(gpu.model)},
                    {"numa_node", or_null(gpu.numa_node)},
                    {"link_speed", or_null(gpu.link_speed)},
                    {"link_width", or_null(gpu.link_width)},
                    {"max_link_width", or_null(gpu.max_link_width)}});
  }
  return list;
}

Json nvml_json(const Machine& machine) {
  if (!machine.nvml) return {{"missing", machine.no_nvml}};
  Json gpus = Json::array(), apart = Json::array();
  for (const NvmlGpu& gpu : machine.nvml->gpus) {
    gpus.push_back({{"pci", gpu.pci},
                    {"name", gpu.name},
                    {"nvlinks", gpu.links},
                    {"active_nvlinks", gpu.active_links},
                    {"nvlink_version", or_null(gpu.link_version)}});
  }
  for (const auto& [a, b] : machine.nvml->no_peer_access) apart.push_back({a, b});
  return {{"gpus", std::move(gpus)}, {"no_peer_access", std::move(apart)}};
}

Json rdma_json(const Machine& machine) {
  Json list = Json::array();
  for (const RdmaDevice& device : machine.rdma) {
    Json ports = Json::array();
    for (const RdmaPort& port : device.ports) {
      Json gids = Json::object();
      for (const auto& [index, type] : port.gids) gids[std::to_string(index)] = type;
      ports.push_back({{"port", port.number},
                       {"state", or_null(port.state)},
                       {"link_layer", or_null(port.link_layer)},
                       {"rate", or_null(port.rate)},
                       {"gid_types", std::move(gids)}});
    }
    list.push_back({{"name", device.name},
                    {"pci", or_null(device.pci)},
                    {"firmware", or_null(device.firmware)},
                    {"numa_node", or_null(device.numa_node)},
                    {"ports", std::move(ports)}});
  }
  return list;
}

Json interfaces_json(const Machine& machine) {
  Json list = Json::array();
  for (const NetworkInterface& interface : machine.interfaces) {
    list.push_back({{"name", interface.name},
                    {"up", interface.up},
                    {"virtual", interface.is_virtual},
                    {"mbit_per_second", or_null(interface.speed)},
                    {"mtu", or_null(interface.mtu)}});
  }
  return list;
}

Json unread_json(const std::vector<Unread>& unread) {
  Json list = Json::array();
  for (const Unread& one : unread) list.push_back({{"path", one.path}, {"why", one.why}});
  return list;
}

Json shm_json(const Machine& machine) {
  if (!machine.shm) return {};
  const std::optional<Bytes>& free = machine.shm->free;
  return {{"bytes", machine.shm->size.count}, {"free_bytes", free ? Json(free->count) : Json()}};
}

Json machine_json(const Machine& machine) {
  return {{"root", machine.root},
          {"kernel", or_null(machine.kernel)},
          {"driver", or_null(machine.driver)},
          {"open_kernel_modules", machine.open_driver},
          {"nccl", or_null(machine.nccl)},
          {"nccl_missing", or_null(machine.no_nccl)},
          {"gpus", gpus_json(machine)},
          {"nvml", nvml_json(machine)},
          {"nvswitches", machine.nvswitches},
          {"imex_channels", machine.imex_channels},
          {"nvidia_peermem", machine.peermem},
          {"dma_buf", machine.has_dma_buf()},
          {"gdrcopy", machine.gdrcopy},
          {"iommu_groups", machine.iommu_groups},
          {"iommu_passthrough", machine.iommu_passthrough},
          {"rdma", rdma_json(machine)},
          {"interfaces", interfaces_json(machine)},
          {"shm", shm_json(machine)},
          {"locked_memory_bytes", limit(machine.locked_memory)},
          {"open_files", limit(machine.open_files)},
          {"unread", unread_json(machine.unread)}};
}

Json settings_json(const Settings& settings) {
  Json list = Json::array();
  for (const Setting& setting : settings.list) {
    const check::Variable* variable = check::variable_named(setting.name);
    Json row = {{"name", setting.name}, {"value", setting.value}, {"source", setting.source}};
    row["default"] = variable != nullptr ? Json(variable->fallback) : Json();
    row["meaning"] = variable != nullptr ? Json(variable->meaning) : Json();
    list.push_back(std::move(row));
  }
  return list;
}

}  // namespace

std::string check_json(const Check& check) {
  Json findings = Json::array();
  for (const Finding& finding : check.findings) {
    findings.push_back({{"severity", name_of(finding.severity)},
                        {"id", finding.id},
                        {"what", finding.what},
                        {"why", finding.why},
                        {"remedy", finding.remedy}});
  }
  const Json all = {{"weir_comm_check", 1},
                    {"machine", machine_json(check.machine)},
                    {"settings", settings_json(check.settings)},
                    {"settings_files", check.settings.files},
                    {"settings_unread", unread_json(check.settings.unread)},
                    {"findings", std::move(findings)}};
  // What is no UTF-8 in a file or a variable is replaced: it must not end the program.
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace weir
