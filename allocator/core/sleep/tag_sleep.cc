// SPDX-License-Identifier: Apache-2.0
#include "core/sleep/tag_sleep.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/format.h"

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

Result<TagSleep::ToSleep> TagSleep::pools_of(const std::vector<std::string>& tags,
                                             const char* call) const {
  ToSleep all = pools_.all();
  if (tags.empty()) return all;
  ToSleep found;
  std::set<std::string> named;
  for (const std::string& tag : tags) {
    if (!named.insert(tag).second) continue;  // in the order of the first mention
    const std::size_t before = found.size();
    std::copy_if(all.begin(), all.end(), std::back_inserter(found),
                 [&](const auto& pool) { return pool->tag() == tag; });
    const std::lock_guard lock(tags_mutex_);
    if (found.size() == before && !tags_.contains(tag)) {
      std::string known;
      for (const auto& [name, each] : tags_) known += ", '" + name + "'";
      return Error(ErrorCode::invalid_argument, std::string(call) + ": there is no tag '" + tag +
                                                    "'; there are '" + kDefaultTag + "'" + known);
    }
  }
  return found;
}

TagSleep::Tag TagSleep::tag_of(const std::string& name) const {
  const std::lock_guard lock(tags_mutex_);
  const auto known = tags_.find(name);
  return known == tags_.end() ? Tag{} : known->second;
}

// A block that was allocated since may hold other bytes at the place of an earlier one.
Sleeper::Version TagSleep::version_of(const Pool& pool) const {
  std::uint64_t allocated = 0;
  pool.for_each_heap(
      [&](const StreamHeap& heap) { allocated += heap.statistics().live_blocks.total; });
  return {tag_of(pool.tag()).changed, allocated};
}

std::vector<HeldMemory> TagSleep::held_in(const Pool& pool, std::set<PageId>& pages) const {
  std::vector<HeldMemory> held;
  if (pool.memory() == MemoryKind::plain) {
    const Bytes total = pool.pages().listing()->totals().total;
    if (total > 0_B) held.push_back({pool.tag(), total, kPlainHolder});
    return held;
  }
  std::vector<Hold> holds;
  {
    const std::lock_guard lock(tags_mutex_);
    for (const auto& [id, hold] : holds_) holds.push_back(hold);
  }
  std::vector<PageInfo> infos;
  for (const Hold& hold : holds) {
    const std::optional<BlockInfo> block = pools_.find(Address::of(hold.block));
    if (!block || pools_.pool_of(*block).get() != &pool) continue;
    if (block->address != Address::of(hold.block)) continue;  // it was freed
    if (infos.empty()) infos = pool.pages().listing()->pages();
    HeldMemory one{pool.tag(), {}, hold.holder};
    const Range range{block->address, block->bytes};
    for (const PageId page : pool.pages().listing()->pages_under(range)) {
      pages.insert(page);
      for (const PageInfo& info : infos) one.bytes += info.page == page ? info.bytes : 0_B;
    }
    held.push_back(std::move(one));
  }
  return held;
}

Status TagSleep::no_capture_goes_on() {
  (void)pools_.bindings().end_past();
  for (const std::shared_ptr<CapturePool>& pool : pools_.graph_pools()) {
    if (pool->capture() == 0) continue;
    return Error(ErrorCode::capture, "a capture into graph pool " + std::to_string(pool->id()) +
                                         " goes on: end that first");
  }
  return pools_.shared().captures.none_goes_on();
}

std::vector<HeldMemory> TagSleep::held_by_others() {
  std::vector<HeldMemory> held;
  for (const HeldCallback& callback : others_.all()) {
    for (HeldMemory& one : callback()) {
      if (one.bytes > 0_B) held.push_back(std::move(one));
    }
  }
  return held;
}

