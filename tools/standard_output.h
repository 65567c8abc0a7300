// SPDX-License-Identifier: Apache-2.0
// Standard output of a program that prints its result: a result that was not written is an error.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>

namespace weir {

// Call first in main(). A file that the program opens must not get the number of a standard stream
// that the caller closed: what is printed would go into that file. /dev/null, opened for reading
// only, still refuses writes.
inline void occupy_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) < 0) ::open("/dev/null", O_RDONLY);
  }
}

// Call last. False if anything printed to standard output was not written: the disk is full, or the
// caller closed standard output.
inline bool standard_output_written() {
  return std::cout.flush() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
}

}  // namespace weir
