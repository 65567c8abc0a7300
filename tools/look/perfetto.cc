// SPDX-License-Identifier: Apache-2.0
// Source of the format: Perfetto's protos/perfetto/trace/, v59: trace_packet.proto,
// track_event/track_event.proto, track_descriptor.proto, counter_descriptor.proto.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <queue>
#include <tuple>

#include "look/exporters.h"
#include "look/protobuf_writer.h"
#include "look/streams.h"

namespace weir {
namespace {

// Field numbers.
enum TraceField : std::uint32_t { kPacket = 1 };
enum PacketField : std::uint32_t {
  kTimestamp = 8,
  kSequenceId = 10,
  kTrackEvent = 11,
  kInternedData = 12,
  kSequenceFlags = 13,
  kTrackDescriptor = 60,
};
enum DescriptorField : std::uint32_t {
  kUuid = 1,
  kTrackName = 2,
  kProcess = 3,
  kParent = 5,
  kCounter = 8,
  kChildOrdering = 11,
  kRank = 12,
};
enum ProcessField : std::uint32_t { kPid = 1, kProcessName = 6 };
enum CounterField : std::uint32_t { kUnit = 3, kAxis = 7 };
enum EventField : std::uint32_t {
  kAnnotation = 4,
  kType = 9,
  kNameId = 10,
  kTrack = 11,
  kCounterValue = 30,
};
enum AnnotationField : std::uint32_t { kAnnotationUint = 3, kAnnotationName = 10 };
enum InternedField : std::uint32_t { kEventNames = 2 };
enum InternedNameField : std::uint32_t { kId = 1, kName = 2 };
enum EventType : std::uint64_t { kSliceBegin = 1, kSliceEnd = 2, kInstant = 3, kCounterType = 4 };

constexpr std::uint64_t kSequence = 1, kExplicitOrder = 3, kSizeBytes = 3;
constexpr std::uint64_t kStateCleared = 1, kNeedsState = 2;
constexpr std::size_t kMostFenceTracks = 32;

class Perfetto {
 public:
  Perfetto(const Recording& recording, const BlockLifetimes& lifetimes, OutputFile& file)
      : recording_(recording), lifetimes_(lifetimes), file_(file), out_(file.text()) {}

  void run() {
    process();
    memory();
    marks();
    events();
    used_bytes();
    fences();
  }

 private:
  using Annotations = std::vector<std::pair<std::string_view, std::uint64_t>>;
  struct Slice {
    Nanoseconds begin, end;
    std::string name;
    Annotations annotations;
  };

  void process();
  void memory();
  void marks();
  void events();
  void event(const Event& event);
  void capture(const Event& event);
  void used_bytes();
  void fences();

  std::uint64_t track(const std::string& name, std::uint64_t parent, bool bytes = false);
  std::uint64_t stream_track(std::uint64_t stream);
  void counter(std::uint64_t track, Nanoseconds time, Bytes value);
  void instant(std::uint64_t track, Nanoseconds time, const std::string& name,
               const Annotations& annotations);
  void slice(std::uint64_t track, const Slice& slice);
  void track_event(std::uint64_t track, Nanoseconds time, EventType type, std::string_view name,
                   const Annotations& annotations);
  std::uint64_t name_id(std::string_view name, std::string& interned);
  template <class Fill>
  void packet(std::optional<Nanoseconds> time, const Fill& fill);