Status TagSleep::may_sleep(ToSleep& pools, const SleepOptions& options,
                           std::vector<Sleeper::Job>& jobs, SleepReport& report) {
  if (Status none = no_capture_goes_on(); !none) return none;
  std::vector<HeldMemory> held;
  for (const std::shared_ptr<Pool>& pool : pools) {
    Sleeper::Job job{.pool = pool,
                     .contents = options.contents.value_or(tag_of(pool->tag()).contents),
                     .kept_whole = options.graph_scratch,
                     .stay = {},
                     .version = {}};
    for (HeldMemory& one : held_in(*pool, job.stay)) held.push_back(std::move(one));
    jobs.push_back(std::move(job));
  }
  for (HeldMemory& one : held_by_others()) {
    const bool concerned = std::any_of(pools.begin(), pools.end(),
                                       [&](const auto& pool) { return pool->tag() == one.tag; });
    if (concerned) held.push_back(std::move(one));
  }
  if (!held.empty() && !options.keep) {
    return Error(ErrorCode::invalid_argument,
                 "memory can't sleep: " + list_of(held) +
                     ". Have it released, or set SleepOptions::keep to leave it awake");
  }
  report.kept = std::move(held);
  const auto is_plain = [](const auto& each) { return each.memory() == MemoryKind::plain; };
  std::erase_if(pools, [&](const auto& pool) { return is_plain(*pool); });
  std::erase_if(jobs, [&](const Sleeper::Job& job) { return is_plain(*job.pool); });
  return {};
}

// Requests that were on the way have been served once this returns.
void TagSleep::set_asleep(Pool& pool, bool asleep) {
  pool.pages().sleep()->set_asleep(asleep);
  pool.for_each_heap([](StreamHeap& heap) { heap.give_back_cached(); });
}

Result<SleepReport> TagSleep::sleep(const SleepOptions& options) {
  const std::lock_guard lock(sleep_mutex_);
  const Nanoseconds begun = device_.now();
  Result<ToSleep> found = pools_of(options.tags, "sleep");
  if (!found) return std::move(found).error();
  ToSleep& pools = *found;
  std::vector<std::unique_lock<std::mutex>> claims;
  for (const auto& pool : pools) claims.push_back(sleeper_.claim(pool));
  SleepReport report;
  std::vector<Sleeper::Job> jobs;
  if (Status may = may_sleep(pools, options, jobs, report); !may) {
    return Error(may.error().code(), "sleep: " + may.error().message());
  }
  if (options.contents) {
    for (const auto& pool : pools) (void)set_contents(pool->tag(), *options.contents);
  }
  pools_.free_due();
  {
    const auto none_opened = pools_.hold();  // a pool that is opened later sleeps from the start
    for (const auto& pool : pools) pool->pages().sleep()->set_asleep(true);
  }
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    set_asleep(*pools[i], true);
    jobs[i].version = version_of(*pools[i]);
  }
  sleeps_.fetch_add(1);
  Status status;
  for (const std::shared_ptr<CapturePool>& pool : pools_.graph_pools()) {
    if (status) status = pool->scratch().part_with_lent();
  }
  if (status) status = sleep_pools(pools, jobs, report);
  sleeps_.fetch_add(1);
  report.host = sleeper_.host();
  report.time = device_.now() - begun;
  if (status) return report;
  for (const auto& pool : pools) {
    if (!sleeper_.has_away(pool)) set_asleep(*pool, false);
  }
  return Error(status.error().code(), "sleep: " + status.error().message());
}

