// SPDX-License-Identifier: Apache-2.0
#include "tests/soak/samples.h"

#include <dirent.h>
#include <malloc.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <new>
#include <string>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WEIR_SOAK_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define WEIR_SOAK_SANITIZED 1
#endif
#endif
#ifdef WEIR_SOAK_SANITIZED
#include <sanitizer/allocator_interface.h>
#else

// What `new` gave and `delete` did not get back. (mallinfo2() counts what the threads' caches keep,
// too, which fill up for hours.)
static constinit std::atomic<std::int64_t> the_allocated = 0;

void* operator new(std::size_t bytes) {
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  the_allocated.fetch_add(static_cast<std::int64_t>(::malloc_usable_size(memory)),
                          std::memory_order_relaxed);
  return memory;
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  void* const memory = ::memalign(static_cast<std::size_t>(alignment), bytes);
  if (memory == nullptr) throw std::bad_alloc();
  the_allocated.fetch_add(static_cast<std::int64_t>(::malloc_usable_size(memory)),
                          std::memory_order_relaxed);
  return memory;
}
void operator delete(void* memory) noexcept {
  if (memory == nullptr) return;
  the_allocated.fetch_sub(static_cast<std::int64_t>(::malloc_usable_size(memory)),
                          std::memory_order_relaxed);
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { operator delete(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  operator delete(memory);
}
#endif

namespace weir::soak {
namespace {

std::uint64_t entries_of(const char* folder) {
  DIR* const open = ::opendir(folder);
  if (open == nullptr) return 0;
  std::uint64_t count = 0;
  while (const dirent* const entry = ::readdir(open)) count += entry->d_name[0] != '.' ? 1 : 0;
  ::closedir(open);
  return count;
}

std::uint64_t lines_of(const char* path) {
  std::ifstream file(path);
  std::uint64_t count = 0;
  for (std::string line; std::getline(file, line);) ++count;
  return count;
}

std::uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

std::uint64_t allocated_bytes() {
#ifdef WEIR_SOAK_SANITIZED
  return __sanitizer_get_current_allocated_bytes();
#else
  return static_cast<std::uint64_t>(the_allocated.load());
#endif
}

}  // namespace

bool has_sanitizer() {
#ifdef WEIR_SOAK_SANITIZED
  return true;
#else
  return false;
#endif
}

void steady_allocation() {
  constexpr int kLarge = 128 << 10;
  ::mallopt(M_ARENA_MAX, 1);
  ::mallopt(M_MMAP_THRESHOLD, kLarge);
}

ProcessSample sample_process(bool tidy) {
  if (tidy && !has_sanitizer()) ::malloc_trim(0);
  ProcessSample sample;
  sample.allocated = allocated_bytes();
  sample.resident = resident_bytes();
  sample.maps = lines_of("/proc/self/maps");
  sample.threads = entries_of("/proc/self/task");
  sample.descriptors = entries_of("/proc/self/fd") - 1;  // the folder itself was open
  return sample;
}

}  // namespace weir::soak
