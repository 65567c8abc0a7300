// SPDX-License-Identifier: Apache-2.0
// Source of the format: "Trace Event Format", the JSON that chrome://tracing and Perfetto open.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "look/exporters.h"
#include "look/streams.h"
#include "replay/units.h"

namespace weir {
namespace {

class Perfetto {
 public:
  Perfetto(const Recording& recording, const BlockLifetimes& lifetimes, OutputFile& file)
      : recording_(recording), lifetimes_(lifetimes), file_(file), json_(file.text()) {}

  void run() {
    json_.begin_dict();
    json_.key("traceEvents");
    json_.begin_list();
    process();
    memory();
    lent();
    marks();
    events();
    used_bytes();
    fences();
    json_.end_list();
    json_.end_dict();
    json_.finish();
  }

 private:
  using Arguments = std::vector<std::pair<std::string_view, std::uint64_t>>;

  void process() {
    std::string name = recording_.program.empty() ? recording_.source : recording_.program;
    if (!recording_.device.empty()) name += " on " + recording_.device;
    describe("process_name", 1, name);
  }

  // Only what changes: many changes of the one leave the other as it is.
  void memory() {
    std::optional<MemoryPoint> last;
    memory_over_time(recording_, [&](const MemoryPoint& point) {
      if (!last || last->live != point.live) counter("live", point.time, point.live);
      if (!last || last->reserved != point.reserved)
        counter("reserved", point.time, point.reserved);
      last = point;
    });
  }

  // Scratch that graph pools lend.
  void lent() {
    std::map<std::uint32_t, Bytes> pages;
    Bytes lent;
    for (const Event& event : recording_.events) {
      if (event.kind == EventKind::create && event.pool != 0) {
        lent += pages[event.page.value] = event.bytes;
      } else if (event.kind == EventKind::release || event.kind == EventKind::keep) {
        const auto gone = pages.extract(event.page.value);
        if (!gone) continue;
        lent -= gone.mapped();
      } else {
        continue;
      }
      counter("lent", event.time, lent);
    }
  }

  void marks() {
    const std::vector<RecordedMark>& marks = recording_.marks;
    for (std::size_t i = 0; i < marks.size(); ++i) {
      const Nanoseconds end = i + 1 == marks.size() ? recording_.end() : marks[i + 1].time;
      slice("marks", marks[i].time, end, marks[i].text);
    }
  }

  void events() {
    for (const std::uint64_t stream : lifetimes_.streams) track(stream_title(stream));
    std::set<std::uint64_t> captures;  // by pool; open ones
    const auto capture = [&](std::uint64_t pool, Nanoseconds time, bool begins) {
      if (begins ? !captures.insert(pool).second : captures.erase(pool) == 0) return;
      // They may overlap, unlike the slices of a thread.
      add(begins ? "b" : "e", fmt::format("capture into pool {}", pool), time, [&] {
        json_.member("cat", "capture");
        json_.key("id2");
        json_.begin_dict();
        json_.member("local", std::to_string(pool));
        json_.end_dict();
        json_.member("tid", 1);
      });
    };
    for (auto each = recording_.events.from(recording_.initial); each != recording_.events.end();
         ++each) {
      event(*each);
      if (each->kind == EventKind::capture_begin) capture(each->pool, each->time, true);
      if (each->kind == EventKind::capture_end) capture(each->pool, each->time, false);
    }
    while (!captures.empty()) capture(*captures.begin(), recording_.end(), false);
  }

  void event(const Event& event) {
    switch (event.kind) {
      case EventKind::stream_wait:
        return instant(stream_title(event.stream), event.time,
                       "waits for " + stream_title(event.other),
                       {{"sequence", event.sequence.value}});
      case EventKind::host_wait:
        return slice("host waits", event.time - event.duration, event.time,
                     "host waits for " + stream_title(event.other),
                     {{"sequence", event.sequence.value}});
      case EventKind::create:
      case EventKind::release:
      case EventKind::map:
      case EventKind::unmap:
      case EventKind::lease:
      case EventKind::unlease:
      case EventKind::keep:
        return instant("pages", event.time, std::string(name_of(event.kind)),
                       {{"page", event.page.value},
                        {"bytes", event.bytes.count},
                        {"heap", event.heap.value},
                        {"address", event.address.value}});
      case EventKind::out_of_memory:
      case EventKind::trim:
        return instant("out of memory, trim", event.time, std::string(name_of(event.kind)),
                       {{"bytes", event.bytes.count + event.requested.count}});
      default:
        return;
    }
  }

  // What the blocks of each stream and of each pool add up to.
  void used_bytes() {
    if (lifetimes_.streams.size() < 2 && lifetimes_.pools.empty()) return;
    std::map<std::string, Bytes> sums;
    for_each_step(lifetimes_, [&](std::uint32_t block, bool begins, std::size_t) {
      const BlockLifetime& lifetime = lifetimes_.blocks[block];
      const auto change = [&](const std::string& name) {
        Bytes& sum = sums[name];
        begins ? sum += lifetime.bytes : sum -= lifetime.bytes;
        counter(name, begins ? lifetime.begin : lifetime.end, sum);
      };
      change("live of " + stream_title(lifetime.stream));
      if (lifetime.pool != 0) change(fmt::format("live of pool {}", lifetime.pool));
    });
  }

