// SPDX-License-Identifier: Apache-2.0
#include "suite/loaded_allocator.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <utility>

#include "suite/suite_allocator.h"

namespace weir::suite {
namespace {

using Interface = weir_suite_functions;

std::optional<std::uint64_t> known(std::uint64_t count) {
  if (count == WEIR_SUITE_UNKNOWN) return std::nullopt;
  return count;
}

class LoadedAllocator final : public SuiteAllocator {
 public:
  LoadedAllocator(const Interface& interface, void* self) : interface_(interface), self_(self) {}
  LoadedAllocator(const LoadedAllocator&) = delete;
  LoadedAllocator& operator=(const LoadedAllocator&) = delete;
  ~LoadedAllocator() override { interface_.destroy(self_); }

  Result<void*> allocate(const ProgramCall& call) override {
    void* const block = interface_.allocate(self_, call.bytes, call.stream, call.pool);
    return block != nullptr ? Result<void*>(block) : Result<void*>(failed());
  }
  Status use(void* block, const ProgramCall& call) override {
    return status(interface_.use(self_, block, call.stream, call.user));
  }
  Status free(void* block, const ProgramCall& call) override {
    return status(interface_.free(self_, block, call.bytes, call.stream));
  }
  Status trim() override {
    if (interface_.trim != nullptr) interface_.trim(self_);
    return {};
  }
  AllocatorFigures figures() const override {
    weir_suite_figures figures{};
    interface_.figures(self_, &figures);
    return {.held = figures.held_bytes,
            .most_held = figures.most_held_bytes,
            .driver_calls = known(figures.driver_calls),
            .waits = known(figures.waits)};
  }

 private:
  Error failed() const { return {ErrorCode::device, interface_.error(self_)}; }
  Status status(int result) const { return result == 0 ? Status() : Status(failed()); }

  const Interface& interface_;
  void* const self_;
};

bool is_name(std::string_view name) {
  constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._";
  return !name.empty() && name.size() <= 40 &&
         name.find_first_not_of(kLetters) == std::string_view::npos;
}

// Empty: nothing.
std::string what_is_wrong_with(const Interface& interface) {
  if (interface.version != WEIR_SUITE_VERSION) {
    return fmt::format("it is of version {} of the interface, and this is version {}",
                       interface.version, WEIR_SUITE_VERSION);
  }
  if (interface.create == nullptr || interface.destroy == nullptr ||
      interface.allocate == nullptr || interface.use == nullptr || interface.free == nullptr ||
      interface.figures == nullptr || interface.error == nullptr) {
    return "a function is missing: only trim may be";
  }
  if (interface.name == nullptr || !is_name(interface.name)) {
    return "its name is not of 1 to 40 letters, digits, '-', '.' and '_'";
  }
  return {};
}

template <class Function>
Function* symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

std::string ending(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("its process ended by signal {} ({})", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
  }
  if (WEXITSTATUS(status) == 0) return {};
  return fmt::format("its process ended with exit code {}", WEXITSTATUS(status));
}

bool write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

// All that is sent until the other end is closed. False: nothing came for `limit`.
bool read_all(int descriptor, std::chrono::seconds limit, std::string& text) {
  std::array<char, 65536> buffer{};
  using Clock = std::chrono::steady_clock;
  Clock::time_point deadline = Clock::now() + limit;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd ready{.fd = descriptor, .events = POLLIN, .revents = 0};
    const int count = ::poll(&ready, 1, static_cast<int>(std::min<std::int64_t>(left, INT_MAX)));
    if (count == 0 || (count < 0 && errno == EINTR)) continue;
    const ssize_t got = ::read(descriptor, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return true;
    text.append(buffer.data(), static_cast<std::size_t>(got));
    deadline = Clock::now() + limit;
  }
}

}  // namespace

Result<AllocatorKind> load_allocator(const std::string& path) {
  // A name without a folder would be looked for where libraries are.
  const std::string file = std::filesystem::absolute(path);
  const auto wrong = [&path](const std::string& what) {
    return Error(ErrorCode::invalid_input, fmt::format("{}: {}", path, what));
  };
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return wrong(fmt::format("can't be loaded: {}", ::dlerror()));
  const auto get = symbol<const Interface*()>(library, "weir_suite_allocator");
  if (get == nullptr) return wrong("no allocator: it has no function weir_suite_allocator");
  const Interface* const interface = get();
  if (interface == nullptr) {
    const auto reason = symbol<const char*()>(library, "weir_suite_reason");
    return Error(ErrorCode::unavailable,
                 fmt::format("{}: can't be used here: {}", path,
                             reason != nullptr ? reason() : "it doesn't say why"));
  }
  if (const std::string what = what_is_wrong_with(*interface); !what.empty()) return wrong(what);
  return AllocatorKind{
      .name = interface->name,
      .title = path,
      .make = [interface](const Program& program,
                          Purpose) -> Result<std::unique_ptr<SuiteAllocator>> {
        void* const self = interface->create(program.streams);
        if (self == nullptr) return Error(ErrorCode::device, interface->error(nullptr));
        return std::unique_ptr<SuiteAllocator>(std::make_unique<LoadedAllocator>(*interface, self));
      }};
}

Result<ApartResult> run_apart(std::chrono::seconds limit,
                              const std::function<void(const Send& send)>& work) {
  std::array<int, 2> ends{};
  const auto failed = [](const char* call) {
    return Error(ErrorCode::unavailable, fmt::format("{}: {}", call, std::strerror(errno)));
  };
  if (::pipe(ends.data()) != 0) return failed("pipe");
  std::fflush(nullptr);  // else both processes write what is buffered
  const pid_t child = ::fork();
  if (child < 0) {
    ::close(ends[0]);
    ::close(ends[1]);
    return failed("fork");
  }
  if (child == 0) {
    ::close(ends[0]);
    int code = 0;
    try {
      work([&](const std::string& text) {
        if (!write_all(ends[1], text)) code = 1;
      });
    } catch (const std::exception& error) {
      fmt::print(stderr, "weir: {}\n", error.what());
      code = 1;
    }
    std::fflush(nullptr);
    ::_exit(code);  // what the parent has registered to run at its end is the parent's
  }
  ::close(ends[1]);
  ApartResult result;
  result.timed_out = !read_all(ends[0], limit, result.text);
  if (result.timed_out) ::kill(child, SIGKILL);
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  result.ended = result.timed_out ? fmt::format("no answer within {} s (--timeout)", limit.count())
                                  : ending(status);
  return result;
}

}  // namespace weir::suite
