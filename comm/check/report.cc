#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "weir/comm/check.h"

namespace weir {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kWidth = 100;       // columns
constexpr std::size_t kMostValue = 2000;  // bytes of a value that are shown

// What comes from files and the environment is not trusted: one '?' for each byte that is no
// printable ASCII character.
std::string printable(std::string_view text) {
  std::string shown(text);
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char c) { return c < 0x20 || c >= 0x7F; }, '?');
  return shown;
}

// `head`, then `text` in lines that begin at column `indent`; a word that is too long is broken.
std::string paragraph(std::string_view head, std::string_view text, std::size_t indent) {
  std::string lines(head);
  lines.resize(std::max(lines.size(), indent), ' ');
  std::size_t column = lines.size();
  bool begins = true;
  const auto end_line = [&] {
    lines += '\n' + std::string(indent, ' ');
    column = indent;
    begins = true;
  };
  std::istringstream words(printable(text));
  for (std::string word; words >> word;) {
    if (!begins && column + 1 + word.size() > kWidth) end_line();
    if (!begins) lines += ' ', ++column;
    for (; column + word.size() > kWidth; end_line()) {
      lines += word.substr(0, kWidth - column);
      word.erase(0, kWidth - column);
    }
    lines += word;
    column += word.size();
    begins = false;
  }
  return lines + '\n';
}

std::string line(std::string_view name, std::string_view text) {
  constexpr std::size_t kIndent = 18;
  return paragraph(fmt::format("  {:<{}}", name, kIndent - 2), text, kIndent);
}

std::string limit_of(const Machine& machine) {
  if (!machine.locked_memory) return "unknown";
  if (*machine.locked_memory == ~std::uint64_t{0}) return "unlimited";
  return fmt::format("at most {} KiB", *machine.locked_memory >> 10);
}

std::string machine_text(const Machine& machine) {
  std::string text = paragraph("", "Machine " + machine.root, 0);
  const auto or_none = [](const std::string& value) { return value.empty() ? "none" : value; };
  text += line("Kernel", or_none(machine.kernel));
  text += line("Driver",
               or_none(machine.driver) + (machine.open_driver ? ", open kernel modules" : ""));
  text += line("NCCL", machine.nccl.empty() ? "none: " + machine.no_nccl : machine.nccl);
  text += line("GPUs", std::to_string(machine.gpus));
  text += line("GPUDirect RDMA", fmt::format("nvidia_peermem {}, dma-buf {}",
                                             machine.peermem ? "loaded" : "not loaded",
                                             machine.has_dma_buf() ? "possible" : "not possible"));
  text += line("Locked memory", limit_of(machine));
  text += line("RDMA devices", std::to_string(machine.rdma.size()));
  for (const RdmaDevice& device : machine.rdma) {
    for (const RdmaPort& port : device.ports) {
      text += line("", fmt::format("{} port {}: {}, {}", device.name, port.number,
                                   port.state.empty() ? "unknown" : port.state, port.link_layer));
    }
  }
  for (const Unread& unread : machine.unread) {
    text += line("Not read", unread.path + ": " + unread.why);
  }
  return text;
}

std::string settings_text(const Settings& settings) {
  std::string text = fmt::format("\nSettings in force: {}\n", settings.list.size());
  for (const std::string& file : settings.files) text += paragraph("  read ", file, 7);
  for (const Setting& setting : settings.list) {
    std::string value = setting.value.substr(0, kMostValue);
    if (value.size() < setting.value.size()) {
      value += fmt::format("... ({} bytes)", setting.value.size());
    }
    text += paragraph("  ", fmt::format("{}={} ({})", setting.name, value, setting.source), 2);
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
    text += paragraph(fmt::format("  {:<9}", name_of(finding.severity)),
                      fmt::format("{} [{}]", finding.what, finding.id), 11);
    text += paragraph("           why: ", finding.why, 16);
    text += paragraph("           remedy: ", finding.remedy, 19);
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
  for (const RdmaDevice& device : machine.rdma) {
    Json ports = Json::array();
    for (const RdmaPort& port : device.ports) {
      Json gids = Json::object();
      for (const auto& [index, type] : port.gids) gids[std::to_string(index)] = type;
      ports.push_back({{"port", port.number},
                       {"state", or_null(port.state)},
                       {"link_layer", or_null(port.link_layer)},
                       {"gid_types", std::move(gids)}});
    }
    rdma.push_back({{"name", device.name}, {"ports", std::move(ports)}});
  }
  // A number for "no limit" would be taken for one.
  Json locked = machine.locked_memory ? Json(*machine.locked_memory) : Json();
  if (machine.locked_memory == ~std::uint64_t{0}) locked = "unlimited";
  return {{"root", machine.root},
          {"gpus", machine.gpus},
          {"kernel", or_null(machine.kernel)},
          {"driver", or_null(machine.driver)},
          {"open_kernel_modules", machine.open_driver},
          {"nccl", or_null(machine.nccl)},
          {"nccl_missing", or_null(machine.no_nccl)},
          {"nvidia_peermem", machine.peermem},
          {"dma_buf", machine.has_dma_buf()},
          {"rdma", std::move(rdma)},
          {"locked_memory_bytes", std::move(locked)},
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
  const Json all = {{"weir_comm_check", 2},
                    {"machine", machine_json(check.machine)},
                    {"settings", std::move(settings)},
                    {"settings_files", check.settings.files},
                    {"settings_unread", unread_json(check.settings.unread)},
                    {"findings", std::move(findings)}};
  // What is no UTF-8 in a file or a variable is replaced: it must not end the program.
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace weir
