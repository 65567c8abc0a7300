// SPDX-License-Identifier: Apache-2.0
#include "observe/recording_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <utility>

#include "observe/replaced_file.h"

namespace weir {

using recording_format::BlockKind;

SealedBlock seal(BlockKind kind, std::string_view plain, std::uint64_t events) {
  return {kind, static_cast<std::uint32_t>(plain.size()), events,
          recording_format::deflated(plain)};
}

Status check_recording_path(const std::string& path) {
  if (Status there = check_folder("recording", path); !there) return there;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return {};
  if (std::filesystem::file_size(path, error) == 0) return {};
  std::array<char, recording_format::kMagic.size()> first{};
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return Error(ErrorCode::invalid_input,
                 fmt::format("recording {}: there is a file, which can't be read to see whether it "
                             "is a recording: remove it, or name another file",
                             path));
  }
  file.read(first.data(), first.size());
  const std::string_view found(first.data(), static_cast<std::size_t>(file.gcount()));
  if (!found.empty() && recording_format::kMagic.starts_with(found)) return {};
  return Error(ErrorCode::invalid_input,
               fmt::format("recording {}: the file that is there is no recording, and would be "
                           "lost: remove it, or name another file",
                           path));
}

Result<std::unique_ptr<FileOutput>> FileOutput::open(const std::string& path) {
  if (Status allowed = check_recording_path(path); !allowed) return std::move(allowed).error();
  const auto refused = [&](const char* why) {
    return Error(ErrorCode::invalid_input,
                 fmt::format("recording {}: cannot be opened for writing: {}", path, why));
  };
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) return refused(std::strerror(errno));
  std::unique_ptr<FileOutput> output(new FileOutput(file, path));
  // Before anything of it is lost. (Where there are no such locks, nobody is told.)
  if (::flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return refused(
        "another recorder, of this process or another, writes it: give each a name of "
        "its own");
  }
  if (::ftruncate(file, 0) != 0 && errno != EINVAL) return refused(std::strerror(errno));
  output->write(recording_format::file_header());
  return output;
}

FileOutput::~FileOutput() { (void)close(); }

// One write for the whole block: a process that is killed leaves whole blocks.
void FileOutput::put(SealedBlock block) {
  const auto size = static_cast<std::uint32_t>(block.stored.size());
  std::string bytes =
      recording_format::block_header({block.kind, size, block.plain, number_++, 0}, block.stored);
  bytes += block.stored;
  write(bytes);
}

void FileOutput::write(std::string_view bytes) {
  while (!bytes.empty() && error_.empty()) {
    const ssize_t written = ::write(file_, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      error_ = std::strerror(errno);
    }
  }
}

Status FileOutput::close() {
  if (file_ >= 0 && ::close(std::exchange(file_, -1)) != 0 && error_.empty()) {
    error_ = std::strerror(errno);
  }
  return status();
}

Status FileOutput::status() const {
  if (error_.empty()) return {};
  return Error(ErrorCode::invalid_input,
               fmt::format("{}: the recording could not be written: {}", path_, error_));
}

void KeptOutput::put(SealedBlock block) {
  const std::lock_guard lock(mutex_);
  if (block.kind == BlockKind::header || block.kind == BlockKind::stacks) {
    always_.push_back(std::move(block));
    return;
  }
  if (block.kind == BlockKind::end) return;
  if (block.kind == BlockKind::initial) return apply(block);
  stored_ += block.stored.size();
  latest_.push_back(std::move(block));
  while (stored_ > most_ && !latest_.empty()) {
    apply(latest_.front());
    stored_ -= latest_.front().stored.size();
    latest_.pop_front();
  }
}

// The block's events have happened before the oldest that is kept.
void KeptOutput::apply(const SealedBlock& block) {
  if (block.kind == BlockKind::marks) return;
  const auto plain = recording_format::inflated(block.stored, block.plain);
  if (!plain) return;  // as it was made here, there is no such case
  std::uint64_t dropped = 0;
  (void)decode_events(*plain, dropped, [&](const Event& event) {
    edge_time_ = event.time;
    calls_before_ += block.kind == BlockKind::events && is_call(event.kind) ? 1 : 0;
    edge_.accept(event, [](const Event&) {});
    return true;
  });
}

std::vector<SealedBlock> KeptOutput::initial_blocks() const {
  std::vector<SealedBlock> blocks;
  std::string payload;
  recording_format::EventCoder coder;
  const auto finish = [&] {
    if (payload.empty()) return;
    blocks.push_back(seal(BlockKind::initial, payload));
    payload.clear();
    coder = {};
  };
  for (const Event& event : edge_.as_events(edge_time_)) {
    if (payload.empty()) recording_format::put(payload, std::uint64_t{0});
    coder.encode(event, payload);
    if (payload.size() >= recording_format::kFullBlock) finish();
  }
  finish();
  return blocks;
}

Status KeptOutput::write_blocks(FileOutput& file, std::uint64_t dropped) const {
  const std::lock_guard lock(mutex_);
  std::uint64_t events = 0;
  for (const SealedBlock& block : always_) file.put(block);
  if (calls_before_ > 0) {
    std::string header;
    recording_format::put(header, std::string_view("calls_before"));
    recording_format::put(header, std::string_view(std::to_string(calls_before_)));
    file.put(seal(BlockKind::header, header));
  }
  for (SealedBlock& block : initial_blocks()) file.put(std::move(block));
  for (const SealedBlock& block : latest_) {
    file.put(block);
    events += block.events;
  }
  std::string end;
  recording_format::put(end, events);
  recording_format::put(end, dropped);
  file.put(seal(BlockKind::end, end));
  return file.close();
}

Status KeptOutput::write_to(const std::string& path, std::uint64_t dropped) const {
  if (Status allowed = check_recording_path(path); !allowed) return allowed;
  return write_in_place_of(path, [&](const std::string& file_path) -> Status {
    Result<std::unique_ptr<FileOutput>> file = FileOutput::open(file_path);
    if (!file) return std::move(file).error();
    return write_blocks(**file, dropped);
  });
}

}  // namespace weir
