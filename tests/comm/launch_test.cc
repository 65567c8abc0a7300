// SPDX-License-Identifier: Apache-2.0
#include "weir/comm/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "comm/launch/launchers.h"
#include "tests/comm/launch_fixture.h"

namespace weir {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Variables = FakeEnvironment::Variables;

// Each as the launcher was seen to set them.
const Variables kTorchrun{{"RANK", "3"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "10.0.0.1"},
                          {"MASTER_PORT", "29500"},
                          {"TORCHELASTIC_RUN_ID", "none"},
                          {"TORCHELASTIC_RESTART_COUNT", "0"}};
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                         {"PMIX_NAMESPACE", "42008577"},      {"PMIX_RANK", "1"}};
const Variables kHydra{
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Variables kSrun{{"SLURM_PROCID", "2"},
                      {"SLURM_STEP_NUM_TASKS", "3"},
                      {"SLURM_NTASKS", "3"},
                      {"SLURM_LOCALID", "0"},
                      {"SLURM_NODEID", "1"},
                      {"SLURM_STEP_TASKS_PER_NODE", "2,1"},
                      {"SLURM_STEP_NODELIST", "gpu[003-004]"},
                      {"SLURM_JOB_NODELIST", "gpu[001-004]"},
                      {"SLURM_JOB_ID", "7"},
                      {"SLURM_STEP_ID", "2"}};

Variables operator+(Variables base, const Variables& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

Launch found(const Variables& variables) {
  const Result<Launch> launch = find_launch(FakeEnvironment(variables));
  if (!launch) {
    ADD_FAILURE() << launch.error().message();
    return {};
  }
  return *launch;
}

std::string refusal(const Variables& variables) {
  const Result<Launch> launch = find_launch(FakeEnvironment(variables));
  if (launch) return "not refused: " + launch->describe();
  EXPECT_EQ(launch.error().code(), ErrorCode::invalid_argument);
  return launch.error().message();
}

void expect_ranks(const Launch& launch, int rank, int ranks, int local_rank, int local_ranks) {
  EXPECT_EQ(launch.rank, rank);
  EXPECT_EQ(launch.ranks, ranks);
  EXPECT_EQ(launch.local_rank, local_rank);
  EXPECT_EQ(launch.local_ranks, local_ranks);
}

TEST(Launch, WithNoLaunchersVariablesIsOneRank) {
  const Launch launch = found({{"PATH", "/bin"}, {"MASTER_ADDR", "10.0.0.1"}});
  expect_ranks(launch, 0, 1, 0, 1);
  EXPECT_EQ(launch.rendezvous.method, RendezvousMethod::none);
  EXPECT_EQ(launch.describe(), "rank 0 of 1: no launcher's variables are set");
}

TEST(Launch, ByTorchrunMeetsAtThePortAfterTheStores) {
  const Launch launch = found(kTorchrun);
  expect_ranks(launch, 3, 8, 1, 4);
  EXPECT_EQ(launch.rendezvous.method, RendezvousMethod::address);
  EXPECT_EQ(launch.describe(),
            "rank 3 of 8, local rank 1 of 4, by torchrun (RANK, WORLD_SIZE, LOCAL_RANK, "
            "LOCAL_WORLD_SIZE); meets rank 0 at 10.0.0.1:29501 (MASTER_ADDR, MASTER_PORT + 1, as "
            "the store has the port itself)");
}

TEST(Launch, ByTorchrunOnOneHostMeetsAtAFile) {
  const Variables one_host = kTorchrun + Variables{{"LOCAL_WORLD_SIZE", "8"}, {"TMPDIR", "/t"}};
  const Launch launch = found(one_host);
  EXPECT_EQ(launch.rendezvous.method, RendezvousMethod::file);
  EXPECT_THAT(launch.rendezvous.endpoint,
              testing::StartsWith("/t/weir-meet-" + std::to_string(::geteuid()) + "-"));
  EXPECT_EQ(found(one_host + Variables{{"RANK", "0"}, {"LOCAL_RANK", "0"}}).rendezvous.endpoint,
            launch.rendezvous.endpoint);
}

TEST(Launch, OfEachRunHasAFileOfItsOwn) {
  const Variables one_host = kTorchrun + Variables{{"LOCAL_WORLD_SIZE", "8"}};
  std::set<std::string> files;
  for (const Variables& change :
       {Variables{}, Variables{{"TORCHELASTIC_RESTART_COUNT", "1"}},
        Variables{{"TORCHELASTIC_RUN_ID", "another"}}, Variables{{"MASTER_PORT", "29600"}}}) {
    files.insert(found(one_host + change).rendezvous.endpoint);
  }
  files.insert(found(kOpenMpi).rendezvous.endpoint);
  files.insert(found(kOpenMpi + Variables{{"PMIX_NAMESPACE", "42008578"}}).rendezvous.endpoint);
  EXPECT_EQ(files.size(), 6U);
}

TEST(Launch, ByOpenMpiOnOneHostMeetsAtAFile) {
  const Launch launch = found(kOpenMpi);
  expect_ranks(launch, 1, 2, 1, 2);
  EXPECT_EQ(launch.launcher, "Open MPI");
  EXPECT_EQ(launch.rendezvous.method, RendezvousMethod::file);
}

TEST(Launch, ByOpenMpiOnSeveralHostsNeedsAnAddress) {
  const Variables two_hosts = kOpenMpi + Variables{{"OMPI_COMM_WORLD_SIZE", "4"}};
  EXPECT_THAT(refusal(two_hosts), AllOf(HasSubstr("WEIR_MEET"), HasSubstr("Open MPI")));
  EXPECT_EQ(found(two_hosts + Variables{{"WEIR_MEET", "node1:4000"}}).rendezvous.endpoint,
            "node1:4000");
  const Variables master = two_hosts + Variables{{"MASTER_ADDR", "node1"}};
  EXPECT_THAT(refusal(master), HasSubstr("MASTER_PORT=\"\" is not a port"));
  EXPECT_EQ(found(master + Variables{{"MASTER_PORT", "500"}}).rendezvous.endpoint, "node1:501");
}

TEST(Launch, ByHydraNeedsAPlaceToMeet) {
  EXPECT_THAT(refusal(kHydra), AllOf(HasSubstr("WEIR_MEET"), HasSubstr("Hydra")));
  const Launch launch = found(kHydra + Variables{{"WEIR_MEET", "file:/s/meet"}});
  expect_ranks(launch, 1, 2, 1, 2);
  EXPECT_EQ(launch.rendezvous.endpoint, "/s/meet");
  EXPECT_EQ(launch.rendezvous.run, "");
}

TEST(Launch, BySrunMeetsAtTheFirstHostOfTheStep) {
  const Launch launch = found(kSrun);
  expect_ranks(launch, 2, 3, 0, 0);
  EXPECT_EQ(launch.rendezvous.endpoint, "gpu003:20114");  // 20000 + 7 * 16 + 2
  EXPECT_THAT(launch.describe(), HasSubstr("SLURM_STEP_NODELIST"));
  Variables old = kSrun;
  old.erase("SLURM_STEP_NODELIST");
  EXPECT_EQ(found(old).rendezvous.endpoint, "gpu001:20114");
}

TEST(Launch, BySrunHasAPortForEachStepAndJob) {
  std::set<std::string> places;
  for (int job = 1000; job < 1020; ++job) {
    for (int step = 0; step < 16; ++step) {
      places.insert(found(kSrun + Variables{{"SLURM_JOB_ID", std::to_string(job)},
                                            {"SLURM_STEP_ID", std::to_string(step)}})
                        .rendezvous.endpoint);
    }
  }
  EXPECT_EQ(places.size(), 20U * 16U);
  EXPECT_EQ(found(kSrun + Variables{{"SLURM_JOB_ID", "4294967295"}}).rendezvous.endpoint,
            "gpu003:20722");
}

TEST(Launch, BySrunWithAJobThatIsNoNumberOfSlurmsNeedsAPlaceToMeet) {
  for (const char* const job : {"4294967296", "-1", "7_1", ""}) {
    EXPECT_THAT(refusal(kSrun + Variables{{"SLURM_JOB_ID", job}}), HasSubstr("WEIR_MEET")) << job;
  }
}

TEST(Launch, BySrunTakesTheMastersAddressThatAScriptExported) {
  const Variables exported = kSrun + Variables{{"MASTER_ADDR", "10.1.1.1"}};
  EXPECT_EQ(found(exported).rendezvous.endpoint, "10.1.1.1:20114");
  EXPECT_EQ(found(exported + Variables{{"MASTER_PORT", "7000"}}).rendezvous.endpoint,
            "10.1.1.1:7001");
}

TEST(Launch, OfABatchScriptThatSrunDidNotStartIsAlone) {
  const Launch launch = found({{"SLURM_PROCID", "0"},
                               {"SLURM_NTASKS", "4"},
                               {"SLURM_LOCALID", "0"},
                               {"SLURM_NODEID", "0"},
                               {"SLURM_JOB_ID", "2"}});
  expect_ranks(launch, 0, 1, 0, 1);
}

TEST(Launch, BySrunWithPmiVariablesIsSruns) {
  const Launch launch = found(kSrun + Variables{{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}});
  EXPECT_EQ(launch.launcher, "srun");
}

TEST(Launch, ByWeirsVariablesComesBeforeAllLaunchers) {
  const Launch launch = found(kTorchrun + kOpenMpi + kHydra + kSrun +
                              Variables{{"WEIR_RANK", "1"},
                                        {"WEIR_WORLD_SIZE", "2"},
                                        {"WEIR_LOCAL_RANK", "0"},
                                        {"WEIR_MEET", "file:/shared/run 7"}});
  expect_ranks(launch, 1, 2, 0, 0);
  EXPECT_EQ(launch.rendezvous.endpoint, "/shared/run 7");
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
      {kOpenMpi + kSrun, "Open MPI"},
      {kOpenMpi + kHydra + Variables{{"PMI_RANK", "0"}}, "Open MPI"},
      {kSrun + Variables{{"WORLD_SIZE", "16"}}, "srun"},
      {kSrun + Variables{{"RANK", "x"}}, "srun"},
  };
  for (const Case& test : cases) EXPECT_EQ(found(test.variables).launcher, test.launcher);
}

TEST(Launch, FollowsNcclsOwnAddressWhereOneIsSet) {
  const Launch launch = found(
      kTorchrun + Variables{{"NCCL_COMM_ID", "10.9.9.9:1"}, {"WEIR_MEET", "file:/somewhere"}});
  EXPECT_EQ(launch.rendezvous.endpoint, "10.9.9.9:1");
  EXPECT_EQ(launch.rendezvous.source, "NCCL_COMM_ID");
}

TEST(Launch, PutsAnAddressOfVersionSixInBrackets) {
  EXPECT_EQ(found(kTorchrun + Variables{{"MASTER_ADDR", "fd00::1"}}).rendezvous.endpoint,
            "[fd00::1]:29501");
  EXPECT_EQ(found(kTorchrun + Variables{{"WEIR_MEET", "[fd00::2]:80"}}).rendezvous.endpoint,
            "[fd00::2]:80");
}

struct Refused {
  Variables variables;
  std::vector<std::string> named;
};

TEST(Launch, WithAMalformedVariableIsRefusedByItsNameAndValue) {
  const Refused cases[] = {
      {kTorchrun + Variables{{"RANK", "8"}}, {"RANK=8 of WORLD_SIZE=8", "7 is the highest"}},
      {kTorchrun + Variables{{"RANK", "x"}}, {"RANK=\"x\"", "not a whole number"}},
      {kTorchrun + Variables{{"RANK", "-"}}, {"RANK=\"-\"", "not a whole number"}},
      {kTorchrun + Variables{{"RANK", "-1"}},
       {"RANK=\"-1\" is not a whole number", "from 0 to 16777216"}},
      {kTorchrun + Variables{{"RANK", "1 "}}, {"RANK=\"1 \"", "not a whole number"}},
      {kTorchrun + Variables{{"WORLD_SIZE", "99999999999"}},
       {"WORLD_SIZE=\"99999999999\"", "from 0 to 16777216"}},
      {kTorchrun + Variables{{"WORLD_SIZE", "0"}}, {"WORLD_SIZE=0"}},
      {kTorchrun + Variables{{"LOCAL_RANK", "4"}}, {"LOCAL_RANK=4 of LOCAL_WORLD_SIZE=4"}},
      {kTorchrun + Variables{{"LOCAL_WORLD_SIZE", "0"}}, {"LOCAL_WORLD_SIZE=0"}},
      {kTorchrun + Variables{{"LOCAL_WORLD_SIZE", "9"}}, {"LOCAL_WORLD_SIZE=9", "WORLD_SIZE=8"}},
      {kTorchrun + Variables{{"MASTER_PORT", "65535"}},
       {"MASTER_PORT=\"65535\"", "1 to 65534", "WEIR_MEET"}},
      {kTorchrun + Variables{{"MASTER_PORT", "0"}}, {"MASTER_PORT=\"0\"", "1 to 65534"}},
      {kTorchrun + Variables{{"MASTER_PORT", "http"}}, {"MASTER_PORT=\"http\""}},
      {kSrun + Variables{{"SLURM_STEP_NODELIST", "gpu[3"}}, {"SLURM_STEP_NODELIST=\"gpu[3\""}},
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
                            "[]:80", "file:", "file:name", "file:/folder/", "/path"}) {
    EXPECT_THAT(refusal(kTorchrun + Variables{{"WEIR_MEET", place}}),
                AllOf(HasSubstr("WEIR_MEET=\"" + std::string(place) + "\""), HasSubstr("host:port"),
                      HasSubstr("file:/path")));
  }
}

