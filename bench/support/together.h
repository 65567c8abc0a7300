// SPDX-License-Identifier: Apache-2.0
// Threads that begin at once.
#pragma once

#include <functional>

namespace weir::bench {

// Runs prepare(thread) and then work(thread) in each of `threads` threads, numbered from 0; no work
// begins before all are prepared. Returns the seconds from the first begin to the last end of work.
double seconds_together(int threads, const std::function<void(int)>& prepare,
                        const std::function<void(int)>& work);

}  // namespace weir::bench
