// SPDX-License-Identifier: Apache-2.0
#include "weir/allocator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

#include "api/device_slot.h"
#include "api/open_device.h"
#include "observe/recording_output.h"
#include "weir/graph_pool.h"
#include "weir/log.h"
#include "weir/snapshot.h"

namespace weir {
namespace {

constexpr std::string_view kRecordStart = "record_start";

[[noreturn]] void raise(const Error& error) {
  if (error.code() == ErrorCode::out_of_memory) throw OutOfMemory(error.message());
  throw Exception(error.code(), error.message());
}

template <class T>
T value_or_raise(Result<T> result) {
  if (!result.ok()) raise(result.error());
  return std::move(result).value();
}

void raise_unless_ok(const Status& status) {
  if (!status.ok()) raise(status.error());
}

// What a recording says of a sleep or a wake: at its begin, and at its end.
std::string names_of(const std::vector<std::string>& tags) {
  return tags.empty() ? "all tags" : fmt::format("{}", fmt::join(tags, ", "));
}
std::string outcome_of(const char* state, const Result<SleepReport>& report) {
  if (!report.ok()) return fmt::format("not {}: {}", state, report.error().message());
  const auto mib = [](Bytes bytes) { return static_cast<double>(bytes.count) / (1 << 20); };
  return fmt::format("{}: {:.1f} MiB of the device, {:.1f} MiB copied", state,
                     mib(report->given_back), mib(report->copied));
}

void fence_on(DeviceSlot& slot, std::span<void* const> blocks, void* stream) {
  const Stream user = value_or_raise(slot.heap().stream(stream));
  const Status status = slot.heap().fence(blocks, user);
  slot.checked_after("fence");
  raise_unless_ok(status);
}

}  // namespace

// Devices by number, each opened when it is first used. Threads: as the allocator; only opening a
// device takes a lock.
class Allocator::Impl {
 public:
  explicit Impl(Config config) : config_(std::move(config)) {
    raise_unless_ok(config_.check());
    raise_unless_ok(configure_log(config_.log, config_.log_file));
  }

  void open_later() {
    resize(value_or_raise(count_devices(config_.device)));
    asks_for_current_ = true;
  }

  void add(std::vector<std::unique_ptr<Device>> devices) {
    resize(static_cast<int>(devices.size()));
    for (int i = 0; i < size(); ++i) {
      const auto number = static_cast<std::size_t>(i);
      set(i, value_or_raise(DeviceSlot::open(config_, i, i, std::move(devices[number]))));
    }
  }

  void add(Device& device) {
    resize(1);
    set(0, value_or_raise(DeviceSlot::open(config_, 0, 0, device)));
  }

  int size() const { return static_cast<int>(slots_.size()); }
  const Config& config() const { return config_; }

  DeviceSlot& slot(int device) {
    const int number = number_of(device);
    DeviceSlot* const open = open_slot(number);
    return open != nullptr ? *open : open_now(number);
  }
  // Null: the device was not used yet. For calls that only look.
  DeviceSlot* open_slot(int device) {
    const auto number = static_cast<std::size_t>(number_of(device));
    return slots_[number].load(std::memory_order_acquire);
  }

  // The slot of the only device opened so far: every live block is then of its heap. Null: none, or
  // several.
  DeviceSlot* sole() {
    DeviceSlot* only = nullptr;
    for (const std::atomic<DeviceSlot*>& slot : slots_) {
      DeviceSlot* const open = slot.load(std::memory_order_acquire);
      if (open == nullptr) continue;
      if (only != nullptr) return nullptr;
      only = open;
    }
    return only;
  }

  // The slot whose heap gave out `block`; null: none did. (A sole heap finds out by itself.)
  DeviceSlot* owner(const void* block) {
    if (DeviceSlot* const only = sole()) return only;
    for (const std::atomic<DeviceSlot*>& slot : slots_) {
      DeviceSlot* const open = slot.load(std::memory_order_acquire);
      if (open != nullptr && open->heap().find(block)) return open;
    }
    return nullptr;
  }

