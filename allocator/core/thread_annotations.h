// Clang's thread-safety analysis, and a mutex that it understands. Source: the Clang documentation,
// "Thread Safety Analysis".
#pragma once

#include <mutex>

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
#define WEIR_RELEASE(...) WEIR_THREAD(release_capability(__VA_ARGS__))

// On templates that call back whoever holds the lock: the analysis does not see through them.
#define WEIR_NO_THREAD_ANALYSIS WEIR_THREAD(no_thread_safety_analysis)

namespace weir {

class WEIR_CAPABILITY("mutex") Mutex {
 public:
  void lock() WEIR_ACQUIRE() { mutex_.lock(); }
  void unlock() WEIR_RELEASE() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

class WEIR_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) WEIR_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() WEIR_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace weir
