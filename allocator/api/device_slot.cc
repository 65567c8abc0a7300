// SPDX-License-Identifier: Apache-2.0
#include "api/device_slot.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "api/open_device.h"
#include "weir/log.h"

namespace weir {
namespace {

constexpr std::size_t kStoryEvents = 64;

// With the pluggable library it is the rule, and no news.
void log_loss(int device, ContextEventsLost why) {
  log(why == ContextEventsLost::pluggable ? LogLevel::info : LogLevel::warn,
      fmt::format(
          "device {}: no event of the whole context is recorded from now on, so streams and "
          "pools share memory only where the host waits: {}. To keep such events: {}. See "
          "docs/guarantees.md, \"Captures of other libraries\"",
          device, reason_of(why), remedy_of(why)));
}

}  // namespace

Result<std::unique_ptr<DeviceSlot>> DeviceSlot::open(const Config& config, int number, int opened) {
  Result<std::unique_ptr<Device>> device = open_device(config.device, number);
  if (!device.ok()) return std::move(device).error();
  return open(config, number, opened, std::move(device).value());
}

Result<std::unique_ptr<DeviceSlot>> DeviceSlot::open(const Config& config, int number, int opened,
                                                     std::unique_ptr<Device> device) {
  if (device == nullptr) {
    return Error(ErrorCode::invalid_argument,
                 "Allocator: device " + std::to_string(number) + " of those given is null");
  }
  Result<std::unique_ptr<DeviceSlot>> slot = open(config, number, opened, *device);
  if (slot.ok()) slot.value()->owned_ = std::move(device);
  return slot;
}

Result<std::unique_ptr<DeviceSlot>> DeviceSlot::open(const Config& config, int number, int opened,
                                                     Device& device) {
  std::unique_ptr<DeviceSlot> slot(new DeviceSlot);
  slot->device_ = &device;
  slot->calls_.emplace(device, config.time_driver);
  slot->validates_ = config.validate;
  slot->listen(config);
  if (Status status = slot->make_heap(config, opened); !status.ok())
    return std::move(status).error();
  slot->heap_->captures().on_context_events_lost(
      [number](ContextEventsLost why) { log_loss(number, why); });
  slot->recordings_ =
      std::make_unique<Recordings>(device, *slot->calls_, *slot->heap_, config, number);
  if (Status status = slot->recordings_->begin(); !status.ok()) return std::move(status).error();
  log(LogLevel::info, fmt::format("device {}: {}", number, device.name()));
  return slot;
}

void DeviceSlot::listen(const Config& config) {
  // Who takes every event makes every call take the long way; that memory ran out is logged where
  // the allocation fails.
  if (log_enabled(LogLevel::debug)) sinks_.add(std::make_unique<LogSink>());
  if (config.validate) {
    auto story = std::make_unique<StorySink>(kStoryEvents);
    story_ = story.get();
    sinks_.add(std::move(story));
  }
}

// By the order in which devices are opened, and not by their numbers: so ranks that use one each
// have equal addresses.
Status DeviceSlot::make_heap(const Config& config, int opened) {
  const auto window = static_cast<std::uint32_t>(opened);
  if (config.addresses != Addresses::any && window >= kAddressWindows) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("WEIR_ADDRESSES={}: a process can have {} devices so; use fewer, or "
                             "leave WEIR_ADDRESSES unset",
                             name_of(config.addresses), kAddressWindows));
  }
  HeapOptions options{.limit = config.limit.bytes,
                      .reuse = config.reuse,
                      .trust = config.trust.value_or(Trust::told),
                      .memory = config.memory,
                      .context_events = config.context_events,
                      .addresses = config.addresses,
                      .graph_scratch = config.graph_scratch,
                      .address_window = window};
  if (config.limit.share > 0) {
    const Result<MemoryInfo> memory = device_->memory_info();
    if (!memory.ok()) return memory.error();
    options.limit = config.limit.on_device_with(memory->total);
  }
  if (const Bytes page = device_->granularity(); options.limit > 0_B && options.limit < page) {
    log(LogLevel::warn,
        fmt::format("WEIR_LIMIT leaves {} bytes on {}, less than one page of {} bytes: every "
                    "allocation will fail; raise it",
                    options.limit.count, device_->name(), page.count));
  }
  heap_ = std::make_unique<DeviceHeap>(*calls_, options, sinks_.empty() ? nullptr : &sinks_);
  return {};
}

GraphPool& DeviceSlot::plain_pool() {
  std::call_once(plain_pool_opened_, [this] {
    plain_pool_ =
        std::make_unique<GraphPool>(*heap_, GraphPoolOptions{.memory = MemoryKind::plain});
  });
  return *plain_pool_;
}

void DeviceSlot::abort_if_broken(std::string_view call) {
  const std::vector<std::string> broken = heap_->validate();
  if (broken.empty()) return;
  std::string text = fmt::format("weir: after {}, broken:\n", call);
  for (const std::string& invariant : broken) text += "  " + invariant + "\n";
  text += "The latest events, oldest first:\n" + story_->tell();
  std::fputs(text.c_str(), stderr);
  std::abort();
}

}  // namespace weir
