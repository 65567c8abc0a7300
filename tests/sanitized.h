// SPDX-License-Identifier: Apache-2.0
// Whether tests run under the address or the thread sanitizer, which take ten times as long.
#pragma once

#include <algorithm>

#if defined(__has_feature)
#define WEIR_HAS_FEATURE(x) __has_feature(x)
#else
#define WEIR_HAS_FEATURE(x) 0
#endif

namespace weir::test {

#if defined(__SANITIZE_THREAD__) || WEIR_HAS_FEATURE(thread_sanitizer)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
#if defined(__SANITIZE_ADDRESS__) || WEIR_HAS_FEATURE(address_sanitizer)
inline constexpr bool kSanitizer = true;
#else
inline constexpr bool kSanitizer = kThreadSanitizer;
#endif

// How many of so many random programs to run, or to reach something: a sanitizer sees no more in
// all than in a fifth.
template <class T>
constexpr T some_if_sanitized(T programs) {
  return kSanitizer ? std::max<T>(1, programs / 5) : programs;
}

}  // namespace weir::test
