// A shared library that is NVML and NCCL at once, for the loading of both: two GPUs, which have one
// NVLink in use and one that is not; the second can't read the first's memory.
#include <cstdio>
#include <cstring>

namespace {

struct FakeDevice {
  unsigned number;
};
FakeDevice devices[] = {{0}, {1}};

// As in nvml.h.
struct PciInfo {
  char legacy_bus_id[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

}  // namespace

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
const char* nvmlErrorString(int code) {
  static char text[32];
  std::snprintf(text, sizeof text, "fake error %d", code);
  return text;
}
int nvmlDeviceGetCount_v2(unsigned* count) { return *count = 2, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (index > 1) return 2;
  return *device = &devices[index], 0;
}
int nvmlDeviceGetName(void* device, char* name, unsigned length) {
  std::snprintf(name, length, "Fake %u", static_cast<FakeDevice*>(device)->number);
  return 0;
}
int nvmlDeviceGetPciInfo_v3(void* device, void* info) {
  PciInfo pci{};
  pci.domain = 1;
  pci.bus = 0x1a + static_cast<FakeDevice*>(device)->number;
  std::memcpy(info, &pci, sizeof pci);
  return 0;
}
int nvmlDeviceGetNvLinkState(void*, unsigned link, int* active) {
  if (link > 1) return 3;
  return *active = link == 0 ? 1 : 0, 0;
}
int nvmlDeviceGetNvLinkVersion(void*, unsigned, unsigned* version) { return *version = 7, 0; }
int nvmlDeviceGetP2PStatus(void* a, void*, int, int* status) {
  return *status = a == &devices[0] ? 0 : 5, 0;
}

int ncclGetVersion(int* version) { return *version = 22809, 0; }

}  // extern "C"
