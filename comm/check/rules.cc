#include "comm/check/rules.h"

#include <algorithm>

#include "comm/check/tree.h"
#include "comm/numbers.h"

namespace weir {
namespace check {
namespace {

#define WEIR_CHECK_ROW(name) {#name, &(name)},
constexpr Rule kRules[] = {WEIR_CHECK_RULES(WEIR_CHECK_ROW)};
#undef WEIR_CHECK_ROW

constexpr std::size_t kMostShown = 60;  // bytes of a value within a sentence

}  // namespace

std::span<const Rule> rules() { return kRules; }

void say(Findings& findings, Severity severity, std::string what, std::string why,
         std::string remedy) {
  findings.push_back({.severity = severity,
                      .what = std::move(what),
                      .why = std::move(why),
                      .remedy = std::move(remedy)});
}

std::string shown(const Settings& settings, std::string_view name) {
  const std::string* value = settings.find(name);
  std::string text = std::string(name) + "=" + (value != nullptr ? *value : "");
  if (text.size() > name.size() + 1 + kMostShown) {
    text = text.substr(0, name.size() + 1 + kMostShown) + "...";
  }
  return text;
}

DeviceList::DeviceList(std::string_view text) {
  if (text.starts_with('^')) excludes_ = true, text.remove_prefix(1);
  if (text.starts_with('=')) exact_ = true, text.remove_prefix(1);
  for (const std::string& word : split(text, ',')) {
    const std::size_t colon = word.find(':');
    Entry entry{.name = word.substr(0, colon)};
    if (colon != std::string::npos) {
      const std::optional<std::int64_t> port = number_in(std::string_view(word).substr(colon + 1));
      entry.port = port && *port >= 0 && *port < 256 ? static_cast<int>(*port) : -1;
    }
    if (!entry.name.empty()) entries_.push_back(std::move(entry));
  }
}

bool DeviceList::means(const Entry& entry, std::string_view name, int port) const {
  const bool named = exact_ ? name == entry.name : name.starts_with(entry.name);
  return named && (entry.port < 0 || port < 0 || entry.port == port);
}

bool DeviceList::takes(std::string_view name, int port) const {
  const bool meant = std::any_of(entries_.begin(), entries_.end(),
                                 [&](const Entry& entry) { return means(entry, name, port); });
  return meant != excludes_;
}

}  // namespace check

std::string_view name_of(Severity severity) {
  switch (severity) {
    case Severity::error:
      return "error";
    case Severity::warning:
      return "warning";
    case Severity::note:
      break;
  }
  return "note";
}

Findings examine(const Machine& machine, const Settings& settings) {
  Findings findings;
  for (const check::Rule& rule : check::rules()) {
    const std::size_t before = findings.size();
    rule.look(machine, settings, findings);
    for (std::size_t i = before; i < findings.size(); ++i) findings[i].id = rule.id;
  }
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.severity < b.severity; });
  return findings;
}

bool has_error(const Findings& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.severity == Severity::error; });
}

}  // namespace weir