TEST(Launch, WithNcclsAddressThatIsNoneIsRefusedWhoeverStartedIt) {
  const auto names_it =
      AllOf(HasSubstr("NCCL_COMM_ID=\"junk\" is not host:port"), HasSubstr("correct or unset it"));
  const Variables junk{{"NCCL_COMM_ID", "junk"}};
  EXPECT_THAT(refusal(junk), names_it);
  EXPECT_THAT(refusal(kTorchrun + junk), names_it);
  EXPECT_THAT(refusal(kSrun + junk), names_it);
}

TEST(Launch, WithAPlaceToMeetAndNoRankIsRefused) {
  EXPECT_THAT(refusal({{"WEIR_MEET", "node0:29501"}}),
              AllOf(HasSubstr("WEIR_MEET=\"node0:29501\""), HasSubstr("WEIR_RANK")));
}

TEST(Launch, WithHalfOfALaunchersVariablesIsRefused) {
  EXPECT_THAT(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
              AllOf(HasSubstr("RANK=\"0\", WORLD_SIZE=\"2\" of torchrun set, and LOCAL_RANK not"),
                    HasSubstr("unset what is set")));
  EXPECT_THAT(refusal({{"OMPI_COMM_WORLD_RANK", "0"}}), HasSubstr("OMPI_COMM_WORLD_SIZE"));
  EXPECT_THAT(refusal({{"PMI_SIZE", "2"}}), HasSubstr("mpiexec.hydra"));
  EXPECT_THAT(refusal({{"SLURM_STEP_NUM_TASKS", "2"}}), HasSubstr("SLURM_PROCID"));
  // Half of Weir's own is a mistake, even beside a launcher.
  for (const Variables& launcher : {Variables{}, kTorchrun}) {
    EXPECT_THAT(refusal(launcher + Variables{{"WEIR_LOCAL_WORLD_SIZE", "4"}}),
                AllOf(HasSubstr("WEIR_LOCAL_WORLD_SIZE=\"4\" of Weir's variables set"),
                      HasSubstr("WEIR_RANK"), HasSubstr("unset what is set")));
  }
  EXPECT_THAT(refusal(kTorchrun + Variables{{"WEIR_RANK", "0"}}), HasSubstr("WEIR_WORLD_SIZE"));
}

