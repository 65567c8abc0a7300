// SPDX-License-Identifier: Apache-2.0
// What there is after some events of a recording: pools, heaps, pages, mappings, leases, live
// blocks.
//
// Events that are missing (they came too fast, or the file is damaged) leave others that contradict
// what is known. Those are made to fit: a block that overlaps a live one shows that the live one
// was deallocated, and so on; what can't be made to fit is left out. So what comes out of accept()
// is always a history that could have been. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "weir/event.h"

namespace weir {

class RecordedState {
 public:
  // Calls then(event) for `event`, if it fits, after those that must have come before it. Of
  // missing ones only what is known is said: their time is this event's.
  template <class Then>
  void accept(const Event& event, Then&& then) {
    fitting_.clear();
    if (!fit(event)) ++repaired_;
    for (const Event& each : fitting_) then(each);
  }

  // All that there is, as events of one moment, in an order in which they can be accepted.
  std::vector<Event> as_events(Nanoseconds time) const;

  // Events so far that did not fit as they were.
  std::uint64_t repaired() const { return repaired_; }

 private:
  struct Page {
    Event created;
    std::optional<Event> lease;
    std::set<std::uint64_t> mappings;  // addresses
  };
  using ByAddress = std::map<std::uint64_t, Event>;

  // Appends to fitting_; true: just the event itself.
  bool fit(const Event& event);
  bool fit_block(const Event& event);
  bool fit_page(const Event& event);
  bool fit_mapping(const Event& event, Page& page);
  bool fit_pool(const Event& event);
  bool fit_known_page(const Event& event, std::map<std::uint32_t, Page>::iterator page);
  void end_block(ByAddress::iterator block, Nanoseconds time);
  void end_mapping(ByAddress::iterator mapping, Nanoseconds time);
  void end_lease(Page& page, Nanoseconds time);
  // The first of `all` that overlaps the event's addresses; its end if none does.
  static ByAddress::iterator overlapping(ByAddress& all, const Event& event);

  std::map<std::uint64_t, Event> pools_;
  std::map<std::uint64_t, Event> captures_;
  std::map<std::uint32_t, Event> heaps_;
  std::map<std::uint32_t, Page> pages_;
  ByAddress mappings_, blocks_;
  std::uint64_t repaired_ = 0;
  std::vector<Event> fitting_;
};

}  // namespace weir
