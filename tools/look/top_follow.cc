// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "look/top.h"
#include "observe/recorded_state.h"
#include "observe/recording_format.h"
#include "observe/recording_output.h"

namespace weir {
namespace {

using recording_format::BlockHeader;
using recording_format::BlockKind;
using recording_format::kBlockHeader;
using recording_format::kFileHeader;
using recording_format::PayloadReader;

constexpr std::size_t kRead = std::size_t{1} << 20;
// No sound block is longer, so nobody waits for the rest of one that claims to be.
constexpr std::size_t kMostStored = recording_format::kMostPlain + (std::size_t{64} << 10);

struct CloseFile {
  void operator()(std::FILE* file) const { (void)std::fclose(file); }
};

Error refused(const std::string& file, std::string_view why) {
  return {ErrorCode::invalid_input, fmt::format("{}: {}", file, why)};
}

}  // namespace

class TopFollower::Impl {
 public:
  Impl(std::FILE* file, std::string shown_as) : file_(file) { view.file = std::move(shown_as); }

  Status poll() {
    struct stat status {};
    if (::fstat(fileno(file_.get()), &status) != 0 ||
        static_cast<std::uint64_t>(status.st_size) < place_) {
      return refused(view.file, "was cut shorter while it was read: start weir top again");
    }
    std::clearerr(file_.get());
    for (;;) {
      const std::size_t before = buffer_.size();
      buffer_.resize(before + kRead);
      const std::size_t read = std::fread(buffer_.data() + before, 1, kRead, file_.get());
      buffer_.resize(before + read);
      place_ += read;
      take_blocks();
      if (std::ferror(file_.get()) != 0) return refused(view.file, std::strerror(errno));
      if (read == 0) return {};
    }
  }

  // The file's own header, of which there must be enough. Then blocks follow.
  Status begin() {
    if (Status status = read_header(); !status) return status;
    return poll();
  }

  TopState state;
  TopView view;

 private:
  Status read_header() {
    std::array<char, kFileHeader> begin{};
    const std::size_t read = std::fread(begin.data(), 1, begin.size(), file_.get());
    if (std::ferror(file_.get()) != 0) {
      return refused(view.file, fmt::format("can't be read: {}",
                                            errno == EISDIR ? "it is a folder; name a file in it"
                                                            : std::strerror(errno)));
    }
    if (read == 0) {
      return refused(view.file, "is empty so far: the program has not begun to record");
    }
    const std::string_view bytes(begin.data(), read);
    if (!bytes.starts_with(recording_format::kMagic)) {
      return refused(view.file,
                     "is no recording of Weir's, which WEIR_RECORD=FILE makes; "
                     "weir report shows snapshots and traces");
    }
    const std::string mine = recording_format::file_header();
    if (read < kFileHeader && mine.starts_with(bytes)) {
      return refused(view.file, "is cut off within its first 16 bytes, or these are being written");
    }
    if (bytes.substr(0, 12) != std::string_view(mine).substr(0, 12)) {
      return refused(view.file,
                     "has another format than this version of Weir reads: use the weir "
                     "command of the version that writes it");
    }
    place_ = read;
    return {};
  }

  // Whole blocks of the buffer; what may be the beginning of one, or of a sync word, stays.
  void take_blocks() {
    const auto note_damage = [&](std::size_t at) {
      if (!view.damaged_at) view.damaged_at = place_ - buffer_.size() + at;
    };
    std::size_t at = 0;
    for (;;) {
      const std::size_t tail = std::min(recording_format::kSync.size() - 1, buffer_.size() - at);
      const std::size_t next =
          std::min(buffer_.find(recording_format::kSync, at), buffer_.size() - tail);
      if (next > at) note_damage(at);
      at = next;
      const std::string_view rest = std::string_view(buffer_).substr(at);
      if (rest.size() < kBlockHeader) break;
      const std::optional<BlockHeader> header = recording_format::parse_block_header(rest);
      const bool possible = header && header->stored <= kMostStored;
      if (possible && rest.size() < kBlockHeader + header->stored) break;
      const std::string_view stored =
          possible ? rest.substr(kBlockHeader, header->stored) : std::string_view();
      if (possible && recording_format::crc_is_right(rest.substr(0, kBlockHeader), stored)) {
        if (auto plain = recording_format::inflated(stored, header->plain)) {
          take(header->kind, *plain);
        }
        at += kBlockHeader + header->stored;
      } else {
        note_damage(at);
        ++at;  // no block begins here
      }
    }
    buffer_.erase(0, at);
  }

  void take(BlockKind kind, const std::string& plain) {
    switch (kind) {
      case BlockKind::header:
        return take_header(PayloadReader(plain));
      case BlockKind::initial:
      case BlockKind::events: {
        const bool initial = kind == BlockKind::initial;
        (void)decode_events(plain, view.dropped, [&](const Event& event) {
          sound_.accept(event, [&](const Event& each) { state.apply(each, initial); });
          return true;
        });
        return;
      }
      case BlockKind::end:
        view.ended = true;
        return;
      case BlockKind::stacks:
      case BlockKind::marks:
        return;
    }
  }

  void take_header(PayloadReader in) {
    while (!in.at_end()) {
      const std::string_view name = in.text(), value = in.text();
      if (name == "program") view.program = value;
      if (name == "device") view.device = value;
      if (name == "device_bytes") {
        (void)std::from_chars(value.data(), value.data() + value.size(), view.device_bytes.count);
      }
    }
  }

  std::unique_ptr<std::FILE, CloseFile> file_;
  std::uint64_t place_ = 0;  // read so far
  std::string buffer_;       // read, and not taken
  RecordedState sound_;
};

Result<TopFollower> TopFollower::open(const std::string& path, std::string shown_as) {
  if (shown_as.empty()) shown_as = path;
  std::FILE* const file = std::fopen(path.c_str(), "rbe");
  if (file == nullptr) {
    return refused(shown_as, fmt::format("cannot be opened: {}", std::strerror(errno)));
  }
  auto impl = std::make_unique<Impl>(file, std::move(shown_as));
  if (Status status = impl->begin(); !status) return std::move(status).error();
  return TopFollower(std::move(impl));
}

TopFollower::TopFollower(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
TopFollower::TopFollower(TopFollower&&) noexcept = default;
TopFollower& TopFollower::operator=(TopFollower&&) noexcept = default;
TopFollower::~TopFollower() = default;

Status TopFollower::poll() { return impl_->poll(); }
const TopNumbers& TopFollower::numbers() const { return impl_->state.numbers(); }
const TopView& TopFollower::view() const { return impl_->view; }

}  // namespace weir