  DeviceSlot& owner_or_raise(const void* block, std::string_view call) {
    if (DeviceSlot* const slot = owner(block)) return *slot;
    throw Exception(ErrorCode::unknown_pointer,
                    fmt::format("{}: {} is no live block of this allocator", call, block));
  }

  // On all devices, or on none.
  void record_start(const std::string& path, std::optional<RecordStacks> stacks) {
    const std::scoped_lock lock(opening_);
    Status status;
    if (!record_to_.empty()) {
      status = Error(ErrorCode::invalid_argument,
                     fmt::format("the allocator is recorded into {}: stop that first", record_to_));
    }
    for_each_open([&](DeviceSlot& slot) {
      if (status.ok()) status = slot.recordings().check_can_start(path);
    });
    if (status) status = check_recording_path(path);
    raise_unless_ok(named_by(kRecordStart, std::exchange(status, {})));
    std::vector<DeviceSlot*> started;
    for_each_open([&](DeviceSlot& slot) {
      if (!status.ok()) return;
      status = named_by(kRecordStart, slot.recordings().start(path, stacks));
      if (status.ok()) started.push_back(&slot);
    });
    if (!status.ok()) {
      for (DeviceSlot* slot : started) (void)slot->recordings().stop();
    }
    raise_unless_ok(status);
    record_to_ = path;
    stacks_of_record_ = stacks;
  }

  void record_stop() {
    const std::scoped_lock lock(opening_);
    record_to_.clear();
    Status status;
    for_each_open([&](DeviceSlot& slot) {
      Status stopped = slot.recordings().stop();
      if (status.ok()) status = std::move(stopped);
    });
    raise_unless_ok(status);
  }

  template <class Function>
  void for_each_open(Function function) {
    for (const std::atomic<DeviceSlot*>& slot : slots_) {
      if (DeviceSlot* const open = slot.load(std::memory_order_acquire)) function(*open);
    }
  }

 private:
  void resize(int count) {
    slots_ = std::vector<std::atomic<DeviceSlot*>>(static_cast<std::size_t>(count));
    owned_.resize(slots_.size());
  }

  void set(int device, std::unique_ptr<DeviceSlot> slot) {
    const auto number = static_cast<std::size_t>(device);
    owned_[number] = std::move(slot);
    slots_[number].store(owned_[number].get(), std::memory_order_release);
  }

  int number_of(int device) const {
    if (device == kCurrentDevice) return current();
    if (device >= 0 && device < size()) return device;
    throw Exception(ErrorCode::invalid_argument,
                    fmt::format("there is no device {}: {}", device,
                                size() == 1 ? "the only one is device 0"
                                            : fmt::format("name one from 0 to {}", size() - 1)));
  }

  int current() const {
    if (!asks_for_current_ || size() == 1) return 0;
    return value_or_raise(current_device(config_.device));
  }

  DeviceSlot& open_now(int device) {
    const std::scoped_lock lock(opening_);
    const auto number = static_cast<std::size_t>(device);
    if (owned_[number] != nullptr) return *owned_[number];
    int opened = 0;
    for_each_open([&](DeviceSlot&) { ++opened; });
    std::unique_ptr<DeviceSlot> slot = value_or_raise(DeviceSlot::open(config_, device, opened));
    if (!record_to_.empty()) {
      raise_unless_ok(
          named_by(kRecordStart, slot->recordings().start(record_to_, stacks_of_record_)));
    }
    set(device, std::move(slot));
    return *owned_[number];
  }

