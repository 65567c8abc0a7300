#include <unistd.h>

#include <cstdlib>
#include <string>

#include "comm/launch/processes.h"
#include "weir/comm/launch.h"

namespace weir {
namespace {

class ProcessEnvironment final : public Environment {
 public:
  std::optional<std::string> get(const std::string& name) const override {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr || *value == '\0') return {};
    return value;
  }

  void set(const std::string& name, const std::string& value) override {
    ::setenv(name.c_str(), value.c_str(), 1);
  }

  void unset(const std::string& name) override { ::unsetenv(name.c_str()); }

  std::optional<std::string> ancestor(std::string_view command) const override {
    for (std::optional<RunningProcess> process = running_process(::getppid()); process;
         process = running_process(process->parent)) {
      if (process->command == command) {
        return std::to_string(process->id) + " " + std::to_string(process->started);
      }
    }
    return {};
  }
};

}  // namespace

Environment& process_environment() {
  static ProcessEnvironment environment;
  return environment;
}

}  // namespace weir
