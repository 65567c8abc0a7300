// `weir comm check`: what this machine and the environment offer to NCCL, and which problems they
// have.
//
// Three steps, each of which returns a value: read_machine() and read_settings() collect the facts,
// examine() applies the rules, check_text() and check_json() report. All sources are arguments: a
// root folder, an environment, a home folder, and NVML behind an interface; so a test can pass an
// invented machine.
//
// Errors: only the two functions that load a library return errors. A thing that the machine lacks
// is absent from the value; Machine::unread lists files that exist and can't be read. Threads: all
// functions may be called concurrently. docs/comm-check.md explains each line, each finding, and
// the members of the JSON.
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

// The queries to NVML, the driver's management library. GPUs have NVML's numbers, from 0. Not
// thread-safe.
class Nvml {
 public:
  Nvml() = default;
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  virtual ~Nvml() = default;

  // Errors of all: unavailable, with NVML's own message.
  virtual Result<int> count() = 0;
  virtual Result<std::string> name(int gpu) = 0;
  virtual Result<std::string> pci(int gpu) = 0;  // "0000:1b:00.0"
  // Is the NVLink in use? An error: the GPU has no such link.
  virtual Result<bool> link_active(int gpu, int link) = 0;
  virtual Result<int> link_version(int gpu, int link) = 0;  // in NVML's own numbering
  // Can GPU `a` read the memory of GPU `b`?
  virtual Result<bool> peer_access(int a, int b) = 0;
};
inline constexpr int kMaxNvLinks = 18;  // of one GPU; NVML_NVLINK_MAX_LINKS
[[deprecated("use kMaxNvLinks")]] inline constexpr int kMostNvLinks = kMaxNvLinks;

// Loads and initialises the library of that name. Errors: unavailable (there is no such library, it
// lacks a function, or the driver refuses).
Result<std::unique_ptr<Nvml>> load_nvml(const std::string& library = "libnvidia-ml.so.1");

// The version of that NCCL library, as "2.28.9". Errors: unavailable.
Result<std::string> nccl_version_of(const std::string& library);

// A GPU as the kernel lists it on the PCI bus.
struct PciGpu {
  std::string pci;    // "0000:1b:00.0"
  std::string model;  // empty: not reported by the driver
  std::optional<int> numa_node;
  std::string link_speed;  // now, as the kernel reports it: "32.0 GT/s PCIe"; slower while idle
  std::optional<int> link_width, max_link_width;  // lanes
};

struct RdmaPort {
  int number = 1;
  std::string state;                // "ACTIVE", "DOWN"
  std::string rate;                 // "400 Gb/sec (4X NDR)"
  std::string link_layer;           // "InfiniBand", "Ethernet"
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
  bool is_virtual = true;    // not backed by a device: a bridge, a tunnel, a container's veth
  std::optional<int> speed;  // Mbit/s
  std::optional<int> mtu;    // bytes
};

// One GPU as NVML reports it. Absent: not reported.
struct NvmlGpu {
  std::string pci, name;
  int links = 0, active_links = 0;  // NVLinks
  std::optional<int> link_version;  // of the first active one
};

struct NvmlFacts {
  std::vector<NvmlGpu> gpus;
  // Pairs of GPUs of which one can't read the other's memory; by number, the lower first.
  std::vector<std::pair<int, int>> no_peer_access;
};

struct SharedMemory {
  Bytes size;
  std::optional<Bytes> free;  // absent for a machine other than this one
};

struct Unread {
  std::string path, why;
};

struct Machine {
  std::string root;
  std::vector<PciGpu> gpus;
  int nvswitches = 0;
  bool imex_channels = false;  // GPUs of several machines may share memory
  std::string kernel, driver;  // versions; empty: not known
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

  // Can the driver export GPU memory to network cards as a dma-buf? (Linux 5.12, the open driver.)
  bool has_dma_buf() const;
  bool has_gpu_direct() const { return peermem || has_dma_buf(); }
  bool has_active_rdma() const;
};

// What read_machine() queries besides files. A null function is not called.
struct MachineProbes {
  std::function<Result<std::unique_ptr<Nvml>>()> nvml;
  std::function<Result<std::string>()> nccl;  // its version
  // Size and free space of the file system at a path.
  std::function<std::optional<SharedMemory>(const std::string& path)> space;
};
MachineProbes probes_of_this_machine(const std::string& nccl_library);

Machine read_machine(const std::string& root, const MachineProbes& probes);

using EnvironmentVariables = std::map<std::string, std::string>;
// From entries "NAME=value", as in environ; null-terminated.
EnvironmentVariables environment_of(const char* const* entries);

struct Setting {
  std::string name, value;
  std::string source;  // "environment", or a file
};

// A line of a configuration file that gives NCCL no known setting.
struct OddLine {
  std::string file;
  int line = 0;  // from 1
  std::string why;
};

// The variables in force: NCCL's, those of CUDA and Weir that matter to NCCL, and those that give a
// process its rank (weir/comm/launch.h). They are read as NCCL reads them: the environment first,
// then the user's file, then the system's file; an empty value of a numeric variable counts as not
// set.
struct Settings {
  std::vector<Setting> list;  // sorted by name, one for each name
  std::vector<OddLine> odd_lines;
  std::vector<Unread> unread;        // configuration files
  std::vector<std::string> files;    // configuration files that were read
  std::string no_launch;             // why find_launch() refuses the environment; empty: it accepts
  std::vector<std::string> refused;  // why Config refuses what is set for Weir's allocator

  // Null: not set, or empty.
  const std::string* find(std::string_view name) const;
  // Parsed as NCCL parses a number: trailing text is ignored, and text without a number is 0.
  std::optional<std::int64_t> number(std::string_view name) const;
};

// `home`: the user's home folder from the system's user database; empty: none.
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

// The findings of all rules, errors first.
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