  const Config config_;
  bool asks_for_current_ = false;                // constant once constructed
  std::vector<std::atomic<DeviceSlot*>> slots_;  // null: not opened yet
  std::mutex opening_;
  std::string record_to_;  // guarded by opening_; where devices opened later record to, if at all
  std::optional<RecordStacks> stacks_of_record_;    // guarded by opening_; of those recordings
  std::vector<std::unique_ptr<DeviceSlot>> owned_;  // guarded by opening_ once constructed
};

Allocator::Allocator() : Allocator(value_or_raise(Config::from_environment())) {}

Allocator::Allocator(Config config) : impl_(std::make_unique<Impl>(std::move(config))) {
  impl_->open_later();
}

Allocator::Allocator(std::vector<std::unique_ptr<Device>> devices, Config config)
    : impl_(std::make_unique<Impl>(std::move(config))) {
  impl_->add(std::move(devices));
}

Allocator::Allocator(Device& device, Config config)
    : impl_(std::make_unique<Impl>(std::move(config))) {
  impl_->add(device);
}

Allocator::~Allocator() = default;

void* Allocator::allocate(Bytes bytes, void* stream, int device) {
  DeviceSlot& slot = impl_->slot(device);
  const Stream user = value_or_raise(slot.heap().stream(stream));
  Result<void*> block = slot.heap().allocate(bytes, user);
  slot.checked_after("allocate");
  if (!block.ok()) [[unlikely]]
    slot.recordings().after_failure(block.error());
  return value_or_raise(std::move(block));
}

void* Allocator::allocate(Bytes bytes, void* stream, const AllocateOptions& options) {
  const bool tagged = !options.tag.empty() && options.tag != kDefaultTag;
  if (!options.plain && !tagged) return allocate(bytes, stream, options.device);
  if (options.plain && tagged) {
    throw Exception(ErrorCode::invalid_argument,
                    "allocate: plain memory can't sleep, so it has no tag");
  }
  DeviceSlot& slot = impl_->slot(options.device);
  const Stream user = value_or_raise(slot.heap().stream(stream));
  GraphPool& pool =
      tagged ? *value_or_raise(slot.heap().tags().pool(options.tag)) : slot.plain_pool();
  Result<void*> block = pool.allocate(bytes, user);
  slot.checked_after("allocate");
  if (!block.ok()) slot.recordings().after_failure(block.error());
  return value_or_raise(std::move(block));
}

void Allocator::report_failure(const Error& error, int device) {
  impl_->slot(device).recordings().after_failure(error);
}

Buffer Allocator::make_buffer(Bytes bytes, void* stream, const AllocateOptions& options) {
  return Buffer(*this, allocate(bytes, stream, options), bytes);
}

void Allocator::fence(std::span<void* const> blocks, void* stream) {
  if (blocks.empty()) return;
  if (DeviceSlot* const slot = impl_->sole()) return fence_on(*slot, blocks, stream);
  // Blocks of several devices take one event on each; all are found before any is taken, so that
  // an unknown block changes nothing.
  std::vector<std::pair<DeviceSlot*, std::vector<void*>>> parts;
  for (void* const block : blocks) {
    if (block == nullptr) continue;
    DeviceSlot* const slot = &impl_->owner_or_raise(block, "fence");
    auto part = std::find_if(parts.begin(), parts.end(),
                             [&](const auto& candidate) { return candidate.first == slot; });
    if (part == parts.end()) part = parts.insert(part, {slot, {}});
    part->second.push_back(block);
  }
  for (const auto& [slot, own] : parts) fence_on(*slot, own, stream);
}

void Allocator::record_stream(void* block, void* stream) {
  if (block == nullptr) return;
  DeviceSlot& slot = impl_->owner_or_raise(block, "record_stream");
  const Stream user = value_or_raise(slot.heap().stream(stream));
  const Status status = slot.heap().record_stream(block, user);
  slot.checked_after("record_stream");
  raise_unless_ok(status);
}

void Allocator::deallocate(void* block) {
  if (block == nullptr) return;
  DeviceSlot& slot = impl_->owner_or_raise(block, "deallocate");
  const Status status = slot.heap().deallocate(block);
  slot.checked_after("deallocate");
  raise_unless_ok(status);
}

void Allocator::retire(void* stream, int device) {
  DeviceSlot& slot = impl_->slot(device);
  const Status status = slot.heap().retire(value_or_raise(slot.heap().stream(stream)));
  slot.checked_after("retire");
  raise_unless_ok(status);
}

Bytes Allocator::trim(Bytes keep) {
  Bytes given_back;
  impl_->for_each_open([&](DeviceSlot& slot) {
    Result<Bytes> result = slot.heap().trim(keep);
    slot.checked_after("trim");
    given_back += value_or_raise(std::move(result));
  });
  return given_back;
}

void Allocator::set_limit(Bytes limit, int device) {
  DeviceSlot& slot = impl_->slot(device);
  slot.heap().set_limit(limit);
  slot.checked_after("set_limit");
}

Statistics Allocator::statistics(int device) const {
  DeviceSlot* const slot = impl_->open_slot(device);
  if (slot == nullptr) return {};
  Statistics statistics = slot->heap().statistics();
  statistics.driver_calls = slot->calls().made();
  statistics.layouts = slot->heap().layouts();
  return statistics;
}

HeapSnapshot Allocator::snapshot(int device) const {
  DeviceSlot* const slot = impl_->open_slot(device);
  return slot != nullptr ? slot->heap().snapshot() : HeapSnapshot{.device = "not in use"};
}

void Allocator::write_snapshot(const std::string& path, int device) const {
  raise_unless_ok(named_by("write_snapshot", weir::write_snapshot(snapshot(device), path)));
}

void Allocator::record_start(const std::string& path, std::optional<RecordStacks> stacks) {
  impl_->record_start(path, stacks);
}
void Allocator::record_stop() { impl_->record_stop(); }

void Allocator::record_write(const std::string& path) {
  impl_->for_each_open([&](DeviceSlot& slot) {
    raise_unless_ok(named_by("record_write", slot.recordings().write(path)));
  });
}

void Allocator::mark(std::string_view text) {
  impl_->for_each_open([&](DeviceSlot& slot) { slot.recordings().mark(text); });
}

SleepReport Allocator::sleep(const SleepOptions& options, int device) {
  DeviceSlot& slot = impl_->slot(device);
  slot.recordings().mark("sleep: " + names_of(options.tags));
  Result<SleepReport> report = slot.heap().tags().sleep(options);
  slot.recordings().mark(outcome_of("asleep", report));
  slot.checked_after("sleep");
  return value_or_raise(std::move(report));
}

SleepReport Allocator::wake(const WakeOptions& options, int device) {
  DeviceSlot& slot = impl_->slot(device);
  slot.recordings().mark("wake: " + names_of(options.tags));
  Result<SleepReport> report = slot.heap().tags().wake(options);
  slot.recordings().mark(outcome_of("awake", report));
  slot.checked_after("wake");
  return value_or_raise(std::move(report));
}

PoolBinding Allocator::tag(const std::string& name, TagThreads threads, int device) {
  GraphPool* const pool = value_or_raise(impl_->slot(device).heap().tags().pool(name));
  if (threads == TagThreads::all) return value_or_raise(pool->serve([](Stream) { return true; }));
  return value_or_raise(pool->serve(
      [me = std::this_thread::get_id()](Stream) { return std::this_thread::get_id() == me; }));
}

std::vector<TagInfo> Allocator::tags(int device) const {
  DeviceSlot* const slot = impl_->open_slot(device);
  return slot != nullptr ? slot->heap().tags().list() : std::vector<TagInfo>{};
}

std::vector<std::string> Allocator::validate() const {
  std::vector<std::string> broken;
  impl_->for_each_open([&](DeviceSlot& slot) {
    for (std::string& invariant : slot.heap().validate()) broken.push_back(std::move(invariant));
  });
  return broken;
}

int Allocator::device_count() const { return impl_->size(); }
const Config& Allocator::config() const { return impl_->config(); }
Device& Allocator::device(int device) { return impl_->slot(device).device(); }
DeviceHeap& Allocator::heap(int device) { return impl_->slot(device).heap(); }
DeviceHeap& Allocator::heap_of(const void* block) {
  return impl_->owner_or_raise(block, "heap_of").heap();
}

}  // namespace weir
