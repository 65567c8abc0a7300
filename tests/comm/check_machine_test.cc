// What is read of a machine's files, NVML and libraries; and what becomes of files that are odd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/comm/check_machines.h"

namespace weir {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

using test::MachineTree;

Machine read(const MachineTree& tree) { return read_machine(tree.root(), {}); }

TEST(CheckMachine, EightGpusAreReadAsTheyAre) {
  const MachineTree tree;
  tree.make_eight_gpus();
  const Machine machine = read(tree), expected = test::eight_gpus();
  ASSERT_THAT(machine.gpus, SizeIs(8));
  ASSERT_THAT(machine.rdma, SizeIs(8));
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(machine.gpus[i].pci, expected.gpus[i].pci);
    EXPECT_EQ(machine.gpus[i].model, "NVIDIA H200");
    EXPECT_EQ(machine.gpus[i].numa_node, expected.gpus[i].numa_node);
    EXPECT_EQ(machine.gpus[i].link_speed, "32.0 GT/s PCIe");
    EXPECT_EQ(machine.gpus[i].link_width, 16);
    EXPECT_EQ(machine.rdma[i].name, expected.rdma[i].name);
    EXPECT_EQ(machine.rdma[i].pci, expected.rdma[i].pci);
    EXPECT_EQ(machine.rdma[i].numa_node, expected.rdma[i].numa_node);
    EXPECT_EQ(machine.rdma[i].firmware, "28.39.1002");
    ASSERT_THAT(machine.rdma[i].ports, SizeIs(1));
    EXPECT_EQ(machine.rdma[i].ports[0].state, "ACTIVE");
    EXPECT_EQ(machine.rdma[i].ports[0].rate, "400 Gb/sec (4X NDR)");
    EXPECT_EQ(machine.rdma[i].ports[0].link_layer, "InfiniBand");
  }
  EXPECT_EQ(machine.nvswitches, 4);
  EXPECT_EQ(machine.driver, "575.57.08");
  EXPECT_TRUE(machine.open_driver);
  EXPECT_TRUE(machine.peermem);
  EXPECT_TRUE(machine.gdrcopy);
  EXPECT_FALSE(machine.imex_channels);
  EXPECT_EQ(machine.kernel, "6.8.0-60-generic");
  EXPECT_EQ(machine.iommu_groups, 8);
  EXPECT_TRUE(machine.iommu_passthrough);
  ASSERT_TRUE(machine.shm);
  EXPECT_EQ(machine.shm->size, 64_GiB);
  EXPECT_FALSE(machine.shm->free);
  EXPECT_EQ(machine.locked_memory, ~std::uint64_t{0});
  EXPECT_EQ(machine.open_files, 1048576u);
  ASSERT_THAT(machine.interfaces, SizeIs(2));
  EXPECT_TRUE(machine.interfaces[0].up);
  EXPECT_FALSE(machine.interfaces[0].is_virtual);
  EXPECT_EQ(machine.interfaces[0].speed, 100000);
  EXPECT_EQ(machine.interfaces[0].mtu, 9000);
  EXPECT_TRUE(machine.interfaces[1].up);  // it has a carrier, and says "unknown"
  EXPECT_TRUE(machine.interfaces[1].is_virtual);
  EXPECT_FALSE(machine.interfaces[1].speed);
  EXPECT_THAT(machine.unread, IsEmpty());
}

TEST(CheckMachine, AnEmptyRootIsAMachineWithNothing) {
  const MachineTree tree;
  const Machine machine = read(tree);
  EXPECT_THAT(machine.gpus, IsEmpty());
  EXPECT_THAT(machine.rdma, IsEmpty());
  EXPECT_THAT(machine.interfaces, IsEmpty());
  EXPECT_FALSE(machine.shm);
  EXPECT_FALSE(machine.locked_memory);
  EXPECT_EQ(machine.driver, "");
  EXPECT_THAT(machine.unread, IsEmpty());
}

