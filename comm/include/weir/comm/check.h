// `weir comm check`: what this machine and the environment offer to NCCL, and what of it is wrong.
//
// Three steps, each a value: read_machine() and read_settings() look, examine() judges,
// check_text() and check_json() tell. Everything that is looked at is an argument: a root folder,
// an environment, a home folder, and NVML behind an interface; so a test passes a machine that it
// made up.
//
// Errors: none, but of the two that load a library. What is absent is absent in the value; what is
// there and can't be read is listed in Machine::unread. Threads: all functions may be called at
// once. docs/comm-check.md explains each line, each finding, and the members of the JSON.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weir/result.h"
#include "weir/types.h"

namespace weir {

// What NVML, the driver's library for looking at GPUs, is asked. GPUs are numbered as NVML does,
// from 0. Not thread-safe.
class Nvml {
 public:
  Nvml() = default;
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  virtual ~Nvml() = default;

  // Errors of all: unavailable, with NVML's own words.
  virtual Result<int> count() = 0;
  virtual Result<std::string> name(int gpu) = 0;
  virtual Result<std::string> pci(int gpu) = 0;  // "0000:1b:00.0"
  // Is the NVLink in use? An error: the GPU has no such link.
  virtual Result<bool> link_active(int gpu, int link) = 0;
  virtual Result<int> link_version(int gpu, int link) = 0;  // in NVML's own numbering
  // Can GPU `a` read the memory of GPU `b`?
  virtual Result<bool> peer_access(int a, int b) = 0;
};
inline constexpr int kMostNvLinks = 18;  // of one GPU; NVML_NVLINK_MAX_LINKS

// The library of that name, loaded and initialised. Errors: unavailable (no such library, one that
// lacks a function, a driver that refuses).
Result<std::unique_ptr<Nvml>> load_nvml(const std::string& library = "libnvidia-ml.so.1");

// The version of that NCCL library, as "2.28.9". Errors: unavailable.
Result<std::string> nccl_version_of(const std::string& library);

// A GPU as the kernel lists it on the PCI bus.
struct PciGpu {
  std::string pci;    // "0000:1b:00.0"
  std::string model;  // empty: the driver doesn't say
  std::optional<int> numa_node;
  std::string link_speed;  // now, as the kernel says it: "32.0 GT/s PCIe"; slower while idle
  std::optional<int> link_width, most_link_width;  // lanes
};

struct RdmaPort {
  int number = 1;
  std::string state;                // "ACTIVE", "DOWN"
  std::string rate;                 // "400 Gb/sec (4X NDR)"
  std::string layer;                // "InfiniBand", "Ethernet"
  std::map<int, std::string> gids;  // entries in use and their types: "IB/RoCE v1", "RoCE v2"
};

struct RdmaDevice {
  std::string name;  // "mlx5_0"
  std::string pci, firmware;
  std::optional<int> numa_node;
  std::vector<RdmaPort> ports;
};

struct NetworkInterface {
  std::string name;
  bool up = false;
  bool is_virtual = true;    // no device behind it: a bridge, a tunnel, a container's end
  std::optional<int> speed;  // Mbit/s
  std::optional<int> mtu;    // bytes
};

// What NVML says of one GPU. Absent: it doesn't say.
struct NvmlGpu {
  std::string pci, name;
  int links = 0, active_links = 0;  // NVLinks
  std::optional<int> link_version;  // of the first active one
};

struct NvmlFacts {
  std::vector<NvmlGpu> gpus;
  // Pairs of GPUs of which one can't read the other's memory; by number, the lower first.
  std::vector<std::pair<int, int>> apart;
};

struct SharedMemory {
  Bytes size;
  std::optional<Bytes> free;  // unknown for a machine that isn't this one
};

struct Unread {
  std::string path, why;
};

struct Machine {
  std::string root;
  std::vector<PciGpu> gpus;
  int nvswitches = 0;
  bool imex_channels = false;  // GPUs of several machines may share memory
  std::string kernel, driver;  // versions; empty: not said
  bool open_driver = false;    // the open kernel modules, which dma-buf needs
  bool peermem = false, gdrcopy = false;
  std::vector<RdmaDevice> rdma;
  std::vector<NetworkInterface> interfaces;
  std::optional<SharedMemory> shm;  // absent: no file system on /dev/shm
  // Soft limits of a process; ~0: none.
  std::optional<std::uint64_t> locked_memory, open_files;
  int iommu_groups = 0;
  bool iommu_passthrough = false;  // "iommu=pt" on the kernel's command line
  std::optional<NvmlFacts> nvml;
  std::string no_nvml;  // why there is none
  std::string nccl;     // version; empty: none
  std::string no_nccl;  // why there is none
  std::vector<Unread> unread;

  // Can a network card be given the GPUs' memory as a dma-buf? (Linux 5.12, the open driver.)
  bool has_dma_buf() const;
  bool has_gpu_direct() const { return peermem || has_dma_buf(); }
  bool has_active_rdma() const;
};

// What read_machine() asks besides files. What is null is not asked.
struct MachineProbes {
  std::function<Result<std::unique_ptr<Nvml>>()> nvml;
  std::function<Result<std::string>()> nccl;  // its version
  // Size and free space of the file system at a path.
  std::function<std::optional<SharedMemory>(const std::string& path)> space;
};
MachineProbes probes_of_this_machine(const std::string& nccl_library);

Machine read_machine(const std::string& root, const MachineProbes& probes);

using EnvironmentVariables = std::map<std::string, std::string>;
// Of "NAME=value", as in environ; null-terminated.
EnvironmentVariables environment_of(const char* const* entries);

struct Setting {
  std::string name, value;
  std::string source;  // "environment", or a file
};

// A line of a configuration file from which NCCL takes no known setting.
struct OddLine {
  std::string file;
  int line = 0;  // from 1
  std::string why;
};

// The variables that are in force: NCCL's, those of CUDA and Weir that matter to it, and those that
// say which rank a process is (weir/comm/launch.h). As NCCL reads them: the environment first, then
// the user's file, then the system's; an empty value of a known number is as none.
struct Settings {
  std::vector<Setting> list;  // in order of names, one for each
  std::vector<OddLine> odd_lines;
  std::vector<Unread> unread;      // configuration files
  std::vector<std::string> files;  // configuration files that were read
  std::string no_launch;           // why find_launch() refuses the environment; empty: it does not
  std::vector<std::string> refused;  // why Config refuses what is set for Weir's allocator

  // Null: not set, or empty.
  const std::string* find(std::string_view name) const;
  // As NCCL reads a number: what follows it is ignored, and what is none is 0.
  std::optional<std::int64_t> number(std::string_view name) const;
};

// `home`: the user's folder, as the system's list of users has it; empty: none.
Settings read_settings(const std::string& root, const EnvironmentVariables& environment,
                       const std::string& home);

enum class Severity { error, warning, note };
std::string_view name_of(Severity severity);

// `id` names the rule, and stays the same from version to version.
struct Finding {
  Severity severity = Severity::note;
  std::string id, what, why, remedy;
};
using Findings = std::vector<Finding>;

// What every rule says, errors first.
Findings examine(const Machine& machine, const Settings& settings);
bool has_error(const Findings& findings);

struct Check {
  Machine machine;
  Settings settings;
  Findings findings;
};

// For people: at most 100 columns wide, printable characters only; ends with a line end.
std::string check_text(const Check& check);
// For programs: one JSON object. Ends with a line end.
std::string check_json(const Check& check);

}  // namespace weir
