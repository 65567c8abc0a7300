// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "bench/graph_pool/fixed_memory.h"
#include "bench/graph_pool/scenarios.h"

namespace weir::graph_pool {
namespace {

constexpr std::array<unsigned, 13> kBatches = {256, 192, 128, 96, 64, 48, 32, 24, 16, 8, 4, 2, 1};
constexpr unsigned kLayers = 6;
constexpr unsigned kSteps = 200;    // of two_stream
constexpr unsigned kStepSizes = 7;  // 4, 8, ... 28 MiB
constexpr unsigned kReplays = 20;

std::uint64_t words(Bytes bytes) { return bytes.count / sizeof(Word); }

// One transformer-like pass over a batch; of its blocks only the output stays, which is returned.
// One sequence: 512 KiB of hidden state, 4 times that within a layer, 128 KiB of output.
void* pass(Stream stream, unsigned batch, Ledger& ledger) {
  const cudaStream_t queue = handle_of(stream);
  const Bytes hidden = 512_KiB * batch;
  std::uint64_t salt = batch;
  const auto next = [&](Bytes bytes, Source a, Source b) {
    void* const out = ledger.allocate(bytes, stream);
    transform(queue, out, words(bytes), ++salt, a, b);
    return Source{out, words(bytes)};
  };
  const auto free = [&](Source block) { ledger.deallocate(const_cast<void*>(block.words)); };
  Source x = next(hidden, {}, {});
  for (unsigned layer = 0; layer < kLayers; ++layer) {
    const Source qkv = next(hidden * 3, x, {});
    const Source attended = next(hidden, qkv, x);
    free(qkv);
    free(x);
    const Source wide = next(hidden * 4, attended, {});
    x = next(hidden, wide, attended);
    free(wide);
    free(attended);
  }
  const Source output = next(128_KiB * batch, x, {});
  free(x);
  return const_cast<void*>(output.words);
}

Word checksum(Gpu& gpu, Stream stream, const void* block, Bytes bytes) {
  gpu.synchronize();
  Words sum(1);
  add_checksum(handle_of(stream), sum.at(0), {block, words(bytes)});
  return sum.read(0);
}

// What the output of a batch must be: the pass in memory of its own.
Word expected_output(Gpu& gpu, Stream stream, unsigned batch) {
  FixedMemory memory;
  Ledger ledger(memory);
  void* const output = pass(stream, batch, ledger);
  return checksum(gpu, stream, output, 128_KiB * batch);
}

struct Captured {
  unsigned batch;
  Graph graph;
  void* output;
};

Row measured(const char* part, Bytes peak, const GraphPool& pool) {
  const Bytes reserved = pool.statistics().peak_reserved_bytes;
  return {{"part", part},
          {"peak_bytes", peak.count},
          {"reserved_bytes", reserved.count},
          {"ratio", ratio_of(reserved, peak)}};
}

// Launched in the order of their captures, as graphs of one pool are; the outputs all kept.
std::uint64_t wrong_outputs(Gpu& gpu, Stream stream, std::vector<Captured>& graphs) {
  std::vector<Word> expected;
  for (const Captured& one : graphs) expected.push_back(expected_output(gpu, stream, one.batch));
  std::uint64_t wrong = 0;
  for (unsigned i = 0; i < kReplays; ++i) {
    for (Captured& one : graphs) need("launch", one.graph.launch(stream));
    for (std::size_t at = 0; at < graphs.size(); ++at) {
      const Captured& one = graphs[at];
      wrong += checksum(gpu, stream, one.output, 128_KiB * one.batch) != expected[at] ? 1 : 0;
    }
  }
  return wrong;
}

Row serve_in_order(Gpu& gpu, const char* order, const std::vector<unsigned>& batches) {
  DeviceHeap heap(gpu.device());
  GraphPool pool(heap);
  const Stream stream = gpu.new_stream();
  HeapMemory memory(heap);
  Ledger ledger(memory);
  std::vector<Captured> graphs;
  for (const unsigned batch : batches) {
    CaptureScope scope = need("beginning the capture", CaptureScope::begin(pool, stream));
    void* const output = pass(stream, batch, ledger);
    graphs.push_back({batch, need("ending the capture", scope.end()), output});
  }
  Row row = measured("serve", ledger.peak(), pool);
  row["order"] = order;
  row["mismatches"] = wrong_outputs(gpu, stream, graphs);
  for (const Captured& one : graphs) ledger.deallocate(one.output);
  return row;
}

// A producer on the main stream, a consumer on the side, which is joined each step.
Bytes two_stream_steps(Gpu& gpu, Stream main, Stream side, Memory& memory, Word* sum) {
  Ledger ledger(memory);
  for (unsigned i = 0; i < kSteps; ++i) {
    const Bytes bytes = 4_MiB * (1 + i % kStepSizes);
    void* const x = ledger.allocate(bytes, main);
    transform(handle_of(main), x, words(bytes), i);
    gpu.order(main, side);
    void* const y = ledger.allocate(bytes, side);
    transform(handle_of(side), y, words(bytes), kSteps + i, {x, words(bytes)});
    add_checksum(handle_of(side), sum, {y, words(bytes)});
    ledger.fence(x, side);
    ledger.deallocate(y);
    ledger.deallocate(x);
    gpu.order(side, main);
  }
  return ledger.peak();
}

Word two_stream_expected(Gpu& gpu, Stream main, Stream side) {
  FixedMemory memory;
  Words sum(1);
  (void)two_stream_steps(gpu, main, side, memory, sum.at(0));
  return sum.read(0);
}

}  // namespace

std::vector<Row> serve(Gpu& gpu) {
  std::vector<unsigned> batches(kBatches.begin(), kBatches.end());
  std::vector<Row> rows = {serve_in_order(gpu, "largest first", batches)};
  std::reverse(batches.begin(), batches.end());
  rows.push_back(serve_in_order(gpu, "smallest first", batches));
  return rows;
}

std::vector<Row> two_stream(Gpu& gpu) {
  DeviceHeap heap(gpu.device());
  GraphPool pool(heap);
  const Stream main = gpu.new_stream();
  const Stream side = gpu.new_stream();
  const Word expected = two_stream_expected(gpu, main, side);
  Words sums(2);  // the sum; how often it was wrong
  HeapMemory memory(heap);
  CaptureScope scope = need("beginning the capture", CaptureScope::begin(pool, main));
  const Bytes peak = two_stream_steps(gpu, main, side, memory, sums.at(0));
  Graph graph = need("ending the capture", scope.end());
  for (Word i = 1; i <= kReplays; ++i) {  // the sum is never reset: it wraps, and so does this
    need("launch", graph.launch(main));
    count_mismatch(handle_of(main), sums.at(0), expected * i, sums.at(1));
  }
  Row row = measured("two_stream", peak, pool);
  row["mismatches"] = sums.read(1);
  return {row};
}

}  // namespace weir::graph_pool
