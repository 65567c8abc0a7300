/* SPDX-License-Identifier: Apache-2.0 */
/* Weir for programs in C, and for other languages' foreign-function interfaces.
 *
 *   weir_allocator_t* allocator = NULL;
 *   if (weir_create(NULL, &allocator) != WEIR_OK) fail(weir_last_error());
 *   void* block = NULL;
 *   weir_allocate(allocator, 64 << 20, compute, WEIR_CURRENT_DEVICE, &block);
 *   ... work on `compute` uses it, and work on `copy` ...
 *   weir_fence(allocator, &block, 1, copy);
 *   weir_deallocate(allocator, block);
 *   weir_destroy(allocator);
 *
 * Streams are the caller's own handles (cudaStream_t, CUstream; NULL is the default stream). The
 * rule of streams is in weir/allocator.h.
 *
 * Every function that can fail returns a weir_status_t; weir_last_error() then says why, in words.
 * A call that fails changes nothing, except as weir/allocator.h says; weir_capture_end() consumes
 * its handle in any case. No exception leaves these functions. A null allocator or a
 * null output is WEIR_INVALID_ARGUMENT, except where null is said to be fine.
 *
 * Threads: every function may be called from any thread; calls about one block must not overlap,
 * and weir_destroy() is the last call on its allocator.
 *
 * Versions: structures that may grow carry their size, so that a program built against an older
 * header works with a newer library. WEIR_ABI_VERSION rises only when that is broken: compare it
 * with weir_abi_version() after loading the library at run time.
 */
#ifndef WEIR_WEIR_H_
#define WEIR_WEIR_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEIR_ABI_VERSION 1
/* The WEIR_ABI_VERSION that the library was built with. */
int32_t weir_abi_version(void);

/* Numbers are never given a new meaning. */
typedef int32_t weir_status_t;
#define WEIR_OK ((weir_status_t)0)
#define WEIR_OUT_OF_MEMORY ((weir_status_t)1)    /* the device or the limit has no room */
#define WEIR_INVALID_ARGUMENT ((weir_status_t)2) /* the caller's mistake, a setting's included */
#define WEIR_UNKNOWN_POINTER ((weir_status_t)3)  /* not the start of a live block */
#define WEIR_DEVICE_ERROR ((weir_status_t)4)     /* the driver refused a call */
#define WEIR_CAPTURE_ERROR ((weir_status_t)5)    /* not legal in the stream's capture */
#define WEIR_UNAVAILABLE ((weir_status_t)6)      /* no driver, no such device */
#define WEIR_INVALID_INPUT ((weir_status_t)7)    /* a file can't be read or written */
#define WEIR_INTERNAL_ERROR ((weir_status_t)8)   /* anything else; host memory ran out, say */
#define WEIR_ASLEEP ((weir_status_t)9)           /* the memory sleeps: weir_wake() */

/* "WEIR_OUT_OF_MEMORY" and so on; "unknown" for another number. Never null, never freed. */
const char* weir_status_name(weir_status_t status);

/* The reason of this thread's latest failed call; "" before the first. Never null; valid until this
 * thread's next failed call, or its next weir_validate() that finds something. */
const char* weir_last_error(void);

typedef struct weir_allocator_t weir_allocator_t;

/* One setting: a name and a value as in docs/configuration.md ("WEIR_LIMIT", "80%"). */
typedef struct weir_setting_t {
  const char* name;
  const char* value;
} weir_setting_t;

typedef struct weir_options_t {
  size_t size; /* sizeof(weir_options_t) */
  /* They override the environment. May be null if the count is zero. */
  const weir_setting_t* settings;
  size_t settings_count;
  int32_t ignore_environment; /* 1: the WEIR_* variables of the environment are not read */
} weir_options_t;
#define WEIR_OPTIONS_INIT \
  { sizeof(weir_options_t), NULL, 0, 0 }

/* Null options: settings from the environment alone. Devices are opened when first used. */
weir_status_t weir_create(const weir_options_t* options, weir_allocator_t** allocator);

/* Does not wait: first synchronise all work that still uses the memory. Null is fine. */
void weir_destroy(weir_allocator_t* allocator);

/* The device that is current in the calling thread. */
#define WEIR_CURRENT_DEVICE ((int32_t)-1)

/* A block of at least `bytes`, at an address that is a multiple of 512, for work on `stream`. Zero
 * bytes: null. On failure *block is null. */
