// SPDX-License-Identifier: Apache-2.0
// Whatever a file holds, reading it gives a recording that makes sense, or an error that names it.
//
// The first byte of an input says what the rest is: 0, the file; otherwise the blocks of one, each
// as kind, size (two bytes) and payload, which get the headers and checksums that a fuzzer would
// never find.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "observe/recorded_state.h"
#include "observe/recording_format.h"
#include "weir/recording.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

std::string with_headers(std::string_view blocks) {
  using namespace weir::recording_format;  // NOLINT(google-build-using-namespace)
  std::string file = file_header();
  for (std::uint32_t number = 0; blocks.size() >= 3; ++number) {
    const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(blocks[i]); };
    const auto kind = static_cast<BlockKind>(1 + byte(0) % kLastBlockKind);
    const std::size_t size =
        std::min<std::size_t>(byte(1) | std::size_t{byte(2)} << 8, blocks.size() - 3);
    const std::string stored = deflated(blocks.substr(3, size));
    file += block_header({kind, static_cast<std::uint32_t>(stored.size()),
                          static_cast<std::uint32_t>(size), number, 0},
                         stored);
    file += stored;
    blocks.remove_prefix(3 + size);
  }
  return file;
}

// What users of a recording rely on.
void check(const weir::Recording& recording, const weir::ReadOptions& options) {
  require(recording.events.size() <= options.most_events);
  require(recording.initial <= recording.events.size());
  require(!recording.stacks.empty() && recording.stacks.front().empty());
  for (const auto& stack : recording.stacks) {
    for (const std::uint32_t frame : stack) require(frame < recording.frames.size());
  }
  weir::RecordedState state;
  weir::Nanoseconds time;
  for (const weir::Event& event : recording.events) {
    require(event.stack < recording.stacks.size());
    require(event.time >= time);
    time = event.time;
    state.accept(event, [](const weir::Event&) {});
  }
  require(state.repaired() == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data + 1), size - 1);
  const std::string file = data[0] == 0 ? std::string(rest) : with_headers(rest);
  const int memory = memfd_create("recording", MFD_CLOEXEC);
  require(memory >= 0 &&
          write(memory, file.data(), file.size()) == static_cast<ssize_t>(file.size()));
  const std::string path = "/proc/self/fd/" + std::to_string(memory);
  const weir::ReadOptions options{.most_events = 10'000};
  const weir::Result<weir::Recording> recording = weir::read_recording(path, options);
  if (recording.ok()) {
    check(*recording, options);
  } else {
    require(recording.error().code() == weir::ErrorCode::invalid_input);
    require(recording.error().message().starts_with(path));
  }
  close(memory);
  return 0;
}
