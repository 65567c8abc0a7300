// SPDX-License-Identifier: Apache-2.0
// One kind of pair, many times, on the null device: for a tool that counts instructions.
//
// usage: weir_instructions SCENARIO PAIRS
//
// Exit: 0; 1 if a call failed; 2 for wrong arguments.
//
// SCENARIO: hot_pair/512B, hot_pair/1MiB, hot_pair/32MiB, random_mix, or irregular/FAMILY, under
// Trust::context with /context behind it, without events of the context with /no_events (families:
// tools/suite/irregular_families.h).
//
// The count for PAIRS less that for fewer is the cost of the difference: start-up, warm-up and the
// end are the same for both. bench/instructions/check does that.
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "bench/support/mix.h"
#include "suite/irregular_families.h"
#include "suite/null_device.h"
#include "weir/device_heap.h"

namespace weir::bench {
namespace {

// Long enough that tables have grown to their size, and the mix to its steady state.
constexpr std::size_t kHotWarmUp = 2'000;
constexpr std::size_t kMixWarmUp = 40'000;
// The replacements are made for the longest run, so that making them costs each run the same.
constexpr std::size_t kMostMixPairs = 40'000;
// The same of the calls of irregular programs, of which the first phase is the warm-up.
constexpr unsigned kIrregularPhases = 9;

[[noreturn]] void stop(const std::string& why) {
  std::fprintf(stderr, "weir_instructions: %s\n", why.c_str());
  std::exit(1);
}

void* allocate(DeviceHeap& heap, Bytes bytes, Stream stream) {
  Result<void*> block = heap.allocate(bytes, stream);
  if (!block.ok()) [[unlikely]]
    stop(block.error().message());
  return *block;
}

void deallocate(DeviceHeap& heap, void* block) {
  const Status status = heap.deallocate(block);
  if (!status.ok()) [[unlikely]]
    stop(status.error().message());
}

void hot_pairs(DeviceHeap& heap, Stream stream, Bytes bytes, std::size_t pairs) {
  std::size_t failed = 0;
  for (std::size_t i = 0; i < kHotWarmUp + pairs; ++i) {
    const Result<void*> block = heap.allocate(bytes, stream);
    const Status status = heap.deallocate(block ? *block : nullptr);
    failed += block && status ? 0 : 1;
  }
  if (failed > 0) stop("a call failed");
}

void random_mix(DeviceHeap& heap, Stream stream, std::size_t pairs) {
  if (pairs > kMostMixPairs) stop("more pairs than replacements were made");
  const Mix mix = make_mix(kMixLive, kMixWarmUp + kMostMixPairs);
  std::vector<void*> live;
  for (const Bytes bytes : mix.first) live.push_back(allocate(heap, bytes, stream));
  for (std::size_t i = 0; i < kMixWarmUp + pairs; ++i) {
    const Replacement& each = mix.replacements[i];
    deallocate(heap, live[each.index]);
    live[each.index] = allocate(heap, {each.bytes}, stream);
  }
  for (void* const block : live) deallocate(heap, block);
}

// Half the allocations and frees are pairs; what uses a block belongs to them.
void irregular(DeviceHeap& heap, NullDevice& device, const Family& family, std::size_t pairs) {
  std::vector<Stream> streams;
  for (unsigned i = 0; i < family.all_streams(); ++i) {
    streams.push_back(device.stream(NullDevice::stream_handle(static_cast<int>(i))).value());
  }
  History history(family, kIrregularSeed, {.phases = kIrregularPhases});
  std::vector<Call> calls;
  std::size_t first_phase = 0;
  for (unsigned phase = 0; phase < history.phases(); ++phase) {
    const std::vector<Call> more = taking_turns(history.next());
    calls.insert(calls.end(), more.begin(), more.end());
    if (phase == history.first_measured()) first_phase = calls.size();
  }
  std::vector<void*> blocks(history.slots(), nullptr);
  std::size_t left = 2 * pairs;
  for (std::size_t i = 0; i < first_phase || left > 0; ++i) {
    if (i == calls.size()) stop("more pairs than calls were made");
    const Call& call = calls[i];
    void*& block = blocks[call.slot];
    if (call.kind == Call::Kind::allocate) {
      block = allocate(heap, {call.bytes}, streams[call.stream]);
    } else if (call.kind == Call::Kind::free) {
      deallocate(heap, block);
    } else if (!heap.record_stream(block, streams[call.user]).ok()) {
      stop("record_stream() failed");
    }
    if (i >= first_phase && call.kind != Call::Kind::use) --left;
  }
}

// What is left at the end is the same after any number of pairs, and is not looked at by
// validate(): its work would depend on how many pages there came to be.
void expect_nothing_live(const DeviceHeap& heap, std::size_t pairs) {
  const Gauge blocks = heap.statistics().live_blocks;
  if (blocks.current != 0) stop("blocks are live at the end");
  if (blocks.total < pairs) stop("fewer pairs were made than asked for");
}

[[noreturn]] void run_irregular(std::string_view name, std::size_t pairs) {
  const auto ends_with = [&](std::string_view setting) {
    const bool ends = name.ends_with(setting);
    if (ends) name.remove_suffix(setting.size());
    return ends;
  };
  const bool no_events = ends_with("/no_events");
  const bool context = ends_with("/context") || no_events;
  const Family* const family = find_family(name);
  if (family == nullptr) stop("no family is " + std::string(name));
  NullDevice device;
  DeviceHeap heap(device,
                  {.trust = context ? Trust::context : Trust::told, .context_events = !no_events});
  irregular(heap, device, *family, pairs);
  // How much is live now depends on the number of pairs, and so would the cost of freeing it.
  std::_Exit(0);
}

int run(std::string_view scenario, std::size_t pairs) {
  if (constexpr std::string_view kPrefix = "irregular/"; scenario.starts_with(kPrefix)) {
    scenario.remove_prefix(kPrefix.size());
    run_irregular(scenario, pairs);
  }
  NullDevice device;
  DeviceHeap heap(device);
  const Stream stream = device.stream(NullDevice::stream_handle(0)).value();
  if (scenario == "hot_pair/512B") {
    hot_pairs(heap, stream, 512_B, pairs);
  } else if (scenario == "hot_pair/1MiB") {
    hot_pairs(heap, stream, 1_MiB, pairs);
  } else if (scenario == "hot_pair/32MiB") {
    hot_pairs(heap, stream, 32_MiB, pairs);
  } else if (scenario == "random_mix") {
    random_mix(heap, stream, pairs);
  } else {
    stop("no scenario is " + std::string(scenario));
  }
  expect_nothing_live(heap, pairs);
  return 0;
}

}  // namespace
}  // namespace weir::bench

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: weir_instructions SCENARIO PAIRS\n");
    return 2;
  }
  const std::string_view text = argv[2];
  const char* const end = text.data() + text.size();
  std::size_t pairs = 0;
  const auto [rest, error] = std::from_chars(text.data(), end, pairs);
  if (error != std::errc{} || rest != end || pairs == 0) {
    std::fprintf(stderr, "weir_instructions: PAIRS: '%s' is not a whole number from 1\n", argv[2]);
    return 2;
  }
  return weir::bench::run(argv[1], pairs);
}
