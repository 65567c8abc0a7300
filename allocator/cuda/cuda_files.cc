// SPDX-License-Identifier: Apache-2.0
// Files for bytes that sleep: the system's, and nothing of the driver's.
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "cuda/driver_device.h"
#include "files/nameless_file.h"

namespace weir::cuda {

using files::NamelessFile;

Result<OpenedFile> DriverDevice::open_file(const std::string& folder, Bytes size) {
  Result<std::unique_ptr<NamelessFile>> made = NamelessFile::open(folder, size);
  if (!made) return std::move(made).error();
  std::shared_ptr<NamelessFile> file = *std::move(made);
  const bool direct = file->direct();
  const std::lock_guard lock(files_mutex_);
  files_[++last_file_] = std::move(file);
  return OpenedFile{.handle = {last_file_}, .direct = direct};
}

Result<std::shared_ptr<NamelessFile>> DriverDevice::file_of(FileHandle file, const char* call) {
  const std::lock_guard lock(files_mutex_);
  const auto known = files_.find(file.value);
  if (known == files_.end()) {
    return Error(ErrorCode::device, std::string(call) + ": no such file is open");
  }
  return known->second;
}

Status DriverDevice::write_file(FileHandle file, Bytes offset, const void* from, Bytes size) {
  const Result<std::shared_ptr<NamelessFile>> found = file_of(file, "write_file");
  return found ? (*found)->write(offset, from, size) : Status(found.error());
}

Status DriverDevice::read_file(FileHandle file, Bytes offset, void* to, Bytes size) {
  const Result<std::shared_ptr<NamelessFile>> found = file_of(file, "read_file");
  return found ? (*found)->read(offset, to, size) : Status(found.error());
}

Status DriverDevice::sync_file(FileHandle file) {
  const Result<std::shared_ptr<NamelessFile>> found = file_of(file, "sync_file");
  return found ? (*found)->sync() : Status(found.error());
}

Status DriverDevice::close_file(FileHandle file) {
  const std::lock_guard lock(files_mutex_);
  if (files_.erase(file.value) != 0) return {};
  return Error(ErrorCode::device, "close_file: no such file is open");
}

}  // namespace weir::cuda
