// SPDX-License-Identifier: Apache-2.0
// What a library's own threads need: they leave the program's signals alone, and are not there in a
// child of fork().
#pragma once

#include <cstdint>
#include <functional>
#include <thread>

namespace weir {

// A thread to which no signal is delivered.
std::thread start_quiet_thread(std::function<void()> body);

// How often this process, or one that it stems from, was forked off since the first call. Cheap.
std::uint64_t fork_generation();

}  // namespace weir
