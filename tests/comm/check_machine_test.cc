// SPDX-License-Identifier: Apache-2.0
// What is read of a machine's files and of NCCL; and what becomes of files that are odd.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/comm/check_machines.h"

namespace weir {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using test::MachineTree;

Machine read(const MachineTree& tree) { return read_machine(tree.root(), ""); }

TEST(CheckMachine, EightGpusAreReadAsTheyAre) {
  const MachineTree tree;
  tree.make_eight_gpus();
  const Machine machine = read(tree), expected = test::eight_gpus();
  EXPECT_EQ(machine.gpus, 8);
  ASSERT_THAT(machine.rdma, SizeIs(8));
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(machine.rdma[i].device, expected.rdma[i].device);
    EXPECT_EQ(machine.rdma[i].number, 1);
    EXPECT_EQ(machine.rdma[i].state, "ACTIVE");
    EXPECT_EQ(machine.rdma[i].link_layer, "InfiniBand");
  }
  EXPECT_TRUE(machine.open_driver);
  EXPECT_TRUE(machine.peermem);
  EXPECT_EQ(machine.kernel, "6.8.0-60-generic");
  EXPECT_THAT(machine.unread, IsEmpty());
}

TEST(CheckMachine, NoFileStaysOpen) {
  const auto open_files = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         std::filesystem::directory_iterator());
  };
  const MachineTree tree;
  tree.make_eight_gpus();
  const auto before = open_files();
  for (int i = 0; i < 3; ++i) (void)read(tree);
  EXPECT_EQ(open_files(), before);
}

TEST(CheckMachine, AnEmptyRootIsAMachineWithNothing) {
  const MachineTree tree;
  const Machine machine = read(tree);
  EXPECT_EQ(machine.gpus, 0);
  EXPECT_THAT(machine.rdma, IsEmpty());
  EXPECT_THAT(machine.unread, IsEmpty());
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
  EXPECT_EQ(machine.gpus, 8);  // by the names of their folders
  EXPECT_THAT(machine.rdma, SizeIs(8));
  EXPECT_LE(machine.kernel.size(), 65536u);
  EXPECT_LE(machine.rdma[0].state.size(), 65536u);
}

TEST(CheckMachine, PortsOutOfRangeAreNone) {
  const MachineTree tree;
  tree.folder("/sys/class/infiniband/mlx5_0/ports/0");
  tree.folder("/sys/class/infiniband/mlx5_0/ports/256");
  tree.folder("/sys/class/infiniband/mlx5_0/ports/x");
  EXPECT_THAT(read(tree).rdma, IsEmpty());
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

// As a property that its driver can't tell now.
TEST(CheckMachine, AFileWhoseReadFailsHasNoText) {
  const MachineTree tree;
  tree.write("/proc/modules", "nvidia_peermem 1 0\n");
  tree.link("/proc/sys/kernel/osrelease", "/proc/self/mem");  // of which nothing lies at 0
  const Machine machine = read(tree);
  EXPECT_EQ(machine.kernel, "");
  EXPECT_TRUE(machine.peermem);
  EXPECT_THAT(machine.unread, IsEmpty());
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

// tests/comm/check_fake_nccl.cc is the library.
TEST(CheckLibraries, TheVersionOfNcclIsAsPeopleWriteIt) {
  const Result<std::string> version = nccl_version_of(WEIR_FAKE_NCCL);
  ASSERT_TRUE(version) << version.error().message();
  EXPECT_EQ(*version, "2.28.9");
  EXPECT_EQ(read_machine(MachineTree().root(), WEIR_FAKE_NCCL).nccl, "2.28.9");
}

TEST(CheckLibraries, ThatAreMissingOrSomethingElseAreNamed) {
  EXPECT_EQ(nccl_version_of("libweir_no_such.so").error().code(), ErrorCode::unavailable);
  EXPECT_THAT(nccl_version_of("libweir_no_such.so").error().message(),
              ::testing::StartsWith("libweir_no_such.so: cannot open"));
  EXPECT_THAT(nccl_version_of("libc.so.6").error().message(), HasSubstr("lacks ncclGetVersion"));
  EXPECT_THAT(read_machine(MachineTree().root(), "libweir_no_such.so").no_nccl,
              HasSubstr("libweir_no_such.so"));
}

}  // namespace
}  // namespace weir
