// SPDX-License-Identifier: Apache-2.0
// SimDevice's files. As its host memory, a file has no bytes: what they would hold is known by
// sim::Contents. Every folder but the one without a name can be written to, and all are on one
// disk.
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "sim/sim_device_impl.h"

namespace weir {
namespace {

using sim::refused;

Error file_error(const std::string& why) {
  return {ErrorCode::invalid_input, std::string(name_of(DeviceCall::open_file)) + ": " + why};
}

}  // namespace

class SimDevice::Impl::File final : public SleepFile {
 public:
  File(Impl& impl, Bytes size) : impl_(impl), size_(size) {}
  ~File() override {
    const std::scoped_lock lock(impl_.mutex);
    impl_.files.held -= size_;
  }

  Status write(Bytes offset, const void* from, Bytes size) override {
    return impl_.call(DeviceCall::write_file, [&](Impl& sim) -> Status {
      if (Status may = check(DeviceCall::write_file, offset, from, size); !may) return may;
      sim.host_uses(Reads(from, size));
      contents_.take(offset.count, size, sim.host.contents, Address::of(from).value);
      sim.charge(DeviceCall::write_file, size, sim.options.costs.write_file_per_mib);
      return {};
    });
  }

  Status read(Bytes offset, void* to, Bytes size) override {
    return impl_.call(DeviceCall::read_file, [&](Impl& sim) -> Status {
      if (Status may = check(DeviceCall::read_file, offset, to, size); !may) return may;
      sim.host_uses(Writes(to, size));
      sim.host.contents.take(Address::of(to).value, size, contents_, offset.count);
      sim.charge(DeviceCall::read_file, size, sim.options.costs.read_file_per_mib);
      return {};
    });
  }

  Status sync() override {
    return impl_.call(DeviceCall::sync_file, &CostModel::sync_file,
                      [](Impl&) -> Status { return {}; });
  }

  bool direct() const override { return true; }

 private:
  Status check(DeviceCall call, Bytes offset, const void* memory, Bytes size) const {
    const Bytes at{Address::of(memory).value};
    if (offset % kUnit != 0_B || size % kUnit != 0_B || at % kUnit != 0_B) {
      return refused(call, "invalid value: not multiples of 4 KiB");
    }
    if (offset + size > size_) return refused(call, "invalid value: beyond the file");
    return impl_.host.check(call, memory, size);
  }

  Impl& impl_;
  const Bytes size_;
  sim::Contents contents_;
};

Result<std::unique_ptr<SleepFile>> SimDevice::Impl::Files::open(const std::string& folder,
                                                                Bytes size) {
  return impl.call(DeviceCall::open_file, &CostModel::open_file,
                   [&](Impl& sim) -> Result<std::unique_ptr<SleepFile>> {
                     if (folder.empty()) return file_error("the folder has no name");
                     if (size == 0_B || size % SleepFile::kUnit != 0_B) {
                       return refused(DeviceCall::open_file,
                                      "invalid value: not a multiple of 4 KiB");
                     }
                     if (sim.options.disk - held < size) {
                       return file_error("folder '" + folder + "' has no room for " +
                                         std::to_string(size.count) + " bytes");
                     }
                     held += size;
                     return std::unique_ptr<SleepFile>(std::make_unique<File>(sim, size));
                   });
}

SleepFiles* SimDevice::files() { return &impl_->files; }

}  // namespace weir