TEST(CheckMachine, OnlyGpusOfNvidiaCount) {
  const MachineTree tree;
  tree.gpu("0000:01:00.0", -1);
  tree.gpu("0000:02:00.0", 0);
  tree.write("/sys/bus/pci/devices/0000:02:00.0/vendor", "0x1002\n");  // somebody else's
  std::filesystem::remove_all(tree.at("/proc/driver/nvidia/gpus/0000:02:00.0"));
  tree.gpu("0000:03:00.0", 0);
  tree.write("/sys/bus/pci/devices/0000:03:00.0/class", "0x040300\n");  // its sound
  std::filesystem::remove_all(tree.at("/proc/driver/nvidia/gpus/0000:03:00.0"));
  const Machine machine = read(tree);
  ASSERT_THAT(machine.gpus, SizeIs(1));
  EXPECT_FALSE(machine.gpus[0].numa_node);  // -1: the kernel doesn't know
}

TEST(CheckMachine, GpusThatOnlyTheDriverShowsCount) {
  const MachineTree tree;
  tree.write("/proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: A\n");
  const Machine machine = read(tree);
  ASSERT_THAT(machine.gpus, SizeIs(1));
  EXPECT_EQ(machine.gpus[0].model, "A");
}

TEST(CheckMachine, NvSwitchesOnTheBusCount) {
  const MachineTree tree;
  for (const char* pci : {"0000:05:00.0", "0000:06:00.0"}) {
    tree.write(std::string("/sys/bus/pci/devices/") + pci + "/vendor", "0x10de\n");
    tree.write(std::string("/sys/bus/pci/devices/") + pci + "/class", "0x068000\n");
  }
  tree.write("/dev/nvidia-caps-imex-channels/channel0", "");
  const Machine machine = read(tree);
  EXPECT_EQ(machine.nvswitches, 2);
  EXPECT_TRUE(machine.imex_channels);
  EXPECT_THAT(machine.gpus, IsEmpty());
}

TEST(CheckMachine, EntriesOfTheGidTableInUseAreReadWithTheirTypes) {
  const MachineTree tree;
  tree.rdma("rocep1", "0000:1a:00.0", 0, "1: DOWN", "Ethernet");
  const Machine machine = read(tree);
  ASSERT_THAT(machine.rdma, SizeIs(1));
  ASSERT_THAT(machine.rdma[0].ports, SizeIs(1));
  EXPECT_EQ(machine.rdma[0].ports[0].state, "DOWN");
  EXPECT_THAT(machine.rdma[0].ports[0].gids,
              ElementsAre(Pair(0, "IB/RoCE v1"), Pair(3, "RoCE v2")));
  EXPECT_FALSE(machine.has_active_rdma());
}

TEST(CheckMachine, DmaBufNeedsTheOpenDriverAndLinux512) {
  Machine machine{.kernel = "5.12.0", .open_driver = true};
  EXPECT_TRUE(machine.has_dma_buf());
  machine.kernel = "6.1.0-13-amd64";
  EXPECT_TRUE(machine.has_dma_buf());
  for (const char* kernel : {"5.11.9", "4.18.0-553.el8", "", "garbage", "99999999999.1"}) {
    machine.kernel = kernel;
    EXPECT_FALSE(machine.has_dma_buf()) << kernel;
  }
  machine.kernel = "6.1.0";
  machine.open_driver = false;
  EXPECT_FALSE(machine.has_dma_buf());
}

TEST(CheckMachine, ModulesAreFoundByTheirWholeNames) {
  const MachineTree tree;
  tree.write("/proc/modules", "not_nvidia_peermem 1 0\nnvidia_peermem_x 1 0\n");
  EXPECT_FALSE(read(tree).peermem);
  tree.folder("/sys/module/nvidia_peermem");  // built in, or /proc is hidden
  EXPECT_TRUE(read(tree).peermem);
}

