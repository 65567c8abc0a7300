/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded before NCCL: notes which memory is registered with communicators. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

struct registration {
  void *communicator, *handle;
  uintptr_t begin;
  size_t bytes;
};

enum { kMost = 1 << 16 };
static struct registration live[kMost];
static int live_count;
static long registered, deregistered;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void* of_nccl(const char* name) {
  void* found = dlsym(RTLD_NEXT, name);
  if (found != NULL) return found;
  void* library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
  return library == NULL ? NULL : dlsym(library, name);
}

static void note(void* communicator, void* begin, size_t bytes, void* handle) {
  pthread_mutex_lock(&mutex);
  ++registered;
  if (live_count < kMost) {
    live[live_count++] = (struct registration){communicator, handle, (uintptr_t)begin, bytes};
  }
  pthread_mutex_unlock(&mutex);
}

static void forget(void* communicator, void* handle) {
  pthread_mutex_lock(&mutex);
  ++deregistered;
  for (int i = 0; i < live_count; ++i) {
    if (live[i].communicator != communicator || live[i].handle != handle) continue;
    live[i] = live[--live_count];
    break;
  }
  pthread_mutex_unlock(&mutex);
}

int ncclCommRegister(void* communicator, void* begin, size_t bytes, void** handle) {
  int (*real)(void*, void*, size_t, void**) = of_nccl("ncclCommRegister");
  const int status = real(communicator, begin, bytes, handle);
  if (status == 0) note(communicator, begin, bytes, *handle);
  return status;
}

int ncclCommDeregister(void* communicator, void* handle) {
  int (*real)(void*, void*) = of_nccl("ncclCommDeregister");
  forget(communicator, handle);
  return real(communicator, handle);
}

int ncclCommWindowRegister(void* communicator, void* begin, size_t bytes, void** window, int flags) {
  int (*real)(void*, void*, size_t, void**, int) = of_nccl("ncclCommWindowRegister");
  const int status = real(communicator, begin, bytes, window, flags);
  if (status == 0) note(communicator, begin, bytes, *window);
  return status;
}

int ncclCommWindowDeregister(void* communicator, void* window) {
  int (*real)(void*, void*) = of_nccl("ncclCommWindowDeregister");
  forget(communicator, window);
  return real(communicator, window);
}

/* How many registrations there were, and how many ended. */
void nccl_probe_counts(long counts[2]) {
  pthread_mutex_lock(&mutex);
  counts[0] = registered;
  counts[1] = deregistered;
  pthread_mutex_unlock(&mutex);
}

/* Fills the ranges that are registered now, at most `most`; returns how many there are. */
int nccl_probe_live(uintptr_t* begins, size_t* bytes, int most) {
  pthread_mutex_lock(&mutex);
  const int count = live_count;
  for (int i = 0; i < count && i < most; ++i) {
    begins[i] = live[i].begin;
    bytes[i] = live[i].bytes;
  }
  pthread_mutex_unlock(&mutex);
  return count;
}
