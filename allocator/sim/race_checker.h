// SPDX-License-Identifier: Apache-2.0
// The happens-before checker of SimDevice: knows streams, marks and byte ranges, not the device.
//
// Each stream counts epochs; one ends at every mark taken on it. A stream's vector clock says, for
// each stream, up to which epoch that stream's work is ordered before whatever is queued next. An
// access is ordered after an earlier one iff the earlier epoch is within the later stream's clock.
// Source: vector clocks (Mattern 1989), epochs in place of clocks on data (FastTrack, Flanagan &
// Freund 2009).
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "weir/sim_device.h"

namespace weir::sim {

// A stream's number within a checker: dense, from 0. That of a stream that ended serves another one
// once the host has seen all of its work complete: whatever comes is ordered after that.
using StreamIndex = std::uint32_t;

// Which device's context a stream is of: dense, from 0.
using ContextIndex = std::uint32_t;

// For each stream, an epoch; streams not named have 0.
class VectorClock {
 public:
  std::uint64_t operator[](StreamIndex stream) const {
    return stream < epochs_.size() ? epochs_[stream] : 0;
  }
  void set(StreamIndex stream, std::uint64_t epoch);
  // Takes the later epoch for each stream; says whether that changed anything.
  bool join(const VectorClock& other);

 private:
  std::vector<std::uint64_t> epochs_;
};

// One access as it is remembered.
struct Stamp {
  StreamIndex stream = 0;
  std::uint64_t epoch = 0;
  Nanoseconds time;  // of the launch
  Access access{};
  friend bool operator==(const Stamp&, const Stamp&);
};

// The last accesses through one mapping: at most one a stream.
using LastUses = std::vector<Stamp>;

// The last accesses to each byte of one page: per disjoint range, the last write, and the reads
// since. At most one read a stream, the latest, since it is ordered after the others.
class PageStamps {
 public:
  std::size_t ranges() const { return ranges_.size(); }

 private:
  friend class RaceChecker;
  struct Range {
    std::uint64_t end = 0;
    bool written = false;
    Stamp write;               // if written
    std::vector<Stamp> reads;  // since the write
  };
  using Ranges = std::map<std::uint64_t, Range>;  // by begin; disjoint
  Ranges ranges_;
  std::size_t sweep_at_ = 256;  // ranges at which stamps of known complete work are dropped
};

class RaceChecker {
 public:
  // `orders`: false: nothing will be checked, so that clocks need not be kept.
  explicit RaceChecker(bool orders = true) : orders_(orders) {}

  // `id` is what reports call the stream.
  StreamIndex add_stream(std::uint64_t id, ContextIndex context = 0);
  // Nothing more is queued on it.
  void end_stream(StreamIndex stream) { ended_.push_back(stream); }

  // A mark on `stream`: all work queued on it so far, and all that is ordered before that.
  VectorClock mark(StreamIndex stream);
  // A mark on all streams of these contexts at once.
  VectorClock mark_all(std::span<const ContextIndex> contexts);
  // Work queued on `stream` from now on is ordered after `mark`.
  void wait(StreamIndex stream, const VectorClock& mark);
  // The host has seen `mark` complete: whatever is queued anywhere from now on is ordered after it.
  void host_saw(const VectorClock& mark);
  // The host has seen all work complete.
  void host_saw_everything();

  // Queues an access: touch() then stamps the ranges that it covers, page by page.
  Stamp begin(StreamIndex stream, const Access& access, Nanoseconds time);
  // Bytes [begin, end) of a page. Each pair of accesses is reported once.
  void touch(PageStamps& page, std::uint64_t begin, std::uint64_t end, const Stamp& stamp);
  // The host itself reads or writes bytes [begin, end), at once: work that uses them, and that the
  // host does not know to be complete, races with that.
  void host_touches(const PageStamps& page, std::uint64_t begin, std::uint64_t end,
                    const Access& access, Nanoseconds time);
  static void use(LastUses& uses, const Stamp& stamp);
  // The host unmaps [address, address + size), which `uses` are the last uses of.
  void unmap(const LastUses& uses, Address address, Bytes size, Nanoseconds time);

  // Reports here what `other` reported.
  void add_races_of(const RaceChecker& other);

  const std::vector<Race>& races() const { return races_; }  // the first kKept
  std::uint64_t race_count() const { return race_count_; }
  static constexpr std::size_t kKept = 100;

 private:
  struct StreamState {
    std::uint64_t id = 0;
    ContextIndex context = 0;
    VectorClock clock = {};
    std::uint64_t host_version = 0;  // of host_, when it was last joined into clock
    std::uint64_t last_access = 0;   // its epoch
  };

  void see_host(StreamState& stream);
  bool ordered(const Stamp& earlier, const Stamp& later) const {
    return earlier.stream == later.stream ||
           earlier.epoch <= streams_[later.stream].clock[earlier.stream];
  }
  void check(const PageStamps::Range& range, const Stamp& stamp);
  void write(PageStamps& page, std::uint64_t begin, std::uint64_t end, const Stamp& stamp);
  void read(PageStamps& page, std::uint64_t begin, std::uint64_t end, const Stamp& stamp);
  void sweep(PageStamps& page);
  void report(const Stamp& first, const Stamp& second);
  void keep(Race race);

  const bool orders_;
  std::vector<StreamState> streams_;
  std::vector<StreamIndex> ended_;  // and serve no other stream yet
  VectorClock host_;
  std::uint64_t host_version_ = 0;
  std::vector<Stamp> reported_;  // first accesses reported for the access that began last
  std::vector<Race> races_;
  std::uint64_t race_count_ = 0;
};

}  // namespace weir::sim
