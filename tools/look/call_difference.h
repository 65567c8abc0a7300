// SPDX-License-Identifier: Apache-2.0
// The first call that differs between two recordings of what should be one program: of two runs, or
// of two ranks.
//
// A call is an allocation, a free, a fence, or a request that failed. Calls are numbered from 1 as
// the recorder saw them, also where a flight recorder gave up the first ones; so two rings are
// compared from the first call that both have. Streams, graph pools and rows are the same if the
// two recordings met them in the same order, from the first compared call on. A place is an offset
// in a row, so that two runs whose rows lie elsewhere have the same places.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weir/recording.h"

namespace weir {

// Where a block lies. Rows are 1 GiB of a pool's addresses each, a segment of plain memory one of
// its own.
struct CallPlace {
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};  // as Numbering has it

  std::uint32_t row = kNone;  // in order of first use, from 0
  Bytes offset;               // in the row
  // Of a row that is met first: those directly below and above, if they were met.
  std::uint32_t below = kNone, above = kNone;
  friend bool operator==(const CallPlace&, const CallPlace&) = default;
};

struct RecordedCall {
  std::uint64_t number = 0;
  Event event;  // allocate, deallocate, fence or out_of_memory; sizes and stream are the block's
  // In order of first use, from 0; of pools 0 is the device's own.
  std::uint32_t stream = 0, user = 0, pool = 0;
  CallPlace place;
  std::uint64_t pool_id = 0;
  // Of a free or fence: the call that allocated the block; 0: it was there before.
  std::uint64_t allocated_in = 0;
  std::uint32_t stack = 0;  // who asked for the block, as Event::stack
};

// What one recording has where the two differ.
struct CallSide {
  std::string source;
  std::optional<RecordedCall> call;      // none: the recording ends
  std::vector<std::string> stack;        // of `call`, innermost first; empty: unknown
  std::vector<Event> weir_did;           // since the call before
  std::string mark;                      // the program's last remark before; empty: none
  std::uint64_t calls = 0, dropped = 0;  // in the recording; lost, so that numbers may be wrong
  std::uint64_t last = 0;                // number of the recording's last call
  bool damaged = false;                  // calls may be missing
};

struct CallDifference {
  std::uint64_t first = 1;             // number of the first call that both have
  std::uint64_t same = 0;              // so many are the same from there on
  bool lived_otherwise = false;        // what was live before `first` differs already, in both
  std::vector<std::string> differs;    // in which respects; empty: no call differs
  CallSide before, after;              // `call`: where `differs`
  std::vector<RecordedCall> previous;  // the last of the same calls, oldest first, of `before`
  // The first call whose place is the same, and whose address is not; before which Weir created,
  // mapped or released other pages, or made other waits. 0: there is none.
  std::uint64_t moved = 0, worked_otherwise = 0;
};

// Linear in the events.
CallDifference first_difference(const Recording& before, const Recording& after);

}  // namespace weir
