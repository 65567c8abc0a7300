// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "weir/comm/check.h"

namespace weir {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMostValue = 2000;  // bytes of a value that are shown

// What comes from files and the environment is not trusted: one '?' for each byte that is no
// printable ASCII character.
std::string line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7F; }, '?');
  return text + '\n';
}
std::string line(std::string_view name, std::string_view text) {
  return line(fmt::format("  {:<16}{}", name, text));
}

std::string machine_text(const Machine& machine) {
  std::string text = line("Machine " + machine.root);
  text += line("Kernel", machine.kernel.empty() ? "none" : machine.kernel);
  text += line("NCCL", machine.nccl.empty() ? "none: " + machine.no_nccl : machine.nccl);
  text += line("GPUs", std::to_string(machine.gpus));
  text += line("GPUDirect RDMA", fmt::format("nvidia_peermem {}, dma-buf {}",
                                             machine.peermem ? "loaded" : "not loaded",
                                             machine.has_dma_buf() ? "possible" : "not possible"));
  text += line("RDMA ports", std::to_string(machine.rdma.size()));
  for (const RdmaPort& port : machine.rdma) {
    text += line("", fmt::format("{} port {}: {}, {}", port.device, port.number,
                                 port.state.empty() ? "unknown" : port.state, port.link_layer));
  }
  for (const Unread& unread : machine.unread) {
    text += line("Not read", unread.path + ": " + unread.why);
  }
  return text;
}

std::string settings_text(const Settings& settings) {
  std::string text = fmt::format("\nSettings in force: {}\n", settings.list.size());
  for (const std::string& file : settings.files) text += line("  read " + file);
  for (const Setting& setting : settings.list) {
    std::string value = setting.value.substr(0, kMostValue);
    if (value.size() < setting.value.size()) {
      value += fmt::format("... ({} bytes)", setting.value.size());
    }
    text += line(fmt::format("  {}={} ({})", setting.name, value, setting.source));
  }
  return text;
}

std::string findings_text(const Findings& findings) {
  std::size_t counts[3] = {};
  for (const Finding& finding : findings) ++counts[static_cast<int>(finding.severity)];
  std::string text = "\nFindings: ";
  for (const Severity severity : {Severity::error, Severity::warning, Severity::note}) {
    const std::size_t count = counts[static_cast<int>(severity)];
    text += fmt::format("{} {}{}{}", count, name_of(severity), count == 1 ? "" : "s",
                        severity == Severity::note ? "\n" : ", ");
  }
  for (const Finding& finding : findings) {
    text +=
        line(fmt::format("  {:<8} {} [{}]", name_of(finding.severity), finding.what, finding.id));
    text += line("           why: " + finding.why);
    text += line("           remedy: " + finding.remedy);
  }
  return text;
}

Json or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

Json unread_json(const std::vector<Unread>& unread) {
  Json list = Json::array();
  for (const Unread& one : unread) list.push_back({{"path", one.path}, {"why", one.why}});
  return list;
}

Json machine_json(const Machine& machine) {
  Json rdma = Json::array();
  for (const RdmaPort& port : machine.rdma) {
    rdma.push_back({{"device", port.device},
                    {"port", port.number},
                    {"state", or_null(port.state)},
                    {"link_layer", or_null(port.link_layer)}});
  }
  return {{"root", machine.root},
          {"gpus", machine.gpus},
          {"kernel", or_null(machine.kernel)},
          {"open_kernel_modules", machine.open_driver},
          {"nccl", or_null(machine.nccl)},
          {"nccl_missing", or_null(machine.no_nccl)},
          {"nvidia_peermem", machine.peermem},
          {"dma_buf", machine.has_dma_buf()},
          {"rdma_ports", std::move(rdma)},
          {"unread", unread_json(machine.unread)}};
}

}  // namespace

std::string check_text(const Check& check) {
  return machine_text(check.machine) + settings_text(check.settings) +
         findings_text(check.findings);
}

std::string check_json(const Check& check) {
  Json settings = Json::array(), findings = Json::array();
  for (const Setting& setting : check.settings.list) {
    settings.push_back(
        {{"name", setting.name}, {"value", setting.value}, {"source", setting.source}});
  }
  for (const Finding& finding : check.findings) {
    findings.push_back({{"severity", name_of(finding.severity)},
                        {"id", finding.id},
                        {"what", finding.what},
                        {"why", finding.why},
                        {"remedy", finding.remedy}});
  }
  const Json all = {{"weir_comm_check", 3},
                    {"machine", machine_json(check.machine)},
                    {"settings", std::move(settings)},
                    {"settings_files", check.settings.files},
                    {"settings_unread", unread_json(check.settings.unread)},
                    {"findings", std::move(findings)}};
  // What is no UTF-8 in a file or a variable is replaced: it must not end the program.
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace weir
