// SPDX-License-Identifier: Apache-2.0
#include "core/pool/page_exchange.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

namespace weir {
namespace {

// After a launch is done: on an H200 0.03 to 0.2 ms.
constexpr std::chrono::milliseconds kUntilTheDriverSaysSo{100};

// What two calls gave. Error: one failed, and the other gave nothing.
Result<Bytes> sum(Result<Bytes> one, Result<Bytes> other) {
  if (one && other) return *one + *other;
  if (one && *one > 0_B) return one;
  if (other && *other > 0_B) return other;
  return one ? other : one;
}

void wait_for_streams(Timelines& timelines) {
  if (timelines.trust() == Trust::context) {
    (void)timelines.host_wait(FenceSet(timelines.release_point(TimelineId{})));
    return;
  }
  const auto eager = [](Stream stream) { return !stream.is_in_capture() && !stream.is_all(); };
  for (const Fence fence : timelines.all(eager)) (void)timelines.host_wait(FenceSet(fence));
}

}  // namespace

bool PageExchange::call_in() {
  bool any = false;
  for (const std::shared_ptr<CapturePool>& pool : pools_.graph_pools()) {
    any = pool->give_back_pages(/*if_useful=*/true) || any;
  }
  return any;
}

Result<Bytes> PageExchange::give_to_driver(Bytes wanted, const CapturePool* requester) {
  const bool requester_shares = requester == nullptr || requester->shares_pages();
  Result<Bytes> gone = requester_shares ? 0_B : pools_.own().pages().idle()->give_to_driver(wanted);
  for (const std::shared_ptr<CapturePool>& pool : pools_.graph_pools()) {
    const Bytes so_far = gone ? *gone : 0_B;
    if (so_far >= wanted) break;
    if (pool.get() == requester) continue;
    gone = sum(std::move(gone), pool->give_to_driver(wanted - so_far));
  }
  return gone;
}

Status PageExchange::wait_for_idle_pages(const CapturePool* requester) {
  if (Status freed = pools_.free_after_all_work(); !freed) return freed;
  registry_.give_back_cached();  // among them what was just freed
  wait_for_released_graphs();
  if (Status waited = pools_.own().pages().wait_for_idle_pages(); !waited) return waited;
  for (const std::shared_ptr<CapturePool>& pool : pools_.graph_pools()) {
    if (pool.get() != requester && pool->capture() != 0) continue;
    if (Status waited = pool->pages().wait_for_idle_pages(); !waited) return waited;
  }
  (void)call_in();
  return {};
}

// Graphs are gone, and their launches run on streams that nobody named: all work so far is waited
// for, of all streams that are known. What can't be waited for stays as it is.
void PageExchange::wait_for_released_graphs() {
  (void)call_in();
  const std::vector<std::shared_ptr<CapturePool>> all = pools_.graph_pools();
  std::vector<std::shared_ptr<CapturePool>> lingering;  // that are, before anything is waited for
  std::copy_if(all.begin(), all.end(), std::back_inserter(lingering),
               [](const auto& pool) { return pool->begin_to_wait_for_graphs(); });
  if (lingering.empty()) return;
  wait_for_streams(pools_.own().timelines());
  for (const std::shared_ptr<CapturePool>& pool : all) wait_for_streams(pool->timelines());
  (void)call_in();
  // The driver says that a graph is gone in a thread of its own. One that is there still after so
  // long was not destroyed, or leaks.
  const auto patience = std::chrono::steady_clock::now() + kUntilTheDriverSaysSo;
  const auto hopes = [](const auto& pool) { return pool->lingers(/*hopes=*/true); };
  while (!graphs_leak_ && std::any_of(lingering.begin(), lingering.end(), hopes) &&
         std::chrono::steady_clock::now() < patience) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    (void)call_in();
  }
  for (const std::shared_ptr<CapturePool>& pool : lingering) pool->note_lingers_on(graphs_leak_);
}

Result<Bytes> PageExchange::trim(Bytes keep, Trim how) {
  pools_.free_due();
  registry_.give_back_cached();
  (void)call_in();
  if (how == Trim::waits) {
    if (Status waited = wait_for_idle_pages(); !waited) return std::move(waited).error();
  }
  const auto excess = [&] { return budget_.held() - std::min(budget_.held(), keep); };
  Result<Bytes> own = pools_.own().pages().idle()->give_to_driver(excess());
  Result<Bytes> of_pools = give_to_driver(excess(), nullptr);
  pools_.own().pages().idle()->forget_if_empty(/*complete=*/true);
  for (const std::shared_ptr<CapturePool>& pool : pools_.graph_pools()) pool->tidy();
  pools_.drop_gone();
  return sum(std::move(own), std::move(of_pools));
}

void PageExchange::set_limit(Bytes limit) {
  budget_.set_limit(limit);
  if (budget_.excess() == 0_B) return;
  registry_.give_back_cached();
  pools_.own().pages().idle()->keep_to_limit();
  if (budget_.excess() > 0_B) (void)call_in();
  if (const Bytes excess = budget_.excess(); excess > 0_B) (void)give_to_driver(excess, nullptr);
}

void PageExchange::keep_to_limit() {
  PageHeap& own = pools_.own().pages();
  HeapMemory::give_back_all(pools_.own().caching_heaps());
  SparingPools& lending = pools_.shared().lending;
  for (const std::shared_ptr<CapturePool>& pool : lending.take()) {
    lending.enter(pool->id(), pool);
    pool->scratch().try_take_back();
  }
  own.idle()->keep_to_limit();
  if (const Bytes excess = budget_.excess(); excess > 0_B) {
    const std::vector<UnmappedPage> spare = pools_.spare(excess);
    own.idle()->take_from_pool(spare);
  }
  if (budget_.excess() > 0_B) pools_.keep_to_limit();
}

}  // namespace weir
