// SPDX-License-Identifier: Apache-2.0
#include "weir/comm/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "weir/comm/sim_nccl.h"
#include "weir/sim_device.h"

namespace weir {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Variables = Environment;

// Each as the launcher was seen to set them.
const Variables kTorchrun{{"RANK", "3"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"MASTER_ADDR", "10.0.0.1"},
                          {"MASTER_PORT", "29500"}};
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}};
const Variables kHydra{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}};
const Variables kSrun{{"SLURM_PROCID", "2"}, {"SLURM_STEP_NUM_TASKS", "3"},
                      {"SLURM_NTASKS", "3"}, {"SLURM_LOCALID", "0"},
                      {"SLURM_JOB_ID", "7"}, {"SLURM_STEP_ID", "2"}};
const Variables kMeet{{"WEIR_MEET", "node1:4000"}};

Variables operator+(Variables base, const Variables& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

Launch found(const Variables& variables) {
  const Result<Launch> launch = find_launch(variables);
  if (!launch) {
    ADD_FAILURE() << launch.error().message();
    return {};
  }
  return *launch;
}

std::string refusal(const Variables& variables) {
  const Result<Launch> launch = find_launch(variables);
  if (launch) return "not refused: " + launch->describe();
  EXPECT_EQ(launch.error().code(), ErrorCode::invalid_argument);
  return launch.error().message();
}

void expect_ranks(const Launch& launch, int rank, int ranks, int local_rank) {
  EXPECT_EQ(launch.rank, rank);
  EXPECT_EQ(launch.ranks, ranks);
  EXPECT_EQ(launch.local_rank, local_rank);
}

TEST(Launch, WithNoLaunchersVariablesIsOneRank) {
  const Launch launch = found({{"PATH", "/bin"}, {"MASTER_ADDR", "10.0.0.1"}});
  expect_ranks(launch, 0, 1, 0);
  EXPECT_EQ(launch.address, "");
  EXPECT_EQ(launch.describe(), "rank 0 of 1: no launcher's variables are set");
}

TEST(Launch, ByTorchrunMeetsAtThePortAfterTheStores) {
  const Launch launch = found(kTorchrun);
  expect_ranks(launch, 3, 8, 1);
  EXPECT_EQ(launch.address, "10.0.0.1:29501");
  EXPECT_EQ(launch.describe(),
            "rank 3 of 8, local rank 1, by torchrun (RANK, WORLD_SIZE, LOCAL_RANK); meets rank 0 "
            "at 10.0.0.1:29501 (MASTER_ADDR, MASTER_PORT + 1, as the store has the port itself)");
}

TEST(Launch, ByALauncherThatDoesNotSayWhereRankZeroIsNeedsAnAddress) {
  const std::pair<Variables, std::string> launchers[] = {
      {kOpenMpi, "Open MPI"}, {kHydra, "Hydra"}, {kSrun, "srun"}};
  for (const auto& [variables, name] : launchers) {
    EXPECT_THAT(refusal(variables), AllOf(HasSubstr("WEIR_MEET"), HasSubstr(name)));
    EXPECT_EQ(found(variables + kMeet).address, "node1:4000");
    const Variables master = variables + Variables{{"MASTER_ADDR", "node1"}};
    EXPECT_THAT(refusal(master), HasSubstr("MASTER_PORT=\"\": not a host"));
    EXPECT_EQ(found(master + Variables{{"MASTER_PORT", "500"}}).address, "node1:501");
  }
  expect_ranks(found(kHydra + kMeet), 1, 2, 1);
  expect_ranks(found(kSrun + kMeet), 2, 3, 0);
}

TEST(Launch, OfABatchScriptThatSrunDidNotStartIsAlone) {
  const Launch launch = found({{"SLURM_PROCID", "0"},
                               {"SLURM_NTASKS", "4"},
                               {"SLURM_LOCALID", "0"},
                               {"SLURM_NODEID", "0"},
                               {"SLURM_JOB_ID", "2"}});
  expect_ranks(launch, 0, 1, 0);
}

TEST(Launch, ByWeirsVariablesComesBeforeAllLaunchers) {
  const Launch launch = found(kTorchrun + kOpenMpi + kHydra + kSrun +
                              Variables{{"WEIR_RANK", "1"},
                                        {"WEIR_WORLD_SIZE", "2"},
                                        {"WEIR_LOCAL_RANK", "0"},
                                        {"WEIR_MEET", "node7:80"}});
  expect_ranks(launch, 1, 2, 0);
  EXPECT_EQ(launch.address, "node7:80");
  EXPECT_EQ(launch.describe().substr(0, launch.describe().find(';')),
            "rank 1 of 2, local rank 0, by Weir's variables (WEIR_RANK, WEIR_WORLD_SIZE, "
            "WEIR_LOCAL_RANK)");
}

TEST(Launch, TakesTheFirstOfTwoLaunchers) {
  struct Case {
    Variables variables;
    std::string launcher;
  };
  const Case cases[] = {
      {kTorchrun + kSrun, "torchrun"},
      {kOpenMpi + kSrun + kMeet, "Open MPI"},
      {kOpenMpi + kHydra + kMeet, "Open MPI"},
      {kSrun + kMeet + Variables{{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}}, "srun"},
      {kSrun + kMeet + Variables{{"WORLD_SIZE", "16"}}, "srun"},
      {kSrun + kMeet + Variables{{"RANK", "x"}}, "srun"},
  };
  for (const Case& test : cases) EXPECT_EQ(found(test.variables).launcher, test.launcher);
}

TEST(Launch, FollowsNcclsOwnAddressWhereOneIsSet) {
  const Launch launch =
      found(kTorchrun + Variables{{"NCCL_COMM_ID", "10.9.9.9:1"}, {"WEIR_MEET", "node1:4000"}});
  EXPECT_EQ(launch.address, "10.9.9.9:1");
  EXPECT_EQ(launch.source, "NCCL_COMM_ID");
}

TEST(Launch, PutsAnAddressOfVersionSixInBrackets) {
  EXPECT_EQ(found(kTorchrun + Variables{{"MASTER_ADDR", "fd00::1"}}).address, "[fd00::1]:29501");
  EXPECT_EQ(found(kTorchrun + Variables{{"WEIR_MEET", "[fd00::2]:80"}}).address, "[fd00::2]:80");
}

struct Refused {
  Variables variables;
  std::vector<std::string> named;
};

TEST(Launch, WithAMalformedVariableIsRefusedByItsNameAndValue) {
  const Refused cases[] = {
      {kTorchrun + Variables{{"RANK", "8"}}, {"RANK=8 of WORLD_SIZE=8", "count from 0"}},
      {kTorchrun + Variables{{"RANK", "-1"}},
       {"RANK=\"-1\" is not a whole number", "from 0 to 16777216"}},
      {kTorchrun + Variables{{"RANK", "1 "}}, {"RANK=\"1 \"", "not a whole number"}},
      {kTorchrun + Variables{{"WORLD_SIZE", "99999999999"}},
       {"WORLD_SIZE=\"99999999999\"", "from 0 to 16777216"}},
      {kTorchrun + Variables{{"WORLD_SIZE", "0"}}, {"WORLD_SIZE=0"}},
      {kTorchrun + Variables{{"MASTER_PORT", "65535"}},
       {"MASTER_PORT=\"65535\"", "1 to 65534", "WEIR_MEET"}},
      {kTorchrun + Variables{{"MASTER_PORT", "http"}}, {"MASTER_PORT=\"http\""}},
      {kTorchrun + Variables{{"MASTER_ADDR", "node1:29500"}}, {"MASTER_ADDR=\"node1:29500\""}},
      {kSrun + Variables{{"SLURM_LOCALID", "3"}}, {"SLURM_LOCALID=3 of SLURM_STEP_NUM_TASKS=3"}},
  };
  for (const Refused& test : cases) {
    for (const std::string& named : test.named) {
      EXPECT_THAT(refusal(test.variables), HasSubstr(named));
    }
  }
}

TEST(Launch, WithAMalformedPlaceToMeetIsRefused) {
  for (const char* place : {"node1", "node1:", ":80", "node1:0", "node1:65536", "node1:x", "::1:80",
                            "[]:80", "file:/a", "/path"}) {
    EXPECT_THAT(refusal(kTorchrun + Variables{{"WEIR_MEET", place}}),
                HasSubstr("WEIR_MEET=\"" + std::string(place) + "\" is not host:port"));
  }
}

TEST(Launch, WithAPlaceToMeetAndNoRankIsRefused) {
  EXPECT_THAT(refusal({{"WEIR_MEET", "node0:29501"}}),
              AllOf(HasSubstr("WEIR_MEET=\"node0:29501\""), HasSubstr("WEIR_RANK")));
}

TEST(Launch, WithHalfOfALaunchersVariablesIsRefused) {
  EXPECT_THAT(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
              AllOf(HasSubstr("only some of RANK, WORLD_SIZE, LOCAL_RANK are set"),
                    HasSubstr("torchrun --no-python, or unset them")));
  EXPECT_THAT(refusal({{"OMPI_COMM_WORLD_RANK", "0"}}), HasSubstr("OMPI_COMM_WORLD_SIZE"));
  EXPECT_THAT(refusal({{"PMI_SIZE", "2"}}), HasSubstr("mpiexec.hydra"));
  EXPECT_THAT(refusal({{"SLURM_STEP_NUM_TASKS", "2"}}), HasSubstr("SLURM_PROCID"));
  // Half of Weir's own is a mistake, even beside a launcher.
  for (const Variables& launcher : {Variables{}, kTorchrun}) {
    EXPECT_THAT(refusal(launcher + Variables{{"WEIR_LOCAL_RANK", "4"}}),
                AllOf(HasSubstr("Weir's variables"), HasSubstr("WEIR_RANK")));
  }
}

TEST(Launch, TakesAnEmptyVariableForOneThatIsNotSet) {
  EXPECT_EQ(found({{"RANK", ""}, {"WORLD_SIZE", ""}, {"WEIR_RANK", ""}}).ranks, 1);
}

// NCCL reads NCCL_COMM_ID in unique_id() and init().
TEST(Rendezvous, NamesTheAddressMeanwhileAndLeavesTheEnvironmentAsItWas) {
  SimDevice device;
  SimWorld world({.ranks = 1});
  const std::unique_ptr<Nccl> nccl = world.rank(0, device);
  const auto address = [] {
    const char* const value = std::getenv("NCCL_COMM_ID");
    return std::string(value != nullptr ? value : "none");
  };
  const auto expect = [&](const Launch& launch, const std::string& meanwhile,
                          const std::string& after) {
    EXPECT_TRUE(rendezvous(*nccl, launch).ok());
    EXPECT_EQ(address(), meanwhile);
    finish_rendezvous(launch);
    EXPECT_EQ(address(), after);
  };
  expect(found(kTorchrun), "10.0.0.1:29501", "none");
  expect(found({}), "none", "none");  // a rank that is alone meets nobody
  ::setenv("NCCL_COMM_ID", "10.9.9.9:1", 1);
  expect(found(kTorchrun + Variables{{"NCCL_COMM_ID", "10.9.9.9:1"}}), "10.9.9.9:1", "10.9.9.9:1");
  ::unsetenv("NCCL_COMM_ID");
}

}  // namespace
}  // namespace weir
