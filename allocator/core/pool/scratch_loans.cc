// SPDX-License-Identifier: Apache-2.0
#include "core/pool/scratch_loans.h"

#include <algorithm>
#include <utility>

namespace weir {
namespace {

// How often what was found free is looked for again, as another thread was first.
constexpr int kAttempts = 4;

}  // namespace

Bytes ScratchLoans::lent() const {
  Bytes lent;
  for (const auto& [page, loan] : loans_) {
    if (loan.memory != PhysicalHandle{}) lent += loan.size;
  }
  return lent;
}

bool ScratchLoans::can_be_waited_for() {
  const std::optional<TimelineId> context = own_.timelines().context();
  return !context || own_.timelines().record(*context).ok();
}

bool ScratchLoans::has_scratch() const {
  const auto loans = pool_.pages().loans(std::try_to_lock);
  return loans && !loans->scratch().empty();
}

std::vector<UnmappedPage> ScratchLoans::lend(Bytes wanted) {
  std::vector<UnmappedPage> lent;
  const auto loans = pool_.pages().loans(std::try_to_lock);
  if (!loans) return lent;
  for (const PageLoans::Loan& loan : loans->lend(wanted, PageHeap::kUnlimited)) {
    const PageId borrowed = budget_.next_page();
    const auto& [memory, size, none] = loan.memory;
    loans_.insert_or_assign(loan.page.value, Loan{borrowed, memory, size});
    lent.push_back({memory, size, Lent{borrowed, pool_.id(), user_}});
  }
  return lent;
}

std::vector<UnmappedPage> ScratchLoans::part_with(Bytes wanted, Bytes most, FenceSet& pending) {
  std::vector<UnmappedPage> gone;
  if (!is_over(launches_, pending)) return gone;
  const auto loans = pool_.pages().loans(std::try_to_lock);
  if (!loans) return gone;
  for (const PageLoans::Loan& loan : loans->lend(wanted, most)) {
    const bool parted = loans->part_with(loan.page).ok();
    if (!parted && loans->take_back(loan.page, loan.memory.handle)) continue;
    loans_.insert_or_assign(loan.page.value, Loan{{}, {}, loan.memory.size});
    if (parted) gone.push_back(loan.memory);
  }
  return gone;
}

bool ScratchLoans::is_over(const FenceSet& work, FenceSet& pending) {
  const Result<bool> over = own_.timelines().over_or_wait(work, Timelines::Asks::remembers);
  if (over && *over) return true;
  pending.join(work);
  return false;
}

Status ScratchLoans::settle(Loans::iterator at, bool waits, FenceSet& pending) {
  const PageId page{at->first};
  Loan& loan = at->second;
  bool is_back = false;
  if (const auto own = own_.pages().loans(); own->idle(loan.borrowed)) {
    FenceSet users;
    if (is_over(own->users(loan.borrowed), users)) {
      if (Status given = own->give_back(loan.borrowed); !given) return given;
      is_back = true;
    } else if (waits) {
      return pending.join(users), Status();
    }
  }
  if (is_back) {
    const PhysicalHandle memory = std::exchange(loan.memory, {});
    if (pool_.pages().loans()->take_back(page, memory)) loans_.erase(at);
    return {};
  }
  // The own pool keeps it. The graph's page is about to be unmapped.
  if (!is_over(launches_, pending)) return {};
  if (Status unmapped = pool_.pages().loans()->part_with(page); !unmapped) return unmapped;
  own_.pages().loans()->keep(loan.borrowed);
  loan.memory = {};
  return {};
}

Status ScratchLoans::part_with_used(bool waits, FenceSet& pending) {
  if (!any()) return {};
  HeapMemory::give_back_all(own_.caching_heaps());
  for (auto next = loans_.begin(); next != loans_.end();) {
    const auto at = next++;
    if (at->second.memory == PhysicalHandle{}) continue;
    if (Status settled = settle(at, waits, pending); !settled) return settled;
  }
  return {};
}

PhysicalHandle ScratchLoans::memory_of_others(Bytes size, FenceSet& pending) {
  // (First those that are not larger: the largest go first.)
  for (const Bytes most : {size, PageHeap::kUnlimited}) {
    if (!budget_.is_most(size)) break;
    std::vector<UnmappedPage> pages = others_(size, most, pending);
    const auto same = std::find_if(pages.begin(), pages.end(),
                                   [&](const UnmappedPage& page) { return page.size == size; });
    PhysicalHandle memory;
    if (same != pages.end()) {
      memory = same->handle;
      pages.erase(same);
    }
    const auto idle = own_.pages().idle();
    idle->take_from_pool(pages);
    if (memory != PhysicalHandle{}) return memory;
    (void)idle->give_to_driver(size);  // what the driver refuses stays there
  }
  return {};
}

Status ScratchLoans::renew(bool waits, FenceSet& pending) {
  for (auto next = loans_.begin(); next != loans_.end();) {
    const auto at = next++;
    const PageId page{at->first};
    if (at->second.memory != PhysicalHandle{}) continue;
    if (pool_.pages().sleep()->needs_memory(page)) {
      FenceSet of_others;
      const PhysicalHandle memory = memory_of_others(at->second.size, of_others);
      if (memory != PhysicalHandle{}) {
        (void)pool_.pages().loans()->take_back(page, memory);
      } else if (waits) {
        pending.join(of_others);
      }
    }
    if (!pending.empty()) return {};
    const Result<bool> renewed = pool_.pages().sleep()->renew_memory(page);
    if (!renewed) {
      // A page has all of its mappings, or no memory: who sleeps copies what has some.
      FenceSet running;
      if (is_over(launches_, running)) (void)pool_.pages().sleep()->take_memory(page);
      return renewed.error();
    }
    loans_.erase(at);
  }
  return {};
}

Status ScratchLoans::take_back(bool waits, FenceSet& pending) {
  Status parted = part_with_used(waits, pending);
  return parted && pending.empty() ? renew(waits, pending) : std::move(parted);
}

Result<std::vector<Range>> ScratchLoans::free_ranges(bool waits, FenceSet& pending) {
  std::vector<Range> ranges;
  bool gave_back = false;
  for (auto next = loans_.begin(); next != loans_.end();) {
    const auto at = next++;
    const Loan& loan = at->second;
    if (loan.memory == PhysicalHandle{}) continue;
    const auto look = [&] { return own_.pages().loans()->idle(loan.borrowed); };
    std::optional<Range> free = look();
    if (!free && !std::exchange(gave_back, true)) {
      HeapMemory::give_back_all(own_.caching_heaps());
      free = look();
    }
    if (free && free->size > 0_B && pool_.pages().loans()->is_whole(PageId{at->first})) {
      ranges.push_back(*free);
    } else if (Status settled = settle(at, waits, pending); !settled) {
      return std::move(settled).error();
    }
  }
  std::sort(ranges.begin(), ranges.end(), [](Range a, Range b) { return a.begin < b.begin; });
  std::vector<Range> joined;
  for (const Range range : ranges) {
    if (!joined.empty() && joined.back().end() == range.begin) {
      joined.back().size += range.size;
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

Status ScratchLoans::take(const std::vector<Range>& ranges, Stream stream) {
  const Result<StreamHeap*> heap = own_.heap_of(stream);
  if (!heap) return heap.error();
  heap_ = *heap;
  for (const auto& [begin, size] : ranges) {
    const PlacedBlock block{begin, size, size, stream, begin, size};
    if (Status placed = heap_->allocate_at(block, pool_.id()); !placed) {
      return placed;
    }
    taken_.push_back(begin);
  }
  return {};
}

Status ScratchLoans::before_launch(Stream stream, bool waits, FenceSet& pending) {
  Status status;
  for (int attempt = 0; attempt < kAttempts && any(); ++attempt) {
    const Result<std::vector<Range>> ranges = free_ranges(waits, pending);
    if (!ranges) return ranges.error();
    if (pending.empty()) status = renew(waits, pending);
    if (!pending.empty()) return {};
    if (!status) return status;
    status = take(*ranges, stream);
    if (status) return status;
    after_launch(stream, /*launched=*/false);
    if (status.error().code() == ErrorCode::capture) {
      if (!waits) break;
      // The stream can't wait, as no event of the context can be recorded: the host does.
      for (const auto& [page, loan] : loans_) {
        pending.join(own_.pages().loans()->users(loan.borrowed));
      }
      return pending.empty() ? std::move(status) : Status();
    }
    if (status.error().code() != ErrorCode::invalid_argument) return status;
  }
  // Others are always first: the graph gets back what is free, and other memory for the rest.
  return status ? Status() : take_back(waits, pending);
}

void ScratchLoans::after_launch(Stream stream, bool launched) {
  for (const Address block : std::exchange(taken_, {})) heap_->give_back(block);
  if (!launched) return;
  user_ = own_.timelines().context().value_or(own_.timelines().of(stream));
  launches_.join(own_.timelines().release_point(*user_));
}

// (Where uses are told, launches are, and for other work the host waits as a capture begins.)
void ScratchLoans::note_work_so_far() {
  const std::optional<TimelineId> context = own_.timelines().context();
  if (context) launches_.join(own_.timelines().release_point(*context));
}

}  // namespace weir
