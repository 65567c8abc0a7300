// SPDX-License-Identifier: Apache-2.0
// A request for a run of bytes, as a value: what is asked for, what memory it may have, and what
// was found out while it was served. And a plan, which says where the request goes. Making a plan
// changes nothing; Commit carries it out, or fails, and another is made.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "core/memory/stitch_plan.h"
#include "core/memory/stitched_rows.h"
#include "core/memory/tile.h"
#include "core/placement/placement_cache.h"
#include "core/time/fence_set.h"
#include "observe/observer.h"
#include "weir/result.h"
#include "weir/types.h"

namespace weir {

// The stream heap that asks; the caller holds its lock.
struct Owner {
  StreamHeap* heap;
  HeapId id;
  TimelineId timeline;
  HeapFold& fold;
};

// Whether new memory of the device may serve the request.
//   may         yes; other pools are asked for idle pages before
//   device      yes; other pools were asked
//   rather_not  only if existing pages cannot serve the request
//   not_yet     a request that needs or prefers it fails (out_of_memory), and may be made again
//   never       existing pages serve the request, or it fails
enum class Create : std::uint8_t { may, device, rather_not, not_yet, never };

struct Request {
  const Owner& owner;
  Bytes size;
  RequestKeys keys;
  Create create;

  // --- What memory it may have. (Reuse::begin sets these.)
  // Only memory that the stream need not wait for.
  bool settled_only = false;
  // Memory that other streams used only if the host knows these uses to be done: it is not enough
  // that the stream has waited for them.
  bool over_only = false;
  // No memory, not even the stream's own, before the host knows its uses to be done: the stream is
  // in a capture that nobody announced, and what it waited for before is not ordered before the
  // graph.
  bool idle_only = false;
  // It was asked whether the stream is being captured.
  bool knows_capture = false;
  // Some memory may be refused altogether, so each run is asked about.
  bool asks_each = false;
  // Whether it takes memory that can only be waited for together with work that itself waits for
  // other processes. `not_asked`: whether there is such work is found out when it matters.
  enum class Remote : std::uint8_t { takes, not_asked, avoids };
  Remote remote = Remote::takes;

  // Does the stream wait for the earlier users of the memory? (Not where blocks are put back.)
  bool waits = true;

  // --- What was found out.
  bool passed_over = false;  // free memory was passed over since its use is recent
  Bytes in_use_elsewhere;    // of such places, that are its stream's own and others still use
  bool short_of_mappings = false;
  // What the device has left: known once it refused a page.
  std::optional<Bytes> device_room{};
  std::optional<Fence> not_over{};  // work that goes on, and so does later work of its timeline
  FenceSet waited{};                // what the stream was made to wait for
  Status status{};                  // why it was not served

  // Notes why the request fails. Null, for the caller to return.
  Tile* fail(Error error) {
    status = std::move(error);
    return nullptr;
  }
  bool failed_with(ErrorCode code) const { return !status && status.error().code() == code; }
  bool may_wait() const { return !settled_only; }
  // May a step plan new pages though existing ones might serve the request?
  bool may_prefer_new() const { return create != Create::rather_not && create != Create::never; }
};

struct Plan {
  enum class Way : std::uint8_t { none, run, row, grow, held, stitch, segment };

  Way way = Way::none;
  Tile* head = nullptr;  // run: its head
  // Run: the bytes to take. Grow: the addresses to map; if they begin at 0, as many anywhere.
  Range home{};
  Bytes behind;                        // grow: free bytes before `home` that the request takes too
  StitchedRow* row = nullptr;          // row: an idle one
  const StitchPlan* stitch = nullptr;  // stitch: a new one; the placer's, up to its next plan
  Bytes creates;                       // new memory of the device that the plan needs

  explicit operator bool() const { return way != Way::none; }
  static Plan in_run(Tile* head, Range home) {
    return {.way = Way::run, .head = head, .home = home};
  }
  static Plan in_row(StitchedRow* row) { return {.way = Way::row, .row = row}; }
};

}  // namespace weir
