/* SPDX-License-Identifier: Apache-2.0 */
/* Weir in C: a block is read by a copy on another stream, and goes back while the copy may still
 * run. Here on a simulated device; on a GPU leave out the setting, and pass your own cudaStream_t. */
#include <stdio.h>

#include "weir/weir.h"

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, weir_last_error());
  return 1;
}

int main(void) {
  const weir_setting_t simulated = {"WEIR_DEVICE", "sim"};
  weir_options_t options = WEIR_OPTIONS_INIT;
  weir_statistics_t statistics = WEIR_STATISTICS_INIT;
  weir_allocator_t* allocator = NULL;
  void *compute = NULL, *copy = NULL, *block = NULL, *next = NULL;

  options.settings = &simulated;
  options.settings_count = 1;
  if (weir_create(&options, &allocator) != WEIR_OK) return fail("weir_create");
  if (weir_sim_new_stream(allocator, 0, &compute) != WEIR_OK ||
      weir_sim_new_stream(allocator, 0, &copy) != WEIR_OK) {
    return fail("weir_sim_new_stream");
  }

  if (weir_allocate(allocator, 64 << 20, compute, 0, &block) != WEIR_OK) return fail("allocate");
  /* ... work on `compute` writes the block, and a copy on `copy` reads it ... */
  if (weir_fence(allocator, &block, 1, copy) != WEIR_OK) return fail("fence");
  if (weir_deallocate(allocator, block) != WEIR_OK) return fail("deallocate");
  if (weir_allocate(allocator, 64 << 20, compute, 0, &next) != WEIR_OK) return fail("allocate");

  if (weir_statistics(allocator, 0, &statistics) != WEIR_OK) return fail("statistics");
  printf("%d MiB held for two blocks of 64 MiB, %d host waits\n",
         (int)(statistics.reserved_bytes_peak >> 20), (int)statistics.host_waits);
  if (weir_deallocate(allocator, next) != WEIR_OK) return fail("deallocate");
  weir_destroy(allocator);
  return 0;
}