weir_status_t weir_allocate(weir_allocator_t* allocator, uint64_t bytes, void* stream,
                            int32_t device, void** block);

/* The same in plain memory (docs/configuration.md, WEIR_MEMORY), for what other processes, peers
 * and libraries are to open. Takes longer; not for a stream that is being captured. */
weir_status_t weir_allocate_plain(weir_allocator_t* allocator, uint64_t bytes, void* stream,
                                  int32_t device, void** block);

/* Gives the block back. A null block is fine. */
weir_status_t weir_deallocate(weir_allocator_t* allocator, void* block);

/* "Work queued so far on `stream` uses these `count` blocks": one event for all of them, as a rule
 * (weir/device_heap.h). */
weir_status_t weir_fence(weir_allocator_t* allocator, void* const* blocks, size_t count,
                         void* stream);

/* "`stream` may use the block until it is deallocated." */
weir_status_t weir_record_stream(weir_allocator_t* allocator, void* block, void* stream);

/* Says that `stream` is about to be destroyed. */
weir_status_t weir_retire(weir_allocator_t* allocator, void* stream, int32_t device);

/* Gives idle memory back to the driver until each device holds at most `keep` bytes, or nothing
 * more can go without waiting. `given_back` (may be null): the bytes that went. */
weir_status_t weir_trim(weir_allocator_t* allocator, uint64_t keep, uint64_t* given_back);

/* Limits the physical memory that `device` holds, graph pools included, to `bytes`; zero: no limit.
 * If more is held, idle memory goes back at once; free memory that work on the device still uses,
 * with the first weir_deallocate() after that work is done; memory that a graph may use, once the
 * graph is gone. */
weir_status_t weir_set_limit(weir_allocator_t* allocator, uint64_t bytes, int32_t device);