TEST(CheckMachine, GarbageInFilesIsNoNumberAndNoCrash) {
  const MachineTree tree;
  tree.make_eight_gpus();
  const std::string garbage = std::string("\x00\xff\xfe%n\n\n", 8) + std::string(200000, 'A');
  for (const auto& entry : std::filesystem::recursive_directory_iterator(tree.root())) {
    if (entry.is_regular_file()) std::ofstream(entry.path(), std::ios::binary) << garbage;
  }
  const Machine machine = read(tree);
  EXPECT_THAT(machine.gpus, SizeIs(8));  // by the names of their folders
  for (const PciGpu& gpu : machine.gpus) {
    EXPECT_FALSE(gpu.link_width);
    EXPECT_LE(gpu.link_speed.size(), 65536u);
  }
  EXPECT_FALSE(machine.shm);
  EXPECT_FALSE(machine.open_files);
  for (const NetworkInterface& interface : machine.interfaces) EXPECT_FALSE(interface.mtu);
}

TEST(CheckMachine, NumbersOutOfRangeAreNone) {
  const MachineTree tree;
  tree.make_eight_gpus();
  tree.write("/sys/class/net/eth0/mtu", "99999999999999999999999\n");
  tree.write("/sys/class/net/eth0/speed", "-1\n");
  tree.write("/proc/mounts", "x /dev/shm tmpfs rw,size=9223372036854775807k 0 0\n");
  tree.write("/proc/self/limits", "Max open files  -5  -5 files\nMax locked memory  \n");
  const Machine machine = read(tree);
  EXPECT_FALSE(machine.interfaces[0].mtu);
  EXPECT_FALSE(machine.interfaces[0].speed);
  EXPECT_FALSE(machine.shm);
  EXPECT_FALSE(machine.open_files);
  EXPECT_FALSE(machine.locked_memory);
}

TEST(CheckMachine, WhatIsNoFileIsNamedAndNotWaitedFor) {
  const MachineTree tree;
  tree.folder("/proc/driver/nvidia/version");
  tree.folder("/proc/sys/kernel");
  ASSERT_EQ(::mkfifo(tree.at("/proc/sys/kernel/osrelease").c_str(), 0600), 0);
  tree.link("/proc/modules", "modules");  // to itself
  const Machine machine = read(tree);
  std::vector<std::string> paths;
  for (const Unread& unread : machine.unread) paths.push_back(unread.path);
  EXPECT_THAT(paths,
              ::testing::UnorderedElementsAre("/proc/driver/nvidia/version",
                                              "/proc/sys/kernel/osrelease", "/proc/modules"));
}

TEST(CheckMachine, WhatMayNotBeReadIsNamed) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  const MachineTree tree;
  tree.write("/proc/modules", "nvidia_peermem 1 0\n");
  std::filesystem::permissions(tree.at("/proc/modules"), std::filesystem::perms::none);
  const Machine machine = read(tree);
  ASSERT_THAT(machine.unread, SizeIs(1));
  EXPECT_EQ(machine.unread[0].path, "/proc/modules");
  EXPECT_THAT(machine.unread[0].why, HasSubstr("denied"));
}

// Three GPUs: 0 and 1 with links, the third without; 2 can't be reached.
class FakeNvml final : public Nvml {
 public:
  Result<int> count() override { return 3; }
  Result<std::string> name(int gpu) override { return "GPU " + std::to_string(gpu); }
  Result<std::string> pci(int gpu) override {
    if (gpu == 2) return Error(ErrorCode::unavailable, "lost");
    return "0000:0" + std::to_string(gpu) + ":00.0";
  }
  Result<bool> link_active(int gpu, int link) override {
    if (gpu == 2 || link >= 4) return Error(ErrorCode::unavailable, "no such link");
    return link != 0;
  }
  Result<int> link_version(int, int) override { return 6; }
  Result<bool> peer_access(int a, int b) override { return a != 2 && b != 2; }
};

