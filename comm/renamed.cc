#include "comm/renamed.h"

#include <mutex>
#include <set>
#include <string>

#include "weir/log.h"

namespace weir {

void warn_renamed(std::string_view old_name, std::string_view new_name) {
  static std::mutex mutex;
  static auto* const warned = new std::set<std::string>;  // static objects may create communicators
  {
    const std::lock_guard lock(mutex);
    if (!warned->emplace(old_name).second) return;
  }
  log(LogLevel::warn, std::string(old_name) + " is now called " + std::string(new_name) +
                          ": use the new name; the old one will go");
}

}  // namespace weir
