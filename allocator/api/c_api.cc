// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <exception>
#include <span>
#include <string>

#include "api/c_status.h"
#include "weir/allocator.h"
#include "weir/recorder.h"
#include "weir/sim_device.h"
#include "weir/weir.h"

namespace {

using weir::Bytes;
using weir::ErrorCode;
using weir::c::fail;
using weir::c::guarded;
using weir::c::guarded_on;
using weir::c::invalid;
using weir::c::last_error;

weir::Config config_of(const weir_options_t& options) {
  if (options.size < sizeof(weir_options_t)) {
    invalid("options->size is " + std::to_string(options.size) +
            ": set it to sizeof(weir_options_t), as WEIR_OPTIONS_INIT does");
  }
  if (options.settings == nullptr && options.settings_count > 0) {
    invalid("options->settings is null, and options->settings_count is not 0");
  }
  weir::Config config;
  if (options.ignore_environment == 0) {
    config = weir::c::value_of(weir::Config::from_environment());
  }
  for (const weir_setting_t& setting : std::span(options.settings, options.settings_count)) {
    if (setting.name == nullptr || setting.value == nullptr) {
      invalid("a setting's name or value is null");
    }
    weir::c::check(config.set(setting.name, setting.value));
  }
  return config;
}

weir_statistics_t to_c(const weir::Statistics& s) {
  weir_statistics_t c = WEIR_STATISTICS_INIT;
  c.live_blocks = s.live_blocks.current;
  c.live_blocks_peak = s.live_blocks.peak;
  c.live_bytes = s.live_bytes.current;
  c.live_bytes_peak = s.live_bytes.peak;
  c.requested_bytes = s.requested_bytes.current;
  c.requested_bytes_peak = s.requested_bytes.peak;
  c.leased_bytes = s.leased_bytes.current;
  c.leased_bytes_peak = s.leased_bytes.peak;
  c.reserved_bytes = s.reserved_bytes.current;
  c.reserved_bytes_peak = s.reserved_bytes.peak;
  c.mapped_bytes = s.mapped_bytes.current;
  c.mapped_bytes_peak = s.mapped_bytes.peak;
  c.pages = s.pages.current;
  c.mappings = s.mappings.current;
  c.fences = s.fences;
  c.stream_waits = s.stream_waits;
  c.host_waits = s.host_waits;
  c.out_of_memory = s.out_of_memory;
  c.trimmed_bytes = s.trimmed_bytes;
  c.plain_bytes = s.plain_bytes.current;
  c.plain_bytes_peak = s.plain_bytes.peak;
  c.plain_leased_bytes = s.plain_leased_bytes.current;
  c.plain_live_bytes = s.plain_live_bytes;
  const auto lost = [&](weir::ContextEventsLost why) {
    return s.context_events_lost[static_cast<std::size_t>(why)];
  };
  using weir::ContextEventsLost;
  c.context_events_lost_external_stream = lost(ContextEventsLost::external_stream);
  c.context_events_lost_unannounced_capture = lost(ContextEventsLost::unannounced_capture);
  c.context_events_lost_refused = lost(ContextEventsLost::refused);
  c.context_events_lost_unavailable = lost(ContextEventsLost::unavailable);
  c.context_events_lost_pluggable = lost(ContextEventsLost::pluggable);
  c.regions_elsewhere = s.regions_elsewhere;
  c.lent_bytes = s.lent_bytes.current;
  c.lent_bytes_peak = s.lent_bytes.peak;
  return c;
}

}  // namespace

