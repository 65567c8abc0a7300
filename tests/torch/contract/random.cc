// SPDX-License-Identifier: Apache-2.0
#include "tests/torch/contract/random.h"

#include <optional>
#include <utility>
#include <vector>

#include "tests/torch/contract/composer.h"

namespace weir::contract {
namespace {

class Generator {
 public:
  Generator(Program& program, const RandomOptions& options)
      : random_(program.seed),
        options_(options),
        program_(header(program)),
        make_(program_, &random_, options.omit_orders),
        threads_(random_.chance(40) ? 2 : 1) {}

  void run() {
    const std::size_t steps = 12 + random_.below(28);
    for (int tries = 0; make_.size() < steps && tries < 400; ++tries) gesture();
    make_.finish();
  }

 private:
  using State = Legality::Graph::State;

  Program& header(Program& program) {
    program.streams = 2 + random_.below(4);
    program.has_flags = options_.flags;
    return program;
  }
  const Legality& known() const { return make_.legality(); }

  Bytes size() {
    return random_.one_of(
        {64_MiB, 64_MiB, 64_MiB, 64_MiB, 24_MiB, 128_MiB, 3_MiB, 700_KiB, 64_KiB, 4_KiB, 512_B});
  }
  Nanoseconds duration() { return random_.chance(60) ? kSpin : kShort; }

  std::uint32_t stream() {
    std::vector<std::uint32_t> all;
    for (const auto& [number, each] : known().streams()) {
      if (each.live) all.push_back(number);
    }
    return random_.pick(all);
  }
  // Another than `not_this`, where there is one.
  std::uint32_t other_stream(std::uint32_t not_this) {
    std::uint32_t found = not_this;
    for (int tries = 0; tries < 6 && found == not_this; ++tries) found = stream();
    return found;
  }
  std::optional<std::uint32_t> tensor() {
    std::vector<std::uint32_t> all;
    for (const auto& [number, each] : known().tensors()) {
      if (each.live) all.push_back(number);
    }
    if (all.empty()) return std::nullopt;
    return random_.pick(all);
  }
  std::optional<std::uint32_t> tensor_recorded_on(std::uint32_t stream) const {
    for (const auto& [number, each] : known().tensors()) {
      if (each.live && each.recorded.contains(stream)) return number;
    }
    return std::nullopt;
  }
  std::optional<std::uint32_t> graph(State state) {
    std::vector<std::uint32_t> all;
    for (const auto& [number, each] : known().graphs()) {
      if (each.state == state) all.push_back(number);
    }
    if (all.empty()) return std::nullopt;
    return random_.pick(all);
  }
  std::optional<std::uint32_t> pool() {
    std::vector<std::uint32_t> all;
    for (const auto& [number, each] : known().pools()) {
      if (each.uses > 0) all.push_back(number);
    }
    if (all.empty()) return std::nullopt;
    return random_.pick(all);
  }
  void any_thread() { make_.set_thread(random_.below(threads_)); }

  void gesture();
  std::uint32_t create();
  void use();
  void read_and_drop();
  void disturb();
  void events();
  std::uint32_t begin_capture();
  void fail_capture();
  void refuse_capture();
  void layers();
  void pause(std::uint32_t stream);
  void body_of_capture(std::uint32_t stream);
  void replay(bool reset);
  void reset(std::uint32_t graph, bool outputs_first);
  void raw_capture();
  void flags();

