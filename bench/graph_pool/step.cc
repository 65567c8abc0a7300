#include "bench/graph_pool/step.h"

#include "bench/peers/cuda_check.h"

namespace weir::graph_pool {

// One run: where its memory comes from, and what the forward pass left for the backward pass.
struct Step::Pass {
  const StepStreams& streams;
  Ledger ledger;
  std::vector<Block> activations, kept;
  std::uint64_t kernels = 0;

  Block allocate(Bytes bytes, Stream stream) { return {ledger.allocate(bytes, stream), bytes}; }
  void free(const Block& block) { ledger.deallocate(block.pointer); }
  void fence(const Block& block, Stream user) { ledger.fence(block.pointer, user); }
  void write(Stream stream, const Block& out, Source a, Source b = {}) {
    transform(handle_of(stream), out.pointer, out.bytes.count / sizeof(Word), ++kernels, a, b);
  }
  // The same kernels wait the same time in every run, so that a graph's timing is its own.
  void wait(Stream stream, std::uint64_t most_us) {
    if (most_us > 0) delay(handle_of(stream), (kernels * 7919 % most_us) * 1000);
  }
};

namespace {

// Sizes that do not fit one another's holes.
Bytes temporary(Bytes activation, unsigned layer) {
  return round_up(activation * (2 + layer % 3) / 4, 1_KiB) + 24_KiB * (layer % 5);
}

}  // namespace

Step::Step(Gpu& gpu, const StepShape& shape, const void* input, Word* sum)
    : gpu_(gpu), shape_(shape), input_{const_cast<void*>(input), shape.activation}, sum_(sum) {}

void Step::forward(Pass& pass, unsigned layer, Block& x) {
  const Stream main = pass.streams.main;
  const Stream side = pass.streams.side(layer);
  const Block t = pass.allocate(temporary(shape_.activation, layer), main);
  pass.write(main, t, x);
  const Block a = pass.allocate(shape_.activation, main);
  pass.write(main, a, x, t);
  gpu_.order(main, side);
  const Block u = pass.allocate(temporary(shape_.activation, layer + 1), side);
  pass.wait(side, shape_.most_delay_us);
  pass.write(side, u, a, t);
  pass.fence(t, side);
  pass.free(t);  // the side stream may not have begun with it
  const Block k = pass.allocate(round_up(shape_.activation * 5 / 4, kGrain), main);
  pass.write(main, k, a);
  gpu_.order(side, main);
  pass.write(main, k, k, u);
  pass.fence(u, main);
  pass.free(u);
  pass.activations.push_back(a);
  pass.kept.push_back(k);
  x = a;
}

void Step::backward(Pass& pass, unsigned layer, Block& gradient) {
  const Stream main = pass.streams.main;
  const Stream side = pass.streams.side(layer);
  const Block a = pass.activations[layer];
  const Block k = pass.kept[layer];
  gpu_.order(main, side);
  const Block w = pass.allocate(round_up(shape_.activation / 2, kGrain), side);
  pass.wait(side, shape_.most_delay_us);
  pass.write(side, w, k, gradient);
  add_checksum(handle_of(side), sum_, w);
  pass.fence(k, side);
  pass.fence(gradient, side);
  pass.free(w);
  const Block t = pass.allocate(temporary(shape_.activation, layer + 2), main);
  pass.write(main, t, k, gradient);
  pass.free(k);  // and what the side stream reads goes before it has joined
  pass.free(gradient);
  const Block next = pass.allocate(shape_.activation, main);
  pass.write(main, next, a, t);
  pass.free(t);
  pass.free(a);
  gradient = next;
}

Bytes Step::run(const StepStreams& streams, Memory& memory) {
  Pass pass{streams, Ledger(memory), {}, {}};
  peers::check_cuda("cudaMemsetAsync",
                    cudaMemsetAsync(sum_, 0, sizeof(Word), handle_of(streams.main)));
  // Also those that have nothing to do: they join at the end, and a capture must know them.
  for (const Stream side : streams.sides) gpu_.order(streams.main, side);
  Block x = input_;
  for (unsigned layer = 0; layer < shape_.layers; ++layer) forward(pass, layer, x);
  Block gradient = pass.allocate(shape_.activation, streams.main);
  pass.write(streams.main, gradient, x);
  for (unsigned layer = shape_.layers; layer-- > 0;) backward(pass, layer, gradient);
  add_checksum(handle_of(streams.main), sum_, gradient);
  pass.free(gradient);
  for (const Stream side : streams.sides) gpu_.order(side, streams.main);
  return pass.ledger.peak();
}

}  // namespace weir::graph_pool
