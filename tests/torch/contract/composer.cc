// SPDX-License-Identifier: Apache-2.0
#include "tests/torch/contract/composer.h"

#include <utility>

namespace weir::contract {

using Kind = Step::Kind;

bool Composer::put_in_order(std::uint32_t later, std::uint32_t earlier) {
  const Step order{.kind = Kind::order, .thread = thread_, .stream = later, .other = earlier};
  const Step wait{.kind = Kind::synchronize_stream, .thread = thread_, .stream = earlier};
  const bool rather_wait = random_ != nullptr && random_->chance(25);
  for (const Step& step : {rather_wait ? wait : order, rather_wait ? order : wait}) {
    if (legality_.check(step)) continue;
    legality_.apply(step);
    program_.steps.push_back(step);
    return true;
  }
  return false;
}

bool Composer::make(Step step) {
  step.thread = thread_;
  if (const auto violation = legality_.check(step)) {
    if (violation->missing.empty()) return false;
    if (!omit_orders_) {
      for (const std::uint32_t earlier : violation->missing) {
        if (earlier == step.stream || !put_in_order(step.stream, earlier)) return false;
      }
      if (legality_.check(step)) return false;
    }
  }
  legality_.apply(step);
  program_.steps.push_back(std::move(step));
  return true;
}

std::uint32_t Composer::make_stream() {
  const auto number = static_cast<std::uint32_t>(legality_.streams().rbegin()->first + 1);
  return make({.kind = Kind::make_stream, .stream = number}) ? number : 0;
}

std::uint32_t Composer::allocate(std::uint32_t stream, Bytes bytes, bool bare) {
  const bool made = make({.kind = Kind::allocate,
                          .stream = stream,
                          .tensor = tensors_ + 1,
                          .on = bare,
                          .bytes = bytes});
  return made ? ++tensors_ : 0;
}

bool Composer::kernel(std::uint32_t stream, std::vector<Use> uses, Nanoseconds duration,
                      std::uint32_t flag) {
  return make({.kind = Kind::kernel,
               .stream = stream,
               .flag = flag,
               .duration = duration,
               .uses = std::move(uses)});
}

bool Composer::end_capture(std::uint32_t graph) {
  const auto known = legality_.graphs().find(graph);
  if (known == legality_.graphs().end()) return false;
  const Legality::Graph& ended = known->second;
  const bool raw = ended.raw;
  const std::uint32_t origin = ended.origin, mine = std::exchange(thread_, ended.thread);
  std::vector<std::uint32_t> forked;
  for (const auto& [stream, actor] : ended.streams) {
    if (stream != origin) forked.push_back(stream);
  }
  for (const std::uint32_t stream : forked) order(origin, stream);
  if (ended.paused) resume_pool(graph);
  const bool made = make({.kind = raw ? Kind::end_raw_capture : Kind::end_capture, .graph = graph});
  thread_ = mine;
  return made;
}

void Composer::finish() {
  std::vector<std::uint32_t> captured;
  for (const auto& [number, graph] : legality_.graphs()) {
    if (graph.state == Legality::Graph::State::capturing) captured.push_back(number);
  }
  for (const std::uint32_t graph : captured) end_capture(graph);
  std::vector<std::pair<std::uint32_t, std::uint32_t>> entered;
  for (const auto& [number, pool] : legality_.pools()) {
    if (pool.by) entered.emplace_back(number, *pool.by);
  }
  for (const auto& [pool, thread] : entered) {
    thread_ = thread;
    leave_pool(pool);
  }
  for (const std::uint32_t flag : legality_.flags_awaited()) set_flag(flag);
}

}  // namespace weir::contract
