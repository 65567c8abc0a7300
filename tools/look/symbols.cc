// SPDX-License-Identifier: Apache-2.0
#include "look/symbols.h"

#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "look/numbering.h"
#include "observe/own_frames.h"

namespace weir {
namespace {

using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

constexpr std::size_t kMostAddresses = 500;  // in one command line

// The offset of "binary+0x12af", where `binary` is the frame's file.
std::optional<std::uint64_t> offset_of(const RecordedFrame& frame) {
  if (frame.file.empty() || frame.line != 0) return std::nullopt;
  const std::string prefix = frame.file.substr(frame.file.find_last_of('/') + 1) + "+0x";
  if (!frame.function.starts_with(prefix)) return std::nullopt;
  const char* const begin = frame.function.data() + prefix.size();
  const char* const end = frame.function.data() + frame.function.size();
  std::uint64_t offset = 0;
  const auto [at, error] = std::from_chars(begin, end, offset, 16);
  if (error != std::errc{} || at != end) return std::nullopt;
  return offset;
}

// The address that the file gives its first loaded byte; offsets count from there. None: no ELF
// file of 64 bits.
std::optional<std::uint64_t> first_address(const std::string& binary) {
  std::ifstream file(binary, std::ios::binary);
  Elf64_Ehdr header{};
  if (!file.read(reinterpret_cast<char*>(&header), sizeof header) ||
      std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_phentsize != sizeof(Elf64_Phdr)) {
    return std::nullopt;
  }
  file.seekg(static_cast<std::streamoff>(header.e_phoff));
  std::optional<std::uint64_t> first;
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    if (!file.read(reinterpret_cast<char*>(&segment), sizeof segment)) return std::nullopt;
    if (segment.p_type != PT_LOAD) continue;
    const std::uint64_t page = segment.p_vaddr & ~std::uint64_t{0xfff};
    first = std::min(first.value_or(page), page);
  }
  return first;
}

// The file to ask about a binary: none if it is gone, or the offsets are not those of what ran.
std::optional<std::string> unchanged(const std::string& binary, const std::string& recording) {
  std::error_code error;
  const fs::file_time_type recorded = fs::last_write_time(recording, error);
  const bool knows_time = !error;
  for (const fs::path& path : {fs::path(binary), fs::path(recording).parent_path() / binary}) {
    if (!fs::is_regular_file(path, error)) continue;
    const fs::file_time_type built = fs::last_write_time(path, error);
    if (error || (knows_time && built > recorded)) continue;
    const fs::path whole = fs::absolute(path, error);  // no tool may take it for an option
    if (!error) return whole.string();
  }
  return std::nullopt;
}

// What a program prints; none: it is not installed, failed, or took too long.
std::optional<std::string> output_of(std::vector<std::string> words, Clock::time_point deadline) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::vector<char*> environment;
  for (char** each = environ; *each != nullptr; ++each) {
    if (!std::string_view(*each).starts_with("DEBUGINFOD_URLS=")) environment.push_back(*each);
  }
  environment.push_back(nullptr);

  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return std::nullopt;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  const int failed =
      posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (failed != 0) return close(ends[0]), std::nullopt;

  std::string text;
  bool ended = false;
  while (!ended) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd ready{.fd = ends[0], .events = POLLIN, .revents = 0};
    if (left <= 0 || poll(&ready, 1, static_cast<int>(left)) <= 0) break;
    std::array<char, 65536> piece;
    const ssize_t size = read(ends[0], piece.data(), piece.size());
    ended = size <= 0;
    if (size > 0) text.append(piece.data(), static_cast<std::size_t>(size));
  }
  close(ends[0]);
  if (!ended) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!ended || !WIFEXITED(status) || WEXITSTATUS(status) != 0) return std::nullopt;
  return text;
}

