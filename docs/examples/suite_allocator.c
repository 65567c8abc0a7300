/* SPDX-License-Identifier: Apache-2.0 */
/* An allocator for `weir bench --allocator FILE.so`: sizes rounded up to powers of two, and a list
 * of free blocks for each size. Its memory is addresses that nothing lies at. */
#include "suite_allocator.h"

#include <stdlib.h>

struct buckets {
  void** free[64]; /* blocks of 2^i bytes that are free */
  size_t count[64], room[64];
  struct weir_suite_figures figures;
  uint64_t next; /* an address that was never given out */
};

static unsigned bucket_of(uint64_t bytes) {
  unsigned bucket = 9; /* at least 512 bytes */
  while (((uint64_t)1 << bucket) < bytes) ++bucket;
  return bucket;
}

static void* create(uint32_t streams) {
  struct buckets* const self = calloc(1, sizeof *self);
  (void)streams;
  if (self != NULL) self->next = (uint64_t)1 << 40;
  return self;
}

static void destroy(void* object) {
  struct buckets* const self = object;
  for (unsigned i = 0; i < 64; ++i) free(self->free[i]);
  free(self);
}

static void* allocate(void* object, uint64_t bytes, uint32_t stream, uint32_t pool) {
  struct buckets* const self = object;
  const unsigned bucket = bucket_of(bytes);
  (void)stream, (void)pool;
  if (self->count[bucket] > 0) return self->free[bucket][--self->count[bucket]];
  void* const block = (void*)(uintptr_t)self->next;
  self->next += (uint64_t)1 << bucket;
  self->figures.held_bytes += (uint64_t)1 << bucket;
  ++self->figures.driver_calls;
  return block;
}

static int use(void* object, void* block, uint32_t owner, uint32_t user) {
  (void)block;
  if (owner != user) ++((struct buckets*)object)->figures.waits; /* the owner waits at once */
  return 0;
}

static int give_back(void* object, void* block, uint64_t bytes, uint32_t stream) {
  struct buckets* const self = object;
  const unsigned bucket = bucket_of(bytes);
  (void)stream;
  if (self->count[bucket] == self->room[bucket]) {
    const size_t room = self->room[bucket] * 2 + 64;
    void** const blocks = realloc(self->free[bucket], room * sizeof *blocks);
    if (blocks == NULL) return 1;
    self->free[bucket] = blocks;
    self->room[bucket] = room;
  }
  self->free[bucket][self->count[bucket]++] = block;
  return 0;
}

static void figures(void* object, struct weir_suite_figures* out) {
  *out = ((const struct buckets*)object)->figures;
}

static const char* error(void* object) { return (void)object, "the host has no memory"; }

const struct weir_suite_functions* weir_suite_allocator(void) {
  static const struct weir_suite_functions functions = {WEIR_SUITE_VERSION,
                                                        "powers-of-two",
                                                        create,
                                                        destroy,
                                                        allocate,
                                                        use,
                                                        give_back,
                                                        NULL,
                                                        figures,
                                                        error};
  return &functions;
}
