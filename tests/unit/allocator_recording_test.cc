// SPDX-License-Identifier: Apache-2.0
// What an allocator records and writes of itself: as the settings say, as the program asks, on a
// signal, and when memory runs out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/temporary_folder.h"
#include "weir/allocator.h"
#include "weir/recording.h"
#include "weir/sim_device.h"
#include "weir/weir.h"

namespace weir {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class AllocatorRecording : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ / name; }
  std::vector<std::string> files() const { return folder_.names(); }
  Config config(std::vector<std::pair<std::string, std::string>> settings) const {
    Config config;
    config.log = LogLevel::off;
    for (const auto& [name, value] : settings) EXPECT_TRUE(config.set(name, value).ok());
    return config;
  }
  Recording read(const std::string& name) const {
    Result<Recording> recording = read_recording(path(name));
    EXPECT_TRUE(recording.ok()) << recording.error().message();
    return recording.ok() ? *std::move(recording) : Recording{};
  }
  static std::ptrdiff_t allocations(const Recording& recording) {
    return std::count_if(recording.events.begin(), recording.events.end(),
                         [](const Event& event) { return event.kind == EventKind::allocate; });
  }
  static void pairs(Allocator& allocator, void* stream, int count) {
    for (int i = 0; i < count; ++i) allocator.deallocate(allocator.allocate(1000_B, stream));
  }
  static bool soon(const std::function<bool()>& holds) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!holds() && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return holds();
  }

  const test::TemporaryFolder folder_;
  SimDevice device_;
  void* const stream_ = device_.new_stream().handle;
};

template <ErrorCode kCode = ErrorCode::invalid_input>
std::string why_not(const std::function<void()>& call) {
  try {
    call();
  } catch (const Exception& error) {
    EXPECT_EQ(error.code(), kCode);
    return error.what();
  }
  return "it did";
}

TEST_F(AllocatorRecording, AFileThatIsNoRecordingIsNotReplaced) {
  const std::string source = folder_.write("program.cc", "int main() {}");
  const std::string old = folder_.write("old.weir", "\x89WEIR");  // of a program that was killed
  const std::string says = "recording " + source +
                           ": the file that is there is no recording, and would be lost: remove "
                           "it, or name another file";
  {
    Allocator allocator(config({{"WEIR_DEVICE", "sim"}}));
    EXPECT_EQ(why_not([&] { allocator.record_start(source); }), "record_start: " + says);
    allocator.record_start(old);
    pairs(allocator, nullptr, 3);
  }
  EXPECT_EQ(allocations(read("old.weir")), 3);
  EXPECT_EQ(why_not([&] {
              Allocator(device_, config({{"WEIR_RECORD", source}}));
            }),
            "WEIR_RECORD: " + says);
  Allocator keeps(device_,
                  config({{"WEIR_RECORD", path("kept.weir")}, {"WEIR_RECORD_RING", "1MiB"}}));
  EXPECT_EQ(why_not([&] { keeps.record_write(source); }), "record_write: " + says);
  EXPECT_EQ(folder_.read("program.cc"), "int main() {}");
}

// Also before a device is used.
TEST_F(AllocatorRecording, APathThatLeadsNowhereIsNamedWithTheRemedy) {
  const std::string folder = path("none"), says = "there is no folder " + folder + ": make it, or ";
  const std::string record = folder + "/run.weir", snapshot = folder + "/oom.json";
  const std::string log = path("log");
  {
    Allocator allocator(config({{"WEIR_DEVICE", "sim"},
                                {"WEIR_LIMIT", "4MiB"},
                                {"WEIR_LOG", "error"},
                                {"WEIR_LOG_FILE", log},
                                {"WEIR_SNAPSHOT_ON_OOM", snapshot}}));
    EXPECT_THAT(why_not([&] { allocator.record_start(record); }),
                HasSubstr("record_start: recording " + record + ": " + says));
    EXPECT_THAT(why_not([&] { allocator.record_start(""); }),
                HasSubstr("record_start: recording: the path is empty: name a file"));
    EXPECT_THAT(why_not([&] { allocator.write_snapshot(snapshot); }),
                HasSubstr("write_snapshot: snapshot " + snapshot + ": " + says));
    EXPECT_THROW((void)allocator.allocate(20_MiB, nullptr), OutOfMemory);
  }
  EXPECT_THAT(folder_.read("log"),
              HasSubstr("WEIR_SNAPSHOT_ON_OOM: snapshot " + folder + "/oom-1.json: " + says));
  EXPECT_THAT(why_not([&] {
                Allocator(device_, config({{"WEIR_RECORD", record}}));
              }),
              HasSubstr("WEIR_RECORD: recording " + record + ": " + says));
}

