/* SPDX-License-Identifier: Apache-2.0 */
/* A program in C over the simulated device, as a user would write one. */
#include <stdio.h>
#include <string.h>

#include "weir/weir.h"

/* Runs; on the first failure writes which line and why into `message` and returns 1. */
int run_c_program(char* message, size_t room);

#define CHECK(condition)                                                                    \
  do {                                                                                      \
    if (!(condition)) {                                                                     \
      snprintf(message, room, "line %d: %s (%s)", __LINE__, #condition, weir_last_error()); \
      return 1;                                                                             \
    }                                                                                       \
  } while (0)

int run_c_program(char* message, size_t room) {
  const weir_setting_t settings[] = {{"WEIR_DEVICE", "sim"}, {"WEIR_LOG", "off"}};
  weir_options_t options = WEIR_OPTIONS_INIT;
  weir_statistics_t statistics = WEIR_STATISTICS_INIT;
  weir_allocator_t* allocator = NULL;
  void *compute = NULL, *copy = NULL, *block = NULL, *other = NULL, *plain = NULL;
  void* both[2];
  uint64_t given_back = 0;
  size_t broken = 1;

  CHECK(weir_abi_version() == WEIR_ABI_VERSION);
  options.settings = settings;
  options.settings_count = sizeof(settings) / sizeof(settings[0]);
  CHECK(weir_create(&options, &allocator) == WEIR_OK);
  CHECK(weir_sim_new_stream(allocator, WEIR_CURRENT_DEVICE, &compute) == WEIR_OK);
  CHECK(weir_sim_new_stream(allocator, WEIR_CURRENT_DEVICE, &copy) == WEIR_OK);

  CHECK(weir_allocate(allocator, 1000, compute, 0, &block) == WEIR_OK);
  CHECK(block != NULL && (uintptr_t)block % 512 == 0);
  CHECK(weir_allocate(allocator, 4 << 20, compute, 0, &other) == WEIR_OK);
  CHECK(weir_allocate_plain(allocator, 3 << 20, compute, 0, &plain) == WEIR_OK);
  CHECK(plain != NULL && (uintptr_t)plain % 512 == 0);
  CHECK(weir_deallocate(allocator, plain) == WEIR_OK);
  CHECK(weir_allocate_plain(allocator, 1, compute, 0, NULL) == WEIR_INVALID_ARGUMENT);
  both[0] = block;
  both[1] = other;
  CHECK(weir_fence(allocator, both, 2, copy) == WEIR_OK);
  CHECK(weir_record_stream(allocator, other, copy) == WEIR_OK);

  CHECK(weir_statistics(allocator, 0, &statistics) == WEIR_OK);
  CHECK(statistics.live_blocks == 2);
  CHECK(statistics.live_bytes == 1024 + (4 << 20));
  CHECK(statistics.requested_bytes == 1000 + (4 << 20));
  CHECK(statistics.reserved_bytes >= statistics.live_bytes);

  CHECK(weir_deallocate(allocator, block) == WEIR_OK);
  CHECK(weir_deallocate(allocator, other) == WEIR_OK);
  CHECK(weir_deallocate(allocator, NULL) == WEIR_OK);
  CHECK(weir_deallocate(allocator, block) == WEIR_UNKNOWN_POINTER);
  CHECK(strlen(weir_last_error()) > 0);

  CHECK(weir_set_limit(allocator, 64 << 20, 0) == WEIR_OK);
  CHECK(weir_allocate(allocator, 65 << 20, compute, 0, &block) == WEIR_OUT_OF_MEMORY);
  CHECK(block == NULL);
  CHECK(strstr(weir_last_error(), "memory") != NULL);

  CHECK(weir_retire(allocator, copy, 0) == WEIR_OK);
  CHECK(weir_trim(allocator, 0, &given_back) == WEIR_OK);
  CHECK(given_back > 0);
  CHECK(weir_validate(allocator, &broken) == WEIR_OK && broken == 0);
  weir_destroy(allocator);
  return 0;
}
