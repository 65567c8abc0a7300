// SPDX-License-Identifier: Apache-2.0
#include "comm/scenario.h"

#include <fmt/format.h>

#include <algorithm>

#include "replay/json.h"
#include "replay/report_table.h"

namespace weir {
namespace {

constexpr const char* kBounds[] = {"at most", "at least", "exactly"};
const char* name_of(Bound bound) { return kBounds[static_cast<int>(bound)]; }

std::string table_text(const ScenarioTable& table) {
  ReportTable text(std::string(table.columns.size(), 'l'));
  text.add(table.columns);
  for (const auto& row : table.rows) text.add(row);
  return "\n" + table.title + "\n" + text.text();
}

}  // namespace

static void to_json(Json& json, const Aim& aim) {
  json = {{"what", aim.what}, {"bound", name_of(aim.bound)},
          {"aim", aim.aim},   {"reached", aim.reached},
          {"unit", aim.unit}, {"holds", aim.held()}};
}
static void to_json(Json& json, const ScenarioTable& table) {
  json = {{"title", table.title}, {"columns", table.columns}, {"rows", table.rows}};
}

bool Aim::held() const {
  return reached == aim || (bound == Bound::at_most && reached < aim) ||
         (bound == Bound::at_least && reached > aim);
}

Status ScenarioReport::run(const OpenRanks& open, const RanksOptions& wanted,
                           const std::function<void(BenchRank&)>& work) {
  const std::unique_ptr<Ranks> ranks = open(wanted);
  device = ranks->describe();
  is_rank_0 = ranks->has_rank_0();
  Status ended = ranks->on_all(work);
  for (std::string& problem : ranks->close()) problems.push_back(std::move(problem));
  return ended;
}

std::string ScenarioReport::run_case(const OpenRanks& open, const RanksOptions& wanted, Aim& aim,
                                     const std::string& well,
                                     const std::function<void(BenchRank&)>& work) {
  const std::size_t before = problems.size();
  const Status ended = run(open, wanted, work);
  if (!ended) problems.push_back(ended.error().message());
  aim.aim += 1;
  if (problems.size() > before) return problems[before];
  aim.reached += 1;
  return well;
}

bool ScenarioReport::holds() const {
  if (!is_rank_0) return problems.empty();
  return problems.empty() && !aims.empty() &&
         std::all_of(aims.begin(), aims.end(), [](const Aim& aim) { return aim.held(); });
}

std::string scenario_text(const ScenarioReport& report) {
  std::string text = fmt::format("{}: {}\n{}\n", report.name, report.title, report.device);
  for (const ScenarioTable& table : report.tables) text += table_text(table);
  ScenarioTable aims{.title = "Aims", .columns = {"", "aim", "", "reached", "", ""}};
  for (const Aim& aim : report.aims) {
    aims.rows.push_back({aim.what, std::string(name_of(aim.bound)), fmt::format("{:.5g}", aim.aim),
                         fmt::format("{:.5g}", aim.reached), aim.unit,
                         aim.held() ? "holds" : "DOES NOT HOLD"});
  }
  text += table_text(aims);
  if (!report.notes.empty()) text += "\n";
  for (const std::string& note : report.notes) text += "Note: " + note + "\n";
  for (const std::string& problem : report.problems) text += "WRONG: " + problem + "\n";
  return text + fmt::format("\n{}: {}\n", report.name,
                            report.holds() ? "every aim holds" : "DOES NOT HOLD");
}

std::string scenario_json(const ScenarioReport& report) {
  return json_text(Json{{"scenario", report.name},
                        {"title", report.title},
                        {"device", report.device},
                        {"holds", report.holds()},
                        {"aims", report.aims},
                        {"tables", report.tables},
                        {"notes", report.notes},
                        {"problems", report.problems}});
}

}  // namespace weir
