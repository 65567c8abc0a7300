// SPDX-License-Identifier: Apache-2.0
// A file that is read through zlib: compressed with gzip, or as it is.
#pragma once

#include <zlib.h>

#include <memory>
#include <string>
#include <type_traits>

namespace weir {

struct CloseGzip {
  void operator()(gzFile file) const { gzclose_r(file); }
};
using GzipFile = std::unique_ptr<std::remove_pointer_t<gzFile>, CloseGzip>;

// Null: it can't be opened; errno says why.
inline GzipFile open_gzip(const std::string& path) { return GzipFile(gzopen(path.c_str(), "rb")); }

}  // namespace weir
