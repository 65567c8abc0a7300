// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include "comm/digest.h"
#include "comm/launch/id_file.h"
#include "tests/comm/launch_fixture.h"
#include "tests/temporary_folder.h"

namespace weir {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Nanoseconds kLong = 20'000_ms;  // for what does happen
constexpr Nanoseconds kShort = 50_ms;     // for what does not

Launch at_file(const std::string& path, int rank, int ranks = 2, std::string run = "run 1") {
  Launch launch{.rank = rank, .ranks = ranks, .local_rank = rank, .local_ranks = ranks};
  launch.rendezvous = {RendezvousMethod::file, path, "WEIR_MEET", std::move(run)};
  return launch;
}

Result<UniqueId> meet_as(const Launch& launch, const std::string& id, Nanoseconds timeout) {
  FakeEnvironment environment;
  FakeNccl nccl(environment, id);
  return rendezvous(nccl, launch, environment, timeout);
}

bool gets(const Launch& launch, const std::string& id, Nanoseconds timeout = kLong) {
  const Result<UniqueId> met = meet_as(launch, "an id of rank 0 alone", timeout);
  return met && *met == FakeNccl::id_of(id);
}

std::string refusal(const Launch& launch, ErrorCode code) {
  const Result<UniqueId> met = meet_as(launch, "id", kShort);
  if (met) return "not refused";
  EXPECT_EQ(met.error().code(), code);
  return met.error().message();
}

// As another host's rank 0, or one that has ended, would have written.
IdFile foreign(std::int64_t age_ms = 0) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return {.run = digest("run 1"),
          .host = digest("another host"),
          .written = std::chrono::nanoseconds(now).count() - age_ms * 1'000'000,
          .ranks = 2,
          .process = 1,
          .id = FakeNccl::id_of("foreign")};
}

// The values that the algorithm's authors give.
TEST(Digest, IsFnv1a) {
  EXPECT_EQ(digest("a"), 0xaf63dc4c8601ec8c);
  EXPECT_EQ(digest("foobar"), 0x85944171f73967e8);
}

TEST(Rendezvous, OfOneRankAsksNcclAlone) {
  EXPECT_EQ(*meet_as(Launch{}, "own", kShort), FakeNccl::id_of("own"));
}

TEST(Rendezvous, AtAnAddressHasNcclParseItOnEveryRank) {
  for (int rank = 0; rank < 2; ++rank) {
    Launch launch{.rank = rank, .ranks = 2};
    launch.rendezvous = {RendezvousMethod::address, "10.0.0.1:29501", "MASTER_ADDR", ""};
    FakeEnvironment environment;
    FakeNccl nccl(environment);
    EXPECT_EQ(*rendezvous(nccl, launch, environment, kShort), FakeNccl::id_of("10.0.0.1:29501"));
    EXPECT_EQ(environment.get("NCCL_COMM_ID"), "10.0.0.1:29501");
  }
}

TEST(Rendezvous, AtAnAddressKeepsTheUsersOwn) {
  Launch launch{.rank = 0, .ranks = 2};
  launch.rendezvous = {RendezvousMethod::address, "10.0.0.1:29501", "MASTER_ADDR", ""};
  FakeEnvironment environment;
  environment.set("NCCL_COMM_ID", "10.2.2.2:7");
  FakeNccl nccl(environment);
  EXPECT_EQ(*rendezvous(nccl, launch, environment, kShort), FakeNccl::id_of("10.2.2.2:7"));
}

