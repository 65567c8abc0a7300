// SPDX-License-Identifier: Apache-2.0
#include "weir/log.h"

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>

#include "observe/replaced_file.h"

namespace weir {
namespace {

struct LevelWords {
  std::string_view name;
  spdlog::level::level_enum level;
};
// In the order of LogLevel.
constexpr std::array<LevelWords, 5> kLevels = {{{"off", spdlog::level::off},
                                                {"error", spdlog::level::err},
                                                {"warn", spdlog::level::warn},
                                                {"info", spdlog::level::info},
                                                {"debug", spdlog::level::debug}}};

spdlog::level::level_enum spdlog_level(LogLevel level) {
  return kLevels[static_cast<std::size_t>(level)].level;
}

std::shared_ptr<spdlog::logger> make_logger(LogLevel level, spdlog::sink_ptr sink) {
  auto logger = std::make_shared<spdlog::logger>("weir", std::move(sink));
  logger->set_level(spdlog_level(level));
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e [%n] %^%l%$: %v");
  // Trouble must be on disk even if the process dies of it next.
  logger->flush_on(spdlog::level::warn);
  return logger;
}

spdlog::sink_ptr stderr_sink() { return std::make_shared<spdlog::sinks::stderr_color_sink_mt>(); }

// The logger of the process. A message in flight keeps the logger that it began with.
class Log {
 public:
  static Log& instance() {
    // Never destroyed: heaps that outlive main's end may still log.
    static Log& log = *new Log;
    return log;
  }

  std::shared_ptr<spdlog::logger> logger() {
    const std::scoped_lock lock(mutex_);
    return logger_;
  }

  void replace(std::shared_ptr<spdlog::logger> logger) {
    const std::scoped_lock lock(mutex_);
    logger_ = std::move(logger);
    level_.store(logger_->level(), std::memory_order_relaxed);
  }

  bool enabled(LogLevel level) const {
    return level != LogLevel::off && spdlog_level(level) >= level_.load(std::memory_order_relaxed);
  }

 private:
  Log() { replace(make_logger(LogLevel::warn, stderr_sink())); }

  std::mutex mutex_;
  std::shared_ptr<spdlog::logger> logger_;  // guarded by mutex_
  std::atomic<spdlog::level::level_enum> level_{spdlog::level::warn};
};

}  // namespace

std::string_view name_of(LogLevel level) { return kLevels[static_cast<std::size_t>(level)].name; }

Status configure_log(LogLevel level, const std::string& file) {
  if (!file.empty()) {
    // (spdlog would make the folder: a typing error would log where nobody looks.)
    if (Status there = check_folder("log file", file); !there) return there;
  }
  spdlog::sink_ptr sink;
  try {
    sink = file.empty() ? stderr_sink() : std::make_shared<spdlog::sinks::basic_file_sink_mt>(file);
  } catch (const spdlog::spdlog_ex& error) {
    return Error{ErrorCode::invalid_input, fmt::format("log file {}: {}", file, error.what())};
  }
  Log::instance().replace(make_logger(level, std::move(sink)));
  return {};
}

bool log_enabled(LogLevel level) { return Log::instance().enabled(level); }

void log(LogLevel level, std::string_view message) {
  if (!log_enabled(level)) return;
  Log::instance().logger()->log(spdlog_level(level),
                                spdlog::string_view_t(message.data(), message.size()));
}

std::string describe(const Event& event) {
  std::string text = fmt::format("{} heap={}", name_of(event.kind), event.heap.value);
  const auto add = [&](std::string_view name, std::uint64_t value) {
    if (value != 0) text += fmt::format(" {}={}", name, value);
  };
  add("stream", event.stream);
  add("other", event.other);
  if (event.address != Address{}) text += fmt::format(" address={:#x}", event.address.value);
  add("bytes", event.bytes.count);
  add("requested", event.requested.count);
  const bool about_page = event.kind == EventKind::create || event.kind == EventKind::release ||
                          event.kind == EventKind::map || event.kind == EventKind::unmap ||
                          event.kind == EventKind::lease || event.kind == EventKind::unlease ||
                          event.kind == EventKind::keep;
  if (about_page) text += fmt::format(" page={}", event.page.value);
  add("pool", event.pool);
  add("sequence", event.sequence.value);
  add("duration_ns", static_cast<std::uint64_t>(event.duration.count));
  text += fmt::format(" time_ns={}", event.time.count);
  return text;
}

void LogSink::on_event(const Event& event) {
  const LogLevel level = event.kind == EventKind::out_of_memory ? LogLevel::warn : LogLevel::debug;
  if (log_enabled(level)) log(level, describe(event));
}

}  // namespace weir