TEST_F(AllocatorRecording, OnNoDeviceAFileIsTouchedWhereOneMayNotBeRecorded) {
  std::vector<std::unique_ptr<Device>> devices;
  for (int i = 0; i < 2; ++i) devices.push_back(std::make_unique<SimDevice>());
  Allocator allocator(std::move(devices), config({}));
  for (const int device : {0, 1}) {
    allocator.deallocate(allocator.allocate(1_KiB, nullptr, device));
  }
  folder_.write("run.weir", "\x89WEIR\r\n\x1a, an earlier recording");
  folder_.write("run.1.weir", "print('hello')");
  EXPECT_THROW(allocator.record_start(path("run.weir")), Exception);
  EXPECT_THAT(folder_.read("run.weir"), HasSubstr("an earlier recording"));
  EXPECT_EQ(folder_.read("run.1.weir"), "print('hello')");
}

TEST_F(AllocatorRecording, RecordsWhatItIsAskedToRecord) {
  {
    Allocator allocator(device_, config({{"WEIR_RECORD", path("run.weir")}}));
    pairs(allocator, stream_, 10);
    allocator.mark("the end");
  }
  const Recording recording = read("run.weir");
  EXPECT_EQ(recording.damage, "");
  EXPECT_EQ(recording.initial, 0u);
  EXPECT_EQ(recording.device, device_.name());
  EXPECT_EQ(recording.device_bytes, device_.memory_info()->total);
  EXPECT_EQ(allocations(recording), 10);
  ASSERT_THAT(recording.marks, SizeIs(3));
  EXPECT_EQ(recording.marks[2].text, "driver calls: reserve 1, create 1, map 1, set_access 1");
  EXPECT_THAT(recording.marks[1].text, testing::StartsWith("layout: pool 0: "));
  EXPECT_EQ(recording.marks[0].text, "the end");
}

TEST_F(AllocatorRecording, EachDeviceHasAFileOfItsOwn) {
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<void*> streams;
  for (int i = 0; i < 3; ++i) {
    auto device = std::make_unique<SimDevice>();
    streams.push_back(device->new_stream().handle);
    devices.push_back(std::move(device));
  }
  {
    Allocator allocator(std::move(devices), config({{"WEIR_RECORD", path("run.weir")}}));
    for (int i = 0; i < 3; ++i) {
      const auto device = static_cast<std::size_t>(i);
      for (int j = 0; j <= i; ++j) (void)allocator.allocate(1_KiB, streams[device], i);
    }
  }
  EXPECT_THAT(files(), ElementsAre("run.1.weir", "run.2.weir", "run.weir"));
  EXPECT_EQ(allocations(read("run.weir")), 1);
  EXPECT_EQ(allocations(read("run.2.weir")), 3);
}

TEST_F(AllocatorRecording, StartsAndStopsAsTheProgramAsks) {
  Allocator allocator(device_, config({}));
  (void)allocator.allocate(1_MiB, stream_);
  allocator.record_start(path("a.weir"));
  EXPECT_THROW(allocator.record_start(path("b.weir")), Exception);
  pairs(allocator, stream_, 5);
  allocator.record_stop();
  allocator.record_stop();  // nothing to stop is fine
  pairs(allocator, stream_, 5);
  const Recording recording = read("a.weir");
  EXPECT_EQ(recording.damage, "");
  EXPECT_GT(recording.initial, 0u);
  EXPECT_EQ(allocations(recording), 6) << "the live one, and five";
  EXPECT_THAT(files(), ElementsAre("a.weir"));
  EXPECT_THROW(allocator.record_start("/nowhere/at/all.weir"), Exception);
  EXPECT_THROW(allocator.record_write(path("c.weir")), Exception) << "nothing is kept";
}

