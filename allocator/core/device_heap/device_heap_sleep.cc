// SPDX-License-Identifier: Apache-2.0
// Which pools sleep, what is refused, and in which order (docs/decisions/028-sleep-and-wake.md).
#include <algorithm>
#include <chrono>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "core/base/format.h"
#include "core/device_heap/device_heap_impl.h"
#include "weir/graph_pool.h"

namespace weir {
namespace {

constexpr const char* kPlainHolder = "plain memory, whose address would go with it";

std::string list_of(const std::vector<HeldMemory>& held) {
  std::string text;
  for (const HeldMemory& one : held) {
    text +=
        (text.empty() ? "" : "; ") + format(one.bytes) + " of tag '" + one.tag + "': " + one.holder;
  }
  return text;
}

TagState state_of(const std::vector<TagInfo>& parts) {
  const auto all = [&](TagState state) {
    return std::all_of(parts.begin(), parts.end(),
                       [state](const TagInfo& part) { return part.state == state; });
  };
  if (all(TagState::awake)) return TagState::awake;
  return all(TagState::asleep) ? TagState::asleep : TagState::partly_asleep;
}

}  // namespace

std::vector<DeviceHeap::Impl::Unit> DeviceHeap::Impl::units() const {
  std::vector<Unit> units{{const_cast<PageHeap*>(&pages_), &device_pool_, nullptr, kDefaultTag}};
  for (const std::shared_ptr<CapturePool>& pool : pools()) {
    units.push_back({&pool->pages(), &pool->pool(), pool, pool->tag()});
  }
  return units;
}

Result<std::vector<DeviceHeap::Impl::Unit>> DeviceHeap::Impl::units_of(
    const std::vector<std::string>& tags, const char* call) const {
  std::vector<Unit> all = units();
  if (tags.empty()) return all;
  std::vector<Unit> found;
  std::set<std::string> named;
  for (const std::string& tag : tags) {
    if (!named.insert(tag).second) continue;  // in the order of the first mention
    bool any = false;
    for (const Unit& unit : all) {
      if (unit.tag != tag) continue;
      found.push_back(unit);
      any = true;
    }
    const std::lock_guard lock(tags_mutex_);
    if (!any && !tags_.contains(tag)) {
      std::string known;
      for (const auto& [name, each] : tags_) known += ", '" + name + "'";
      return Error(ErrorCode::invalid_argument, std::string(call) + ": there is no tag '" + tag +
                                                    "'; there are '" + kDefaultTag + "'" + known);
    }
  }
  return found;
}

bool DeviceHeap::Impl::is_asleep_locked(const std::string& tag) const {
  if (tag == kDefaultTag) return pages_.is_asleep();
  return std::any_of(pools_.begin(), pools_.end(), [&](const auto& each) {
    return each.second->pages().is_asleep() && each.second->tag() == tag;
  });
}

SleepContents DeviceHeap::Impl::contents_of(const std::string& tag) const {
  const std::lock_guard lock(tags_mutex_);
  const auto known = tags_.find(tag);
  return known == tags_.end() ? SleepContents::backup : known->second.contents;
}

// A block that was allocated since may hold other bytes at the place of an earlier one.
Sleeper::Version DeviceHeap::Impl::version_of(const Unit& unit) const {
  std::uint64_t allocated = 0;
  unit.pool->for_each_heap(
      [&](const StreamHeap& heap) { allocated += heap.statistics().live_blocks.total; });
  const std::lock_guard lock(tags_mutex_);
  const auto known = tags_.find(unit.tag);
  return {known == tags_.end() ? 0 : known->second.changed, allocated};
}

std::vector<HeldMemory> DeviceHeap::Impl::held_in(const Unit& unit, std::set<PageId>& pages) const {
  std::vector<HeldMemory> held;
  if (unit.pages->memory() == MemoryKind::plain) {
    const Bytes total = unit.pages->totals().total;
    if (total > 0_B) held.push_back({unit.tag, total, kPlainHolder});
    return held;
  }
  std::vector<Hold> holds;
  {
    const std::lock_guard lock(tags_mutex_);
    for (const auto& [id, hold] : holds_) holds.push_back(hold);
  }
  std::vector<PageInfo> infos;
  for (const Hold& hold : holds) {
    const StreamHeap* const heap = owner_of(Address::of(hold.block));
    if (heap == nullptr || heap->pool() != unit.pool->id()) continue;
    const std::optional<BlockInfo> block = heap->find(Address::of(hold.block));
    if (!block || block->address != Address::of(hold.block)) continue;  // it was freed
    if (infos.empty()) infos = unit.pages->pages();
    HeldMemory one{unit.tag, {}, hold.holder};
    for (const PageId page : PageSleep(*unit.pages).pages_under({block->address, block->bytes})) {
      pages.insert(page);
      for (const PageInfo& info : infos) one.bytes += info.page == page ? info.bytes : 0_B;
    }
    held.push_back(std::move(one));
  }
  return held;
}

Status DeviceHeap::Impl::no_capture_goes_on() {
  (void)bindings_.end_past();
  for (const Unit& unit : this->units()) {
    if (unit.graphs == nullptr || !unit.graphs->capturing()) continue;
    return Error(ErrorCode::capture, "a capture into graph pool " +
                                         std::to_string(unit.graphs->id()) +
                                         " goes on: end that first");
  }
  return captures_.none_goes_on();
}

std::vector<HeldMemory> DeviceHeap::Impl::held_by_others() {
  std::vector<HeldCallback> callbacks;
  {
    const std::lock_guard lock(callbacks_mutex_);
    callbacks = held_callbacks_;
  }
  std::vector<HeldMemory> held;
  for (const HeldCallback& callback : callbacks) {
    for (HeldMemory& one : callback()) {
      if (one.bytes > 0_B) held.push_back(std::move(one));
    }
  }
  return held;
}

// What is refused is refused before anything is touched.
Status DeviceHeap::Impl::may_sleep(std::vector<Unit>& units, const SleepOptions& options,
                                   std::vector<Sleeper::Job>& jobs, SleepReport& report) {
  if (Status none = no_capture_goes_on(); !none) return none;
  std::vector<HeldMemory> held;
  for (const Unit& unit : units) {
    Sleeper::Job job{.heap = unit.pages,
                     .contents = options.contents.value_or(contents_of(unit.tag)),
                     .kept_whole = options.graph_scratch,
                     .stay = {},
                     .version = {}};
    for (HeldMemory& one : held_in(unit, job.stay)) held.push_back(std::move(one));
    jobs.push_back(std::move(job));
  }
  for (HeldMemory& one : held_by_others()) {
    const bool concerned = std::any_of(units.begin(), units.end(),
                                       [&](const Unit& unit) { return unit.tag == one.tag; });
    if (concerned) held.push_back(std::move(one));
  }
  if (!held.empty() && !options.keep) {
    return Error(ErrorCode::invalid_argument,
                 "memory can't sleep: " + list_of(held) +
                     ". Have it released, or set SleepOptions::keep to leave it awake");
  }
  report.kept = std::move(held);
  const auto is_plain = [](const PageHeap& pages) { return pages.memory() == MemoryKind::plain; };
  std::erase_if(units, [&](const Unit& unit) { return is_plain(*unit.pages); });
  std::erase_if(jobs, [&](const Sleeper::Job& job) { return is_plain(*job.heap); });
  return {};
}

// Requests that were on the way have been served once this returns.
void DeviceHeap::Impl::set_asleep(const Unit& unit, bool asleep) {
  PageSleep(*unit.pages).set_asleep(asleep);
  unit.pool->for_each_heap([](StreamHeap& heap) { heap.note_asleep(); });
}

// A pool that was gone, and was opened again for another tag since the units were listed, is left
// out; one that is asleep is not opened again.
void DeviceHeap::Impl::fall_asleep(std::vector<Unit>& units, std::vector<Sleeper::Job>& jobs) {
  {
    const std::shared_lock lock(pools_mutex_);
    for (std::size_t i = units.size(); i-- > 0;) {
      if (units[i].graphs == nullptr || units[i].graphs->tag() == units[i].tag) continue;
      units.erase(units.begin() + static_cast<std::ptrdiff_t>(i));
      jobs.erase(jobs.begin() + static_cast<std::ptrdiff_t>(i));
    }
    for (const Unit& unit : units) PageSleep(*unit.pages).set_asleep(true);
  }
  for (const Unit& unit : units) set_asleep(unit, true);
}

// What a sleep or a wake works on is nobody else's meanwhile.
DeviceHeap::Impl::Claim::Claim(Impl& heap, const std::vector<Unit>& units) : heap_(heap) {
  std::unique_lock lock(heap_.claims_mutex_);
  for (const Unit& unit : units) pages_.insert(unit.pages);
  heap_.claims_ended_.wait(lock, [&] {
    return std::none_of(pages_.begin(), pages_.end(),
                        [&](const PageHeap* pages) { return heap_.claimed_.contains(pages); });
  });
  heap_.claimed_.insert(pages_.begin(), pages_.end());
}

DeviceHeap::Impl::Claim::~Claim() {
  const std::lock_guard lock(heap_.claims_mutex_);
  for (const PageHeap* const pages : pages_) heap_.claimed_.erase(pages);
  heap_.claims_ended_.notify_all();
}

Result<SleepReport> DeviceHeap::Impl::sleep(const SleepOptions& options) {
  const std::lock_guard lock(sleep_mutex_);
  const Nanoseconds begun = device_.now();
  Result<std::vector<Unit>> units = units_of(options.tags, "sleep");
  if (!units) return std::move(units).error();
  const Claim claim(*this, *units);
  SleepReport report;
  std::vector<Sleeper::Job> jobs;
  if (Status may = may_sleep(*units, options, jobs, report); !may) {
    return Error(may.error().code(), "sleep: " + may.error().message());
  }
  if (options.contents) {
    for (const Unit& unit : *units) (void)set_contents(unit.tag, *options.contents);
  }
  free_deferred();
  fall_asleep(*units, jobs);
  for (std::size_t i = 0; i < jobs.size(); ++i) jobs[i].version = version_of((*units)[i]);
  sleep_goes_on_.store(true);
  Status status = sleep_units(*units, jobs, options.backup_folder, report);
  sleeps_ended_.fetch_add(1);
  sleep_goes_on_.store(false);
  note_held(report);
  report.time = device_.now() - begun;
  if (status) return report;
  for (const Unit& unit : *units) {
    if (!sleeper_.has_away(*unit.pages) && PageSleep(*unit.pages).has_all_memory())
      set_asleep(unit, false);
  }
  return Error(status.error().code(), "sleep: " + status.error().message());
}

Status DeviceHeap::Impl::sleep_units(const std::vector<Unit>& units,
                                     const std::vector<Sleeper::Job>& jobs,
                                     const std::string& folder, SleepReport& report) {
  // One that began meanwhile; another can't any more.
  if (Status none = no_capture_goes_on(); !none) return none;
  const auto give_idle = [&]() -> Status {
    for (const Unit& unit : units) {
      Result<Bytes> gone = PageSleep(*unit.pages).give_idle();
      if (!gone) return std::move(gone).error();
      report.given_back += *gone;
    }
    return {};
  };
  Status done = device_.synchronize_context();
  if (!done) {
    // It may need a little memory of the device, which may have none left.
    (void)give_idle();
    done = device_.synchronize_context();
  }
  if (!done) return done;
  (void)call_in_pools();
  if (Status gone = give_idle(); !gone) return gone;
  return sleeper_.sleep(jobs, folder, report);
}

void DeviceHeap::Impl::note_held(SleepReport& report) const {
  report.host = sleeper_.host();
  report.file = sleeper_.files().held();
  report.through_cache = sleeper_.files().through_cache();
}

Result<SleepReport> DeviceHeap::Impl::wake(const WakeOptions& options) {
  const std::lock_guard lock(wake_mutex_);
  const Nanoseconds begun = device_.now();
  Result<std::vector<Unit>> units = units_of(options.tags, "wake");
  if (!units) return std::move(units).error();
  SleepReport report;
  std::uint64_t sleeps = sleeps_ended_.load();
  const auto make_room = [&](Bytes wanted) { return make_room_to_wake(wanted, sleeps); };
  for (const Unit& unit : *units) {
    const Claim claim(*this, {unit});
    if (!unit.pages->is_asleep()) continue;
    if (Status woken = sleeper_.wake(*unit.pages, make_room, report); !woken) {
      if (woken.error().code() == ErrorCode::out_of_memory) {
        return no_room_to_wake(woken.error(), unit);
      }
      return Error(woken.error().code(), "wake: " + woken.error().message());
    }
    set_asleep(unit, false);
  }
  Status shrunk = sleeper_.shrink(options.keep_host);
  note_held(report);
  report.time = device_.now() - begun;
  if (!shrunk) return Error(shrunk.error().code(), "wake: " + shrunk.error().message());
  return report;
}

// What falls asleep meanwhile gives its memory, page by page. Else idle memory of what is awake.
// `sleeps`: how many had ended when that was looked at last.
bool DeviceHeap::Impl::make_room_to_wake(Bytes wanted, std::uint64_t& sleeps) {
  constexpr std::chrono::microseconds kUntilAPageGoes{200};
  if (sleep_goes_on_.load()) {
    std::this_thread::sleep_for(kUntilAPageGoes);
    return true;
  }
  const std::uint64_t ended = sleeps_ended_.load();
  if (ended != sleeps) {
    sleeps = ended;
    return true;
  }
  (void)wait_for_idle_pages();  // what was idle before goes in any case
  Bytes gone;
  for (const Unit& unit : units()) {
    if (gone >= wanted) break;
    if (const Result<Bytes> more = unit.pages->give_to_device(wanted - gone)) gone += *more;
  }
  return gone > 0_B;
}

Error DeviceHeap::Impl::no_room_to_wake(const Error& error, const Unit& unit) {
  std::string text = "wake: no room for tag '" + unit.tag + "', which still lacks " +
                     format(PageSleep(*unit.pages).absent_bytes()) + " (" + error.message() + ")";
  Bytes weir;
  std::string tags;
  for (const Unit& each : units()) {
    const Bytes total = each.pages->totals().total;
    weir += total;
    if (total == 0_B) continue;
    tags += "; Weir holds " + format(total) + " of tag '" + each.tag + "'";
    if (each.graphs != nullptr) tags += " in graph pool " + std::to_string(each.graphs->id());
  }
  if (const Result<MemoryInfo> info = device_.memory_info()) {
    const Bytes used = info->total - info->free;
    text += "; the device has " + format(info->free) + " free of " + format(info->total) + tags +
            "; others (libraries, contexts, other processes) hold " +
            format(used - std::min(used, weir));
  } else {
    text += tags;
  }
  if (budget_.limit() > 0_B) text += "; the limit is " + format(budget_.limit());
  return {ErrorCode::out_of_memory, text + ". Free memory, and wake the tag again."};
}

TagInfo DeviceHeap::Impl::info_of(const Unit& unit) const {
  TagInfo info{.tag = unit.tag, .contents = contents_of(unit.tag)};
  info.device = unit.pages->totals().total;
  info.asleep = PageSleep(*unit.pages).absent_bytes();
  info.host = sleeper_.host_bytes(*unit.pages);
  info.file = sleeper_.file_bytes(*unit.pages);
  if (unit.pages->is_asleep()) {
    const bool whole = sleeper_.sleeps_wholly(*unit.pages);
    info.state = whole ? TagState::asleep : TagState::partly_asleep;
  }
  return info;
}

std::vector<TagInfo> DeviceHeap::Impl::tags() {
  const std::scoped_lock lock(sleep_mutex_, wake_mutex_);
  std::map<std::string, std::vector<TagInfo>> parts;
  for (const Unit& unit : units()) {
    const bool is_empty = unit.graphs != nullptr && unit.pages->totals().total == 0_B &&
                          PageSleep(*unit.pages).absent_bytes() == 0_B && !unit.pages->is_asleep();
    std::vector<TagInfo>& of_tag = parts[unit.tag];
    // What holds nothing is in no state.
    if (!is_empty) of_tag.push_back(info_of(unit));
  }
  {
    const std::lock_guard names(tags_mutex_);
    for (const auto& [name, tag] : tags_) (void)parts[name];
  }
  std::vector<TagInfo> all;
  for (const auto& [tag, of_tag] : parts) {
    TagInfo info{.tag = tag, .state = state_of(of_tag), .contents = contents_of(tag)};
    for (const TagInfo& part : of_tag) {
      info.device += part.device;
      info.asleep += part.asleep;
      info.host += part.host;
      info.file += part.file;
    }
    all.push_back(std::move(info));
  }
  return all;
}

Status DeviceHeap::Impl::set_contents(const std::string& tag, SleepContents contents) {
  if (tag.empty()) return Error(ErrorCode::invalid_argument, "set_contents: the tag has no name");
  const std::lock_guard lock(tags_mutex_);
  tags_[tag].contents = contents;
  return {};
}

Status DeviceHeap::Impl::declare_changed(const std::string& tag) {
  if (tag.empty()) {
    return Error(ErrorCode::invalid_argument, "declare_changed: the tag has no name");
  }
  const std::lock_guard lock(tags_mutex_);
  ++tags_[tag].changed;
  return {};
}

Result<GraphPool*> DeviceHeap::Impl::tag_pool(DeviceHeap& heap, const std::string& tag) {
  if (tag.empty() || tag == kDefaultTag) {
    return Error(ErrorCode::invalid_argument,
                 "tag_pool: '" + tag + "' has no pool of its own: name another tag");
  }
  {
    const std::lock_guard lock(tags_mutex_);
    if (GraphPool* const pool = tags_[tag].pool.get()) return pool;
  }
  auto opened = std::make_unique<GraphPool>(heap, GraphPoolOptions{.tag = tag});
  const std::lock_guard lock(tags_mutex_);
  std::unique_ptr<GraphPool>& pool = tags_[tag].pool;
  // (Another thread may have been first. Nobody asked for memory of the other pool.)
  if (pool == nullptr) pool = std::move(opened);
  return pool.get();
}

Result<std::uint64_t> DeviceHeap::Impl::hold(const void* block, std::string holder) {
  Result<StreamHeap*> heap = owner_of_block(block, "hold");
  if (!heap) return std::move(heap).error();
  const std::lock_guard lock(tags_mutex_);
  holds_[++last_hold_] = {block, std::move(holder)};
  return last_hold_;
}

void DeviceHeap::Impl::release_hold(std::uint64_t hold) {
  const std::lock_guard lock(tags_mutex_);
  holds_.erase(hold);
}

// With both locks held; `call` is for errors.
Result<DeviceHeap::Impl::Copied> DeviceHeap::Impl::copied(Range range, const char* call) {
  const StreamHeap* const heap = owner_of(range.begin);
  const std::optional<BlockInfo> block = heap == nullptr ? std::nullopt : heap->find(range.begin);
  if (!block || range.end() > block->address + block->bytes) {
    return unknown(range.begin.pointer(), call);
  }
  const std::shared_ptr<CapturePool> pool = heap->capture_pool();
  PageHeap& pages = pool == nullptr ? pages_ : pool->pages();
  Copied copied{&pages, PageSleep(pages).home_of(range), {}};
  copied.parts = sleeper_.copies_of(pages, copied.home);
  if (copied.parts.empty()) {
    return Error(ErrorCode::invalid_argument,
                 std::string(call) + ": " + format(range.begin) +
                     " has no copy on the host: its tag is awake, or sleeps without its bytes");
  }
  return copied;
}

Result<std::vector<HostPart>> DeviceHeap::Impl::host_copy(Range range) {
  const std::scoped_lock lock(sleep_mutex_, wake_mutex_);
  Result<Copied> found = copied(range, "host_copy");
  if (!found) return std::move(found).error();
  return std::move(found->parts);
}

Status DeviceHeap::Impl::read_asleep(Range range, void* to) {
  const std::scoped_lock lock(sleep_mutex_, wake_mutex_);
  const Result<Copied> found = copied(range, "read_asleep");
  if (!found) return found.error();
  return sleeper_.read_copies(*found->pages, found->home, to);
}

void DeviceHeap::Impl::on_sleep(HeldCallback callback) {
  const std::lock_guard lock(callbacks_mutex_);
  held_callbacks_.push_back(std::move(callback));
}

Residue DeviceHeap::Impl::residue() {
  const std::scoped_lock lock(sleep_mutex_, wake_mutex_);
  Residue residue;
  residue.host = sleeper_.host();
  for (const Unit& unit : units()) {
    residue.weir += unit.pages->totals().total;
    std::set<PageId> pages;
    for (HeldMemory& one : held_in(unit, pages)) residue.held.push_back(std::move(one));
  }
  for (HeldMemory& one : held_by_others()) {
    residue.weir += one.bytes;
    residue.held.push_back(std::move(one));
  }
  if (const Result<MemoryInfo> info = device_.memory_info()) {
    residue.device = info->total;
    residue.free = info->free;
    const Bytes used = info->total - info->free;
    residue.others = used - std::min(used, residue.weir);
  }
  return residue;
}

}  // namespace weir
