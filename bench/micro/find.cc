// SPDX-License-Identifier: Apache-2.0
// Which block is this pointer in? Among the 2,048 live blocks of the random mix.
#include "bench/micro/micro.h"
#include "bench/support/mix.h"

namespace weir::bench {
namespace {

enum class Pointer { start, interior };

struct Question {
  const void* pointer;
  Address block;  // the right answer
};

constexpr std::size_t kQuestions = std::size_t{1} << 14;

void find(benchmark::State& state, const Context& context, Pointer pointer) {
  HeapInterface interface(*context.target);
  const Mix mix = make_mix(kMixLive, 0);
  std::vector<void*> live;
  for (const Bytes bytes : mix.first) {
    live.push_back(interface.allocate(bytes, context.target->stream(0)));
  }
  MixSizes random(kMixSeed + 1);
  std::vector<Question> questions;
  for (std::size_t i = 0; i < kQuestions; ++i) {
    const std::size_t block = random.below(live.size());
    const Address start = Address::of(live[block]);
    const Bytes inside{random.below(mix.first[block].count)};
    questions.push_back({(pointer == Pointer::start ? start : start + inside).pointer(), start});
  }
  std::size_t next = 0, wrong = 0;
  for ([[maybe_unused]] auto _ : state) {
    const Question& question = questions[next++ & (kQuestions - 1)];
    const std::optional<BlockInfo> found = interface.heap().find(question.pointer);
    if (!found || found->address != question.block) [[unlikely]]
      ++wrong;
  }
  for (void* const block : live) interface.deallocate(block);
  if (wrong > 0) fail(state, std::to_string(wrong) + " answers are wrong");
  expect_sound(state, interface.heap());
}

}  // namespace

void add_find(const Context& context) {
  add(context, std::string("find/") + context.name + "/heap/start",
      [=](benchmark::State& state) { find(state, context, Pointer::start); });
  add(context, std::string("find/") + context.name + "/heap/interior",
      [=](benchmark::State& state) { find(state, context, Pointer::interior); });
}

}  // namespace weir::bench
