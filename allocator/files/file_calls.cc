// SPDX-License-Identifier: Apache-2.0
#include "files/file_calls.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace weir::files {
namespace {

bool knows_no_nameless(int error) {
  // (An old kernel takes the flag for O_DIRECTORY alone, and a folder can't be written to.)
  return error == EOPNOTSUPP || error == EISDIR || error == EINVAL;
}

}  // namespace

int FileCalls::open_nameless(const std::string& folder) {
  const int nameless = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600);
  if (nameless >= 0 || !knows_no_nameless(errno)) return nameless;
  std::string path = folder + "/weir-sleep-XXXXXX";
  const int named = ::mkostemp(path.data(), O_CLOEXEC);
  if (named >= 0) (void)::unlink(path.c_str());
  return named;
}

// Beyond the process's limit the system would not only refuse, but send SIGXFSZ.
int FileCalls::reserve(int file, Bytes size) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      size.count > limit.rlim_cur) {
    return EFBIG;
  }
  return ::posix_fallocate(file, 0, static_cast<off_t>(size.count));
}

int FileCalls::set_direct(int file, bool direct) {
  const int flags = ::fcntl(file, F_GETFL);
  if (flags < 0) return flags;
  return ::fcntl(file, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT);
}

ssize_t FileCalls::write_at(int file, const void* from, std::size_t size, off_t offset) {
  return ::pwrite(file, from, size, offset);
}

ssize_t FileCalls::read_at(int file, void* to, std::size_t size, off_t offset) {
  return ::pread(file, to, size, offset);
}

int FileCalls::sync(int file) { return ::fdatasync(file); }

void FileCalls::close(int file) { (void)::close(file); }

FileCalls& FileCalls::system() {
  static FileCalls calls;
  return calls;
}

}  // namespace weir::files
