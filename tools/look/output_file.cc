// SPDX-License-Identifier: Apache-2.0
#include "look/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "replay/named_files.h"

namespace weir {
namespace {

constexpr std::size_t kOutputPiece = 1 << 20;

Error failed(const std::string& path, std::string_view why) {
  return Error(ErrorCode::invalid_input, fmt::format("{}: can't be written: {}",
                                                     path == "-" ? "standard output" : path, why));
}

std::optional<struct stat> status_of(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return status;
}

// The file that a rename to `path` must replace: not a link to it.
std::string behind_links(const std::string& path) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  return error ? behind_dangling_links(path).string() : real.string();
}

}  // namespace

class OutputFile::Impl {
 public:
  Impl(std::string path, bool compressed) : path_(std::move(path)), compressed_(compressed) {}
  ~Impl() {
    if (gzip_ != nullptr) {
      gzclose_w(gzip_);
    } else if (file_ >= 0) {
      ::close(file_);
    }
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // Opened again, a file behind it would be written from its beginning.
  Status open_descriptor(int number) {
    std::fflush(stdout);  // what was printed before comes before
    file_ = ::fcntl(number, F_DUPFD_CLOEXEC, 0);
    return start();
  }

  Status open_directly() {
    file_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
    return start();
  }

  Status open_beside() {
    target_ = behind_links(path_);
    const std::filesystem::path folder = std::filesystem::path(target_).parent_path();
    // A file without a name is gone when its process is.
    file_ = ::open(folder.empty() ? "." : folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
    if (file_ < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
      temporary_ = temporary_name();
      file_ = ::open(temporary_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
    }
    // An earlier file's permissions stay: it may be one that others must not read.
    struct stat earlier {
    }, now{};
    if (file_ >= 0 && ::stat(target_.c_str(), &earlier) == 0 && ::fstat(file_, &now) == 0 &&
        ((earlier.st_mode ^ now.st_mode) & 0777) != 0) {
      if (::fchmod(file_, earlier.st_mode & 0777) != 0) note(std::strerror(errno));
    }
    return start();
  }

  void relieve(std::size_t most) {
    if (text.size() < most) return;
    if (why_.empty()) compressed_ ? compress() : write();
    text.clear();
  }

  Status commit() {
    relieve(0);
    if (compressed_) {
      const int file = ::dup(file_);  // which gzclose() would close
      const int code = gzclose_w(std::exchange(gzip_, nullptr));
      file_ = file;
      if (code != Z_OK) note(code == Z_ERRNO ? std::strerror(errno) : zError(code));
    }
    if (why_.empty() && !target_.empty()) name();
    if (::close(std::exchange(file_, -1)) != 0) note(std::strerror(errno));
    if (why_.empty()) return {};
    return failed(path_, why_);
  }

  std::string text;

 private:
  Status start() {
    if (file_ < 0) return failed(path_, why_not_opened(errno));
    if (compressed_) gzip_ = gzdopen(file_, "wb3");
    if (compressed_ && gzip_ == nullptr) return failed(path_, "no memory to compress with");
    return {};
  }

  std::string why_not_opened(int code) const {
    const std::string folder = std::filesystem::path(target_).parent_path();
    std::error_code unknown;
    if (folder.empty() || std::filesystem::exists(folder, unknown) || unknown) {
      return std::strerror(code);
    }
    return fmt::format("there is no folder {}: make it, or name a file in one that there is",
                       folder);
  }

  void note(std::string_view why) {
    if (why_.empty()) why_ = why;
  }

  void write() {
    for (std::size_t done = 0; done < text.size();) {
      const ssize_t written = ::write(file_, text.data() + done, text.size() - done);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return note(std::strerror(errno));
      done += static_cast<std::size_t>(written);
    }
  }

  void compress() {
    for (std::size_t done = 0; done < text.size();) {
      const std::size_t piece = std::min<std::size_t>(text.size() - done, 1 << 30);
      if (gzwrite(gzip_, text.data() + done, static_cast<unsigned>(piece)) == 0) {
        int code = Z_OK;
        const char* why = gzerror(gzip_, &code);
        return note(code == Z_ERRNO ? std::strerror(errno) : why);
      }
      done += piece;
    }
  }

  std::string temporary_name() const { return fmt::format("{}.{}.part", target_, ::getpid()); }

  void name() {
    if (temporary_.empty()) {
      const std::string name = temporary_name();
      const std::string unnamed = fmt::format("/proc/self/fd/{}", file_);
      ::unlink(name.c_str());  // of a process that had our number, and is no more
      if (::linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) != 0) {
        return note(std::strerror(errno));
      }
      temporary_ = name;
    }
    if (::rename(temporary_.c_str(), target_.c_str()) != 0) return note(std::strerror(errno));
    temporary_.clear();
  }

  const std::string path_;  // as given
  const bool compressed_;
  std::string target_;     // to be named so in the end; empty: it has its name
  std::string temporary_;  // the name it has until then; empty: none
  int file_ = -1;
  gzFile gzip_ = nullptr;
  std::string why_;  // the first thing that went wrong
};

Result<OutputFile> OutputFile::open(const std::string& path) {
  if (path.empty()) {
    return Error(ErrorCode::invalid_argument,
                 "the name of the file to write is empty: give -o OUT");
  }
  const std::optional<int> descriptor = descriptor_named(path);
  const std::optional<struct stat> there = descriptor ? std::nullopt : status_of(path);
  if (there && S_ISDIR(there->st_mode)) return failed(path, "it is a folder; name a file in it");
  auto impl = std::make_unique<Impl>(path, path.ends_with(".gz"));
  const Status opened = descriptor                          ? impl->open_descriptor(*descriptor)
                        : there && !S_ISREG(there->st_mode) ? impl->open_directly()
                                                            : impl->open_beside();
  if (!opened.ok()) return opened.error();
  return OutputFile(std::move(impl));
}

OutputFile::OutputFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OutputFile::OutputFile(OutputFile&&) noexcept = default;
OutputFile& OutputFile::operator=(OutputFile&&) noexcept = default;
OutputFile::~OutputFile() = default;
std::string& OutputFile::text() { return impl_->text; }
void OutputFile::relieve() { impl_->relieve(kOutputPiece); }
Status OutputFile::commit() { return impl_->commit(); }

}  // namespace weir