  // A fence that somebody waited for holds from when it was taken until its block's memory was used
  // again. Those of a stream that overlap are one slice: a lane each would fill screens.
  void fences() {
    struct Held {
      Nanoseconds begin, end;
      std::uint64_t bytes = 0, fences = 1;
    };
    std::map<std::uint64_t, std::vector<Held>> by_stream;
    for (const BlockLifetime& lifetime : lifetimes_.blocks) {
      if (!lifetime.waited_for) continue;
      const Nanoseconds end = lifetimes_.blocks[lifetime.reused_by].begin;
      for (std::uint32_t f = 0; f < lifetime.fences; ++f) {
        const FenceTaken& fence = lifetimes_.fences[lifetime.first_fence + f];
        by_stream[fence.stream].push_back({fence.time, end, lifetime.bytes.count});
      }
      if (lifetime.fences > 0) continue;
      by_stream[lifetime.stream].push_back({lifetime.end, end, lifetime.bytes.count});
    }
    for (auto& [stream, held] : by_stream) {
      std::ranges::stable_sort(held, {}, &Held::begin);
      for (auto each = held.begin(); each != held.end();) {
        Held all = *each++;
        for (; each != held.end() && each->begin < all.end; ++each) {
          all.end = std::max(all.end, each->end);
          all.bytes += each->bytes;
          ++all.fences;
        }
        slice("fences of " + stream_title(stream) + " waited for", all.begin, all.end,
              counted(all.fences, "fence"), {{"fences", all.fences}, {"bytes", all.bytes}});
      }
    }
  }

  // The track of that name, which is made with the first event on it. Perfetto calls it a thread.
  std::uint64_t track(const std::string& name) {
    const auto found = tracks_.try_emplace(name, tracks_.size() + 2);
    const std::uint64_t id = found.first->second;
    if (!found.second) return id;
    describe("thread_name", id, name);
    add("M", "thread_sort_index", {}, [&] {
      json_.member("tid", id);
      arguments({{"sort_index", id}});
    });
    return id;
  }

  void counter(const std::string& name, Nanoseconds time, Bytes value) {
    add("C", name, time, [&] { arguments({{"bytes", value.count}}); });
  }

  // Perfetto stacks instants of the same time, each in a line of its own: on the simulated device,
  // where calls take no time, hundreds of lines. So each is at least 1 ns after the one before.
  void instant(const std::string& track, Nanoseconds time, const std::string& name,
               const Arguments& arguments) {
    const std::uint64_t on = this->track(track);
    Nanoseconds& free_from = free_from_[on];
    time = std::max(time, free_from);
    free_from = time + 1_ns;
    add("i", name, time, [&] {
      json_.member("tid", on);
      json_.member("s", "t");  // of one track, rather than across all
      this->arguments(arguments);
    });
  }

  void slice(const std::string& track, Nanoseconds begin, Nanoseconds end, const std::string& name,
             const Arguments& arguments = {}) {
    const std::uint64_t on = this->track(track);
    add("X", name, begin, [&] {
      json_.member("tid", on);
      microseconds("dur", end - begin);
      this->arguments(arguments);
    });
  }

  // An event, to which `more` adds its members.
  template <class More>
  void add(std::string_view phase, std::string_view name, Nanoseconds time, const More& more) {
    json_.begin_dict();
    json_.member("ph", phase);
    json_.member("name", name);
    json_.member("pid", 1);
    microseconds("ts", time);
    more();
    json_.end_dict();
    file_.relieve();
  }

  void microseconds(std::string_view key, Nanoseconds time) {
    json_.key(key);
    json_.real(static_cast<double>(std::max<std::int64_t>(time.count, 0)) / 1000);
  }
  void arguments(const Arguments& arguments) {
    json_.key("args");
    json_.begin_dict();
    for (const auto& [name, value] : arguments) json_.member(name, value);
    json_.end_dict();
  }

  // What a process or a thread is called, and where a thread stands.
  void describe(std::string_view what, std::uint64_t track, std::string_view name) {
    add("M", what, {}, [&] {
      json_.member("tid", track);
      json_.key("args");
      json_.begin_dict();
      json_.member("name", name);
      json_.end_dict();
    });
  }

  const Recording& recording_;
  const BlockLifetimes& lifetimes_;
  OutputFile& file_;
  JsonWriter json_;
  std::map<std::string, std::uint64_t> tracks_;
  std::map<std::uint64_t, Nanoseconds> free_from_;  // of a track with instants: the next one's time
};

}  // namespace

void write_perfetto(const Recording& recording, const BlockLifetimes& lifetimes, OutputFile& file) {
  Perfetto(recording, lifetimes, file).run();
}

}  // namespace weir
