// SPDX-License-Identifier: Apache-2.0
#include "tests/torch/contract/findings.h"

#include <algorithm>
#include <sstream>

#include "tests/torch/contract/shrink.h"

namespace weir::contract {
namespace {

using Kind = Step::Kind;

// What is known of the program before the step that failed.
Legality before(const Program& program, std::size_t step) {
  Legality legality(program);
  for (std::size_t i = 0; i < std::min(step, program.steps.size()); ++i) {
    legality.apply(program.steps[i]);
  }
  return legality;
}

std::string row_of_memory(const Legality& legality, const Failure& failure, const Step* step) {
  const auto victim =
      failure.victim ? legality.tensors().find(*failure.victim) : legality.tensors().end();
  if (victim == legality.tensors().end()) return "?";
  const Legality::Tensor& tensor = victim->second;
  if (tensor.uncached) return "1f caching off";
  if (tensor.pool != 0) {
    const auto pool = legality.pools().find(tensor.pool);
    const bool gone = pool == legality.pools().end() || pool->second.uses == 0;
    return gone ? "1a memory of a dead pool" : "1b memory of a live pool";
  }
  if (step != nullptr && (step->kind == Kind::empty_cache || step->kind == Kind::set_limit)) {
    return "1c empty_cache or a lower limit";
  }
  if (legality.limit() > 0_B) return "1c empty_cache or a lower limit";
  for (const auto& [number, graph] : legality.graphs()) {
    const bool replayed = !graph.raw && !graph.replays.empty();
    if (replayed && graph.uses.contains(*failure.victim)) return "1h eager input of a graph";
  }
  if (step != nullptr && (step->kind == Kind::begin_capture || step->kind == Kind::enter_pool)) {
    return "1d eager memory in a pool";
  }
  const auto other =
      failure.other ? legality.tensors().find(*failure.other) : legality.tensors().end();
  if (other != legality.tensors().end() && other->second.pool != 0) {
    return "1d eager memory in a pool";
  }
  if (other == legality.tensors().end() && step != nullptr && step->kind == Kind::allocate) {
    // Unmapped for a request: whose?
    Legality after = legality;
    if (!after.check(*step)) {
      after.apply(*step);
      if (after.tensors().at(step->tensor).pool != 0) return "1d eager memory in a pool";
      if (after.tensors().at(step->tensor).uncached) return "1f caching off";
    }
  }
  return "1e another stream";
}

}  // namespace

std::string row_of(const Program& program, const Failure& failure) {
  const Legality legality = before(program, failure.step);
  const Step* const step =
      failure.step < program.steps.size() ? &program.steps[failure.step] : nullptr;
  bool destroyed = false, raw = false;
  for (const auto& [number, stream] : legality.streams()) destroyed |= !stream.live;
  for (const auto& [number, graph] : legality.graphs()) {
    raw |= graph.raw && graph.state == Legality::Graph::State::capturing;
  }
  switch (failure.kind) {
    case Failure::Kind::hang:
      return "2 dependencies between streams";
    case Failure::Kind::host_wait:
      return std::string("14 host wait: ") + (step == nullptr ? "at the end" : name_of(step->kind));
    case Failure::Kind::wrong_pool:
      return "6 the newest pool serves a request";
    case Failure::Kind::leaked:
    case Failure::Kind::too_much:
    case Failure::Kind::stays_apart: {
      const bool pauses =
          std::any_of(program.steps.begin(), program.steps.end(),
                      [](const Step& each) { return each.kind == Kind::pause_pool; });
      return pauses ? "17 a pool that is ended and begun again" : "16 memory at the end";
    }
    case Failure::Kind::broken_books:
      return "broken books";
    case Failure::Kind::moved_in_time:
      return "fixed addresses";
    case Failure::Kind::capture_lost:
      return raw ? "5 another library's capture" : "capture lost";
    case Failure::Kind::refused:
      if (destroyed && failure.what.find("no stream") != std::string::npos) {
        return "4 destroyed stream";
      }
      if (raw) return "5 another library's capture";
      if (step != nullptr && step->kind == Kind::drop && legality.capturing()) {
        return "3b free in a capture";
      }
      return std::string("refused: ") + (step == nullptr ? "at the end" : name_of(step->kind));
    case Failure::Kind::overwritten:
    case Failure::Kind::unmapped:
    case Failure::Kind::illegal_access:
      return row_of_memory(legality, failure, step);
  }
  return "?";
}

void Findings::add(const Program& program, const Failure& failure, const RunOptions& options) {
  ++count_;
  const std::string row = row_of(program, failure);
  const Level level = level_of(program);
  Finding& finding = found_[{row, failure.kind}];
  if (finding.times++ > 0 && level >= finding.least) return;
  const auto same = [&](const Program& shorter, const Failure& fails) {
    return fails.kind == failure.kind && row_of(shorter, fails) == row &&
           level_of(shorter) <= level;
  };
  finding.shortest = shrink(program, same, options);
  finding.least = level_of(finding.shortest);
  finding.failure = run_on_weir(finding.shortest, options).failure.value_or(failure);
}

std::string Findings::table() const {
  std::ostringstream text;
  text << "times  guarantee, effect, least level\n";
  for (const auto& [key, finding] : found_) {
    text << finding.times << "  " << key.first << ", " << name_of(key.second) << ", "
         << name_of(finding.least) << "\n";
  }
  for (const auto& [key, finding] : found_) {
    text << "\n"
         << key.first << ", " << name_of(key.second) << "\n"
         << finding.failure.what << "\nafter step " << finding.failure.step << " of "
         << describe(finding.shortest);
  }
  return text.str();
}

std::string report(const Program& program, const Failure& failure, const RunOptions& options) {
  const Program shortest = shrink(
      program, [&](const Program&, const Failure& fails) { return fails.kind == failure.kind; },
      options);
  const Failure again = run_on_weir(shortest, options).failure.value_or(failure);
  std::ostringstream text;
  text << name_of(program) << ": " << name_of(failure.kind) << " after step " << failure.step
       << "\n"
       << failure.what << "\nguarantee: " << row_of(shortest, again)
       << "\nlevel: " << name_of(level_of(shortest))
       << "\nThe shortest program found that fails, after its step " << again.step << ", "
       << describe(shortest) << again.what << "\n";
  return text.str();
}

}  // namespace weir::contract