// For each address the function, and file:line below it; "??" is unknown.
std::optional<std::string> symbolized(const std::string& binary,
                                      const std::vector<std::string>& addresses,
                                      Clock::time_point deadline) {
  const std::vector<std::vector<std::string>> tools = {
      {"llvm-symbolizer", "--output-style=GNU", "--functions", "--demangle", "--no-inlines",
       "--obj=" + binary},
      {"addr2line", "-f", "-C", "-e", binary}};
  for (std::vector<std::string> words : tools) {
    words.insert(words.end(), addresses.begin(), addresses.end());
    if (std::optional<std::string> text = output_of(std::move(words), deadline)) return text;
  }
  return std::nullopt;
}

std::string_view next_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

// "src/model.cc:44 (discriminator 2)"
void set_place(RecordedFrame& frame, std::string_view place) {
  place = place.substr(0, place.find(" ("));
  const std::size_t colon = place.find_last_of(':');
  if (colon == std::string_view::npos || place.starts_with("??")) return;
  std::uint32_t line = 0;
  const std::string_view digits = place.substr(colon + 1);
  (void)std::from_chars(digits.data(), digits.data() + digits.size(), line);
  frame.file = place.substr(0, colon);
  frame.line = line;
}

void resolve(const std::string& binary, const std::vector<std::size_t>& wanted,
             std::vector<RecordedFrame>& frames, Clock::time_point deadline) {
  const std::optional<std::uint64_t> first = first_address(binary);
  if (!first) return;
  for (std::size_t from = 0; from < wanted.size(); from += kMostAddresses) {
    const std::size_t to = std::min(wanted.size(), from + kMostAddresses);
    std::vector<std::string> addresses;
    for (std::size_t i = from; i < to; ++i) {
      addresses.push_back(fmt::format("{:#x}", *first + *offset_of(frames[wanted[i]])));
    }
    const std::optional<std::string> text = symbolized(binary, addresses, deadline);
    if (!text) return;
    std::string_view rest = *text;
    for (std::size_t i = from; i < to && !rest.empty(); ++i) {
      const std::string_view function = next_line(rest), place = next_line(rest);
      if (!function.empty() && !function.starts_with("??")) frames[wanted[i]].function = function;
      set_place(frames[wanted[i]], place);
    }
  }
}

std::vector<RecordedFrame> resolved(const Recording& recording, Clock::time_point deadline) {
  std::vector<RecordedFrame> frames = recording.frames;
  std::map<std::string, std::vector<std::size_t>> by_binary;
  for (std::size_t i = 0; i < frames.size(); ++i) {
    std::string& function = frames[i].function;
    if (function.starts_with("_Z")) function = demangled(function.c_str());
    if (offset_of(frames[i])) by_binary[frames[i].file].push_back(i);
  }
  for (const auto& [binary, wanted] : by_binary) {
    const std::optional<std::string> file = unchanged(binary, recording.source);
    if (file) resolve(*file, wanted, frames, deadline);
  }
  return frames;
}

}  // namespace

ReadableStacks readable_stacks(const Recording& recording, Paths paths,
                               std::chrono::milliseconds limit) {
  std::vector<RecordedFrame> frames = resolved(recording, Clock::now() + limit);
  ReadableStacks readable;
  Numbering<std::vector<std::uint32_t>> stacks;
  for (std::vector<std::uint32_t> stack : recording.stacks) {
    std::erase_if(stack, [&](std::uint32_t frame) {
      return frame >= frames.size() || is_noise(frames[frame]);
    });
    const auto first = std::find_if(stack.begin(), stack.end(), [&](std::uint32_t frame) {
      return !is_own_function(frames[frame].function);
    });
    stack.erase(stack.begin(), first);
    readable.number.push_back(stacks.of(stack));
  }
  readable.stacks = stacks.take();
  static_cast<CallStacks&>(readable) = calls_of(std::move(frames), readable.stacks);
  if (paths == Paths::full) return readable;
  for (RecordedFrame& frame : readable.frames) frame.file = short_path(frame.file);
  return readable;
}

}  // namespace weir
