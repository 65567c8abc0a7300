// SPDX-License-Identifier: Apache-2.0
#include "bench/graph_pool/step.h"

namespace weir::graph_pool {

// One run: where its memory comes from, and what the forward pass left for the backward pass.
struct Step::Pass {
  Queue& queue;
  const StepStreams& streams;
  Ledger ledger;
  std::vector<Piece> activations, kept;
  std::uint64_t kernels = 0;

  Piece allocate(Bytes bytes, Stream stream) { return {ledger.allocate(bytes, stream), bytes}; }
  void free(const Piece& block) { ledger.deallocate(block.pointer); }
  void fence(const Piece& block, Stream user) { ledger.fence(block.pointer, user); }
  void write(Stream stream, const Piece& out, const Piece& a, const Piece& b = {}) {
    queue.transform(stream, out, ++kernels, a, b);
  }
  // The same kernels wait the same time in every run, so that a graph's timing is its own.
  void wait(Stream stream, std::uint64_t most_us) {
    if (most_us > 0)
      queue.delay(stream, {static_cast<std::int64_t>(kernels * 7919 % most_us) * 1000});
  }
};

namespace {

// Sizes that do not fit one another's holes.
Bytes temporary(Bytes activation, unsigned layer) {
  return round_up(activation * (2 + layer % 3) / 4, 1_KiB) + 24_KiB * (layer % 5);
}

}  // namespace

Step::Step(Queue& queue, const StepShape& shape, const void* input)
    : queue_(queue), shape_(shape), input_{const_cast<void*>(input), shape.activation} {}

void Step::forward(Pass& pass, unsigned layer, Piece& x) {
  const Stream main = pass.streams.main;
  const Stream side = pass.streams.side(layer);
  const Piece t = pass.allocate(temporary(shape_.activation, layer), main);
  pass.write(main, t, x);
  const Piece a = pass.allocate(shape_.activation, main);
  pass.write(main, a, x, t);
  queue_.order(main, side);
  const Piece u = pass.allocate(temporary(shape_.activation, layer + 1), side);
  pass.wait(side, shape_.most_delay_us);
  pass.write(side, u, a, t);
  pass.fence(t, side);
  pass.free(t);  // the side stream may not have begun with it
  const Piece k = pass.allocate(round_up(shape_.activation * 5 / 4, kGrain), main);
  pass.write(main, k, a);
  queue_.order(side, main);
  pass.write(main, k, k, u);
  pass.fence(u, main);
  pass.free(u);
  pass.activations.push_back(a);
  pass.kept.push_back(k);
  x = a;
}

void Step::backward(Pass& pass, unsigned layer, Piece& gradient) {
  const Stream main = pass.streams.main;
  const Stream side = pass.streams.side(layer);
  const Piece a = pass.activations[layer];
  const Piece k = pass.kept[layer];
  queue_.order(main, side);
  const Piece w = pass.allocate(round_up(shape_.activation / 2, kGrain), side);
  pass.wait(side, shape_.most_delay_us);
  pass.write(side, w, k, gradient);
  queue_.add_to_sum(side, w);
  pass.fence(k, side);
  pass.fence(gradient, side);
  pass.free(w);
  const Piece t = pass.allocate(temporary(shape_.activation, layer + 2), main);
  pass.write(main, t, k, gradient);
  pass.free(k);  // and what the side stream reads goes before it has joined
  pass.free(gradient);
  const Piece next = pass.allocate(shape_.activation, main);
  pass.write(main, next, a, t);
  pass.free(t);
  pass.free(a);
  gradient = next;
}

Bytes Step::run(const StepStreams& streams, Memory& memory) {
  Pass pass{queue_, streams, Ledger(memory), {}, {}};
  queue_.clear_sum(streams.main);
  // Also those that have nothing to do: they join at the end, and a capture must know them.
  for (const Stream side : streams.sides) queue_.order(streams.main, side);
  Piece x = input_;
  for (unsigned layer = 0; layer < shape_.layers; ++layer) forward(pass, layer, x);
  Piece gradient = pass.allocate(shape_.activation, streams.main);
  pass.write(streams.main, gradient, x);
  for (unsigned layer = shape_.layers; layer-- > 0;) backward(pass, layer, gradient);
  queue_.add_to_sum(streams.main, gradient);
  pass.free(gradient);
  for (const Stream side : streams.sides) queue_.order(side, streams.main);
  return pass.ledger.peak();
}

}  // namespace weir::graph_pool