/* Of one device; docs/statistics.md explains every number. */
typedef struct weir_statistics_t {
  size_t size; /* sizeof(weir_statistics_t); set it before the call */
  uint64_t live_blocks, live_blocks_peak;
  uint64_t live_bytes, live_bytes_peak;
  uint64_t requested_bytes, requested_bytes_peak;
  uint64_t leased_bytes, leased_bytes_peak;
  uint64_t reserved_bytes, reserved_bytes_peak;
  uint64_t mapped_bytes, mapped_bytes_peak;
  uint64_t pages, mappings;
  uint64_t fences, stream_waits, host_waits, out_of_memory;
  uint64_t trimmed_bytes;
  uint64_t plain_bytes, plain_bytes_peak; /* of reserved_bytes, what is plain memory */
  uint64_t plain_leased_bytes, plain_live_bytes;
  /* each is 1 if events of the whole context (weir/event.h) were given up for that reason */
  uint64_t context_events_lost_external_stream, context_events_lost_unannounced_capture;
  uint64_t context_events_lost_refused, context_events_lost_unavailable;
  uint64_t context_events_lost_pluggable;
  uint64_t regions_elsewhere; /* WEIR_ADDRESSES=prefer: regions at other addresses than meant */
  uint64_t lent_bytes, lent_bytes_peak; /* of reserved_bytes, scratch that graph pools lend */
} weir_statistics_t;
#define WEIR_STATISTICS_INIT                                                                     \
  {                                                                                              \
    sizeof(weir_statistics_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
        0, 0, 0, 0, 0, 0, 0, 0, 0                                                                \
  }

/* Writes as many members as `statistics->size` has room for. */
weir_status_t weir_statistics(weir_allocator_t* allocator, int32_t device,
                              weir_statistics_t* statistics);

/* Calls of one kind that Weir made to the driver, failed ones included. */
typedef struct weir_driver_call_t {
  const char* name; /* "create", "map", ...: never freed */
  uint64_t calls;
  uint64_t nanoseconds; /* of the host; zero unless WEIR_TIME_DRIVER is 1 */
} weir_driver_call_t;
/* Writes the kinds that were called, at most `size` of them. `needed` (may be null): how many there
 * are. `calls` may be null if `size` is zero. */
weir_status_t weir_driver_calls(weir_allocator_t* allocator, int32_t device,
                                weir_driver_call_t* calls, size_t size, size_t* needed);

/* Where a pool placed blocks since it was opened. Two runs, or ranks, whose numbers are equal gave
 * each stream blocks of the same sizes at the same places of the pool, in the same order. */
typedef struct weir_pool_layout_t {
  uint64_t pool; /* a graph pool's number, in order of opening; 0: the device's own memory */
  uint64_t placements;
  uint64_t hash;
} weir_pool_layout_t;
/* Writes the pools that are open, by number, at most `size` of them: none of a device that was not
 * used yet. `needed` (may be null): how many there are. `pools` may be null if `size` is zero. */
weir_status_t weir_layout(weir_allocator_t* allocator, int32_t device, weir_pool_layout_t* pools,
                          size_t size, size_t* needed);

/* Checks every invariant of every device's heap. `broken` (may be null): the number of broken ones;
 * if it is not zero, weir_last_error() lists them, one a line. */
weir_status_t weir_validate(weir_allocator_t* allocator, size_t* broken);

/* Recordings and snapshots (docs/recording.md). Files of devices after the first
 * have the device's number before the extension.
 *
 * start: records what each device does from now on into `path`, in place of an earlier recording
 * (any other file there is WEIR_INVALID_INPUT); WEIR_INVALID_ARGUMENT while a recording goes on.
 * stop: ends the recording, if there is one. write: with WEIR_RECORD_RING, writes the latest events
 * to `path`. mark: adds a remark to what is recorded. A snapshot is of one device. */
weir_status_t weir_record_start(weir_allocator_t* allocator, const char* path);
/* `stacks`: which kind of stack is recorded with each allocation: "none", "cpp", "python"; null: as
 * WEIR_RECORD_STACKS says.
 */
weir_status_t weir_record_start_with(weir_allocator_t* allocator, const char* path,
                                     const char* stacks);
/* For programs that record Python stacks: call it before Python ends, without holding its lock (the
 * GIL). It waits, 2 s at most, for threads in Weir that want that lock; from then on Weir never
 * takes it.
 */
void weir_python_ends(void);
weir_status_t weir_record_stop(weir_allocator_t* allocator);
weir_status_t weir_record_write(weir_allocator_t* allocator, const char* path);
weir_status_t weir_record_mark(weir_allocator_t* allocator, const char* text);
weir_status_t weir_write_snapshot(weir_allocator_t* allocator, int32_t device, const char* path);

/* Graph pools: weir/graph_pool.h says what they are and how graphs share them. Pools, bindings,
 * captures and graphs must be gone before the allocator is. Null handles are fine where a function
 * returns nothing. */
typedef struct weir_graph_pool_t weir_graph_pool_t;
typedef struct weir_route_t weir_route_t;
typedef struct weir_capture_t weir_capture_t;
typedef struct weir_graph_t weir_graph_t;

/* `limit`: the most memory that the pool may hold, in bytes; zero: what the device's limit leaves.
 */
weir_status_t weir_graph_pool_open(weir_allocator_t* allocator, uint64_t limit, int32_t device,
                                   weir_graph_pool_t** pool);
/* Live blocks and graphs stay valid. Idle memory goes back at once, other memory as blocks are
 * deallocated and graphs destroyed. */
void weir_graph_pool_close(weir_graph_pool_t* pool);

/* Requests on `stream`, which is not being captured, are served from the pool until
 * weir_route_close(). (Only C++ has
 * warm-ups by filter, and the driver's handles of a graph.) */
weir_status_t weir_graph_pool_warm_up(weir_graph_pool_t* pool, void* stream,
                                      weir_route_t** binding);

/* For programs that begin and end captures themselves: the pool serves requests on captured streams
 * for which the filter returns not 0. The filter is called for each request while the binding is
 * open, in the requesting thread; it must not call Weir. Open the binding before the capture
 * begins, and close it after the end. `keep`: the capture made a graph; call
 * weir_graph_pool_release_graph() once the graph will not be launched again. The pool lets the
 * memory go with its last graph, once that is destroyed and the launches are done.
 */
typedef int32_t (*weir_stream_filter_t)(void* stream, void* context);
weir_status_t weir_graph_pool_capture(weir_graph_pool_t* pool, weir_stream_filter_t filter,
                                      void* context, weir_route_t** binding);
void weir_route_close(weir_route_t* binding, int32_t keep);
void weir_graph_pool_release_graph(weir_graph_pool_t* pool);

typedef struct weir_graph_pool_statistics_t {
  size_t size; /* sizeof(weir_graph_pool_statistics_t); set it before the call */
  uint64_t live_blocks, live_bytes;
  uint64_t reserved_bytes, peak_reserved_bytes, kept_bytes;
  uint64_t graphs, deferred;
  uint64_t lent_bytes; /* scratch of graphs that serves other requests until the next launch */
} weir_graph_pool_statistics_t;
#define WEIR_GRAPH_POOL_STATISTICS_INIT \
  { sizeof(weir_graph_pool_statistics_t), 0, 0, 0, 0, 0, 0, 0, 0 }
/* Writes as many members as `statistics->size` has room for. */
weir_status_t weir_graph_pool_statistics(weir_graph_pool_t* pool,
                                         weir_graph_pool_statistics_t* statistics);

typedef enum weir_capture_mode_t {
  WEIR_CAPTURE_GLOBAL = 0,
  WEIR_CAPTURE_THREAD_LOCAL = 1,
  WEIR_CAPTURE_RELAXED = 2,
} weir_capture_mode_t;
/* A capture of `stream` into the pool. weir_capture_end() makes a graph of it. Call that in the
 * thread that began the capture (in any, if `mode` is relaxed), with the pool that the capture
 * began with, still open; once that pool is closed, only weir_capture_abandon() is left. Even if
 * weir_capture_end() fails, the capture's handle is gone, and the capture is thrown away; but in
 * the wrong thread the driver neither ends nor throws away the capture, which goes on without the
 * pool. */
weir_status_t weir_capture_begin(weir_graph_pool_t* pool, void* stream, weir_capture_mode_t mode,
                                 weir_capture_t** capture);
weir_status_t weir_capture_end(weir_graph_pool_t* pool, weir_capture_t* capture,
                               weir_graph_t** graph);
/* Throws the capture away. */
void weir_capture_abandon(weir_capture_t* capture);
weir_status_t weir_graph_launch(weir_graph_t* graph, void* stream);
void weir_graph_destroy(weir_graph_t* graph);

/* weir_sleep() gives the memory of tags back to the device; weir_wake() gets memory at the same
 * addresses again (docs/sleep.md). Null options: every tag, and the defaults. A null report is
 * fine. */
typedef enum weir_contents_t {
  WEIR_CONTENTS_AS_BEFORE = -1,
  WEIR_CONTENTS_BACKUP = 0,
  WEIR_CONTENTS_DISCARD = 1,
  WEIR_CONTENTS_ZERO = 2,
  WEIR_CONTENTS_IMMUTABLE = 3,
} weir_contents_t;
typedef enum weir_tag_state_t {
  WEIR_TAG_AWAKE = 0,
  WEIR_TAG_ASLEEP = 1,
  WEIR_TAG_PARTLY_ASLEEP = 2, /* weir_sleep() or weir_wake() failed on the way: call either */
} weir_tag_state_t;

typedef struct weir_sleep_options_t {
  size_t size;             /* sizeof(weir_sleep_options_t) */
  const char* const* tags; /* null when the count is zero: every tag */
  size_t tags_count;
  int32_t contents;             /* weir_contents_t, from now on */
  int32_t keep;                 /* 1: what can't sleep stays awake, and is no error */
  int32_t forget_graph_scratch; /* 1: bytes of graphs' pages outside live blocks are lost */
} weir_sleep_options_t;
#define WEIR_SLEEP_OPTIONS_INIT \
  { sizeof(weir_sleep_options_t), NULL, 0, WEIR_CONTENTS_AS_BEFORE, 0, 0 }

typedef struct weir_wake_options_t {
  size_t size; /* sizeof(weir_wake_options_t) */
  const char* const* tags;
  size_t tags_count;
  uint64_t keep_host_bytes; /* most pinned host memory to keep for the next sleep */
} weir_wake_options_t;
#define WEIR_WAKE_OPTIONS_INIT \
  { sizeof(weir_wake_options_t), NULL, 0, 0 }

typedef struct weir_sleep_report_t {
  size_t size;           /* sizeof(weir_sleep_report_t); set it before the call */
  uint64_t bytes;        /* given back to the device, or had from it */
  uint64_t copied_bytes; /* between device and host, in `copies` copies */
  uint64_t copies;
  uint64_t host_bytes; /* pinned host memory that is held after the call */
  uint64_t kept_bytes; /* that can't sleep, and stayed awake */
  uint64_t nanoseconds;
} weir_sleep_report_t;
#define WEIR_SLEEP_REPORT_INIT \
  { sizeof(weir_sleep_report_t), 0, 0, 0, 0, 0, 0 }

weir_status_t weir_sleep(weir_allocator_t* allocator, int32_t device,
                         const weir_sleep_options_t* options, weir_sleep_report_t* report);
weir_status_t weir_wake(weir_allocator_t* allocator, int32_t device,
                        const weir_wake_options_t* options, weir_sleep_report_t* report);

typedef struct weir_tag_info_t {
  size_t size;      /* sizeof(weir_tag_info_t); set it before the call */
  int32_t state;    /* weir_tag_state_t */
  int32_t contents; /* weir_contents_t */
  uint64_t device_bytes, asleep_bytes, host_bytes;
} weir_tag_info_t;
#define WEIR_TAG_INFO_INIT \
  { sizeof(weir_tag_info_t), 0, 0, 0, 0, 0 }
weir_status_t weir_tag_info(weir_allocator_t* allocator, int32_t device, const char* tag,
                            weir_tag_info_t* info);
/* The tags' names, one a line, cut to `size` bytes, the final zero included. `needed` (may be
 * null): the `size` that all names need, the zero included. */
weir_status_t weir_tag_list(weir_allocator_t* allocator, int32_t device, char* names, size_t size,
                            size_t* needed);
weir_status_t weir_set_contents(weir_allocator_t* allocator, int32_t device, const char* tag,
                                int32_t contents);
/* Says that bytes of a WEIR_CONTENTS_IMMUTABLE tag have changed since they were copied. */
weir_status_t weir_declare_changed(weir_allocator_t* allocator, int32_t device, const char* tag);

/* Writes Weir's copy of the `bytes` bytes from `pointer` on, within one live block that sleeps, to
 * `to`, in host memory. WEIR_INVALID_ARGUMENT: there is no copy. WEIR_UNAVAILABLE: the device is a
 * simulated one. */
weir_status_t weir_read_asleep(weir_allocator_t* allocator, int32_t device, const void* pointer,
                               uint64_t bytes, void* to);

/* As weir_allocate(), of the tag's memory. */
weir_status_t weir_allocate_tagged(weir_allocator_t* allocator, uint64_t bytes, void* stream,
                                   int32_t device, const char* tag, void** block);
/* Requests of the calling thread, or of all threads, belong to the tag until weir_tag_end(), which
 * must come before weir_destroy() and accepts null. */
typedef struct weir_tag_scope_t weir_tag_scope_t;
weir_status_t weir_tag_begin(weir_allocator_t* allocator, int32_t device, const char* tag,
                             int32_t all_threads, weir_tag_scope_t** scope);
void weir_tag_end(weir_tag_scope_t* scope);

/* Says that others, named by `holder`, use the live block's memory, so that it can't sleep until
 * the hold is released. Release it before the block is freed. */
weir_status_t weir_hold(weir_allocator_t* allocator, void* block, const char* holder,
                        uint64_t* hold);
weir_status_t weir_release_hold(weir_allocator_t* allocator, void* block, uint64_t hold);

/* What is on the device. */
typedef struct weir_residue_t {
  size_t size;           /* sizeof(weir_residue_t); set it before the call */
  uint64_t device_bytes; /* in all; 0: unknown */
  uint64_t free_bytes;
  uint64_t weir_bytes;  /* that this allocator holds, awake */
  uint64_t held_bytes;  /* part of them that can't sleep */
  uint64_t other_bytes; /* contexts, modules, libraries, other processes */
  uint64_t host_bytes;  /* this allocator's pinned host memory */
} weir_residue_t;
#define WEIR_RESIDUE_INIT \
  { sizeof(weir_residue_t), 0, 0, 0, 0, 0, 0 }
weir_status_t weir_residue(weir_allocator_t* allocator, int32_t device, weir_residue_t* residue);

/* A new stream of a simulated device (WEIR_DEVICE=sim), to try things with no GPU. It lives as long
 * as the allocator. WEIR_INVALID_ARGUMENT where the device is a real one. */
weir_status_t weir_sim_new_stream(weir_allocator_t* allocator, int32_t device, void** stream);

#ifdef __cplusplus
}
#endif

#endif /* WEIR_WEIR_H_ */