TEST(Rendezvous, AtAFileGivesEveryProcessTheSameId) {
  const test::TemporaryFolder folder;
  constexpr int kRanks = 8;
  int all_have_met[2];  // rank 0 goes on, as it would within NCCL, until the parent closes its end
  ASSERT_EQ(::pipe(all_have_met), 0);
  std::vector<pid_t> children;
  for (int rank = kRanks - 1; rank >= 0; --rank) {
    children.push_back(start_process([&, rank] {
      ::close(all_have_met[1]);
      const Launch launch = at_file(folder / "meet", rank, kRanks);
      if (rank != 0) return gets(launch, "of rank 0");
      const Result<UniqueId> id = meet_as(launch, "of rank 0", kLong);
      char none = 0;
      return ::read(all_have_met[0], &none, 1) == 0 && id && *id == FakeNccl::id_of("of rank 0");
    }));
  }
  for (int rank = kRanks - 1; rank >= 0; --rank) {
    if (rank == 0) ::close(all_have_met[1]);
    EXPECT_EQ(exit_status(children[static_cast<std::size_t>(kRanks - 1 - rank)]), 0) << rank;
  }
  ::close(all_have_met[0]);
  EXPECT_EQ(folder.names().size(), 1U);  // no temporary file is left
}

TEST(Rendezvous, AtAFileGivesEveryThreadTheSameId) {
  const test::TemporaryFolder folder;
  std::vector<std::thread> threads;
  std::atomic<int> met{0};
  for (int rank = 3; rank >= 0; --rank) {
    threads.emplace_back([&, rank] {
      const Launch launch = at_file(folder / "meet", rank, 4);
      met += rank == 0 ? meet_as(launch, "id", kLong).ok() : gets(launch, "id");
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(met, 4);
}

TEST(Rendezvous, WaitsForALateRankZero) {
  const test::TemporaryFolder folder;
  std::thread late([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    EXPECT_TRUE(meet_as(at_file(folder / "meet", 0), "late", kLong));
  });
  EXPECT_TRUE(gets(at_file(folder / "meet", 1), "late"));
  late.join();
}

TEST(Rendezvous, WithoutRankZeroEndsAtTheTimeoutAndNamesFileAndRank) {
  const test::TemporaryFolder folder;
  EXPECT_THAT(refusal(at_file(folder / "meet", 1, 4), ErrorCode::unavailable),
              AllOf(HasSubstr("rank 1 of 4 waited 0.05 s for rank 0"), HasSubstr(folder / "meet"),
                    HasSubstr("is not there")));
}

TEST(Rendezvous, LeavesAFileThatOnlyItsUserCanRead) {
  const test::TemporaryFolder folder;
  const mode_t before = ::umask(0);
  ASSERT_TRUE(meet_as(at_file(folder / "meet", 0), "id", kShort));
  ::umask(before);
  struct stat status {};
  ASSERT_EQ(::stat((folder / "meet").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
}

TEST(Rendezvous, IsFinishedByRankZeroWhoRemovesItsFile) {
  const test::TemporaryFolder folder;
  ASSERT_TRUE(meet_as(at_file(folder / "meet", 0), "id", kShort));
  finish_rendezvous(at_file(folder / "meet", 1));
  EXPECT_EQ(folder.names().size(), 1U);
  finish_rendezvous(at_file(folder / "meet", 0));
  EXPECT_EQ(folder.names().size(), 0U);
  finish_rendezvous(at_file(folder / "meet", 0));  // once more does nothing
}

TEST(Rendezvous, IsNotFinishedWithAFileOfAnotherProcess) {
  const test::TemporaryFolder folder;
  folder.write("meet", encode(foreign()));
  finish_rendezvous(at_file(folder / "meet", 0));
  EXPECT_EQ(folder.names().size(), 1U);
  folder.write("meet", "somebody's notes");
  finish_rendezvous(at_file(folder / "meet", 0));
  EXPECT_EQ(folder.names().size(), 1U);
}

TEST(Rendezvous, TakesTheFileOfAnotherHost) {
  const test::TemporaryFolder folder;
  folder.write("meet", encode(foreign()));
  EXPECT_TRUE(gets(at_file(folder / "meet", 1), "foreign"));
}

TEST(Rendezvous, DoesNotTakeWhatAnotherRunLeft) {
  const test::TemporaryFolder folder;
  folder.write("meet", encode(foreign()));
  EXPECT_THAT(refusal(at_file(folder / "meet", 1, 2, "run 2"), ErrorCode::unavailable),
              HasSubstr("is of another run"));
  EXPECT_THAT(refusal(at_file(folder / "meet", 1, 3), ErrorCode::unavailable),
              HasSubstr("is of a run of 2 ranks"));
  folder.write("meet", encode(foreign(/*age_ms=*/60'000)));
  EXPECT_THAT(refusal(at_file(folder / "meet", 1), ErrorCode::unavailable),
              HasSubstr("was left by an earlier run"));
}

TEST(Rendezvous, DoesNotTakeWhatAnEndedProcessOfTheSameRunLeft) {
  const test::TemporaryFolder folder;
  ASSERT_EQ(
      exit_status_of([&] { return meet_as(at_file(folder / "meet", 0), "stale", kLong).ok(); }), 0);
  EXPECT_THAT(refusal(at_file(folder / "meet", 1), ErrorCode::unavailable),
              AllOf(HasSubstr("was left by process"), HasSubstr("which has ended")));
}

TEST(Rendezvous, DoesNotTakeWhatAProcessLeftThatEndedAndThatNobodyWaitedFor) {
  const test::TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(meet_as(at_file(folder / "meet", 0), "stale", kLong).ok() ? 0 : 1);
  siginfo_t ended{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  ASSERT_EQ(ended.si_status, 0);
  EXPECT_THAT(refusal(at_file(folder / "meet", 1), ErrorCode::unavailable),
              HasSubstr("which has ended"));
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST(Rendezvous, WritesBesideWhatAKilledProcessOfTheSameIdLeftHalfWritten) {
  const test::TemporaryFolder folder;
  for (int i = 1; i <= 200; ++i) {
    folder.write("meet." + std::to_string(::getpid()) + "-" + std::to_string(i), "half");
  }
  EXPECT_TRUE(meet_as(at_file(folder / "meet", 0), "id", kLong).ok());
}

TEST(Rendezvous, TakesWhatALivingProcessOfThisHostLeft) {
  const test::TemporaryFolder folder;
  IdFile file = foreign(/*age_ms=*/60'000);
  file.host = process_host();
  file.process = ::getpid();
  folder.write("meet", encode(file));
  EXPECT_TRUE(gets(at_file(folder / "meet", 1), "foreign"));
}

TEST(Rendezvous, TakesTheNewFileOverAStaleOneThatTheRankSawFirst) {
  const test::TemporaryFolder folder;
  ASSERT_EQ(
      exit_status_of([&] { return meet_as(at_file(folder / "meet", 0), "stale", kLong).ok(); }), 0);
  std::thread rank1([&] { EXPECT_TRUE(gets(at_file(folder / "meet", 1), "new")); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_TRUE(meet_as(at_file(folder / "meet", 0), "new", kLong));
  rank1.join();
}

TEST(Rendezvous, RemovesAStaleFileBeforeItAsksNccl) {
  const test::TemporaryFolder folder;
  folder.write("meet", encode(foreign()));
  FakeEnvironment environment;
  FakeNccl nccl(environment);
  nccl.fails = true;
  EXPECT_THAT(rendezvous(nccl, at_file(folder / "meet", 0), environment, kShort).error().message(),
              HasSubstr("ncclGetUniqueId"));
  EXPECT_EQ(nccl.ids_made, 1);
  EXPECT_EQ(folder.names().size(), 0U);
}

// The file is then opened as descriptor 0, which is as good as any.
TEST(Rendezvous, MeetsInAProcessThatHasClosedItsStandardInput) {
  const test::TemporaryFolder folder;
  folder.write("meet", encode(foreign()));
  EXPECT_EQ(exit_status_of([&] {
              ::close(0);
              const Launch first = at_file(folder / "meet", 0);
              if (!meet_as(first, "id", kLong).ok()) return false;
              if (!gets(at_file(folder / "meet", 1), "id")) return false;
              finish_rendezvous(first);
              return ::fcntl(0, F_GETFD) == -1;  // nothing is left open there
            }),
            0);
  EXPECT_EQ(folder.names().size(), 0U);
}

TEST(Rendezvous, DoesNotTakeAFileThatIsCutOffOrChanged) {
  const test::TemporaryFolder folder;
  const IdFile file = foreign();
  const std::string whole = encode(file);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(decode(whole.substr(0, length))) << length;
  }
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_FALSE(decode(changed)) << i;
  }
  EXPECT_FALSE(decode(whole + "x"));
  EXPECT_EQ(decode(whole), file);
  folder.write("meet", whole.substr(0, whole.size() / 2));
  EXPECT_THAT(refusal(at_file(folder / "meet", 1), ErrorCode::unavailable), HasSubstr("cut off"));
}

TEST(Rendezvous, TakesARunsNameOfAnyCharacters) {
  const test::TemporaryFolder folder;
  const std::string name = "run\nranks 9\tx";
  EXPECT_TRUE(meet_as(at_file(folder / "meet", 0, 2, name), "id", kShort));
  EXPECT_TRUE(gets(at_file(folder / "meet", 1, 2, name), "id"));
}

TEST(Rendezvous, RefusesAFolderThatIsNotThere) {
  const test::TemporaryFolder folder;
  EXPECT_THAT(refusal(at_file(folder / "none/meet", 0), ErrorCode::invalid_argument),
              AllOf(HasSubstr(folder / "none/meet"), HasSubstr("WEIR_MEET")));
  folder.write("file", "");
  EXPECT_THAT(refusal(at_file(folder / "file/meet", 0), ErrorCode::invalid_argument),
              HasSubstr("Not a directory"));
}

// Root may write anywhere, so a process of nobody's tries.
constexpr uid_t kNobody = 65534;
int exit_status_as_nobody(const std::function<bool()>& holds) {
  return exit_status_of([&] {
    if (::geteuid() == 0 && ::seteuid(kNobody) != 0) return false;
    return holds();
  });
}

TEST(Rendezvous, RefusesAFolderThatItMayNotWriteTo) {
  const test::TemporaryFolder folder;
  ASSERT_EQ(::chmod(folder.path().c_str(), 0555), 0);
  EXPECT_EQ(exit_status_as_nobody([&] {
              const auto met = meet_as(at_file(folder / "meet", 0), "id", kShort);
              return !met && met.error().code() == ErrorCode::invalid_argument &&
                     met.error().message().find("Permission denied") != std::string::npos;
            }),
            0);
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
}

TEST(Rendezvous, RefusesAFileOfAnotherUser) {
  // Root's, for whoever runs this; and for root, nobody's.
  const test::TemporaryFolder folder;
  std::string path = "/etc/passwd";
  if (::geteuid() == 0) {
    path = folder.write("meet", encode(foreign()));
    ASSERT_EQ(::chown(path.c_str(), kNobody, kNobody), 0);
  }
  for (const int rank : {0, 1}) {
    EXPECT_THAT(refusal(at_file(path, rank), ErrorCode::invalid_argument),
                AllOf(HasSubstr(path), HasSubstr("belongs to user")));
  }
  EXPECT_FALSE(test::content_of(path).empty());
}

TEST(Rendezvous, RefusesWhatIsNoPlainFile) {
  const test::TemporaryFolder folder;
  std::filesystem::create_directory(folder / "folder");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  folder.write("target", encode(foreign()));
  std::filesystem::create_symlink(folder / "target", folder / "link");
  for (const int rank : {0, 1}) {
    for (const char* name : {"folder", "pipe"}) {
      EXPECT_THAT(refusal(at_file(folder / name, rank), ErrorCode::invalid_argument),
                  AllOf(HasSubstr(folder / name), HasSubstr("no plain file")));
    }
    EXPECT_THAT(refusal(at_file(folder / "link", rank), ErrorCode::invalid_argument),
                HasSubstr("is a link"));
  }
  EXPECT_EQ(folder.names().size(), 4U);  // nothing was removed, and no temporary file is left
}

}  // namespace
}  // namespace weir
