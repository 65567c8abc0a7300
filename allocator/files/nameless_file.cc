// SPDX-License-Identifier: Apache-2.0
#include "files/nameless_file.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include "core/base/format.h"

namespace weir::files {
namespace {

std::string text_of(int error) { return std::generic_category().message(error); }

// What to do about it.
const char* remedy(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return "make the folder, or name another";
    case EACCES:
    case EPERM:
    case EROFS:
      return "let this process write there, or name another folder";
    case ENOSPC:
    case EDQUOT:
      return "free space there, or name another folder";
    case EFBIG:
      return "raise the limit of the size of files (ulimit -f), or name another folder";
    case EMFILE:
    case ENFILE:
      return "raise the limit of open files (ulimit -n)";
    default:
      return "look at the disk under it, and try again or name another folder";
  }
}

Error error_about(const std::string& folder, const std::string& what, int error) {
  return {ErrorCode::invalid_input,
          "backup folder '" + folder + "': " + what + ": " + text_of(error) + "; " + remedy(error)};
}

}  // namespace

Result<std::unique_ptr<NamelessFile>> NamelessFile::open(const std::string& folder, Bytes size,
                                                         FileCalls& calls) {
  int file = -1;
  do {
    file = calls.open_nameless(folder);
  } while (file < 0 && errno == EINTR);
  if (file < 0) return error_about(folder, "no file can be made there", errno);
  std::unique_ptr<NamelessFile> made(new NamelessFile(folder, file, calls));
  int full = 0;
  do {
    full = calls.reserve(file, size);
  } while (full == EINTR);
  if (full != 0) return error_about(folder, "no room for " + format(size), full);
  // Afterwards: where the file system can't reserve, the C library writes a byte to each block.
  made->direct_ = calls.set_direct(file, true) == 0;
  return made;
}

NamelessFile::~NamelessFile() { calls_.close(file_); }

Error NamelessFile::failed(const char* what, int error) const {
  return error_about(folder_, what, error);
}

// Some file systems say only now that they don't take it, or want larger units than ours.
void NamelessFile::stop_direct() {
  const std::lock_guard lock(direct_mutex_);
  if (!direct()) return;
  (void)calls_.set_direct(file_, false);
  direct_.store(false, std::memory_order_relaxed);
}

template <class Call>
Status NamelessFile::move_all(const char* what, Bytes size, Call&& call) {
  for (Bytes done; done < size;) {
    const bool was_direct = direct();
    const ssize_t moved = call(done);
    if (moved > 0) {
      done += Bytes{static_cast<std::uint64_t>(moved)};
    } else if (moved == 0) {
      return failed(what, EIO);  // reserved bytes that are not there
    } else if (errno == EINVAL && was_direct) {
      stop_direct();
    } else if (errno != EINTR) {
      return failed(what, errno);
    }
  }
  return {};
}

Status NamelessFile::write(Bytes offset, const void* from, Bytes size) {
  return move_all("writing to its file", size, [&](Bytes done) {
    return calls_.write_at(file_, (Address::of(from) + done).pointer(), (size - done).count,
                           static_cast<off_t>((offset + done).count));
  });
}

Status NamelessFile::read(Bytes offset, void* to, Bytes size) {
  return move_all("reading its file", size, [&](Bytes done) {
    return calls_.read_at(file_, (Address::of(to) + done).pointer(), (size - done).count,
                          static_cast<off_t>((offset + done).count));
  });
}

Status NamelessFile::sync() {
  int result = -1;
  do {
    result = calls_.sync(file_);
  } while (result != 0 && errno == EINTR);
  if (result != 0) return failed("writing to its file", errno);
  return {};
}

}  // namespace weir::files
