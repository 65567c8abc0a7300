// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "look/report.h"
#include "look/stack_calls.h"
#include "look/streams.h"
#include "replay/units.h"

namespace weir {
namespace {

// Advice is worth reading only where it is about much. docs/report.md lists these.
constexpr double kMuchOfReserved = 0.03;  // of a cause of fragmentation
constexpr Bytes kMuch = 64_MiB;
constexpr double kMuchNeverUsed = 0.25;
constexpr Nanoseconds kLongWait = 1_ms;
constexpr std::uint64_t kManyWaits = 100;
constexpr double kWaitsPerAllocation = 0.05;
constexpr std::uint64_t kManyMappings = 300'000;  // Weir keeps to 400,000
constexpr std::size_t kMostGrowth = 3;

std::string share(Bytes part, Bytes whole) {
  return fmt::format("{} ({:.1f} % of {})", in_words(part), 100 * ratio(part, whole),
                     in_words(whole));
}

constexpr std::string_view kOrder =
    "Make long-lived tensors (weights, optimizer state, caches) before a step's temporary ones.";

std::string_view remedy_for(Cause cause) {
  constexpr std::array<std::string_view, kCauses> kRemedies = {
      "Put small tensors that live equally long into one allocation.",
      kOrder,
      kOrder,
      "Call retire() for streams no longer used, and use fewer streams for work that allocates.",
      "Let graphs launched one after the other share one GraphPool, and destroy unused graphs.",
      "Nothing stopped a stream from taking these but the wish not to wait: WEIR_REUSE=wait takes "
      "them at once. trim() gives them back to the driver."};
  return kRemedies[static_cast<std::size_t>(cause)];
}

void advise_on_failures(const Report& report, std::vector<Advice>& advice) {
  if (report.totals.out_of_memory == 0) return;
  advice.push_back(
      {fmt::format("{} failed for want of memory; at its peak {} was live, and {} was held.",
                   counted(report.totals.out_of_memory, "request"), in_words(report.peak_live.live),
                   in_words(report.peak_reserved.reserved)),
       "Raise WEIR_LIMIT if it is below what the device has; else need less at the peak."});
}

// `judged`: whether settings help replays say, or the one that would was on.
std::string_view remedy_for(Inactive why, bool judged) {
  if (judged && why == Inactive::remainder) return kOrder;
  if (judged && why == Inactive::cached) return "torch.cuda.empty_cache() gives it back.";
  constexpr std::array<std::string_view, kInactives> kRemedies = {
      "Give graphs that never run at once one pool: torch.cuda.graph(..., pool=...).",
      "Put small tensors that live equally long into one.",
      "PyTorch gives no stream's memory to another: allocate on one and call record_stream(), or "
      "call torch.cuda.empty_cache() between phases.",
      "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or max_split_size_mb.",
      "torch.cuda.empty_cache() gives it back; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
      "lets requests of other sizes use it."};
  return kRemedies[static_cast<std::size_t>(why)];
}

std::string_view remedy_for(Purpose purpose) {
  constexpr std::array<std::string_view, kPurposes> kRemedies = {
      "Record stacks to see what it is for.",
      "Load weights in fewer bits, or shard them.",
      "Free gradients early (zero_grad(set_to_none=True)), or run smaller batches.",
      "Take an optimizer with less state (8 bits, Adafactor), or shard it.",
      "Set CUBLAS_WORKSPACE_CONFIG to a smaller workspace.",
      "Run smaller batches, or recompute activations (torch.utils.checkpoint)."};
  return kRemedies[static_cast<std::size_t>(purpose)];
}

// Of a program that ran under PyTorch's allocator: what that held for nothing.
void advise_on_pytorch(const Report& report, std::vector<Advice>& advice) {
  static const Held kUnknown;
  const Held& held = report.origin.held ? *report.origin.held : kUnknown;
  const auto most = std::max_element(held.inactive.begin(), held.inactive.end());
  if (*most >= kMuch && ratio(*most, held.reserved) >= kMuchOfReserved) {
    const auto why = static_cast<Inactive>(most - held.inactive.begin());
    advice.push_back(
        {fmt::format("PyTorch held {} {}.", share(*most, held.reserved), meaning_of(why)),
         std::string(remedy_for(why, report.origin.help || report.origin.expandable_segments))});
  }
}

void advise_on_fragmentation(const Report& report, std::vector<Advice>& advice) {
  const Moment& moment = report.peak_reserved;
  // What is idle at the peak of reserved may have been in use at the peak of live: then nothing was
  // held for nothing.
  const Bytes more = moment.reserved - std::min(moment.reserved, report.peak_live.requested);
  if (more < kMuch || ratio(more, moment.reserved) < kMuchOfReserved) return;
  std::vector<Cause> causes;
  for (int i = 0; i < kCauses; ++i) {
    const Bytes bytes = moment.causes[i];
    if (bytes >= kMuch && ratio(bytes, moment.reserved) >= kMuchOfReserved) {
      causes.push_back(static_cast<Cause>(i));
    }
  }
  std::stable_sort(causes.begin(), causes.end(), [&](Cause a, Cause b) {
    return moment.causes[static_cast<int>(a)] > moment.causes[static_cast<int>(b)];
  });
  for (const Cause cause : causes) {
    advice.push_back({fmt::format("At the peak of reserved memory, {} is {}.",
                                  share(moment.causes[static_cast<int>(cause)], moment.reserved),
                                  meaning_of(cause)),
                      std::string(remedy_for(cause))});
  }
}

void advise_on_driver(const Report& report, std::vector<Advice>& advice) {
  const Totals& totals = report.totals;
  const Bytes held = report.end.reserved;
  const Bytes unneeded = held - std::min(held, report.late_peak_live);
  if (unneeded >= kMuch * 4 && ratio(unneeded, held) >= kMuchNeverUsed) {
    advice.push_back({fmt::format("At the end {} is held, but in the second half of the time at "
                                  "most {} was live.",
                                  in_words(held), in_words(report.late_peak_live)),
                      "If others need the GPU's memory, call trim() once the peak is over."});
  }
  if (totals.trimmed >= kMuch && totals.created_again >= kMuch) {
    advice.push_back({fmt::format("{} was given back to the driver, and {} asked for again.",
                                  in_words(totals.released), in_words(totals.created_again)),
                      "Call trim() less often, or with the bytes to keep: trim(keep). If a limit "
                      "forced it, raise WEIR_LIMIT."});
  }
  if (totals.mappings_peak >= kManyMappings) {
    advice.push_back({fmt::format("There were {} mappings at once; past 400,000 Weir gives up "
                                  "addresses, and may have to wait.",
                                  with_commas(totals.mappings_peak)),
                      "Call trim() at a moment when the GPU is idle."});
  }
}

void advise_on_waits(const Report& report, std::vector<Advice>& advice) {
  const Totals& totals = report.totals;
  if (totals.host_waits.time >= kLongWait) {
    advice.push_back(
        {fmt::format("The host waited {} for the GPU, {} in all, {} at the longest.",
                     counted(totals.host_waits.count, "time"), in_words(totals.host_waits.time),
                     in_words(totals.host_waits.longest)),
         totals.captures > 0
             ? "A capture waits for eager work on its pool's memory: begin captures when the GPU "
               "has little to do, and warm up in the pool."
             : "The host waits only where memory or mappings ran short: raise WEIR_LIMIT, or call "
               "trim() at a moment when the GPU is idle."});
  }
  for (const WaitPair& pair : report.waits) {
    const double each = static_cast<double>(pair.waits) /
                        static_cast<double>(std::max<std::uint64_t>(totals.allocations, 1));
    // In a graph a wait is an edge, which costs next to nothing.
    if (is_captured_stream(pair.waiter)) continue;
    if (pair.waits < kManyWaits || each < kWaitsPerAllocation) continue;
    advice.push_back(
        {fmt::format("Stream {} was made to wait for {} {}, for {} in all.", pair.waiter_name,
                     stream_title(pair.awaited), counted(pair.waits, "time"),
                     counted(totals.allocations, "allocation")),
         "Call fence() right after the last use is queued (record_stream() waits for all that was "
         "queued before the block was freed). WEIR_REUSE=no_wait takes new memory rather than "
         "wait."});
  }
}

void advise_on_blocks(const Report& report, std::vector<Advice>& advice) {
  std::size_t said = 0;
  for (const Growth& growth : report.growth) {
    if (said == kMostGrowth || ratio(growth.bytes, report.end.live) < 0.01) break;
    ++said;
    const std::string from =
        growth.stack == 0 ? "on stream " + growth.stream_name : "from " + growth.place;
    advice.push_back(
        {fmt::format("{} of {} {} ({} in all) are still live; there were more in {} of {} parts of "
                     "the recording.",
                     counted(growth.blocks, "block"), in_words(growth.requested), from,
                     in_words(growth.bytes), growth.grew, growth.parts),
         std::string("Look for what still refers to them: a list or a cache that only grows.") +
             (growth.stack == 0 ? " Record with WEIR_RECORD_STACKS=cpp to see who asked." : "")});
  }
}

}  // namespace

std::vector<Advice> advice_on(const Report& report) {
  std::vector<Advice> advice;
  // What Weir would have done otherwise is no advice to a program that PyTorch's allocator served.
  if (report.origin.is_pytorchs()) {
    advise_on_pytorch(report, advice);
    advise_on_blocks(report, advice);
    return advice;
  }
  advise_on_failures(report, advice);
  advise_on_fragmentation(report, advice);
  advise_on_blocks(report, advice);
  advise_on_waits(report, advice);
  advise_on_driver(report, advice);
  return advice;
}

namespace {

// Of a program that ran out on one of several devices that it uses: that the others had little.
std::string uneven(const Origin& origin) {
  Bytes shown, others;
  for (std::size_t i = 0; i < origin.devices.size(); ++i) {
    Bytes& most = std::cmp_equal(i, origin.device) ? shown : others;
    most = std::max(most, origin.devices[i].peak_reserved);
  }
  if (!origin.failure || others == 0_B || others > shown / 2) return {};
  return fmt::format(" No other device held more than {}: divide the work evenly.",
                     in_words(others));
}

std::string setting_or_less(const Report& report) {
  const std::optional<Help>& help = report.origin.help;
  if (help && !help->needs_less) return help->text;
  if (!help && !report.advice.empty()) {
    return "What helps: " + report.advice.front().evidence + " " + report.advice.front().remedy;
  }
  const Moment& moment = report.failed ? *report.failed : report.peak_live;
  const Bytes held = report.origin.held ? report.origin.held->reserved : moment.reserved;
  const Bytes gain = held - std::min(held, moment.live);
  const bool is_much = gain >= kMuch && ratio(gain, held) >= kMuchOfReserved;
  const auto use = static_cast<Purpose>(moment.by_purpose.empty() ? 0 : moment.by_purpose[0].id);
  const bool is_known = use != Purpose::unknown;
  const std::string remedy = is_known ? fmt::format(" {}", remedy_for(use)) : "";
  if (help) return help->text + remedy;
  const bool has_weights =
      report.origin.is_pytorchs() && !is_known && ratio(gain, held) < kMuchOfReserved;
  return fmt::format("{}f the {} held at most {} is to gain, all else is in use{}.{}",
                     is_much ? "O" : "No setting helps: o", in_words(held), in_words(gain),
                     has_weights ? ": load fewer or smaller weights (half precision, offload)" : "",
                     remedy);
}

}  // namespace

std::string what_helps(const Report& report) {
  return setting_or_less(report) + uneven(report.origin);
}

std::vector<Advice> further_advice(const Report& report) {
  const bool is_said = !report.origin.help && !report.advice.empty();
  return {report.advice.begin() + (is_said ? 1 : 0), report.advice.end()};
}

}  // namespace weir
