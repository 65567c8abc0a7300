// SPDX-License-Identifier: Apache-2.0
// SimDevice's files. As its host memory, a file has no bytes: what they would hold is known by
// sim::Contents. Every folder but the one without a name can be written to, and all are on one
// disk.
#include <string>
#include <utility>

#include "sim/sim_device_impl.h"
#include "sim/text.h"

namespace weir {
namespace {

using sim::refused;
using sim::time_for;

Error file_error(DeviceCall call, const std::string& why) {
  return {ErrorCode::invalid_input, std::string(name_of(call)) + ": " + why};
}

// [from, from + size) of the one is what [to, to + size) of the other holds from now on.
void carry(const sim::Contents& source, std::uint64_t from, sim::Contents& target, std::uint64_t to,
           Bytes size) {
  target.clear(to, to + size.count);
  source.visit(from, from + size.count,
               [&](std::uint64_t b, std::uint64_t e, std::uint64_t w, std::uint64_t f) {
                 target.set(to + (b - from), to + (e - from), w, f);
               });
}

}  // namespace

Result<OpenedFile> SimDevice::Impl::open_file(const std::string& folder, Bytes size) {
  if (folder.empty()) return file_error(DeviceCall::open_file, "the folder has no name");
  if (size == 0_B || size % kFileUnit != 0_B) {
    return refused(DeviceCall::open_file, "invalid value: not a multiple of 4 KiB");
  }
  if (options_.disk - file_bytes_ < size) {
    return file_error(DeviceCall::open_file, "folder '" + folder + "' has no room for " +
                                                 std::to_string(size.count) + " bytes");
  }
  files_[++last_file_] = {.folder = folder, .size = size, .contents = {}};
  file_bytes_ += size;
  return OpenedFile{.handle = {last_file_}, .direct = true};
}

Result<SimDevice::Impl::File*> SimDevice::Impl::check_file(DeviceCall call, FileHandle file,
                                                           Bytes offset, const void* memory,
                                                           Bytes size) {
  const auto known = files_.find(file.value);
  if (known == files_.end()) return refused(call, "invalid handle: no such file is open");
  const Bytes at{Address::of(memory).value};
  if (offset % kFileUnit != 0_B || size % kFileUnit != 0_B || at % kFileUnit != 0_B) {
    return refused(call, "invalid value: not multiples of 4 KiB");
  }
  if (offset + size > known->second.size) return refused(call, "invalid value: beyond the file");
  if (Status there = check_host(call, memory, size); !there) return std::move(there).error();
  return &known->second;
}

Status SimDevice::Impl::write_file(FileHandle file, Bytes offset, const void* from, Bytes size) {
  Result<File*> found = check_file(DeviceCall::write_file, file, offset, from, size);
  if (!found) return std::move(found).error();
  host_uses(Reads(from, size));
  carry(host_contents_, Address::of(from).value, (*found)->contents, offset.count, size);
  charge(DeviceCall::write_file, time_for(size, options_.costs.write_file_per_mib));
  return {};
}

Status SimDevice::Impl::read_file(FileHandle file, Bytes offset, void* to, Bytes size) {
  Result<File*> found = check_file(DeviceCall::read_file, file, offset, to, size);
  if (!found) return std::move(found).error();
  host_uses(Writes(to, size));
  carry((*found)->contents, offset.count, host_contents_, Address::of(to).value, size);
  charge(DeviceCall::read_file, time_for(size, options_.costs.read_file_per_mib));
  return {};
}

Status SimDevice::Impl::sync_file(FileHandle file) {
  if (files_.contains(file.value)) return {};
  return refused(DeviceCall::sync_file, "invalid handle: no such file is open");
}

Status SimDevice::Impl::close_file(FileHandle file) {
  const auto known = files_.find(file.value);
  if (known == files_.end()) {
    return refused(DeviceCall::close_file, "invalid handle: no such file is open");
  }
  file_bytes_ -= known->second.size;
  files_.erase(known);
  return {};
}

Bytes SimDevice::file_bytes() const {
  const std::scoped_lock lock(impl_->mutex_);
  return impl_->file_bytes_;
}

Result<OpenedFile> SimDevice::open_file(const std::string& folder, Bytes size) {
  return impl_->call(DeviceCall::open_file, impl_->options_.costs.open_file,
                     [&] { return impl_->open_file(folder, size); });
}

Status SimDevice::write_file(FileHandle file, Bytes offset, const void* from, Bytes size) {
  return impl_->call(DeviceCall::write_file, 0_ns,
                     [&] { return impl_->write_file(file, offset, from, size); });
}

Status SimDevice::read_file(FileHandle file, Bytes offset, void* to, Bytes size) {
  return impl_->call(DeviceCall::read_file, 0_ns,
                     [&] { return impl_->read_file(file, offset, to, size); });
}

Status SimDevice::sync_file(FileHandle file) {
  return impl_->call(DeviceCall::sync_file, impl_->options_.costs.sync_file,
                     [&] { return impl_->sync_file(file); });
}

Status SimDevice::close_file(FileHandle file) {
  return impl_->call(DeviceCall::close_file, 0_ns, [&] { return impl_->close_file(file); });
}

}  // namespace weir
