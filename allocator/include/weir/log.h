// SPDX-License-Identifier: Apache-2.0
// What Weir says about itself in words. One logger, "weir", for the whole process; quiet by
// default: warnings and errors, to stderr.
//
// Threads: every function may be called from any thread at any time.
#pragma once

#include <string>
#include <string_view>

#include "weir/event.h"
#include "weir/result.h"

namespace weir {

enum class LogLevel { off, error, warn, info, debug };
std::string_view name_of(LogLevel level);

// Sets what is logged, and where: `file` is appended to; empty means stderr. Replaces the setting
// before. Errors: invalid_input (the file can't be opened, or its folder does not exist): the
// setting before stays.
Status configure_log(LogLevel level, const std::string& file = "");

// Whether a message at `level` would be written, so that callers need not make one in vain.
bool log_enabled(LogLevel level);

void log(LogLevel level, std::string_view message);

// One event in words, such as "allocate heap=0 stream=3 address=0x2000000 bytes=512".
std::string describe(const Event& event);

// Logs every event at debug level, and out_of_memory as a warning. It writes to the log, and so to
// its file, under a heap's lock, for which allocating threads wait: for debugging only.
class LogSink final : public EventSink {
 public:
  void on_event(const Event& event) override;
};

}  // namespace weir
