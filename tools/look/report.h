// SPDX-License-Identifier: Apache-2.0
// What a recording says about a program's memory: peaks and what made them, what was held for
// nothing and why, who waited for whom, blocks that pile up, and what to do about it.
//
// docs/report.md defines every number. All of it comes from the recording alone, so the same
// recording gives the same report, to the byte.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "look/origin.h"
#include "weir/recording.h"
#include "weir/statistics.h"

namespace weir {

struct ReportOptions {
  std::size_t top = 8;            // most rows of a list
  std::optional<std::size_t> at;  // a moment to look at too: once so many events have happened
};

// How a report is written: for a terminal with bars and bold headings.
enum class ReportStyle : std::uint8_t { plain, terminal };

// Why a byte was held that no program asked for. Every such byte has one cause.
enum class Cause : std::uint8_t {
  rounding,          // blocks are multiples of 512
  page_tails,        // free, before the first or after the last block of a page in use
  placement,         // free, between two blocks of a page in use
  stream_partition,  // of pages in use without a live block: cached blocks, an empty slab
  pool_partition,    // of idle pages in the hands of a graph pool
  idle_pages,        // of pages that any stream could have had
};
inline constexpr int kCauses = static_cast<int>(Cause::idle_pages) + 1;
std::string_view name_of(Cause cause);
// "free at the ends of pages in use": what such bytes are.
std::string_view meaning_of(Cause cause);

// Blocks that have something in common: a stream, a pool, a class of sizes, a stack.
struct Share {
  std::uint64_t id = 0;   // Stream::id, GraphPool::id(), largest size of the class, into `stacks`
  std::uint32_t nth = 0;  // of streams and pools: in order of first use, from 0
  std::string name;
  std::uint64_t blocks = 0;
  Bytes bytes, requested;
  bool rest = false;  // all that have no row of their own
};

// Memory once the first `events` events of the recording had happened.
struct Moment {
  std::size_t events = 0;
  Nanoseconds time;  // since the recording's begin
  std::uint64_t blocks = 0, pages = 0;
  Bytes live, requested, reserved, leased;
  // Of it plain memory (MemoryKind::plain).
  struct Plain {
    std::uint64_t segments = 0;
    Bytes live, reserved, leased;
  } plain;
  // reserved - requested = the sum of these - unplaced.
  std::array<Bytes, kCauses> causes{};
  // Bytes of live blocks on no page that the recording knows of, or on bytes that another block
  // has: zero unless events are missing.
  Bytes unplaced;
  std::vector<Share> by_stream, by_pool, by_size, by_stack;  // the largest first
  std::vector<Share> by_purpose;  // of PyTorch's programs, whose stacks tell
};

struct WaitPair {
  // The `awaited_nth` of Stream::all(), whose number is the same in every recording.
  static constexpr std::uint32_t kAllStreams = ~std::uint32_t{0};