TEST_F(AllocatorRecording, ADeviceThatIsOpenedAfterTheEndIsNotRecorded) {
  Config settings = config({});
  settings.device = DeviceKind::sim;
  Allocator allocator(settings);
  allocator.record_start(path("early.weir"));
  allocator.record_stop();
  auto& sim = dynamic_cast<SimDevice&>(allocator.device(0));
  pairs(allocator, sim.new_stream().handle, 4);
  EXPECT_THAT(files(), IsEmpty());
  allocator.record_start(path("early.weir"));
  pairs(allocator, sim.new_stream().handle, 3);
  allocator.record_stop();
  EXPECT_EQ(allocations(read("early.weir")), 3);
}

TEST_F(AllocatorRecording, ARingIsWrittenWhenAskedAndAtTheEnd) {
  {
    Allocator allocator(device_,
                        config({{"WEIR_RECORD", path("run.weir")}, {"WEIR_RECORD_RING", "1MiB"}}));
    pairs(allocator, stream_, 5);
    EXPECT_THAT(files(), IsEmpty());
    allocator.record_write(path("asked.weir"));
    EXPECT_EQ(allocations(read("asked.weir")), 5);
    pairs(allocator, stream_, 5);
    EXPECT_THAT(files(), ElementsAre("asked.weir"));
  }
  EXPECT_EQ(allocations(read("run.weir")), 10);
}

TEST_F(AllocatorRecording, ARingAndSnapshotsAreWrittenWhenMemoryRunsOut) {
  Allocator allocator(device_, config({{"WEIR_RECORD", path("run.weir")},
                                       {"WEIR_RECORD_RING", "1MiB"},
                                       {"WEIR_LIMIT", "10MiB"},
                                       {"WEIR_SNAPSHOT_ON_OOM", path("oom.json")}}));
  pairs(allocator, stream_, 5);
  (void)allocator.allocate(1_MiB, stream_);
  EXPECT_THROW((void)allocator.allocate(20_MiB, stream_), OutOfMemory);
  EXPECT_THAT(files(), ElementsAre("oom-1.json", "run.weir"));
  const Recording recording = read("run.weir");
  ASSERT_FALSE(recording.events.empty());
  EXPECT_TRUE(std::any_of(recording.events.begin(), recording.events.end(), [](const Event& each) {
    return each.kind == EventKind::out_of_memory && each.requested == 20_MiB;
  }));
  fs::remove(path("run.weir"));
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 40; ++i) {
    EXPECT_THROW((void)allocator.allocate(20_MiB, stream_), OutOfMemory);
  }
  const std::size_t rings = fs::exists(path("run.weir")) ? 1 : 0;
  EXPECT_THAT(files(), SizeIs(rings + 16)) << "the number of snapshots is bounded";
  if (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(500)) {
    EXPECT_EQ(rings, 0u) << "the ring was written less than a second ago";
  }
}

TEST_F(AllocatorRecording, AFailureOfTheHeapIsTreatedAsTheAllocatorsOnceItIsReported) {
  Allocator allocator(device_, config({{"WEIR_SNAPSHOT_ON_OOM", path("oom.json")}}));
  const Result<void*> block = allocator.heap().allocate(200_GiB, *device_.stream(stream_));
  ASSERT_FALSE(block.ok());
  EXPECT_THAT(files(), IsEmpty());
  allocator.report_failure(block.error());
  EXPECT_THAT(files(), ElementsAre("oom-1.json"));
  allocator.report_failure(Error(ErrorCode::invalid_argument, "no matter of memory"));
  EXPECT_THAT(files(), SizeIs(1));
}

TEST_F(AllocatorRecording, AFailureIsLoggedOnceAtEveryLevelFromWarnOn) {
  for (const LogLevel level : {LogLevel::warn, LogLevel::debug}) {
    const std::string file = path(std::string(name_of(level)) + ".log");
    Config settings = config({{"WEIR_LIMIT", "10MiB"}});
    settings.log = level;
    settings.log_file = file;
    {
      Allocator allocator(device_, settings);
      EXPECT_THROW((void)allocator.allocate(20_MiB, stream_), OutOfMemory);
    }
    ASSERT_TRUE(configure_log(LogLevel::off).ok());
    const std::string text = test::content_of(file);
    const std::size_t first = text.find("warning:");
    EXPECT_NE(first, std::string::npos) << text;
    EXPECT_EQ(text.find("warning:", first + 1), std::string::npos) << text;
  }
}

