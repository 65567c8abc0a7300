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

}  // namespace

Result<std::unique_ptr<DeviceSlot>> DeviceSlot::open(const Config& config, int number) {
  Result<std::unique_ptr<Device>> device = open_device(config.device, number);
  if (!device.ok()) return std::move(device).error();
  return open(config, number, std::move(device).value());
}

Result<std::unique_ptr<DeviceSlot>> DeviceSlot::open(const Config& config, int number,
                                                     std::unique_ptr<Device> device) {
  Result<std::unique_ptr<DeviceSlot>> slot = open(config, number, *device);
  if (slot.ok()) slot.value()->owned_ = std::move(device);
  return slot;
}

Result<std::unique_ptr<DeviceSlot>> DeviceSlot::open(const Config& config, int number,
                                                     Device& device) {
  std::unique_ptr<DeviceSlot> slot(new DeviceSlot);
  slot->device_ = &device;
  slot->validates_ = config.validate;
  if (Status status = slot->listen(config, number); !status.ok()) return std::move(status).error();
  if (Status status = slot->make_heap(config); !status.ok()) return std::move(status).error();
  if (log_enabled(LogLevel::info)) {
    log(LogLevel::info, fmt::format("device {}: {}", number, device.name()));
  }
  return slot;
}

DeviceSlot::~DeviceSlot() {
  heap_.reset();
  if (recorder_ == nullptr) return;
  if (const Status status = recorder_->close(); !status.ok()) {
    log(LogLevel::error, status.error().message());
  } else if (recorder_->dropped() > 0) {
    log(LogLevel::warn, fmt::format("the recording lacks {} events, which came faster than they "
                                    "could be written",
                                    recorder_->dropped()));
  }
}

Status DeviceSlot::listen(const Config& config, int number) {
  if (log_enabled(LogLevel::warn)) sinks_.add(std::make_unique<LogSink>());
  if (config.validate) {
    auto story = std::make_unique<StorySink>(kStoryEvents);
    story_ = story.get();
    sinks_.add(std::move(story));
  }
  if (!config.record.empty()) {
    auto recorder = TraceRecorder::open(record_path(config.record, number));
    if (!recorder.ok()) return std::move(recorder).error();
    recorder_ = recorder.value().get();
    sinks_.add(std::move(recorder).value());
  }
  return {};
}

Status DeviceSlot::make_heap(const Config& config) {
  HeapOptions options{.limit = config.limit.bytes, .reuse = config.reuse};
  if (config.limit.share > 0) {
    const Result<MemoryInfo> memory = device_->memory_info();
    if (!memory.ok()) return memory.error();
    options.limit = config.limit.on_device_with(memory->total);
  }
  heap_ = std::make_unique<DeviceHeap>(*device_, options, sinks_.empty() ? nullptr : &sinks_);
  return {};
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

std::string record_path(const std::string& path, int number) {
  if (number == 0) return path;
  const std::size_t name = path.find_last_of('/') + 1;  // npos + 1 is 0
  const std::size_t dot = std::min(path.find('.', name + 1), path.size());
  return fmt::format("{}.{}{}", path.substr(0, dot), number, path.substr(dot));
}

}  // namespace weir
