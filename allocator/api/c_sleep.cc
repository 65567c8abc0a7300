// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "api/c_status.h"
#include "weir/graph_pool.h"
#include "weir/sim_device.h"
#include "weir/sleep.h"
#include "weir/weir.h"

struct weir_tag_scope_t {
  weir::PoolBinding binding;
};

namespace {

using weir::Bytes;
using weir::c::fail;
using weir::c::given;
using weir::c::guarded_on;
using weir::c::invalid;

std::vector<std::string> names_of(const char* const* tags, size_t count) {
  if (tags == nullptr && count > 0) invalid("tags is null, and tags_count is not 0");
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.emplace_back(&given(tags[i], "a tag's name"));
  return names;
}

weir::SleepContents contents_of(int32_t contents) {
  if (contents < WEIR_CONTENTS_BACKUP || contents > WEIR_CONTENTS_IMMUTABLE) {
    invalid("contents: " + std::to_string(contents) + " is none of weir_contents_t");
  }
  return static_cast<weir::SleepContents>(contents);
}

template <class Given>
void check_size(const Given& options, const char* name) {
  if (options.size < sizeof(Given)) {
    invalid(std::string(name) +
            "->size: set it to the size of what it points to, as the _INIT does");
  }
}

// As many members as there is room for.
template <class Made>
void give(Made made, Made* to, const char* name) {
  if (to->size < sizeof(to->size)) {
    invalid(std::string(name) + "->size: set it before the call, as the _INIT does");
  }
  made.size = to->size;
  std::memcpy(to, &made, std::min(made.size, sizeof(made)));
}

weir_sleep_report_t to_c(const weir::SleepReport& report) {
  weir_sleep_report_t c = WEIR_SLEEP_REPORT_INIT;
  c.bytes = report.given_back.count;
  c.copied_bytes = report.copied.count;
  c.copies = report.copies;
  c.host_bytes = report.host.count;
  for (const weir::HeldMemory& one : report.kept) c.kept_bytes += one.bytes.count;
  c.nanoseconds = static_cast<uint64_t>(report.time.count);
  return c;
}

}  // namespace