extern "C" {

int32_t weir_abi_version(void) { return WEIR_ABI_VERSION; }

const char* weir_status_name(weir_status_t status) {
  switch (status) {
    case WEIR_OK:
      return "WEIR_OK";
    case WEIR_OUT_OF_MEMORY:
      return "WEIR_OUT_OF_MEMORY";
    case WEIR_INVALID_ARGUMENT:
      return "WEIR_INVALID_ARGUMENT";
    case WEIR_UNKNOWN_POINTER:
      return "WEIR_UNKNOWN_POINTER";
    case WEIR_DEVICE_ERROR:
      return "WEIR_DEVICE_ERROR";
    case WEIR_CAPTURE_ERROR:
      return "WEIR_CAPTURE_ERROR";
    case WEIR_UNAVAILABLE:
      return "WEIR_UNAVAILABLE";
    case WEIR_INVALID_INPUT:
      return "WEIR_INVALID_INPUT";
    case WEIR_ASLEEP:
      return "WEIR_ASLEEP";
    case WEIR_INTERNAL_ERROR:
      return "WEIR_INTERNAL_ERROR";
    default:
      return "unknown";
  }
}

const char* weir_last_error(void) { return last_error().c_str(); }

weir_status_t weir_create(const weir_options_t* options, weir_allocator_t** allocator) {
  if (allocator == nullptr) return fail(WEIR_INVALID_ARGUMENT, "allocator is null");
  *allocator = nullptr;
  const weir_options_t defaults = WEIR_OPTIONS_INIT;
  return guarded([&] {
    *allocator = new weir_allocator_t(config_of(options != nullptr ? *options : defaults));
  });
}

void weir_destroy(weir_allocator_t* allocator) { delete allocator; }

weir_status_t weir_allocate(weir_allocator_t* allocator, uint64_t bytes, void* stream,
                            int32_t device, void** block) {
  if (block == nullptr) return fail(WEIR_INVALID_ARGUMENT, "block is null");
  *block = nullptr;
  return guarded_on(allocator, [&](weir::Allocator& weir) {
    *block = weir.allocate(Bytes{bytes}, stream, device);
  });
}

weir_status_t weir_allocate_plain(weir_allocator_t* allocator, uint64_t bytes, void* stream,
                                  int32_t device, void** block) {
  if (block == nullptr) return fail(WEIR_INVALID_ARGUMENT, "block is null");
  *block = nullptr;
  return guarded_on(allocator, [&](weir::Allocator& weir) {
    *block = weir.allocate(Bytes{bytes}, stream, {.device = device, .plain = true});
  });
}

weir_status_t weir_deallocate(weir_allocator_t* allocator, void* block) {
  return guarded_on(allocator, [&](weir::Allocator& weir) { weir.deallocate(block); });
}

weir_status_t weir_fence(weir_allocator_t* allocator, void* const* blocks, size_t count,
                         void* stream) {
  if (blocks == nullptr && count > 0) return fail(WEIR_INVALID_ARGUMENT, "blocks is null");
  return guarded_on(allocator,
                    [&](weir::Allocator& weir) { weir.fence(std::span(blocks, count), stream); });
}

weir_status_t weir_record_stream(weir_allocator_t* allocator, void* block, void* stream) {
  return guarded_on(allocator, [&](weir::Allocator& weir) { weir.record_stream(block, stream); });
}

weir_status_t weir_retire(weir_allocator_t* allocator, void* stream, int32_t device) {
  return guarded_on(allocator, [&](weir::Allocator& weir) { weir.retire(stream, device); });
}

weir_status_t weir_trim(weir_allocator_t* allocator, uint64_t keep, uint64_t* given_back) {
  return guarded_on(allocator, [&](weir::Allocator& weir) {
    const Bytes bytes = weir.trim(Bytes{keep});
    if (given_back != nullptr) *given_back = bytes.count;
  });
}

weir_status_t weir_set_limit(weir_allocator_t* allocator, uint64_t bytes, int32_t device) {
  return guarded_on(allocator,
                    [&](weir::Allocator& weir) { weir.set_limit(Bytes{bytes}, device); });
}

weir_status_t weir_statistics(weir_allocator_t* allocator, int32_t device,
                              weir_statistics_t* statistics) {
  if (statistics == nullptr) return fail(WEIR_INVALID_ARGUMENT, "statistics is null");
  if (statistics->size < sizeof(statistics->size)) {
    return fail(WEIR_INVALID_ARGUMENT,
                "statistics->size: set it to sizeof(weir_statistics_t) before the call");
  }
  return guarded_on(allocator, [&](weir::Allocator& weir) {
    weir_statistics_t all = to_c(weir.statistics(device));
    all.size = statistics->size;
    std::memcpy(statistics, &all, std::min(all.size, sizeof(all)));
  });
}

weir_status_t weir_driver_calls(weir_allocator_t* allocator, int32_t device,
                                weir_driver_call_t* calls, size_t size, size_t* needed) {
  if (calls == nullptr && size > 0) return fail(WEIR_INVALID_ARGUMENT, "calls is null");
  return guarded_on(allocator, [&](weir::Allocator& weir) {
    const std::vector<weir::DeviceCallCount> made = weir.statistics(device).driver_calls;
    if (needed != nullptr) *needed = made.size();
    for (std::size_t i = 0; i < std::min(size, made.size()); ++i) {
      const auto& [call, count, time] = made[i];
      calls[i] = {call.data(), count, static_cast<std::uint64_t>(time.count)};
    }
  });
}

weir_status_t weir_layout(weir_allocator_t* allocator, int32_t device, weir_pool_layout_t* pools,
                          size_t size, size_t* needed) {
  if (pools == nullptr && size > 0) return fail(WEIR_INVALID_ARGUMENT, "pools is null");
  return guarded_on(allocator, [&](weir::Allocator& weir) {
    const std::vector<weir::PoolLayout> all = weir.statistics(device).layouts;
    if (needed != nullptr) *needed = all.size();
    for (std::size_t i = 0; i < std::min(size, all.size()); ++i) {
      pools[i] = {all[i].pool, all[i].placements, all[i].hash};
    }
  });
}

weir_status_t weir_validate(weir_allocator_t* allocator, size_t* broken) {
  return guarded_on(allocator, [&](weir::Allocator& weir) {
    const std::vector<std::string> invariants = weir.validate();
    if (broken != nullptr) *broken = invariants.size();
    if (invariants.empty()) return;
    std::string lines;
    for (const std::string& invariant : invariants) lines += invariant + "\n";
    last_error() = std::move(lines);
  });
}

weir_status_t weir_record_start(weir_allocator_t* allocator, const char* path) {
  if (path == nullptr) return fail(WEIR_INVALID_ARGUMENT, "path is null");
  return guarded_on(allocator, [&](weir::Allocator& weir) { weir.record_start(path); });
}

weir_status_t weir_record_start_with(weir_allocator_t* allocator, const char* path,
                                     const char* stacks) {
  if (stacks == nullptr) return weir_record_start(allocator, path);
  if (path == nullptr) return fail(WEIR_INVALID_ARGUMENT, "path is null");
  const weir::Result<weir::RecordStacks> kind = weir::record_stacks_of(stacks);
  if (!kind) return fail(WEIR_INVALID_ARGUMENT, kind.error().message().c_str());
  return guarded_on(allocator, [&](weir::Allocator& weir) { weir.record_start(path, *kind); });
}

void weir_python_ends(void) { weir::python_ends(); }

weir_status_t weir_record_stop(weir_allocator_t* allocator) {
  return guarded_on(allocator, [](weir::Allocator& weir) { weir.record_stop(); });
}

weir_status_t weir_record_write(weir_allocator_t* allocator, const char* path) {
  if (path == nullptr) return fail(WEIR_INVALID_ARGUMENT, "path is null");
  return guarded_on(allocator, [&](weir::Allocator& weir) { weir.record_write(path); });
}

weir_status_t weir_record_mark(weir_allocator_t* allocator, const char* text) {
  if (text == nullptr) return fail(WEIR_INVALID_ARGUMENT, "text is null");
  return guarded_on(allocator, [&](weir::Allocator& weir) { weir.mark(text); });
}

weir_status_t weir_write_snapshot(weir_allocator_t* allocator, int32_t device, const char* path) {
  if (path == nullptr) return fail(WEIR_INVALID_ARGUMENT, "path is null");
  return guarded_on(allocator, [&](weir::Allocator& weir) { weir.write_snapshot(path, device); });
}

weir_status_t weir_sim_new_stream(weir_allocator_t* allocator, int32_t device, void** stream) {
  if (stream == nullptr) return fail(WEIR_INVALID_ARGUMENT, "stream is null");
  return guarded_on(allocator, [&](weir::Allocator& weir) {
    auto* const sim = dynamic_cast<weir::SimDevice*>(&weir.device(device));
    if (sim == nullptr) invalid("weir_sim_new_stream: the device is not a simulated one");
    *stream = sim->new_stream().handle;
  });
}

}  // extern "C"
