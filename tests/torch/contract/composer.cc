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

bool Composer::destroy_stream(std::uint32_t stream) {
  return make({.kind = Kind::destroy_stream, .stream = stream});
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

bool Composer::order(std::uint32_t later, std::uint32_t earlier) {
  return make({.kind = Kind::order, .stream = later, .other = earlier});
}

bool Composer::synchronize(std::uint32_t stream) {
  return make({.kind = Kind::synchronize_stream, .stream = stream});
}

bool Composer::record_stream(std::uint32_t tensor, std::uint32_t stream) {
  return make({.kind = Kind::record_stream, .stream = stream, .tensor = tensor});
}

bool Composer::drop(std::uint32_t tensor) { return make({.kind = Kind::drop, .tensor = tensor}); }

bool Composer::empty_cache() { return make({.kind = Kind::empty_cache}); }
bool Composer::set_limit(Bytes limit) { return make({.kind = Kind::set_limit, .bytes = limit}); }
bool Composer::set_caching(bool on) { return make({.kind = Kind::set_caching, .on = on}); }

std::uint32_t Composer::make_pool() {
  const std::uint32_t pool = new_pool();
  return make({.kind = Kind::make_pool, .pool = pool}) ? pool : 0;
}

bool Composer::enter_pool(std::uint32_t pool, std::uint32_t stream) {
  return make({.kind = Kind::enter_pool, .stream = stream, .pool = pool});
}

bool Composer::leave_pool(std::uint32_t pool) {
  return make({.kind = Kind::leave_pool, .pool = pool});
}

bool Composer::save_pool(std::uint32_t pool) {
  return make({.kind = Kind::save_pool, .pool = pool});
}

bool Composer::restore_pool(std::uint32_t pool) {
  return make({.kind = Kind::restore_pool, .pool = pool});
}

bool Composer::drop_pool(std::uint32_t pool) {
  return make({.kind = Kind::drop_pool, .pool = pool});
}

std::uint32_t Composer::begin_capture(std::uint32_t stream, std::uint32_t pool) {
  const std::uint32_t with = pool != 0 ? pool : new_pool();
  const bool made =
      make({.kind = Kind::begin_capture, .stream = stream, .graph = graphs_ + 1, .pool = with});
  return made ? ++graphs_ : 0;
}

std::uint32_t Composer::begin_raw_capture(std::uint32_t stream) {
  const bool made = make({.kind = Kind::begin_raw_capture, .stream = stream, .graph = graphs_ + 1});
  return made ? ++graphs_ : 0;
}

bool Composer::pause_pool(std::uint32_t graph) {
  return make({.kind = Kind::pause_pool, .graph = graph});
}

bool Composer::resume_pool(std::uint32_t graph, bool released) {
  return make({.kind = Kind::resume_pool, .graph = graph, .on = released});
}

bool Composer::fail_capture(std::uint32_t graph) {
  return make({.kind = Kind::fail_capture, .graph = graph});
}

bool Composer::refuse_capture(std::uint32_t stream, bool by_driver, std::uint32_t pool) {
  const std::uint32_t with = pool != 0 ? pool : new_pool();
  const bool made = make({.kind = Kind::refuse_capture,
                          .stream = stream,
                          .graph = graphs_ + 1,
                          .pool = with,
                          .on = by_driver});
  if (made) ++graphs_;
  return made;
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
  for (const std::uint32_t stream : forked) (void)order(origin, stream);
  if (ended.paused) (void)resume_pool(graph);
  const bool made = make({.kind = raw ? Kind::end_raw_capture : Kind::end_capture, .graph = graph});
  thread_ = mine;
  return made;
}

bool Composer::replay(std::uint32_t graph, std::uint32_t stream) {
  return make({.kind = Kind::replay, .stream = stream, .graph = graph});
}

bool Composer::drop_graph(std::uint32_t graph) {
  return make({.kind = Kind::drop_graph, .graph = graph});
}

bool Composer::set_flag(std::uint32_t flag) { return make({.kind = Kind::set_flag, .flag = flag}); }

void Composer::finish() {
  std::vector<std::uint32_t> captured;
  for (const auto& [number, graph] : legality_.graphs()) {
    if (graph.state == Legality::Graph::State::capturing) captured.push_back(number);
  }
  for (const std::uint32_t graph : captured) (void)end_capture(graph);
  std::vector<std::pair<std::uint32_t, std::uint32_t>> entered;
  for (const auto& [number, pool] : legality_.pools()) {
    if (pool.by) entered.emplace_back(number, *pool.by);
  }
  for (const auto& [pool, thread] : entered) {
    thread_ = thread;
    (void)leave_pool(pool);
  }
  for (const std::uint32_t flag : legality_.flags_awaited()) (void)set_flag(flag);
}

}  // namespace weir::contract