TEST_F(AllocatorRecording, ASignalStartsARecordingAndTheNextStopsIt) {
  Allocator allocator(device_,
                      config({{"WEIR_RECORD", path("run.weir")}, {"WEIR_RECORD_SIGNAL", "USR2"}}));
  pairs(allocator, stream_, 3);
  EXPECT_THAT(files(), IsEmpty());
  const auto ended = [&](const std::string& name) {
    const Result<Recording> recording = read_recording(path(name));
    return recording.ok() && recording->damage.empty();
  };
  for (const std::string name : {"run.weir", "run-2.weir"}) {
    ASSERT_EQ(raise(SIGUSR2), 0);
    ASSERT_TRUE(soon([&] { return fs::exists(path(name)); }));
    // It may take a moment until it has started.
    ASSERT_TRUE(soon([&] {
      pairs(allocator, stream_, 1);
      const Result<Recording> recording = read_recording(path(name));
      return recording.ok() && allocations(*recording) > 0;
    }));
    ASSERT_EQ(raise(SIGUSR2), 0);
    EXPECT_TRUE(soon([&] { return ended(name); })) << name;
  }
}

TEST_F(AllocatorRecording, ASignalWritesTheRing) {
  Allocator allocator(device_, config({{"WEIR_RECORD", path("run.weir")},
                                       {"WEIR_RECORD_RING", "1MiB"},
                                       {"WEIR_RECORD_SIGNAL", "USR1"}}));
  pairs(allocator, stream_, 3);
  ASSERT_EQ(raise(SIGUSR1), 0);
  ASSERT_TRUE(soon([&] { return fs::exists(path("run.weir")); }));
  EXPECT_EQ(allocations(read("run.weir")), 3);
}

std::atomic<int> seen_by_program = 0;

TEST_F(AllocatorRecording, TheProgramsOwnHandlerIsCalledTooAndIsBackAfterwards) {
  struct sigaction own {};
  struct sigaction before {};
  own.sa_handler = [](int) { ++seen_by_program; };
  ASSERT_EQ(sigaction(SIGUSR1, &own, &before), 0);
  {
    Allocator allocator(
        device_, config({{"WEIR_RECORD", path("run.weir")}, {"WEIR_RECORD_SIGNAL", "USR1"}}));
    ASSERT_EQ(raise(SIGUSR1), 0);
    EXPECT_EQ(seen_by_program, 1);
    EXPECT_TRUE(soon([&] { return fs::exists(path("run.weir")); }));
  }
  struct sigaction after {};
  ASSERT_EQ(sigaction(SIGUSR1, &before, &after), 0);
  EXPECT_EQ(after.sa_handler, own.sa_handler);
}

TEST_F(AllocatorRecording, StacksAreRecordedWhenAskedFor) {
  {
    Allocator allocator(device_,
                        config({{"WEIR_RECORD", path("run.weir")}, {"WEIR_RECORD_STACKS", "cpp"}}));
    pairs(allocator, stream_, 3);
  }
  const Recording recording = read("run.weir");
  ASSERT_FALSE(recording.frames.empty());
  for (const Event& event : recording.events) {
    EXPECT_EQ(recording.stacks.at(event.stack).empty(), event.kind != EventKind::allocate);
  }
}

TEST_F(AllocatorRecording, SettingsThatNeedAFileSaySo) {
  for (const char* name : {"WEIR_RECORD_RING", "WEIR_RECORD_SIGNAL"}) {
    const bool ring = std::string_view(name) == "WEIR_RECORD_RING";
    EXPECT_THAT(why_not<ErrorCode::invalid_argument>([&] {
                  Allocator(device_, config({{name, ring ? "1MiB" : "USR1"}}));
                }),
                AllOf(HasSubstr(name), HasSubstr("set WEIR_RECORD")));
  }
}