  SplitMix random_;
  const RandomOptions options_;
  Program& program_;
  Composer make_;
  std::uint32_t threads_;
  std::uint32_t events_ = 0;
};

std::uint32_t Generator::create() {
  const std::uint32_t on = stream();
  const std::uint32_t made = make_.allocate(on, size(), random_.chance(12));
  if (made != 0 && random_.chance(80)) make_.write(on, made, duration());
  return made;
}

void Generator::use() {
  const auto first = tensor(), second = tensor();
  if (!first) return;
  std::vector<Use> uses{{*first, random_.chance(40)}};
  if (second != first && random_.chance(40)) uses.push_back({*second, random_.chance(40)});
  make_.kernel(stream(), uses, duration());
}

void Generator::read_and_drop() {
  const auto victim = tensor();
  if (!victim) return;
  const std::uint32_t home = known().tensors().at(*victim).stream;
  const std::uint32_t reader = random_.chance(85) ? other_stream(home) : home;
  if (random_.chance(20)) make_.synchronize(home);
  if (!make_.kernel(reader, {{*victim, random_.chance(15)}}, kSpin)) return;
  if (random_.chance(20)) make_.record_stream(*victim, reader);
  if (random_.chance(20)) make_.order(home, reader);
  if (!make_.drop(*victim)) return;
  if (random_.chance(15)) make_.order(home, reader);
  if (random_.chance(80)) disturb();
}

// Somebody may be given memory that was dropped.
void Generator::disturb() {
  switch (random_.below(8)) {
    case 0:
      make_.empty_cache();
      break;
    case 1:
      if (const std::uint32_t made = make_.make_pool(); made != 0 && random_.chance(80)) {
        make_.enter_pool(made, stream());
      }
      break;
    case 2:
      begin_capture();
      break;
    case 3:
      if (random_.chance(40)) make_.set_limit(256_MiB);
      break;
    default:
      break;
  }
  create();
}

void Generator::events() {
  switch (random_.below(3)) {
    case 0:
      if (make_.make(
              {.kind = Step::Kind::record_event, .stream = stream(), .event = events_ + 1})) {
        ++events_;
      }
      break;
    case 1:
      if (events_ == 0) break;
      make_.make({.kind = Step::Kind::wait_event,
                  .stream = stream(),
                  .event = 1 + random_.below(events_)});
      break;
    default:
      if (events_ == 0) break;
      make_.make({.kind = Step::Kind::synchronize_event, .event = 1 + random_.below(events_)});
  }
}

std::uint32_t Generator::begin_capture() {
  const std::uint32_t on = stream();
  const auto shared = pool();
  if (random_.chance(30)) make_.synchronize(on);
  if (const auto used = tensor(); used && random_.chance(30)) make_.record_stream(*used, on);
  const std::uint32_t made = make_.begin_capture(on, shared && random_.chance(40) ? *shared : 0);
  if (made != 0) body_of_capture(on);
  return made;
}

// While its pool takes no requests, others may; what was freed before must not be used beside it
// afterwards.
void Generator::pause(std::uint32_t on) {
  const auto open = graph(State::capturing);
  if (!open || !make_.pause_pool(*open)) return;
  if (random_.chance(40)) {
    const auto other = pool();
    const std::uint32_t entered = other && random_.chance(50) ? *other : make_.make_pool();
    if (entered != 0 && make_.enter_pool(entered, on)) {
      if (const std::uint32_t made = make_.allocate(on, size())) make_.write(on, made);
      if (random_.chance(80)) make_.leave_pool(entered);
    }
  }
  if (random_.chance(20)) make_.allocate(stream(), size());
  if (random_.chance(90)) make_.resume_pool(*open, random_.chance(60));
}

// Each layer of a model reads what the one before wrote, and the pool is paused between them.
void Generator::layers() {
  const std::uint32_t on = stream();
  const std::uint32_t made = make_.begin_capture(on);
  if (made == 0) return;
  const bool forks = random_.chance(40);
  const std::uint32_t side = forks ? other_stream(on) : on;
  if (forks && !make_.order(side, on)) return;
  std::uint32_t before = 0;
  for (std::uint32_t layers = 2 + random_.below(9); layers > 0; --layers) {
    const std::uint32_t runs = random_.chance(50) ? on : side;
    const std::uint32_t output = make_.allocate(runs, 64_MiB);
    if (output == 0) break;
    std::vector<Use> uses{{output, true}};
    if (before != 0) uses.push_back({before, false});
    make_.kernel(runs, uses, kShort);
    if (before != 0 && random_.chance(50)) make_.drop(std::exchange(before, 0));
    if (random_.chance(80)) pause(runs);
    if (before != 0) make_.drop(before);
    before = output;
  }
  if (random_.chance(80)) make_.end_capture(made);
}

// In the midst of a capture, whose tensors stay.
void Generator::fail_capture() {
  auto open = graph(State::capturing);
  if (!open) {
    const std::uint32_t on = stream();
    const auto shared = pool();
    const std::uint32_t made = make_.begin_capture(on, shared && random_.chance(30) ? *shared : 0);
    if (made == 0) return;
    if (random_.chance(30)) make_.order(other_stream(on), on);
    for (std::uint32_t i = random_.below(3); i > 0; --i) {
      const std::uint32_t inside = make_.allocate(on, size());
      if (inside == 0) continue;
      make_.write(on, inside);
      if (random_.chance(40)) make_.drop(inside);
    }
    if (const auto dropped = tensor(); dropped && random_.chance(40)) make_.drop(*dropped);
    open = made;
  }
  if (make_.fail_capture(*open) && random_.chance(60)) begin_capture();
}

void Generator::refuse_capture() {
  const auto open = graph(State::capturing);
  const bool by_driver = !open || random_.chance(40);
  const std::uint32_t on = by_driver ? stream() : known().graphs().at(*open).origin;
  if (make_.refuse_capture(on, by_driver) && random_.chance(60)) begin_capture();
}

void Generator::body_of_capture(std::uint32_t on) {
  if (random_.chance(30)) make_.order(other_stream(on), on);
  if (const auto recorded = tensor_recorded_on(on)) make_.drop(*recorded);
  for (std::uint32_t i = 1 + random_.below(3); i > 0; --i) {
    const std::uint32_t made = make_.allocate(on, size());
    if (made == 0) continue;
    make_.write(on, made, duration());
    if (random_.chance(40)) make_.drop(made);
    if (random_.chance(15)) pause(on);
  }
  const auto input = tensor();
  if (input && random_.chance(60)) make_.read(on, *input, duration());
  if (const auto other = tensor(); other && random_.chance(25)) make_.drop(*other);
  if (random_.chance(70)) {
    const auto open = graph(State::capturing);
    if (open) make_.end_capture(*open);
  }
}

// The outputs of the graph, and the small inputs that it alone uses, go before it or after it.
void Generator::reset(std::uint32_t number, bool outputs_first) {
  std::vector<std::uint32_t> drops;
  for (const auto& [each, write] : known().graphs().at(number).uses) {
    if (known().tensors().at(each).live && random_.chance(80)) drops.push_back(each);
  }
  if (!outputs_first) make_.drop_graph(number);
  for (const std::uint32_t each : drops) make_.drop(each);
  if (outputs_first) make_.drop_graph(number);
}

void Generator::replay(bool and_reset) {
  const auto ready = graph(State::ready);
  if (!ready) return;
  const std::uint32_t on = stream();
  if (!make_.replay(*ready, on) || !and_reset) return;
  if (random_.chance(60)) {
    for (const auto& [each, write] : known().graphs().at(*ready).uses) {
      if (!known().tensors().at(each).live || !random_.chance(60)) continue;
      make_.read(random_.chance(50) ? on : other_stream(on), each, kSpin);
      break;
    }
  }
  reset(*ready, random_.chance(50));
  if (random_.chance(80)) disturb();
}

void Generator::raw_capture() {
  const std::uint32_t on = stream();
  const std::uint32_t made = make_.begin_raw_capture(on);
  if (made == 0) return;
  const auto input = tensor();
  if (input && random_.chance(60)) make_.read(on, *input, duration());
  for (std::uint32_t i = random_.below(3); i > 0; --i) create();
  if (random_.chance(60)) use();
  if (random_.chance(70)) make_.end_capture(made);
}

void Generator::flags() {
  if (!options_.flags) return;
  const std::vector<std::uint32_t> awaited = known().flags_awaited();
  if (!awaited.empty() && random_.chance(60)) {
    make_.set_flag(random_.pick(awaited));
    return;
  }
  const auto used = tensor();
  std::vector<Use> uses;
  if (used) uses.push_back({*used, random_.chance(50)});
  make_.kernel(stream(), uses, kShort, make_.new_flag());
}

void Generator::gesture() {
  struct Weighted {
    std::uint32_t weight;
    void (*take)(Generator&);
  };
  // (A seed stands for its program: a row that moves, or another weight, changes them all.)
  static constexpr Weighted kGestures[] = {
      {220, [](Generator& g) { g.create(); }},
      {120, [](Generator& g) { g.use(); }},
      {170, [](Generator& g) { g.read_and_drop(); }},
      {60,
       [](Generator& g) {
         if (const auto victim = g.tensor()) g.make_.drop(*victim);
       }},
      {40,
       [](Generator& g) {
         const std::uint32_t later = g.stream();
         g.make_.order(later, g.other_stream(later));
       }},
      {20, [](Generator& g) { g.events(); }},
      {20,
       [](Generator& g) {
         if (g.random_.chance(20)) {
           g.make_.make({.kind = Step::Kind::synchronize_device});
         } else {
           g.make_.synchronize(g.stream());
         }
       }},
      {30,
       [](Generator& g) {
         if (const auto used = g.tensor()) g.make_.record_stream(*used, g.stream());
       }},
      {25, [](Generator& g) { g.make_.empty_cache(); }},
      {12, [](Generator& g) { g.make_.set_limit(g.known().limit() > 0_B ? 0_B : 256_MiB); }},
      {30,
       [](Generator& g) { g.make_.set_caching(!g.known().caching() || !g.random_.chance(40)); }},
      {25, [](Generator& g) { g.make_.make_pool(); }},
      {45,
       [](Generator& g) {
         if (const auto any = g.pool()) g.make_.enter_pool(*any, g.stream());
       }},
      {35,
       [](Generator& g) {
         if (const auto any = g.pool()) g.make_.leave_pool(*any);
       }},
      {20,
       [](Generator& g) {
         if (const auto any = g.pool()) g.make_.drop_pool(*any);
       }},
      {35,
       [](Generator& g) {
         if (const auto any = g.pool()) g.make_.save_pool(*any);
       }},
      {45,
       [](Generator& g) {
         for (const auto& [number, each] : g.known().pools()) {
           if (each.saved && g.make_.restore_pool(number)) break;
         }
       }},
      {60, [](Generator& g) { g.begin_capture(); }},
      {60,
       [](Generator& g) {
         if (const auto open = g.graph(State::capturing)) g.make_.end_capture(*open);
       }},
      {50, [](Generator& g) { g.replay(false); }},
      {40, [](Generator& g) { g.replay(true); }},
      {15,
       [](Generator& g) {
         if (const auto ready = g.graph(State::ready)) g.reset(*ready, g.random_.chance(50));
       }},
      {25, [](Generator& g) { g.raw_capture(); }},
      {15, [](Generator& g) { g.fail_capture(); }},
      {8, [](Generator& g) { g.refuse_capture(); }},
      {9, [](Generator& g) { g.layers(); }},
      {15, [](Generator& g) { g.make_.make_stream(); }},
      {30,
       [](Generator& g) {
         for (const auto& [number, each] : g.known().streams()) {
           if (!each.live || !each.external) continue;
           g.make_.synchronize(number);
           g.make_.destroy_stream(number);
           break;
         }
       }},
      {50, [](Generator& g) { g.flags(); }},
      {20, [](Generator& g) {
         g.make_.make({.kind = Step::Kind::busy,
                       .duration = g.random_.chance(50) ? kSpin : Nanoseconds{5 * kShort.count}});
       }}};
  any_thread();
  std::uint32_t sum = 0;
  for (const Weighted& each : kGestures) sum += each.weight;
  std::uint32_t at = random_.below(sum);
  for (const Weighted& each : kGestures) {
    if (at < each.weight) return each.take(*this);
    at -= each.weight;
  }
}

}  // namespace

Program random_program(std::uint64_t seed, const RandomOptions& options) {
  Program program;
  program.seed = seed;
  Generator(program, options).run();
  return program;
}

}  // namespace weir::contract