extern "C" {

weir_status_t weir_sleep(weir_allocator_t* allocator, int32_t device,
                         const weir_sleep_options_t* options, weir_sleep_report_t* report) {
  return guarded_on(allocator, [&](weir::Allocator& weir) {
    weir::SleepOptions asked;
    if (options != nullptr) {
      check_size(*options, "options");
      // An option that is not known here must not be passed over in silence.
      if (options->size > sizeof(weir_sleep_options_t)) {
        invalid(
            "options->size: the program was built with another weir.h, with options that this "
            "library does not have: build it with this library's weir.h");
      }
      asked.tags = names_of(options->tags, options->tags_count);
      if (options->contents != WEIR_CONTENTS_AS_BEFORE) {
        asked.contents = contents_of(options->contents);
      }
      asked.keep = options->keep != 0;
      asked.graph_scratch = options->forget_graph_scratch == 0;
    }
    const weir::SleepReport made = weir.sleep(asked, device);
    if (report != nullptr) give(to_c(made), report, "report");
  });
}

weir_status_t weir_wake(weir_allocator_t* allocator, int32_t device,
                        const weir_wake_options_t* options, weir_sleep_report_t* report) {
  return guarded_on(allocator, [&](weir::Allocator& weir) {
    weir::WakeOptions asked;
    if (options != nullptr) {
      check_size(*options, "options");
      asked.tags = names_of(options->tags, options->tags_count);
      asked.keep_host = Bytes{options->keep_host_bytes};
    }
    const weir::SleepReport made = weir.wake(asked, device);
    if (report != nullptr) give(to_c(made), report, "report");
  });
}

weir_status_t weir_tag_info(weir_allocator_t* allocator, int32_t device, const char* tag,
                            weir_tag_info_t* info) {
  return guarded_on(allocator, [&](weir::Allocator& weir) {
    given(info, "info");
    const std::string name = &given(tag, "tag");
    for (const weir::TagInfo& each : weir.tags(device)) {
      if (each.tag != name) continue;
      weir_tag_info_t c = WEIR_TAG_INFO_INIT;
      c.state = static_cast<int32_t>(each.state);
      c.contents = static_cast<int32_t>(each.contents);
      c.device_bytes = each.device.count;
      c.asleep_bytes = each.asleep.count;
      c.host_bytes = each.host.count;
      return give(c, info, "info");
    }
    invalid("weir_tag_info: there is no tag '" + name + "'");
  });
}

weir_status_t weir_tag_list(weir_allocator_t* allocator, int32_t device, char* names, size_t size,
                            size_t* needed) {
  return guarded_on(allocator, [&](weir::Allocator& weir) {
    if (names == nullptr && size > 0) invalid("names is null, and size is not 0");
    std::string all;
    for (const weir::TagInfo& each : weir.tags(device)) all += each.tag + "\n";
    if (needed != nullptr) *needed = all.size() + 1;
    if (size == 0) return;
    const size_t fits = std::min(all.size(), size - 1);
    std::memcpy(names, all.data(), fits);
    names[fits] = '\0';
  });
}

weir_status_t weir_set_contents(weir_allocator_t* allocator, int32_t device, const char* tag,
                                int32_t contents) {
  return guarded_on(allocator, [&](weir::Allocator& weir) {
    weir::c::check(
        weir.heap(device).tags().set_contents(&given(tag, "tag"), contents_of(contents)));
  });
}

weir_status_t weir_declare_changed(weir_allocator_t* allocator, int32_t device, const char* tag) {
  return guarded_on(allocator, [&](weir::Allocator& weir) {
    weir::c::check(weir.heap(device).tags().declare_changed(&given(tag, "tag")));
  });
}

weir_status_t weir_read_asleep(weir_allocator_t* allocator, int32_t device, const void* pointer,
                               uint64_t bytes, void* to) {
  return guarded_on(allocator, [&](weir::Allocator& weir) {
    given(pointer, "pointer");
    given(to, "to");
    (void)weir::c::value_of(weir.heap(device).tags().host_copy(pointer, Bytes{bytes}));
    if (dynamic_cast<const weir::SimDevice*>(&weir.device(device)) != nullptr) {
      throw weir::Exception(weir::ErrorCode::unavailable,
                            "weir_read_asleep: a simulated device's host memory has no bytes");
    }
    weir::c::check(weir.heap(device).tags().read_asleep(pointer, Bytes{bytes}, to));
  });
}

weir_status_t weir_allocate_tagged(weir_allocator_t* allocator, uint64_t bytes, void* stream,
                                   int32_t device, const char* tag, void** block) {
  if (block == nullptr) return fail(WEIR_INVALID_ARGUMENT, "block is null");
  *block = nullptr;
  return guarded_on(allocator, [&](weir::Allocator& weir) {
    *block = weir.allocate(Bytes{bytes}, stream, {.device = device, .tag = &given(tag, "tag")});
  });
}

weir_status_t weir_tag_begin(weir_allocator_t* allocator, int32_t device, const char* tag,
                             int32_t all_threads, weir_tag_scope_t** scope) {
  return guarded_on(allocator, [&](weir::Allocator& weir) {
    given(scope, "scope") = nullptr;
    const auto threads = all_threads != 0 ? weir::TagThreads::all : weir::TagThreads::own;
    *scope = new weir_tag_scope_t{weir.tag(&given(tag, "tag"), threads, device)};
  });
}

void weir_tag_end(weir_tag_scope_t* scope) { delete scope; }

weir_status_t weir_hold(weir_allocator_t* allocator, void* block, const char* holder,
                        uint64_t* hold) {
  return guarded_on(allocator, [&](weir::Allocator& weir) {
    given(hold, "hold") =
        weir::c::value_of(weir.heap_of(block).tags().hold(block, &given(holder, "holder")));
  });
}

weir_status_t weir_release_hold(weir_allocator_t* allocator, void* block, uint64_t hold) {
  return guarded_on(allocator,
                    [&](weir::Allocator& weir) { weir.heap_of(block).tags().release_hold(hold); });
}

weir_status_t weir_residue(weir_allocator_t* allocator, int32_t device, weir_residue_t* residue) {
  return guarded_on(allocator, [&](weir::Allocator& weir) {
    given(residue, "residue");
    const weir::Residue made = weir.heap(device).tags().residue();
    weir_residue_t c = WEIR_RESIDUE_INIT;
    c.device_bytes = made.device.count;
    c.free_bytes = made.free.count;
    c.weir_bytes = made.weir.count;
    c.other_bytes = made.others.count;
    c.host_bytes = made.host.count;
    for (const weir::HeldMemory& one : made.held) c.held_bytes += one.bytes.count;
    give(c, residue, "residue");
  });
}

}  // extern "C"
