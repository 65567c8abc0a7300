// SPDX-License-Identifier: Apache-2.0
// Puts legal programs together: a step that needs earlier work to be done gets the stream order, or
// the host wait, that makes it legal.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/splitmix.h"
#include "tests/torch/contract/legality.h"
#include "tests/torch/contract/program.h"

namespace weir::contract {

using test::SplitMix;

constexpr Nanoseconds kShort = 10_us;
constexpr Nanoseconds kSpin = 50_ms;  // outlasts everything that the host does

class Composer {
 public:
  // `program` has its header, and no steps yet; it must outlive this. `random`, if any, chooses
  // between orders and host waits. `omit_orders`: leave them out, for tests of the checks.
  Composer(Program& program, SplitMix* random, bool omit_orders = false)
      : program_(program), legality_(program), random_(random), omit_orders_(omit_orders) {}

  // The same for all that is made until it is called again.
  void set_thread(std::uint32_t thread) { thread_ = thread; }

  // Each returns false, or 0, where the step would not be legal: the program has no such step then.
  bool make(Step step);
  std::uint32_t make_stream();
  bool destroy_stream(std::uint32_t stream) {
    return make({.kind = Kind::destroy_stream, .stream = stream});
  }
  // `bare`: by the stream's handle alone.
  std::uint32_t allocate(std::uint32_t stream, Bytes bytes, bool bare = false);
  bool kernel(std::uint32_t stream, std::vector<Use> uses, Nanoseconds duration,
              std::uint32_t flag = 0);
  bool read(std::uint32_t stream, std::uint32_t tensor, Nanoseconds duration = kShort) {
    return kernel(stream, {{tensor, false}}, duration);
  }
  bool write(std::uint32_t stream, std::uint32_t tensor, Nanoseconds duration = kShort) {
    return kernel(stream, {{tensor, true}}, duration);
  }
  bool order(std::uint32_t later, std::uint32_t earlier) {
    return make({.kind = Kind::order, .stream = later, .other = earlier});
  }
  bool synchronize(std::uint32_t stream) {
    return make({.kind = Kind::synchronize_stream, .stream = stream});
  }
  bool record_stream(std::uint32_t tensor, std::uint32_t stream) {
    return make({.kind = Kind::record_stream, .stream = stream, .tensor = tensor});
  }
  bool drop(std::uint32_t tensor) { return make({.kind = Kind::drop, .tensor = tensor}); }
  bool empty_cache() { return make({.kind = Kind::empty_cache}); }
  bool set_limit(Bytes limit) { return make({.kind = Kind::set_limit, .bytes = limit}); }
  bool set_caching(bool on) { return make({.kind = Kind::set_caching, .on = on}); }
  std::uint32_t make_pool() {
    const std::uint32_t pool = new_pool();
    return of_pool(Kind::make_pool, pool) ? pool : 0;
  }
  bool enter_pool(std::uint32_t pool, std::uint32_t stream) {
    return make({.kind = Kind::enter_pool, .stream = stream, .pool = pool});
  }
  bool leave_pool(std::uint32_t pool) { return of_pool(Kind::leave_pool, pool); }
  bool save_pool(std::uint32_t pool) { return of_pool(Kind::save_pool, pool); }
  bool restore_pool(std::uint32_t pool) { return of_pool(Kind::restore_pool, pool); }
  bool drop_pool(std::uint32_t pool) { return of_pool(Kind::drop_pool, pool); }
  // Pool 0: one of its own.
  std::uint32_t begin_capture(std::uint32_t stream, std::uint32_t pool = 0) {
    return new_graph(
        {.kind = Kind::begin_capture, .stream = stream, .pool = pool != 0 ? pool : new_pool()});
  }
  std::uint32_t begin_raw_capture(std::uint32_t stream) {
    return new_graph({.kind = Kind::begin_raw_capture, .stream = stream});
  }
  bool pause_pool(std::uint32_t graph) { return make({.kind = Kind::pause_pool, .graph = graph}); }
  bool resume_pool(std::uint32_t graph, bool released = true) {
    return make({.kind = Kind::resume_pool, .graph = graph, .on = released});
  }
  bool fail_capture(std::uint32_t graph) {
    return make({.kind = Kind::fail_capture, .graph = graph});
  }
  // `by_driver`: of a stream that is not captured.
  bool refuse_capture(std::uint32_t stream, bool by_driver) {
    return new_graph({.kind = Kind::refuse_capture,
                      .stream = stream,
                      .pool = new_pool(),
                      .on = by_driver}) != 0;
  }
  // Joins the streams that the capture forked, and resumes its pool, first.
  bool end_capture(std::uint32_t graph);
  bool replay(std::uint32_t graph, std::uint32_t stream) {
    return make({.kind = Kind::replay, .stream = stream, .graph = graph});
  }
  bool drop_graph(std::uint32_t graph) { return make({.kind = Kind::drop_graph, .graph = graph}); }
  bool set_flag(std::uint32_t flag) { return make({.kind = Kind::set_flag, .flag = flag}); }
  std::uint32_t new_flag() { return ++flags_; }
  std::uint32_t new_pool() { return ++made_pools_; }

  // Ends what is left open.
  void finish();

  const Legality& legality() const { return legality_; }
  std::size_t size() const { return program_.steps.size(); }

 private:
  using Kind = Step::Kind;
  bool of_pool(Kind kind, std::uint32_t pool) { return make({.kind = kind, .pool = pool}); }
  // Its number; 0: the step is not legal.
  std::uint32_t new_graph(Step step) {
    step.graph = graphs_ + 1;
    return make(std::move(step)) ? ++graphs_ : 0;
  }
  bool put_in_order(std::uint32_t later, std::uint32_t earlier);

  Program& program_;
  Legality legality_;
  SplitMix* random_;
  bool omit_orders_;
  std::uint32_t thread_ = 0;
  std::uint32_t tensors_ = 0, graphs_ = 0, made_pools_ = 0, flags_ = 0;
};

}  // namespace weir::contract
