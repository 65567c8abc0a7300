// SPDX-License-Identifier: Apache-2.0
/* An allocator that `weir bench --allocator FILE.so` loads: C, so that it can be written in any
 * language. docs/replay.md has an example.
 *
 * The library exports weir_suite_allocator(). All calls come from one thread, in a process of their
 * own that has no other allocator in it. Streams are numbers from 0; every block belongs to one.
 */
#ifndef WEIR_SUITE_ALLOCATOR_H
#define WEIR_SUITE_ALLOCATOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEIR_SUITE_VERSION 1u
#define WEIR_SUITE_UNKNOWN UINT64_MAX /* a count that the allocator can't give */

struct weir_suite_figures {
  uint64_t held_bytes;      /* of the driver's memory, now */
  uint64_t most_held_bytes; /* since create(); 0 if the allocator keeps no such figure */
  uint64_t driver_calls;    /* calls of the driver or the CUDA runtime so far, or UNKNOWN */
  uint64_t waits;           /* a stream or the host was made to wait so far, or UNKNOWN */
};

struct weir_suite_functions {
  uint32_t version; /* WEIR_SUITE_VERSION */
  const char* name; /* in tables: letters, digits, '-', '.' and '_' */

  /* A new allocator that holds nothing, for programs of so many streams. Null: it can't be made,
   * and error(null) says why. */
  void* (*create)(uint32_t streams);
  void (*destroy)(void* self); /* the program has freed every block */

  /* A block of `bytes` (not 0), aligned to 256. Null: failed, and error(self) says why. `pool`: 0,
   * or the number of a pool: blocks of one pool are freed together. An allocator without pools
   * takes no notice of it. */
  void* (*allocate)(void* self, uint64_t bytes, uint32_t stream, uint32_t pool);
  /* Work queued so far on stream `user` uses the block of stream `owner`. 0: done. */
  int (*use)(void* self, void* block, uint32_t owner, uint32_t user);
  /* 0: done. */
  int (*free)(void* self, void* block, uint64_t bytes, uint32_t stream);
  /* The program asks that memory which isn't in use goes back to the driver. May be null. */
  void (*trim)(void* self);

  void (*figures)(void* self, struct weir_suite_figures* figures);
  /* Of the last call that failed; never null. */
  const char* (*error)(void* self);
};

/* What the library exports. Null: the allocator can't be used on this machine, and
 * weir_suite_reason(), if it is exported, says why. */
const struct weir_suite_functions* weir_suite_allocator(void);
const char* weir_suite_reason(void);

#ifdef __cplusplus
}
#endif

#endif /* WEIR_SUITE_ALLOCATOR_H */