TEST(Launch, TakesAnEmptyVariableForOneThatIsNotSet) {
  EXPECT_EQ(found({{"RANK", ""}, {"WORLD_SIZE", ""}, {"WEIR_RANK", ""}}).ranks, 1);
}

TEST(ProcessEnvironment, ReadsWhatItSets) {
  Environment& environment = process_environment();
  EXPECT_FALSE(environment.get("A_VARIABLE_OF_LAUNCH_TEST"));
  environment.set("A_VARIABLE_OF_LAUNCH_TEST", "one");
  environment.set("A_VARIABLE_OF_LAUNCH_TEST", "two");
  EXPECT_EQ(environment.get("A_VARIABLE_OF_LAUNCH_TEST"), "two");
  ::unsetenv("A_VARIABLE_OF_LAUNCH_TEST");
}

TEST(FirstHost, OfASlurmListIsFound) {
  const std::pair<const char*, const char*> cases[] = {
      {"gpu1", "gpu1"},
      {"a,b.example.org,c-d", "a"},
      {"b.example.org,a", "b.example.org"},
      {"gpu[003-005,12]", "gpu003"},
      {"n[8-11]", "n8"},
      {"n[08-11]", "n08"},
      {"n[1-2]-ib.cluster,x", "n1-ib.cluster"},
      {"rack[0-1]n[1,3]", "rack0n1"},
      {"a[2],b[3]", "a2"},
  };
  for (const auto& [list, host] : cases) EXPECT_EQ(first_host(list), host) << list;
}

TEST(FirstHost, OfAMalformedListIsNone) {
  for (const char* list : {"", ",", "a[", "a]", "a[]", "a[1", "a[-1]", "a[x]", "a[[1]]", "a[1 ]",
                           "a[99999999999999999999]"}) {
    EXPECT_EQ(first_host(list), std::nullopt) << list;
  }
}

}  // namespace
}  // namespace weir
