// SPDX-License-Identifier: Apache-2.0
// Clang's thread-safety analysis. Source: the Clang documentation, "Thread Safety Analysis".
#pragma once

#if defined(__clang__)
#define WEIR_THREAD(x) __attribute__((x))
#else
#define WEIR_THREAD(x)
#endif

#define WEIR_CAPABILITY(x) WEIR_THREAD(capability(x))
#define WEIR_SCOPED_CAPABILITY WEIR_THREAD(scoped_lockable)
#define WEIR_GUARDED_BY(x) WEIR_THREAD(guarded_by(x))
#define WEIR_REQUIRES(...) WEIR_THREAD(requires_capability(__VA_ARGS__))
#define WEIR_EXCLUDES(...) WEIR_THREAD(locks_excluded(__VA_ARGS__))
#define WEIR_ACQUIRE(...) WEIR_THREAD(acquire_capability(__VA_ARGS__))
#define WEIR_TRY_ACQUIRE(...) WEIR_THREAD(try_acquire_capability(__VA_ARGS__))
#define WEIR_RELEASE(...) WEIR_THREAD(release_capability(__VA_ARGS__))
#define WEIR_RETURN_CAPABILITY(x) WEIR_THREAD(lock_returned(x))

// On templates that call back whoever holds the lock: the analysis does not see through them.
#define WEIR_NO_THREAD_ANALYSIS WEIR_THREAD(no_thread_safety_analysis)
