// SPDX-License-Identifier: Apache-2.0
#include "bench/peers/session.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace weir::peers {
namespace {

// Written as it goes: a run that is cut short leaves what it had.
void print(const nlohmann::ordered_json& line) {
  std::puts(line.dump().c_str());
  std::fflush(stdout);
}

nlohmann::ordered_json line_of(const std::string& peer, const std::string& loop,
                               const Sample& sample) {
  return {
      {"peer", peer},      {"loop", loop},        {"mean", sample.mean},  {"median", sample.median},
      {"low", sample.low}, {"high", sample.high}, {"pairs", sample.pairs}};
}

}  // namespace

void print_result(const std::string& peer, const std::string& loop, const Sample& sample) {
  print(line_of(peer, loop, sample));
}

void print_held(const std::string& peer, const std::string& loop, const MixSample& sample) {
  nlohmann::ordered_json line = line_of(peer, loop, sample.sample);
  line["peak_live_bytes"] = sample.peak_live_bytes;
  if (sample.reserved) line["reserved_bytes"] = *sample.reserved;
  print(line);
}

void print_history(const std::string& peer, const bench::Family& family,
                   const HistorySample& sample) {
  const bench::CallTimes later = sample.times.later_calls();
  nlohmann::ordered_json line = line_of(peer, loop_of(family), sample_of(sample));
  line["title"] = family.title;
  line["first_ns"] = sample.times.first_ns();
  line["last_ns"] = sample.times.last_ns();
  line["over_10us"] = later.slow_share();
  line["slowest_us"] = later.slowest_ns / 1000;
  line["first_slowest_us"] = sample.times.phases.front().calls.slowest_ns / 1000;
  line["preempted"] = later.preempted;
  line["peak_live_bytes"] = sample.peak_live_bytes;
  if (sample.reserved) line["reserved_bytes"] = *sample.reserved;
  const auto pairs = static_cast<double>(sample.later_pairs);
  for (const auto& [kind, driver] : sample.driver) {
    line["driver"][kind] = {{"calls", static_cast<double>(driver.calls) / pairs},
                            {"us", static_cast<double>(driver.nanoseconds) / 1000 / pairs}};
  }
  print(line);
}

void print_error(const std::string& peer, const std::string& loop, const std::string& message) {
  // The message may hold bytes that are no UTF-8, of which JSON is made.
  const nlohmann::ordered_json line = {{"peer", peer}, {"loop", loop}, {"error", message}};
  std::puts(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  std::fflush(stdout);
}

bool Session::wanted(const std::string& loop) const {
  const auto begins = [&](const std::string& start) { return loop.starts_with(start); };
  return options_.loops.empty() || std::ranges::any_of(options_.loops, begins);
}

Clock::duration Session::length() const {
  return std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(options_.seconds));
}

const bench::Mix& Session::mix() {
  constexpr std::size_t kCount = 1 << 22;
  if (mix_.first.empty()) mix_ = bench::make_mix(bench::kMixLive, kCount);
  return mix_;
}

Session::Settle::~Settle() {
  try {
    gpu.synchronize();
  } catch (const std::exception&) {  // a device that is lost: the next loop's call says so
  }
}

}  // namespace weir::peers