Status TagSleep::sleep_pools(const ToSleep& pools, const std::vector<Sleeper::Job>& jobs,
                             SleepReport& report) {
  // One that began meanwhile; another can't any more.
  if (Status none = no_capture_goes_on(); !none) return none;
  const auto give_idle = [&]() -> Status {
    for (const auto& pool : pools) {
      Result<Bytes> gone = pool->pages().sleep()->give_idle();
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
  (void)exchange_.call_in();
  if (Status gone = give_idle(); !gone) return gone;
  return sleeper_.sleep(jobs, report);
}

Result<SleepReport> TagSleep::wake(const WakeOptions& options) {
  const std::lock_guard lock(wake_mutex_);
  const Nanoseconds begun = device_.now();
  const Result<ToSleep> pools = pools_of(options.tags, "wake");
  if (!pools) return pools.error();
  SleepReport report;
  std::uint64_t sleeps = sleeps_.load();
  const auto make_room = [&](Bytes wanted) { return make_room_to_wake(wanted, sleeps); };
  for (const auto& pool : *pools) {
    const auto claim = sleeper_.claim(pool);
    if (!pool->pages().is_asleep()) continue;
    if (Status woken = sleeper_.wake(pool, make_room, report); !woken) {
      if (woken.error().code() == ErrorCode::out_of_memory) {
        return no_room_to_wake(woken.error(), *pool);
      }
      return Error(woken.error().code(), "wake: " + woken.error().message());
    }
    set_asleep(*pool, false);
  }
  Status shrunk = sleeper_.shrink(options.keep_host);
  report.host = sleeper_.host();
  report.time = device_.now() - begun;
  if (!shrunk) return Error(shrunk.error().code(), "wake: " + shrunk.error().message());
  return report;
}

// What falls asleep meanwhile gives its memory, page by page. Else idle memory of what is awake.
// `sleeps`: sleeps_ when that was looked at last.
bool TagSleep::make_room_to_wake(Bytes wanted, std::uint64_t& sleeps) {
  constexpr std::chrono::microseconds kUntilAPageGoes{200};
  const std::uint64_t before = std::exchange(sleeps, sleeps_.load());
  if (sleeps % 2 != 0) std::this_thread::sleep_for(kUntilAPageGoes);
  if (sleeps % 2 != 0 || sleeps != before) return true;
  (void)exchange_.wait_for_idle_pages();  // what was idle before goes in any case
  Bytes gone;
  for (const auto& pool : pools_.all()) {
    if (gone >= wanted) break;
    if (const Result<Bytes> more = pool->pages().idle()->give_to_driver(wanted - gone))
      gone += *more;
  }
  return gone > 0_B;
}

Error TagSleep::no_room_to_wake(const Error& error, Pool& pool) const {
  const Bytes lacks = pool.pages().sleep()->absent_bytes();
  std::string text = "wake: no room for tag '" + pool.tag() + "', which still lacks " +
                     (lacks > 0_B ? format(lacks) : "mappings of memory that it has") + " (" +
                     error.message() + ")";
  Bytes weir;
  std::string tags;
  for (const auto& each : pools_.all()) {
    const Bytes total = each->pages().listing()->totals().total;
    weir += total;
    if (total == 0_B) continue;
    tags += "; Weir holds " + format(total) + " of tag '" + each->tag() + "'";
    if (each->id() != 0) tags += " in graph pool " + std::to_string(each->id());
  }
  if (const Result<MemoryInfo> info = device_.memory_info()) {
    const Bytes used = info->total - info->free;
    text += "; the device has " + format(info->free) + " free of " + format(info->total) + tags +
            "; others (libraries, contexts, other processes) hold " +
            format(used - std::min(used, weir));
  } else {
    text += tags;
  }
  const Bytes limit = pools_.shared().budget.limit();
  if (limit > 0_B) text += "; the limit is " + format(limit);
  return {ErrorCode::out_of_memory, text + ". Free memory, and wake the tag again."};
}

TagInfo TagSleep::info_of(const std::shared_ptr<Pool>& pool) const {
  const PageHeap& pages = pool->pages();
  TagInfo info{.tag = pool->tag(), .contents = tag_of(pool->tag()).contents};
  info.device = pages.listing()->totals().total;
  info.asleep = pool->pages().sleep()->absent_bytes();
  info.host = sleeper_.copied_bytes(pool);
  if (pages.is_asleep()) {
    info.state = sleeper_.sleeps_wholly(pool) ? TagState::asleep : TagState::partly_asleep;
  }
  return info;
}

std::vector<TagInfo> TagSleep::list() {
  const std::scoped_lock lock(sleep_mutex_, wake_mutex_);
  std::map<std::string, std::vector<TagInfo>> parts;
  for (const auto& pool : pools_.all()) {
    std::vector<TagInfo>& of_tag = parts[pool->tag()];
    TagInfo info = info_of(pool);
    const bool is_empty =
        pool->id() != 0 && info.device == 0_B && info.asleep == 0_B && !pool->pages().is_asleep();
    // What holds nothing is in no state.
    if (!is_empty) of_tag.push_back(std::move(info));
  }
  std::unique_lock names(tags_mutex_);
  for (const auto& [name, tag] : tags_) (void)parts[name];
  names.unlock();
  std::vector<TagInfo> all;
  for (const auto& [tag, of_tag] : parts) {
    TagInfo info{.tag = tag, .state = state_of(of_tag), .contents = tag_of(tag).contents};
    for (const TagInfo& part : of_tag) {
      info.device += part.device;
      info.asleep += part.asleep;
      info.host += part.host;
    }
    all.push_back(std::move(info));
  }
  return all;
}

Status TagSleep::set_contents(const std::string& tag, SleepContents contents) {
  if (tag.empty()) return Error(ErrorCode::invalid_argument, "set_contents: the tag has no name");
  const std::lock_guard lock(tags_mutex_);
  tags_[tag].contents = contents;
  return {};
}

Status TagSleep::declare_changed(const std::string& tag) {
  if (tag.empty()) {
    return Error(ErrorCode::invalid_argument, "declare_changed: the tag has no name");
  }
  const std::lock_guard lock(tags_mutex_);
  ++tags_[tag].changed;
  return {};
}

Result<GraphPool*> TagSleep::pool(const std::string& tag) {
  if (tag.empty() || tag == kDefaultTag) {
    return Error(ErrorCode::invalid_argument,
                 "the tag '" + tag + "' has no pool of its own: name another tag");
  }
  {
    const std::lock_guard lock(tags_mutex_);
    (void)tags_[tag];
  }
  const std::lock_guard lock(tag_pools_mutex_);
  std::shared_ptr<GraphPool>& pool = tag_pools_[tag];
  if (pool == nullptr) pool = make_pool_(tag);
  return pool.get();
}

Result<std::uint64_t> TagSleep::hold(const void* block, std::string holder) {
  Result<StreamHeap*> heap = pools_.heap_of(block, "hold");
  if (!heap) return std::move(heap).error();
  const std::lock_guard lock(tags_mutex_);
  holds_[++last_hold_] = {block, std::move(holder)};
  return last_hold_;
}

void TagSleep::release_hold(std::uint64_t hold) {
  const std::lock_guard lock(tags_mutex_);
  holds_.erase(hold);
}

// With both locks held; `call` is for errors.
Result<std::vector<HostPart>> TagSleep::copies_of(const void* pointer, Bytes bytes,
                                                  const char* call) const {
  const Range range{Address::of(pointer), bytes};
  const std::optional<BlockInfo> found = pools_.find(range.begin);
  if (!found) return pools_.unknown(pointer, call);
  if (range.end() > found->address + found->bytes) {
    return Error(ErrorCode::unknown_pointer,
                 std::string(call) + ": " + format(bytes) + " from " + format(range.begin) +
                     " on reach beyond the block of " + format(found->bytes) + " at " +
                     format(found->address));
  }
  const std::shared_ptr<Pool> pool = pools_.pool_of(*found);
  std::vector<HostPart> parts = sleeper_.copies_of(pool, pool->pages().listing()->home_of(range));
  if (parts.empty()) {
    return Error(ErrorCode::invalid_argument,
                 std::string(call) + ": " + format(range.begin) +
                     " has no copy on the host: its tag is awake, or sleeps without its bytes");
  }
  return parts;
}

Result<std::vector<HostPart>> TagSleep::host_copy(const void* pointer, Bytes bytes) {
  const std::scoped_lock lock(sleep_mutex_, wake_mutex_);
  return copies_of(pointer, bytes, "host_copy");
}

Status TagSleep::read_asleep(const void* pointer, Bytes bytes, void* to) {
  const std::scoped_lock lock(sleep_mutex_, wake_mutex_);
  const Result<std::vector<HostPart>> parts = copies_of(pointer, bytes, "read_asleep");
  if (!parts) return parts.error();
  for (const HostPart& part : *parts) {
    std::memcpy((Address::of(to) + part.offset).pointer(), part.memory, part.bytes.count);
  }
  return {};
}

Residue TagSleep::residue() {
  const std::scoped_lock lock(sleep_mutex_, wake_mutex_);
  Residue residue;
  residue.host = sleeper_.host();
  for (const auto& pool : pools_.all()) {
    residue.weir += pool->pages().listing()->totals().total;
    std::set<PageId> pages;
    for (HeldMemory& one : held_in(*pool, pages)) residue.held.push_back(std::move(one));
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