// A program that never destroys its allocator still ends its recording.
TEST_F(AllocatorRecording, TheEndOfTheProgramEndsTheRecording) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto* const allocator = new Allocator(device_, config({{"WEIR_RECORD", path("run.weir")}}));
    pairs(*allocator, stream_, 7);
    std::exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  const Recording recording = read("run.weir");
  EXPECT_EQ(recording.damage, "");
  EXPECT_EQ(allocations(recording), 7);
}

TEST_F(AllocatorRecording, AChildOfForkLeavesTheParentsFilesAlone) {
  {
    Allocator allocator(
        device_, config({{"WEIR_RECORD", path("run.weir")}, {"WEIR_RECORD_SIGNAL", "USR1"}}));
    Allocator ring(device_,
                   config({{"WEIR_RECORD", path("ring.weir")}, {"WEIR_RECORD_RING", "1MiB"}}));
    allocator.record_start(path("file.weir"));
    pairs(allocator, stream_, 2);
    // What the writer has in hand would be a leak of the child, which has no such thread.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) std::exit(0);  // runs what is to be run at the end
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
    EXPECT_THAT(files(), ElementsAre("file.weir"));
    pairs(allocator, stream_, 2);
  }
  EXPECT_EQ(read("file.weir").damage, "");
  EXPECT_EQ(allocations(read("file.weir")), 4);
}

TEST_F(AllocatorRecording, InC) {
  const weir_setting_t settings[] = {{"WEIR_DEVICE", "sim"}, {"WEIR_LOG", "off"}};
  weir_options_t options = WEIR_OPTIONS_INIT;
  options.settings = settings;
  options.settings_count = 2;
  options.ignore_environment = 1;
  weir_allocator_t* allocator = nullptr;
  ASSERT_EQ(weir_create(&options, &allocator), WEIR_OK) << weir_last_error();
  void *stream = nullptr, *block = nullptr;
  ASSERT_EQ(weir_sim_new_stream(allocator, 0, &stream), WEIR_OK);
  EXPECT_EQ(weir_record_start(allocator, path("c.weir").c_str()), WEIR_OK);
  EXPECT_EQ(weir_record_start(allocator, path("d.weir").c_str()), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_allocate(allocator, 1000, stream, 0, &block), WEIR_OK);
  EXPECT_EQ(weir_record_mark(allocator, "here"), WEIR_OK);
  EXPECT_EQ(weir_write_snapshot(allocator, 0, path("c.json").c_str()), WEIR_OK);
  EXPECT_EQ(weir_record_stop(allocator), WEIR_OK);
  EXPECT_EQ(weir_record_write(allocator, path("e.weir").c_str()), WEIR_INVALID_ARGUMENT);
  EXPECT_THAT(weir_last_error(), HasSubstr("WEIR_RECORD_RING"));
  EXPECT_EQ(weir_record_start(nullptr, "x"), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_record_start(allocator, "/nowhere/at/all"), WEIR_INVALID_INPUT);
  EXPECT_EQ(weir_record_start_with(allocator, nullptr, "cpp"), WEIR_INVALID_ARGUMENT);
  EXPECT_EQ(weir_record_start_with(allocator, path("f.weir").c_str(), "c"), WEIR_INVALID_ARGUMENT);
  EXPECT_THAT(weir_last_error(), HasSubstr("and not \"c\""));
  for (const char* const stacks : {static_cast<const char*>(nullptr), "cpp"}) {
    const std::string file = stacks == nullptr ? "none.weir" : "stacks.weir";
    EXPECT_EQ(weir_record_start_with(allocator, path(file).c_str(), stacks), WEIR_OK);
    EXPECT_EQ(weir_deallocate(allocator, block), WEIR_OK);
    EXPECT_EQ(weir_allocate(allocator, 1000, stream, 0, &block), WEIR_OK);
    EXPECT_EQ(weir_record_stop(allocator), WEIR_OK);
    EXPECT_EQ(read(file).events.back().stack == 0, stacks == nullptr) << file;
  }
  weir_destroy(allocator);
  EXPECT_EQ(allocations(read("c.weir")), 1);
  EXPECT_THAT(read("c.weir").marks, SizeIs(3));  // its own, the layout, and the driver's calls
  EXPECT_THAT(files(), ElementsAre("c.json", "c.weir", "none.weir", "stacks.weir"));
}

}  // namespace
}  // namespace weir