  const Recording& recording_;
  const BlockLifetimes& lifetimes_;
  OutputFile& file_;
  std::string& out_;
  std::string packet_;  // scratch
  std::uint64_t next_track_ = 1, process_ = 0, live_ = 0, rank_ = 0;
  std::map<std::uint64_t, std::uint64_t> streams_;  // -> track
  std::map<std::uint64_t, Nanoseconds> free_from_;  // of a track with instants: the next one's time
  std::optional<std::uint64_t> captures_, host_, pages_, trouble_;
  std::map<std::uint64_t, std::uint64_t> open_captures_;  // pool -> track
  std::map<std::string, std::uint64_t, std::less<>> names_;
  bool first_packet_ = true;
};

template <class Fill>
void Perfetto::packet(std::optional<Nanoseconds> time, const Fill& fill) {
  packet_.clear();
  if (time)
    put_varint(packet_, kTimestamp,
               static_cast<std::uint64_t>(std::max<std::int64_t>(time->count, 0)));
  put_varint(packet_, kSequenceId, kSequence);
  put_varint(packet_, kSequenceFlags, first_packet_ ? kStateCleared | kNeedsState : kNeedsState);
  first_packet_ = false;
  fill(packet_);
  put_bytes(out_, kPacket, packet_);
  file_.relieve();
}

std::uint64_t Perfetto::track(const std::string& name, std::uint64_t parent, bool bytes) {
  const std::uint64_t uuid = next_track_++;
  packet(std::nullopt, [&](std::string& packet) {
    put_message(packet, kTrackDescriptor, [&](std::string& descriptor) {
      put_varint(descriptor, kUuid, uuid);
      put_bytes(descriptor, kTrackName, valid_utf8(name));
      put_varint(descriptor, kParent, parent);
      put_varint(descriptor, kChildOrdering, kExplicitOrder);
      put_varint(descriptor, kRank, rank_++);
      if (!bytes) return;
      put_message(descriptor, kCounter, [&](std::string& counter) {
        put_varint(counter, kUnit, kSizeBytes);
        if (parent == process_) put_bytes(counter, kAxis, "memory");  // one scale, to compare
      });
    });
  });
  return uuid;
}

void Perfetto::process() {
  process_ = next_track_++;
  std::string name = recording_.program.empty() ? recording_.source : recording_.program;
  if (!recording_.device.empty()) name += " on " + recording_.device;
  packet(std::nullopt, [&](std::string& packet) {
    put_message(packet, kTrackDescriptor, [&](std::string& descriptor) {
      put_varint(descriptor, kUuid, process_);
      put_message(descriptor, kProcess, [&](std::string& process) {
        put_varint(process, kPid, 1);
        put_bytes(process, kProcessName, valid_utf8(name));
      });
      put_varint(descriptor, kChildOrdering, kExplicitOrder);
    });
  });
}

std::uint64_t Perfetto::name_id(std::string_view name, std::string& interned) {
  const auto found = names_.find(name);
  if (found != names_.end()) return found->second;
  const std::uint64_t id = names_.size() + 1;
  names_.emplace(name, id);
  put_message(interned, kEventNames, [&](std::string& entry) {
    put_varint(entry, kId, id);
    put_bytes(entry, kName, valid_utf8(name));
  });
  return id;
}

void Perfetto::track_event(std::uint64_t track, Nanoseconds time, EventType type,
                           std::string_view name, const Annotations& annotations) {
  packet(time, [&](std::string& packet) {
    std::string interned;
    const std::uint64_t id = name.empty() ? 0 : name_id(name, interned);
    if (!interned.empty()) put_bytes(packet, kInternedData, interned);
    put_message(packet, kTrackEvent, [&](std::string& event) {
      put_varint(event, kType, type);
      put_varint(event, kTrack, track);
      if (id != 0) put_varint(event, kNameId, id);
      for (const auto& each : annotations) {
        put_message(event, kAnnotation, [&each](std::string& annotation) {
          put_bytes(annotation, kAnnotationName, each.first);
          put_varint(annotation, kAnnotationUint, each.second);
        });
      }
    });
  });
}

void Perfetto::counter(std::uint64_t track, Nanoseconds time, Bytes value) {
  packet(time, [&](std::string& packet) {
    put_message(packet, kTrackEvent, [&](std::string& event) {
      put_varint(event, kType, kCounterType);
      put_varint(event, kTrack, track);
      put_varint(event, kCounterValue, value.count);
    });
  });
}

// Perfetto stacks instants of the same time, each in a line of its own: on the simulated device,
// where calls take no time, hundreds of lines. So each is at least 1 ns after the one before.
void Perfetto::instant(std::uint64_t track, Nanoseconds time, const std::string& name,
                       const Annotations& annotations) {
  Nanoseconds& free_from = free_from_[track];
  time = std::max(time, free_from);
  free_from = time + 1_ns;
  track_event(track, time, kInstant, name, annotations);
}

void Perfetto::slice(std::uint64_t track, const Slice& slice) {
  track_event(track, slice.begin, kSliceBegin, slice.name, slice.annotations);
  track_event(track, std::max(slice.begin, slice.end), kSliceEnd, {}, {});
}

// Only what changes: many changes of the one leave the other as it is.
void Perfetto::memory() {
  live_ = track("live", process_, true);
  const std::uint64_t reserved = track("reserved", process_, true);
  std::optional<MemoryPoint> last;
  memory_over_time(recording_, [&](const MemoryPoint& point) {
    if (!last || last->live != point.live) counter(live_, point.time, point.live);
    if (!last || last->reserved != point.reserved) counter(reserved, point.time, point.reserved);
    last = point;
  });
}

void Perfetto::marks() {
  const std::vector<RecordedMark>& marks = recording_.marks;
  if (marks.empty()) return;
  const std::uint64_t phases = track("marks", process_);
  for (std::size_t i = 0; i < marks.size(); ++i) {
    const Nanoseconds end = i + 1 == marks.size() ? recording_.end() : marks[i + 1].time;
    slice(phases, {marks[i].time, end, marks[i].text, {}});
  }
}

std::uint64_t Perfetto::stream_track(std::uint64_t stream) {
  const auto [found, added] = streams_.try_emplace(stream, 0);
  if (added) found->second = track(stream_title(stream), process_);
  return found->second;
}

void Perfetto::events() {
  for (const std::uint64_t stream : lifetimes_.streams) stream_track(stream);
  for (auto each = recording_.events.from(recording_.initial); each != recording_.events.end();
       ++each) {
    event(*each);
  }
  for (const auto& [pool, track] : open_captures_) {
    track_event(track, recording_.end(), kSliceEnd, {}, {});
  }
}

void Perfetto::event(const Event& event) {
  const auto shared = [this](std::optional<std::uint64_t>& track, const char* name) {
    if (!track) track = this->track(name, process_);
    return *track;
  };
  switch (event.kind) {
    case EventKind::stream_wait:
      return instant(stream_track(event.stream), event.time,
                     "waits for " + stream_title(event.other),
                     {{"sequence", event.sequence.value}});
    case EventKind::host_wait:
      return slice(shared(host_, "host waits"), {event.time - event.duration,
                                                 event.time,
                                                 "host waits for " + stream_title(event.other),
                                                 {{"sequence", event.sequence.value}}});
    case EventKind::create:
    case EventKind::release:
    case EventKind::map:
    case EventKind::unmap:
    case EventKind::lease:
    case EventKind::unlease:
      return instant(shared(pages_, "pages"), event.time, std::string(name_of(event.kind)),
                     {{"page", event.page.value},
                      {"bytes", event.bytes.count},
                      {"heap", event.heap.value},
                      {"address", event.address.value}});
    case EventKind::out_of_memory:
    case EventKind::trim:
      return instant(shared(trouble_, "out of memory, trim"), event.time,
                     std::string(name_of(event.kind)),
                     {{"bytes", event.bytes.count + event.requested.count}});
    case EventKind::capture_begin:
    case EventKind::capture_end:
      return capture(event);
    default:
      return;
  }
}

void Perfetto::capture(const Event& event) {
  const auto open = open_captures_.find(event.pool);
  if (event.kind == EventKind::capture_end) {
    if (open == open_captures_.end()) return;
    track_event(open->second, event.time, kSliceEnd, {}, {});
    open_captures_.erase(open);
    return;
  }
  if (open != open_captures_.end()) return;
  if (!captures_) captures_ = track("captures", process_);
  const std::uint64_t track =
      open_captures_.empty() ? *captures_ : this->track("captures", process_);
  track_event(track, event.time, kSliceBegin, fmt::format("capture into pool {}", event.pool), {});
  open_captures_.emplace(event.pool, track);
}

// What the blocks of each stream and of each pool add up to. Below `live`: Perfetto orders the
// tracks of a process by name, whatever their ranks, and these would part `live` and `reserved`.
void Perfetto::used_bytes() {
  if (lifetimes_.streams.size() < 2 && lifetimes_.pools.empty()) return;
  struct Sum {
    std::uint64_t track;
    Bytes bytes;
  };
  std::map<std::uint64_t, Sum> streams, pools;
  for (const std::uint64_t stream : lifetimes_.streams) {
    streams[stream] = {track("live of " + stream_title(stream), live_, true), {}};
  }
  for (const std::uint64_t pool : lifetimes_.pools) {
    pools[pool] = {track(fmt::format("live of pool {}", pool), live_, true), {}};
  }
  for_each_step(recording_, lifetimes_, [&](std::uint32_t block, bool begins, std::size_t) {
    const BlockLifetime& lifetime = lifetimes_.blocks[block];
    const auto change = [&](Sum& sum) {
      begins ? sum.bytes += lifetime.bytes : sum.bytes -= lifetime.bytes;
      counter(sum.track, begins ? lifetime.begin : lifetime.end, sum.bytes);
    };
    change(streams.at(lifetime.stream));
    if (lifetime.pool != 0) change(pools.at(lifetime.pool));
  });
}

// A fence that somebody waited for holds from when it was taken until its block's memory was used
// again. Those of one stream overlap: each goes onto the first track that is free.
void Perfetto::fences() {
  struct Held {
    Nanoseconds begin, end;
    std::uint64_t stream;
    std::uint32_t block;
  };
  std::vector<Held> held;
  for (std::uint32_t i = 0; i < lifetimes_.blocks.size(); ++i) {
    const BlockLifetime& lifetime = lifetimes_.blocks[i];
    if (!lifetime.waited_for) continue;
    const Nanoseconds end = lifetimes_.blocks[lifetime.reused_by].begin;
    for (std::uint32_t f = 0; f < lifetime.fences; ++f) {
      const FenceTaken& fence = lifetimes_.fences[lifetime.first_fence + f];
      held.push_back({fence.time, end, fence.stream, i});
    }
    if (lifetime.fences == 0) held.push_back({lifetime.end, end, lifetime.stream, i});
  }
  std::stable_sort(held.begin(), held.end(),
                   [](const Held& a, const Held& b) { return a.begin < b.begin; });
  struct FenceTrack {
    std::uint64_t id;
    Nanoseconds free_from;
  };
  std::map<std::uint64_t, std::vector<FenceTrack>> tracks;  // by stream
  for (const Held& each : held) {
    std::vector<FenceTrack>& of_stream = tracks[each.stream];
    auto track = std::find_if(of_stream.begin(), of_stream.end(), [&each](const FenceTrack& one) {
      return one.free_from <= each.begin;
    });
    if (track == of_stream.end()) {
      if (of_stream.size() == kMostFenceTracks) continue;  // more than anybody can tell apart
      of_stream.push_back({this->track("fences waited for", stream_track(each.stream)), {}});
      track = std::prev(of_stream.end());
    }
    track->free_from = each.end;
    const BlockLifetime& lifetime = lifetimes_.blocks[each.block];
    slice(track->id, {each.begin,
                      each.end,
                      fmt::format("until stream {} waited",
                                  stream_text(lifetimes_.blocks[lifetime.reused_by].stream)),
                      {{"block", each.block},
                       {"bytes", lifetime.bytes.count},
                       {"reused_by", lifetime.reused_by}}});
  }
}

}  // namespace

void write_perfetto(const Recording& recording, const BlockLifetimes& lifetimes, OutputFile& file) {
  Perfetto(recording, lifetimes, file).run();
}

}  // namespace weir