TEST(CheckMachine, NvmlIsAskedForLinksAndForPeers) {
  const MachineTree tree;
  MachineProbes probes;
  probes.nvml = []() -> Result<std::unique_ptr<Nvml>> {
    return std::unique_ptr<Nvml>(std::make_unique<FakeNvml>());
  };
  const Machine machine = read_machine(tree.root(), probes);
  ASSERT_TRUE(machine.nvml);
  ASSERT_THAT(machine.nvml->gpus, SizeIs(3));
  EXPECT_EQ(machine.nvml->gpus[1].links, 4);
  EXPECT_EQ(machine.nvml->gpus[1].active_links, 3);
  EXPECT_EQ(machine.nvml->gpus[1].link_version, 6);
  EXPECT_EQ(machine.nvml->gpus[1].pci, "0000:01:00.0");
  EXPECT_EQ(machine.nvml->gpus[2].links, 0);
  EXPECT_FALSE(machine.nvml->gpus[2].link_version);
  EXPECT_THAT(machine.nvml->no_peer_access, ElementsAre(Pair(0, 2), Pair(1, 2)));
}

TEST(CheckMachine, ProbesThatFailAreSaid) {
  const MachineTree tree;
  MachineProbes probes;
  probes.nvml = []() -> Result<std::unique_ptr<Nvml>> {
    return Error(ErrorCode::unavailable, "no NVML");
  };
  probes.nccl = []() -> Result<std::string> { return Error(ErrorCode::unavailable, "no NCCL"); };
  probes.space = [](const std::string& path) -> std::optional<SharedMemory> {
    EXPECT_THAT(path, HasSubstr("/dev/shm"));
    return SharedMemory{2_GiB, 1_GiB};
  };
  const Machine machine = read_machine(tree.root(), probes);
  EXPECT_FALSE(machine.nvml);
  EXPECT_EQ(machine.no_nvml, "no NVML");
  EXPECT_EQ(machine.nccl, "");
  EXPECT_EQ(machine.no_nccl, "no NCCL");
  ASSERT_TRUE(machine.shm && machine.shm->free);
  EXPECT_EQ(*machine.shm->free, 1_GiB);
}

// tests/comm/check_fake_libraries.cc is both libraries.
TEST(CheckLibraries, NvmlIsLoadedAndAsked) {
  const Result<std::unique_ptr<Nvml>> nvml = load_nvml(WEIR_FAKE_LIBRARIES);
  ASSERT_TRUE(nvml) << nvml.error().message();
  EXPECT_EQ(*(*nvml)->count(), 2);
  EXPECT_EQ(*(*nvml)->name(1), "Fake 1");
  EXPECT_EQ(*(*nvml)->pci(1), "0001:1b:00.0");
  EXPECT_TRUE(*(*nvml)->link_active(0, 0));
  EXPECT_FALSE(*(*nvml)->link_active(0, 1));
  EXPECT_THAT((*nvml)->link_active(0, 2).error().message(),
              HasSubstr("nvmlDeviceGetNvLinkState: fake error 3"));
  EXPECT_EQ(*(*nvml)->link_version(0, 0), 7);
  EXPECT_TRUE(*(*nvml)->peer_access(0, 1));
  EXPECT_FALSE(*(*nvml)->peer_access(1, 0));
  EXPECT_THAT((*nvml)->name(5).error().message(), HasSubstr("nvmlDeviceGetHandleByIndex_v2"));
}

TEST(CheckLibraries, TheVersionOfNcclIsAsPeopleWriteIt) {
  const Result<std::string> version = nccl_version_of(WEIR_FAKE_LIBRARIES);
  ASSERT_TRUE(version) << version.error().message();
  EXPECT_EQ(*version, "2.28.9");
}

TEST(CheckLibraries, ThatAreMissingOrSomethingElseAreNamed) {
  EXPECT_THAT(load_nvml("libweir_no_such.so").error().message(), HasSubstr("libweir_no_such.so"));
  EXPECT_THAT(nccl_version_of("libweir_no_such.so").error().message(),
              HasSubstr("libweir_no_such.so"));
  EXPECT_THAT(load_nvml("libc.so.6").error().message(), HasSubstr("lacks nvmlInit_v2"));
  EXPECT_THAT(nccl_version_of("libc.so.6").error().message(), HasSubstr("lacks ncclGetVersion"));
}

}  // namespace
}  // namespace weir
