// SPDX-License-Identifier: Apache-2.0
// Functions that a newer C library renamed, gave a new version or added, for binaries that run with
// glibc 2.28 too (WeirOldSystems.cmake). They are hidden: each serves the binary that it is linked
// into.
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <sstream>
#include <string>

#ifndef __x86_64__
#error "WEIR_OLD_SYSTEMS: the old versions' names below are those of x86-64"
#endif

// `name` is a jump to the function in the version that old systems have, whatever its arguments.
// (In a section of its own, which the linker drops if nobody calls it.)
#define WEIR_OLD_VERSION(name, version)                                                      \
  __asm__(".pushsection .text.weir_old_" #name ", \"ax\", @progbits\n.globl " #name          \
          "\n.hidden " #name "\n.type " #name ", @function\n" #name ": jmp *weir_old_" #name \
          "@GOTPCREL(%rip)\n.popsection\n"                                                   \
          ".symver weir_old_" #name ", " #name "@" version)
#define WEIR_OLD(name) WEIR_OLD_VERSION(name, "GLIBC_2.2.5")

// Moved from libdl, libpthread and librt to libc, in 2.32 and 2.34.
WEIR_OLD(dladdr);
WEIR_OLD(dlclose);
WEIR_OLD(dlerror);
WEIR_OLD(dlopen);
WEIR_OLD(dlsym);
WEIR_OLD(dlvsym);
WEIR_OLD(__pthread_key_create);
WEIR_OLD(pthread_condattr_setpshared);
WEIR_OLD(pthread_create);
WEIR_OLD(pthread_detach);
WEIR_OLD(pthread_getspecific);
WEIR_OLD(pthread_join);
WEIR_OLD(pthread_key_create);
WEIR_OLD(pthread_key_delete);
WEIR_OLD(pthread_kill);
WEIR_OLD(pthread_mutex_timedlock);
WEIR_OLD(pthread_mutex_trylock);
WEIR_OLD(pthread_mutexattr_destroy);
WEIR_OLD(pthread_mutexattr_init);
WEIR_OLD(pthread_mutexattr_setpshared);
WEIR_OLD(pthread_mutexattr_settype);
WEIR_OLD(pthread_once);
WEIR_OLD(pthread_rwlock_destroy);
WEIR_OLD(pthread_rwlock_init);
WEIR_OLD(pthread_rwlock_rdlock);
WEIR_OLD(pthread_rwlock_timedrdlock);
WEIR_OLD(pthread_rwlock_timedwrlock);
WEIR_OLD(pthread_rwlock_tryrdlock);
WEIR_OLD(pthread_rwlock_trywrlock);
WEIR_OLD(pthread_rwlock_unlock);
WEIR_OLD(pthread_rwlock_wrlock);
WEIR_OLD(pthread_rwlockattr_destroy);
WEIR_OLD(pthread_rwlockattr_init);
WEIR_OLD(pthread_rwlockattr_setpshared);
WEIR_OLD(pthread_setspecific);
WEIR_OLD(pthread_sigmask);
WEIR_OLD(pthread_spin_destroy);
WEIR_OLD(pthread_spin_init);
WEIR_OLD(pthread_spin_lock);
WEIR_OLD(pthread_spin_trylock);
WEIR_OLD(pthread_spin_unlock);
WEIR_OLD(sem_destroy);
WEIR_OLD(sem_init);
WEIR_OLD(sem_post);
WEIR_OLD(sem_timedwait);
WEIR_OLD(sem_trywait);
WEIR_OLD(sem_wait);
WEIR_OLD(shm_open);
WEIR_OLD(shm_unlink);
WEIR_OLD_VERSION(dlmopen, "GLIBC_2.3.4");
// With other errors since 2.29.
WEIR_OLD(exp2);
WEIR_OLD(log2);

namespace {

// What the wrapped functions are in the old version.
#define WEIR_OLD_NAME(ours, name) __asm__(".symver " #ours ", " #name "@GLIBC_2.2.5")
extern "C" {
int weir_old_xstat(int version, const char* path, struct stat* found);
WEIR_OLD_NAME(weir_old_xstat, __xstat);
int weir_old_lxstat(int version, const char* path, struct stat* found);
WEIR_OLD_NAME(weir_old_lxstat, __lxstat);
int weir_old_fxstat(int version, int file, struct stat* found);
WEIR_OLD_NAME(weir_old_fxstat, __fxstat);
using Main = int(int, char**, char**);
int weir_old_start(Main* main, int count, char** arguments, Main* begin, void (*end)(),
                   void (*loader_ends)(), void* stack);
WEIR_OLD_NAME(weir_old_start, __libc_start_main);
void* dlsym(void* library, const char* name) noexcept;
}

constexpr int kStatVersion = 1;

}  // namespace

#define WEIR_HIDDEN __attribute__((visibility("hidden")))

extern "C" {

WEIR_HIDDEN int stat(const char* path, struct stat* found) noexcept {
  return weir_old_xstat(kStatVersion, path, found);
}
WEIR_HIDDEN int lstat(const char* path, struct stat* found) noexcept {
  return weir_old_lxstat(kStatVersion, path, found);
}
WEIR_HIDDEN int fstat(int file, struct stat* found) noexcept {
  return weir_old_fxstat(kStatVersion, file, found);
}
WEIR_HIDDEN int fstat64(int file, struct stat64* found) noexcept {
  return fstat(file, reinterpret_cast<struct stat*>(found));  // on x86-64 one structure
}

// Since 2.36; libstdc++'s std::random_device.
WEIR_HIDDEN uint32_t arc4random() noexcept {
  uint32_t number = 0;
  if (getentropy(&number, sizeof(number)) != 0) abort();
  return number;
}

// Since 2.32: std::shared_ptr counts without atomics while it is true.
WEIR_HIDDEN char __libc_single_threaded = 0;

// Since 2.30. Where the C library lacks it, waits by the wall clock, for as long as is left.
WEIR_HIDDEN int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                       clockid_t clock, const timespec* until) {
  static const auto real =
      reinterpret_cast<decltype(&pthread_cond_clockwait)>(dlsym(nullptr, "pthread_cond_clockwait"));
  if (real != nullptr) return real(condition, mutex, clock, until);
  constexpr int64_t kSecond = 1'000'000'000;
  timespec now;
  timespec wall;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &wall);
  const int64_t left = (until->tv_sec - now.tv_sec) * kSecond + until->tv_nsec - now.tv_nsec;
  const int64_t at = wall.tv_nsec + (left > 0 ? left : 0);
  const timespec then{wall.tv_sec + at / kSecond, at % kSecond};
  return pthread_cond_timedwait(condition, mutex, &then);
}

#ifdef WEIR_OLD_SYSTEMS_PROGRAM
// Since 2.34 the C library calls a program's constructors; before, crt1.o named a function that
// does.
extern WEIR_HIDDEN Main* __init_array_start[];
extern WEIR_HIDDEN Main* __init_array_end[];
void _init();

static int construct(int count, char** arguments, char** environment) {
  _init();
  for (Main** each = __init_array_start; each != __init_array_end; ++each) {
    (*each)(count, arguments, environment);
  }
  return 0;
}

WEIR_HIDDEN int __libc_start_main(Main* main, int count, char** arguments, Main*, void (*)(),
                                  void (*loader_ends)(), void* stack) {
  return weir_old_start(main, count, arguments, construct, nullptr, loader_ends, stack);
}
#endif

}  // extern "C"

template std::string std::basic_stringbuf<char>::str() const&;
