// SPDX-License-Identifier: Apache-2.0
#include "tests/torch/contract/program.h"

#include <iterator>
#include <sstream>
#include <utility>

namespace weir::contract {

const char* name_of(Step::Kind kind) {
  static constexpr const char* kNames[] = {"make_stream",
                                           "destroy_stream",
                                           "allocate",
                                           "kernel",
                                           "order",
                                           "record_event",
                                           "wait_event",
                                           "synchronize_event",
                                           "synchronize_stream",
                                           "synchronize_device",
                                           "record_stream",
                                           "drop",
                                           "empty_cache",
                                           "set_limit",
                                           "set_caching",
                                           "make_pool",
                                           "enter_pool",
                                           "leave_pool",
                                           "drop_pool",
                                           "begin_capture",
                                           "end_capture",
                                           "pause_pool",
                                           "resume_pool",
                                           "fail_capture",
                                           "refuse_capture",
                                           "replay",
                                           "drop_graph",
                                           "begin_raw_capture",
                                           "end_raw_capture",
                                           "save_pool",
                                           "restore_pool",
                                           "set_flag",
                                           "busy"};
  static_assert(std::size(kNames) == Step::kKinds);
  return kNames[static_cast<std::size_t>(kind)];
}

// Its kind, and its fields but for those that are zero.
std::string describe(const Step& step) {
  std::ostringstream line;
  line << name_of(step.kind);
  const std::pair<const char*, std::uint64_t> fields[] = {
      {"thread", step.thread},
      {"stream", step.stream},
      {"other", step.other},
      {"tensor", step.tensor},
      {"graph", step.graph},
      {"pool", step.pool},
      {"event", step.event},
      {"flag", step.flag},
      {"on", step.on ? 1 : 0},
      {"bytes", step.bytes.count},
      {"us", static_cast<std::uint64_t>(step.duration.count / 1000)}};
  for (const auto& [name, value] : fields) {
    if (value != 0) line << " " << name << "=" << value;
  }
  for (const Use& use : step.uses) line << (use.write ? " writes=" : " reads=") << use.tensor;
  return line.str();
}

std::string name_of(const Program& program) {
  if (program.seed == 0) return program.name;
  return "seed " + std::to_string(program.seed) + (program.has_flags ? " with --flags" : "");
}

std::string describe(const Program& program) {
  std::ostringstream lines;
  lines << name_of(program) << ": " << program.steps.size() << " steps\n";
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    lines << "  " << i << ". " << describe(program.steps[i]) << "\n";
  }
  return lines.str();
}

}  // namespace weir::contract
