// NVML and NCCL, loaded at run time. Their headers are not needed: the few functions used here have
// been as they are since NVML 10 and NCCL 2.
#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <string>

#include "weir/comm/check.h"

namespace weir {
namespace {

Error unavailable(const std::string& why) { return {ErrorCode::unavailable, why}; }

// Never closed: NVML and NCCL may have started threads.
Result<void*> open_library(const std::string& name) {
  void* library = ::dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library != nullptr) return library;
  const char* why = ::dlerror();
  return unavailable(why != nullptr ? why : name + " can't be loaded");
}

using Device = void*;  // nvmlDevice_t
// nvmlPciInfo_t.
struct PciInfo {
  char legacy_bus_id[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};
constexpr int kForReads = 0;        // NVML_P2P_CAPS_INDEX_READ
constexpr int kPeerAccessIsOk = 0;  // NVML_P2P_STATUS_OK
constexpr int kSuccess = 0;         // NVML_SUCCESS

struct Functions {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*handle)(unsigned, Device*) = nullptr;
  int (*name)(Device, char*, unsigned) = nullptr;
  int (*pci)(Device, void* pci_info) = nullptr;
  int (*link_state)(Device, unsigned, int*) = nullptr;
  int (*link_version)(Device, unsigned, unsigned*) = nullptr;
  int (*peer_status)(Device, Device, int, int*) = nullptr;
};

class LoadedNvml final : public Nvml {
 public:
  explicit LoadedNvml(const Functions& functions) : call_(functions) {}
  ~LoadedNvml() override { call_.shutdown(); }

  Result<int> count() override {
    unsigned count = 0;
    if (Status status = checked(call_.count(&count), "nvmlDeviceGetCount_v2"); !status) {
      return status.error();
    }
    return static_cast<int>(count);
  }

  Result<std::string> name(int gpu) override {
    const Result<Device> device = handle(gpu);
    if (!device) return device.error();
    std::array<char, 97> text{};  // NVML writes 96 at most, its end included
    if (Status status = checked(call_.name(*device, text.data(), 96), "nvmlDeviceGetName");
        !status) {
      return status.error();
    }
    return std::string(text.data());
  }

  // NVML's domain has eight digits, "00000000:1B:00.0"; the kernel's four, in small letters.
  Result<std::string> pci(int gpu) override {
    const Result<Device> device = handle(gpu);
    if (!device) return device.error();
    PciInfo info{};
    if (Status status = checked(call_.pci(*device, &info), "nvmlDeviceGetPciInfo_v3"); !status) {
      return status.error();
    }
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%04x:%02x:%02x.0", info.domain, info.bus, info.device);
    return std::string(text.data());
  }

  Result<bool> link_active(int gpu, int link) override {
    const Result<Device> device = handle(gpu);
    if (!device) return device.error();
    int active = 0;
    if (Status status = checked(call_.link_state(*device, static_cast<unsigned>(link), &active),
                                "nvmlDeviceGetNvLinkState");
        !status) {
      return status.error();
    }
    return active != 0;
  }

  Result<int> link_version(int gpu, int link) override {
    const Result<Device> device = handle(gpu);
    if (!device) return device.error();
    unsigned version = 0;
    if (Status status = checked(call_.link_version(*device, static_cast<unsigned>(link), &version),
                                "nvmlDeviceGetNvLinkVersion");
        !status) {
      return status.error();
    }
    return static_cast<int>(version);
  }

  Result<bool> peer_access(int a, int b) override {
    const Result<Device> first = handle(a), second = handle(b);
    if (!first || !second) return (first ? second : first).error();
    int peer = 0;
    if (Status status =
            checked(call_.peer_status(*first, *second, kForReads, &peer), "nvmlDeviceGetP2PStatus");
        !status) {
      return status.error();
    }
    return peer == kPeerAccessIsOk;
  }

 private:
  Status checked(int code, const char* call) const {
    if (code == kSuccess) return {};
    return unavailable(std::string(call) + ": " + call_.error_string(code));
  }

  Result<Device> handle(int gpu) const {
    Device device = nullptr;
    if (Status status = checked(call_.handle(static_cast<unsigned>(gpu), &device),
                                "nvmlDeviceGetHandleByIndex_v2");
        !status) {
      return status.error();
    }
    return device;
  }

  const Functions call_;
};

template <class Function>
bool find(void* library, const char* name, Function*& function, std::string& missing) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  if (function == nullptr && missing.empty()) missing = name;
  return function != nullptr;
}

}  // namespace

Result<std::unique_ptr<Nvml>> load_nvml(const std::string& library) {
  const Result<void*> opened = open_library(library);
  if (!opened) return opened.error();
  Functions functions;
  std::string missing;
  find(*opened, "nvmlInit_v2", functions.init, missing);
  find(*opened, "nvmlShutdown", functions.shutdown, missing);
  find(*opened, "nvmlErrorString", functions.error_string, missing);
  find(*opened, "nvmlDeviceGetCount_v2", functions.count, missing);
  find(*opened, "nvmlDeviceGetHandleByIndex_v2", functions.handle, missing);
  find(*opened, "nvmlDeviceGetName", functions.name, missing);
  find(*opened, "nvmlDeviceGetPciInfo_v3", functions.pci, missing);
  find(*opened, "nvmlDeviceGetNvLinkState", functions.link_state, missing);
  find(*opened, "nvmlDeviceGetNvLinkVersion", functions.link_version, missing);
  find(*opened, "nvmlDeviceGetP2PStatus", functions.peer_status, missing);
  if (!missing.empty()) return unavailable(library + " is too old: it lacks " + missing);
  if (const int code = functions.init(); code != kSuccess) {
    return unavailable(std::string("nvmlInit_v2: ") + functions.error_string(code));
  }
  return std::unique_ptr<Nvml>(std::make_unique<LoadedNvml>(functions));
}

Result<std::string> nccl_version_of(const std::string& library) {
  const Result<void*> opened = open_library(library);
  if (!opened) return opened.error();
  int (*get_version)(int*) = nullptr;
  std::string missing;
  if (!find(*opened, "ncclGetVersion", get_version, missing)) {
    return unavailable(library + " is no NCCL: it lacks " + missing);
  }
  int version = 0;
  if (get_version(&version) != 0) return unavailable(library + ": ncclGetVersion failed");
  // 2.9 and later: 2, 09, 00; before: 2, 8, 03.
  const int major = version >= 10000 ? version / 10000 : version / 1000;
  const int minor = version >= 10000 ? version / 100 % 100 : version / 100 % 10;
  return std::to_string(major) + '.' + std::to_string(minor) + '.' + std::to_string(version % 100);
}

}  // namespace weir
