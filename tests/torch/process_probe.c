/* SPDX-License-Identifier: Apache-2.0 */
/* Calls the library from where Python code can't: with an exception pending, in a thread that has
 * never met Python, and between two looks at a counter. Functions come in as pointers, so that
 * neither Python's headers nor its library are needed. */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

typedef void* (*allocate_function)(size_t bytes, int device, void* stream);

void* probe_with_pending_exception(allocate_function allocate, void* stream) {
  void (*set)(void*, const char*) = (void (*)(void*, const char*))dlsym(NULL, "PyErr_SetString");
  void** kind = (void**)dlsym(NULL, "PyExc_ValueError");
  set(*kind, "pending");
  return allocate(4096, 0, stream);
}

struct job {
  allocate_function allocate;
  void *stream, *block;
};

static void* work(void* argument) {
  struct job* job = argument;
  job->block = job->allocate(4096, 0, job->stream);
  return NULL;
}

/* The caller holds Python's lock while it waits for the thread. */
void* probe_in_foreign_thread(allocate_function allocate, void* stream) {
  struct job job = {allocate, stream, NULL};
  pthread_t thread;
  if (pthread_create(&thread, NULL, work, &job) != 0) return NULL;
  pthread_join(thread, NULL);
  return job.block;
}

typedef void (*free_function)(void* block, size_t bytes, int device, void* stream);

static struct {
  free_function free;
  void *block, *stream;
} at_exit;

static void free_at_exit(void) { at_exit.free(at_exit.block, 4096, 0, at_exit.stream); }

/* Frees `block` in an exit handler, which runs after those that are registered later. */
void probe_at_exit(free_function free, void* block, void* stream) {
  at_exit.free = free;
  at_exit.block = block;
  at_exit.stream = stream;
  atexit(free_at_exit);
}

/* How much *counter grew while memory was allocated. */
long probe_counts(allocate_function allocate, void* stream, const volatile long* counter) {
  const long before = *counter;
  allocate(4096, 0, stream);
  return *counter - before;
}