  std::uint64_t waiter = 0, awaited = 0;  // Stream::id
  std::uint32_t waiter_nth = 0, awaited_nth = 0;
  std::string waiter_name, awaited_name;
  std::uint64_t waits = 0;   // of the waiter, on the GPU
  std::uint64_t fences = 0;  // that `awaited` took on blocks of `waiter`
};

struct HostWaits {
  std::uint64_t count = 0;
  Nanoseconds time, longest;
};

// Scratch of graphs that one pool lent to the device heap.
struct LentScratch {
  std::uint64_t pool = 0;  // GraphPool::id()
  Bytes most;              // at one moment
  // The blocks that got most of it, over all of the recording; none: it was lent for nothing.
  struct To {
    std::uint64_t stream = 0;
    std::uint32_t stack = 0;
    std::string place;
  };
  std::optional<To> to;
};

// Blocks of one size, stream and stack, whose memory another stream got, and had to wait for.
struct CostlyBlocks {
  std::uint32_t stack = 0;
  Bytes requested;
  std::string stream, place;
  std::uint64_t waits = 0;
};

// Live blocks of one size, stream and stack that became more all through the recording.
struct Growth {
  std::uint32_t stack = 0;
  std::uint64_t stream = 0;
  std::string stream_name, place;
  Bytes requested;  // of each
  std::uint64_t blocks = 0;
  Bytes bytes;        // of all, rounded
  unsigned grew = 0;  // in so many of `parts` the number rose
  unsigned parts = 0;
  Nanoseconds first, last;  // when the oldest and the youngest were allocated, since the begin
};

// From this call on another run of the program may have its memory at other places, since what the
// GPU had done by then decided one.
struct TimeDependence {
  enum class Why : std::uint8_t {
    asked,      // the call got memory that another stream freed, and no wait orders the two
    released,   // after the call a page went back to the driver, once its work was over
    lost,       // after the call events of the whole context were given up
    elsewhere,  // after the call the driver refused addresses that were meant (Addresses::prefer)
  };
  Why why = Why::asked;
  std::uint64_t call = 0;  // its number, as of CallDifference
  Nanoseconds time;        // since the begin
};
std::string_view name_of(TimeDependence::Why why);

struct Totals {
  std::uint64_t allocations = 0, deallocations = 0, fences = 0, stream_waits = 0;
  std::uint64_t context_waits = 0;  // of stream_waits, those for the work of all streams
  // Why events of the whole context were given up, also before the recording began.
  std::vector<ContextEventsLost> context_events_lost;
  std::uint64_t pages_created = 0, pages_released = 0, maps = 0, unmaps = 0, out_of_memory = 0;
  std::uint64_t captures = 0, mappings_peak = 0;
  Bytes allocated, created, released, trimmed;
  // Created once something had been released: memory that went and was asked for again.
  Bytes created_again;
  HostWaits host_waits;
};

// What to do, and why.
struct Advice {
  std::string evidence;  // the numbers
  std::string remedy;    // the setting or the call to change
};

struct Report {
  std::string source, program, device, damage;
  Origin origin;
  std::string failed_in;         // who asked for what failed; "": unknown
  std::optional<Moment> failed;  // when the last request failed
  Bytes device_bytes;
  // Of a memory snapshot of PyTorch's: what PyTorch had reserved at its peak; none: another file.
  std::optional<Bytes> pytorch_peak_reserved;
  Nanoseconds length;
  std::uint64_t events = 0, dropped = 0, streams = 0, pools = 0;
  Totals totals;
  // Of the host to the driver, as a recording of Weir's says at its end; empty: it does not.
  std::vector<DeviceCallCount> driver_calls;
  Moment peak_live;  // the first of its kind
  // The file has a peak: memory rose after its beginning. Else what came before may have been more.
  bool shows_peak = true;
  Moment peak_reserved;  // where reserved was highest, the first where live was highest
  Moment end;
  std::optional<Moment> at;
  Bytes late_peak_live;         // the most that was live in the second half of the recording's time
  std::vector<WaitPair> waits;  // the most waits first; at most `top` rows, like the next three
  std::vector<CostlyBlocks> costly;
  std::vector<Growth> growth;
  std::vector<LentScratch> lent;                  // by pool
  std::optional<TimeDependence> time_dependence;  // the first that the recording shows
  std::vector<Advice> advice;
  std::vector<std::vector<std::string>> stacks;  // as text, innermost first; the first: unknown
};

Report report_of(const Recording& recording, const ReportOptions& options = {},
                 const Origin& origin = {});

// What the numbers of a report, as far as they are filled in, advise to change.
std::vector<Advice> advice_on(const Report& report);

// What the program would be helped by: what replays tell (Origin::help), else the first advice.
std::string what_helps(const Report& report);
// The advice that what_helps() has not given.
std::vector<Advice> further_advice(const Report& report);

// What ran out or peaked, where and why, and who asked; the code that held most; what would help.
// Then what else is known of what was held. No line ends.
std::vector<std::string> verdict_of(const Report& report);
// Where peak_live is: "at its peak", or what the file has in its stead.
std::string_view when_of_peak(const Report& report);
// "device 1 of 4; device 0 held 7.96 GiB: --device shows it"; "": the file has one.
std::string devices_text(const Origin& origin);

// The verdict, and tables of at most report_width() columns. Ends with a line end.
std::string report_text(const Report& report, ReportStyle style = ReportStyle::plain);
// One object; docs/report.md defines the members. Ends with a line end.
std::string report_json(const Report& report);

}  // namespace weir
