// SPDX-License-Identifier: Apache-2.0
// Memory shared between processes, on a simulated device whose pages are known by files: this
// process, or a child, opens what this one shares.
#include "torch/ipc.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/torch/fake_source.h"
#include "torch/backend.h"
#include "weir/allocator.h"
#include "weir/interposed_device.h"
#include "weir/sim_device.h"

namespace weir::pytorch {
namespace {

using testing::HasSubstr;

// A page that is exported is a file that names its size; one that is imported, a new page of it.
class ExchangingDevice final : public ForwardingDevice, public MemoryExchange {
 public:
  explicit ExchangingDevice(SimDevice& inner) : ForwardingDevice(inner) {}

  bool refuses_export = false;
  std::uint64_t exported = 0, imported = 0, closed = 0;
  std::uint64_t fails_import_at = ~std::uint64_t{0};
  Bytes displaced;  // of segments, within what the driver gave
  Address imported_at{0x7000'0000'0000};

  Result<PhysicalHandle> create(Bytes size) override {
    Result<PhysicalHandle> page = ForwardingDevice::create(size);
    if (page) sizes_[page->value] = size;
    return page;
  }
  Result<int> export_page(PhysicalHandle page) override {
    if (refuses_export) return Error(ErrorCode::device, "no descriptors");
    ++exported;
    const int file = ::memfd_create("page", MFD_CLOEXEC);
    const std::uint64_t size = sizes_.at(page.value).count;
    EXPECT_EQ(::write(file, &size, sizeof size), static_cast<ssize_t>(sizeof size));
    return file;
  }
  Result<PhysicalHandle> import_page(int descriptor) override {
    std::uint64_t size = 0;
    if (::pread(descriptor, &size, sizeof size, 0) != static_cast<ssize_t>(sizeof size)) {
      return Error(ErrorCode::device, "no page");
    }
    if (imported == fails_import_at) return Error(ErrorCode::device, "lost");
    ++imported;
    return create(Bytes{size});
  }
  Result<SharedSegment> export_segment(Address segment) override {
    std::string handle = "segment " + std::to_string(segment.value);
    handle.resize(64, '.');
    return SharedSegment{handle, displaced};
  }
  Result<Address> import_segment(const std::string& handle) override {
    if (!handle.starts_with("segment ")) return Error(ErrorCode::device, "not a segment");
    ++imported;
    return imported_at;
  }
  Status close_segment(Address address) override {
    EXPECT_EQ(address, imported_at);
    ++closed;
    return {};
  }

 private:
  std::map<std::uint64_t, Bytes> sizes_;
};

std::size_t open_descriptors() {
  using Files = std::filesystem::directory_iterator;
  return static_cast<std::size_t>(std::distance(Files("/proc/self/fd"), Files{}));
}

class SharedMemory : public testing::Test {
 protected:
  explicit SharedMemory(HeapOptions options = {}) : heap_(device_, options) {}

  void* allocate(Bytes bytes) { return heap_.allocate(bytes, stream_).value(); }
  auto share(void* pointer) { return shared_.share(heap_, device_, pointer); }
  std::string handle_of(void* pointer) { return share(pointer).value().handle; }
  auto open(const std::string& handle) { return opened_.open(device_, handle); }
  std::string refusal(const std::string& handle) {
    const auto opened = open(handle);
    EXPECT_FALSE(opened.ok());
    return opened.ok() ? "" : opened.error().message();
  }
  // As another process would see it: a handle that names none of the descriptors, or no socket.
  template <class Change>
  static std::string changed(const std::string& handle, Change&& change) {
    SharedBlock block = SharedBlock::decode(handle).value();
    change(block);
    return block.encode();
  }

  SimDevice sim_;
  ExchangingDevice device_{sim_};
  DeviceHeap heap_;
  const Stream stream_ = sim_.new_stream();
  SharedBlocks shared_;
  OpenedBlocks opened_;
};

TEST_F(SharedMemory, IsMappedOnceAndUntilTheLastHolderLetsItGo) {
  void* const block = allocate(3_MiB);
  const std::string handle = handle_of(block);
  const std::uint64_t mappings = sim_.live().mappings, reservations = sim_.live().reservations;
  const Bytes held = sim_.physical_bytes();
  std::shared_ptr<void> first = open(handle).value(), second = open(handle).value();
  EXPECT_EQ(first, second);
  EXPECT_GT(sim_.live().mappings, mappings);
  EXPECT_FALSE(sim_.translate(Address::of(first.get()), 3_MiB).empty());
  first = nullptr;
  EXPECT_GT(sim_.live().mappings, mappings);
  second = nullptr;
  EXPECT_EQ(sim_.live().mappings, mappings);
  EXPECT_EQ(sim_.physical_bytes(), held);
  EXPECT_EQ(sim_.live().reservations, reservations);
}

TEST_F(SharedMemory, DoesNotSleepAndIsNamedUntilItsBlockIsGone) {
  void* const block = allocate(30_MiB);
  void* const own = allocate(300_MiB);
  (void)handle_of(block);
  const Bytes before = sim_.physical_bytes();
  const Result<SleepReport> refused = heap_.tags().sleep();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
  EXPECT_THAT(refused.error().message(),
              HasSubstr("of tag 'default': shared with other processes by CUDA IPC"));
  EXPECT_EQ(sim_.physical_bytes(), before);
  const Result<SleepReport> kept = heap_.tags().sleep({.keep = true});
  ASSERT_TRUE(kept.ok()) << kept.error().message();
  ASSERT_EQ(kept->kept.size(), 1u);
  EXPECT_GE(kept->kept[0].bytes, 30_MiB);
  EXPECT_EQ(sim_.physical_bytes(), kept->kept[0].bytes);
  EXPECT_EQ(sim_.translate(Address::of(block), 30_MiB).empty(), false);
  ASSERT_TRUE(heap_.tags().wake().ok());
  EXPECT_EQ(heap_.tags().residue().held.size(), 1u);
  shared_.forget(block);
  EXPECT_TRUE(heap_.tags().residue().held.empty());
  ASSERT_TRUE(heap_.tags().sleep().ok());
  EXPECT_EQ(sim_.physical_bytes(), 0_B);
  ASSERT_TRUE(heap_.tags().wake().ok());
  EXPECT_TRUE(heap_.deallocate(block).ok());
  EXPECT_TRUE(heap_.deallocate(own).ok());
}

TEST_F(SharedMemory, APointerIntoABlockIsSharedWithItsOffset) {
  char* const block = static_cast<char*>(allocate(4_MiB));
  const auto whole = share(block).value(), within = share(block + 1000).value();
  EXPECT_EQ(whole.offset, 0);
  EXPECT_EQ(within.offset, 1000);
  EXPECT_EQ(whole.handle, within.handle);
}

TEST_F(SharedMemory, ASmallBlockBesideOthersIsShared) {
  (void)allocate(512_B);
  char* const block = static_cast<char*>(allocate(512_B));
  const auto shared = share(block).value();
  const SharedBlock decoded = SharedBlock::decode(shared.handle).value();
  EXPECT_EQ(shared.offset, 0);
  EXPECT_EQ(decoded.bytes, 512_B);
  EXPECT_GT(decoded.skipped, 0_B);
}

TEST_F(SharedMemory, APageThatIsLostOnTheWayLeavesNothing) {
  const std::string handle = handle_of(allocate(200_MiB));
  const Bytes held = sim_.physical_bytes();
  device_.fails_import_at = 1;
  EXPECT_THAT(refusal(handle), HasSubstr("lost"));
  EXPECT_EQ(device_.imported, 1u);
  EXPECT_EQ(sim_.physical_bytes(), held);
}

TEST_F(SharedMemory, WhoseProcessIsOutOfReachSaysSoAndTheRemedy) {
  const std::string said = refusal(changed(
      handle_of(allocate(3_MiB)), [](SharedBlock& block) { block.offer.name = "nowhere"; }));
  EXPECT_THAT(said, HasSubstr("connect: Connection refused"));
  EXPECT_THAT(said, HasSubstr("--network=host"));
  EXPECT_THAT(said, HasSubstr("weir.plain_pool()"));
}

TEST_F(SharedMemory, ThatWasFreedCantBeOpenedAndWhatIsOpenStays) {
  void* const block = allocate(3_MiB);
  const std::string handle = handle_of(block);
  const std::shared_ptr<void> memory = open(handle).value();
  shared_.forget(block);
  EXPECT_FALSE(sim_.translate(Address::of(memory.get()), 3_MiB).empty());
  EXPECT_TRUE(open(handle).ok()) << "it is open here already";
  OpenedBlocks elsewhere;
  const auto late = elsewhere.open(device_, handle);
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().code(), ErrorCode::unknown_pointer);
  EXPECT_THAT(late.error().message(), HasSubstr("has freed the memory"));
}

TEST_F(SharedMemory, ThatTheDeviceDoesNotExportIsAnErrorAndLeavesNothing) {
  void* const block = allocate(3_MiB);
  device_.refuses_export = true;
  const std::size_t before = open_descriptors();
  EXPECT_FALSE(share(block).ok());
  EXPECT_FALSE(shared_.any());
  EXPECT_EQ(open_descriptors(), before);
  device_.refuses_export = false;
  EXPECT_TRUE(share(block).ok());
}

TEST_F(SharedMemory, OfNobodyIsRefused) {
  int on_the_host = 0;
  const auto shared = share(&on_the_host);
  ASSERT_FALSE(shared.ok());
  EXPECT_EQ(shared.error().code(), ErrorCode::unknown_pointer);
}

TEST_F(SharedMemory, ADeviceThatMayReachItLaterReachesWhatIsOpenAlready) {
  const std::shared_ptr<void> memory = open(handle_of(allocate(3_MiB))).value();
  const std::uint64_t before = sim_.calls(DeviceCall::set_access);
  SimDevice other;
  EXPECT_TRUE(opened_.renew_access(other).ok());
  EXPECT_EQ(sim_.calls(DeviceCall::set_access), before);
  EXPECT_TRUE(opened_.renew_access(device_).ok());
  EXPECT_GT(sim_.calls(DeviceCall::set_access), before);
  sim_.fail(DeviceCall::set_access, 1);
  const Status refused = opened_.renew_access(device_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), ErrorCode::device);
}

TEST_F(SharedMemory, IsUnmappedOnceTheWorkOfAllStreamsIsDone) {
  std::shared_ptr<void> memory = open(handle_of(allocate(3_MiB))).value();
  ASSERT_TRUE(sim_.launch(stream_, Reads(memory.get(), 3_MiB), 5_ms).ok());
  memory = nullptr;
  EXPECT_EQ(sim_.race_count(), 0u);
}

TEST_F(SharedMemory, TenThousandSharesLeaveNoDescriptorBehind) {
  void* const warm = allocate(2_MiB);
  (void)handle_of(warm);  // the socket
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 10'000; ++i) {
    void* const block = allocate(3_MiB);
    const std::shared_ptr<void> memory = open(handle_of(block)).value();
    shared_.forget(block);
    ASSERT_TRUE(heap_.deallocate(block).ok());
  }
  // The server closes the last connection in a thread of its own.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (open_descriptors() > before && std::chrono::steady_clock::now() < until) {
    std::this_thread::yield();
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(SharedMemory, OutlivesAPeerThatDiesHoldingIt) {
  const std::string handle = handle_of(allocate(3_MiB));
  const SharedBlock block = SharedBlock::decode(handle).value();
  const pid_t child = ::fork();
  if (child == 0) {
    const auto taken = take_descriptors(block.offer, block.pages.size());
    ::kill(::getpid(), taken.ok() ? SIGKILL : SIGTERM);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WTERMSIG(status), SIGKILL) << "the child had the descriptors";
  EXPECT_TRUE(open(handle).ok());
}

// Handles with bytes changed, left out and added. A changed handle opens only if it still names the
// same pages; none may make the process fail.
TEST_F(SharedMemory, DamagedHandlesAreRefusedOrStillMeanTheSame) {
  const std::string good = handle_of(allocate(100_MiB));
  const std::string segment = encode_segment(std::string(64, 's'));
  std::mt19937 random(7);
  const auto below = [&](std::size_t end) { return random() % end; };
  int opened = 0, refused = 0;
  for (int i = 0; i < 5'000; ++i) {
    std::string handle = i % 4 == 0 ? segment : good;
    for (std::size_t changes = 1 + below(3); changes > 0; --changes) {
      const std::size_t at = below(handle.size());
      switch (below(3)) {
        case 0:
          handle[at] = static_cast<char>(below(256));
          break;
        case 1:
          handle.erase(at, 1 + below(8));
          break;
        default:
          handle.insert(at, 1 + below(4), static_cast<char>('0' + below(10)));
      }
      if (handle.empty()) handle = "x";
    }
    const auto memory = open(handle);
    ++(memory.ok() ? opened : refused);
    if (!memory.ok()) {
      ASSERT_FALSE(memory.error().message().empty());
    }
  }
  EXPECT_GT(refused, 3'000);
  EXPECT_EQ(sim_.race_count(), 0u);
}

TEST_F(SharedMemory, ADeviceWithoutExchangeSaysSo) {
  void* const block = allocate(3_MiB);
  const auto shared = shared_.share(heap_, sim_, block);
  ASSERT_FALSE(shared.ok());
  EXPECT_EQ(shared.error().code(), ErrorCode::unavailable);
  const auto opened = opened_.open(sim_, handle_of(block));
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.error().code(), ErrorCode::unavailable);
}

class SharedPlainMemory : public SharedMemory {
 protected:
  SharedPlainMemory() : SharedMemory({.memory = MemoryKind::plain}) {}
};

// The form of PyTorch's own allocator: a version that all read, `c`, and the driver's handle.
TEST_F(SharedPlainMemory, HasTheHandleOfPyTorchsOwnAllocator) {
  device_.displaced = 2_MiB;
  char* const first = static_cast<char*>(allocate(1_MiB));
  char* const block = static_cast<char*>(allocate(1_MiB));
  const auto shared = share(block + 100).value(), beside = share(first).value();
  ASSERT_EQ(shared.handle.size(), 66u);
  EXPECT_EQ(shared.handle.substr(0, 2), std::string("\x01") + "c");
  EXPECT_EQ(shared.handle, beside.handle);
  EXPECT_EQ(shared.offset - beside.offset, block + 100 - first);
  EXPECT_EQ(beside.offset, static_cast<std::ptrdiff_t>((2_MiB).count));
  EXPECT_FALSE(shared_.any()) << "nothing to forget when the block is freed";
}

// torch.cuda.MemPool(allocator), whose segments are cudaMalloc's.
TEST(SharedSourceMemory, HasTheHandleOfItsSegment) {
  SimDevice sim;
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(std::make_unique<ExchangingDevice>(sim));
  Allocator allocator(std::move(devices));
  Backend backend(allocator);
  backend.init(1);
  const c10::MempoolId_t pool{0, 1};
  backend.createOrIncrefPool(0, pool, std::make_shared<FakeSource>(sim));
  DeviceMemory& memory = backend.memory(0);
  const Stream stream = sim.new_stream();
  check(memory.pools().begin(
      pool, [](cudaStream_t) { return true; }, stream));
  char* const first = static_cast<char*>(memory.allocate(4_MiB, stream));
  char* const block = static_cast<char*>(memory.allocate(4_MiB, stream));
  check(memory.pools().end(pool));
  const auto shared = backend.shareIpcHandle(block + 100);
  EXPECT_EQ(shared.handle.substr(0, 2), std::string("\x01") + "c");
  EXPECT_EQ(shared.handle, backend.shareIpcHandle(first).handle);
  EXPECT_EQ(shared.offset, block + 100 - first);
  for (char* const each : {first, block}) backend.raw_delete(each);
  for (int i = 0; i < 2; ++i) backend.releasePool(0, pool);
}

TEST_F(SharedPlainMemory, IsOpenedOnceAndClosedWithItsLastHolder) {
  const std::string handle = handle_of(allocate(3_MiB));
  std::shared_ptr<void> first = open(handle).value(), second = open(handle).value();
  EXPECT_EQ(Address::of(first.get()), device_.imported_at);
  EXPECT_EQ(device_.imported, 1u);
  first = nullptr;
  EXPECT_EQ(device_.closed, 0u);
  second = nullptr;
  EXPECT_EQ(device_.closed, 1u);
  EXPECT_TRUE(open(handle.substr(2)).ok()) << "as before PyTorch 2.5";
  std::string of_later = handle;
  of_later[0] = 3;
  EXPECT_TRUE(open(of_later).ok()) << "as since PyTorch 2.13";
}

// Whatever a handle names: a page and what of it is the block's have to fit.
TEST_F(SharedMemory, HandlesThatMeanNoBlockAreRefused) {
  const std::string good = handle_of(allocate(3_MiB));
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string handle = good;
    return handle.replace(handle.find(from), from.size(), to);
  };
  const auto with = [&](Bytes page, Bytes skipped, Bytes bytes) {
    return changed(good, [&](SharedBlock& block) {
      block.pages = {page};
      block.skipped = skipped;
      block.bytes = bytes;
    });
  };
  constexpr Bytes kMost{~std::uint64_t{0}};
  for (const std::string& handle :
       {with(4_MiB, 1_MiB, 3_MiB), with(4_MiB, 4_MiB, 0_B), with(4_TiB, 0_B, 1_B)}) {
    EXPECT_TRUE(SharedBlock::decode(handle).ok());
  }
  for (const std::string& handle :
       {"no " + good, replaced("\"version\":3", "\"version\":2"),
        replaced("\"version\"", "\"virgin\""), std::string("weir-ipc "), std::string("weir-ipc []"),
        std::string("weir-ipc {"), std::string("weir-ipc {}"), with(4_MiB, 1_MiB, 3_MiB + 1_B),
        with(4_MiB, 4_MiB + 1_B, 0_B), with(4_TiB + 1_B, 0_B, 1_B), with(0_B, 0_B, 0_B),
        with(kMost, 0_B, 1_B), with(4_MiB, kMost, 1_B), with(4_MiB, kMost - 4_MiB, 3_MiB),
        changed(good, [](SharedBlock& block) { block.pages.clear(); })}) {
    const Result<SharedBlock> block = SharedBlock::decode(handle);
    ASSERT_FALSE(block.ok()) << handle;
    EXPECT_EQ(block.error().code(), ErrorCode::invalid_input);
  }
}

TEST_F(SharedPlainMemory, HandlesOfOtherAllocatorsSayWhatTheyAre) {
  EXPECT_THAT(refusal(std::string("\x02") + "e" + std::string(100, 'x')),
              HasSubstr("PyTorch's expandable segments"));
  for (const std::size_t size : {0, 1, 65}) {
    EXPECT_THAT(refusal(std::string(size, 's')),
                HasSubstr("of " + std::to_string(size) + " bytes"));
  }
}

TEST_F(SharedMemory, ThatCantBeMappedIsAnErrorAndLeavesNothing) {
  const std::string handle = handle_of(allocate(200_MiB));
  const Bytes held = sim_.physical_bytes();
  const std::uint64_t mappings = sim_.live().mappings, reservations = sim_.live().reservations;
  for (const DeviceCall call : {DeviceCall::reserve, DeviceCall::map, DeviceCall::set_access}) {
    for (const std::uint64_t nth : {1, 2}) {
      if (nth == 2 && call != DeviceCall::map) continue;
      sim_.fail(call, nth);
      const auto opened = open(handle);
      ASSERT_FALSE(opened.ok());
      EXPECT_EQ(opened.error().code(), ErrorCode::device);
      EXPECT_EQ(sim_.physical_bytes(), held);
      EXPECT_EQ(sim_.live().mappings, mappings);
      EXPECT_EQ(sim_.live().reservations, reservations);
    }
  }
  EXPECT_TRUE(open(handle).ok());
}

// Of whoever let go of it may still be work under way.
TEST_F(SharedMemory, WhereTheHostCantWaitItStaysMapped) {
  std::shared_ptr<void> memory = open(handle_of(allocate(3_MiB))).value();
  const std::uint64_t mappings = sim_.live().mappings;
  sim_.fail(DeviceCall::synchronize_context, 1);
  memory = nullptr;
  EXPECT_EQ(sim_.live().mappings, mappings);
}

std::vector<Descriptor> files(std::size_t count) {
  std::vector<Descriptor> files;
  for (std::size_t i = 0; i < count; ++i) files.emplace_back(::open("/dev/null", O_RDONLY));
  return files;
}

TEST(Descriptors, ComeInAnyNumber) {
  DescriptorServer server;
  for (const std::size_t count : {1, 128, 129, 300}) {
    const auto offer = server.offer(files(count)).value();
    const auto taken = take_descriptors(offer, count);
    ASSERT_TRUE(taken.ok()) << taken.error().message();
    EXPECT_EQ(taken->size(), count);
    EXPECT_FALSE(take_descriptors(offer, count + 1).ok());
    server.withdraw(offer.key);
    EXPECT_FALSE(take_descriptors(offer, count).ok());
  }
}

TEST(Descriptors, ClientsThatSayNothingOrNonsenseHoldNobodyUpForLong) {
  DescriptorServer server;
  const auto offer = server.offer(files(1)).value();
  const Descriptor silent(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "weir-" + offer.name;
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  ASSERT_EQ(::connect(silent.number(), reinterpret_cast<sockaddr*>(&address), size), 0);
  DescriptorServer::Offer wrong = offer;
  wrong.key.back() = wrong.key.back() == '0' ? '1' : '0';
  EXPECT_FALSE(take_descriptors(wrong, 1).ok());
  wrong.key = "short";
  EXPECT_FALSE(take_descriptors(wrong, 1).ok());
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(take_descriptors(offer, 1).ok());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

// A process that shares, and does with one client what `answer` does.
class Impostor {
 public:
  template <class Answer>
  explicit Impostor(Answer answer) {
    std::copy(name_.begin(), name_.end(), address_.sun_path + 1);
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name_.size());
    EXPECT_EQ(::bind(socket_.number(), reinterpret_cast<sockaddr*>(&address_), size), 0);
    EXPECT_EQ(::listen(socket_.number(), 1), 0);
    thread_ = std::thread([this, answer] {
      const Descriptor client(::accept(socket_.number(), nullptr, nullptr));
      std::array<char, 32> key{};
      EXPECT_EQ(::recv(client.number(), key.data(), key.size(), MSG_WAITALL), 32);
      answer(client.number());
    });
  }
  ~Impostor() { thread_.join(); }
  Impostor(const Impostor&) = delete;
  Impostor& operator=(const Impostor&) = delete;

  Error refusal(std::size_t count) const {
    const auto taken = take_descriptors({name_.substr(5), std::string(32, '0')}, count);
    EXPECT_FALSE(taken.ok());
    return taken.ok() ? Error(ErrorCode::device, "") : taken.error();
  }

 private:
  const std::string name_ = "weir-impostor of " + std::to_string(::getpid());
  sockaddr_un address_{.sun_family = AF_UNIX, .sun_path = {}};
  const Descriptor socket_{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  std::thread thread_;
};

// Only who answers that there is nothing has freed the memory; else there are other ways to it.
TEST(Descriptors, AProcessThatEndsWithoutAnAnswerIsUnavailable) {
  const auto count_of = [](std::uint64_t count) {
    return [count](int client) {
      EXPECT_EQ(::send(client, &count, sizeof count, 0), static_cast<ssize_t>(sizeof count));
    };
  };
  {
    const Error error = Impostor([](int) {}).refusal(2);
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_THAT(error.message(), HasSubstr("no answer"));
  }
  {
    const Error error = Impostor(count_of(2)).refusal(2);
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_THAT(error.message(), HasSubstr("0 of 2 file descriptors came"));
  }
  for (const std::uint64_t other : {0, 1, 3}) {
    const Error error = Impostor(count_of(other)).refusal(2);
    EXPECT_EQ(error.code(), ErrorCode::unknown_pointer);
    EXPECT_THAT(error.message(), HasSubstr("has freed the memory"));
  }
}

TEST(Descriptors, WithoutASocketOrAKeyNobodyIsAsked) {
  const auto error_of = [](DescriptorServer::Offer offer) {
    return take_descriptors(offer, 1).error();
  };
  const std::string key(32, '0');
  EXPECT_THAT(error_of({"", key}).message(), HasSubstr("can't have a socket"));
  EXPECT_THAT(error_of({"nobody", key + '0'}).message(), HasSubstr("key"));
  EXPECT_THAT(error_of({"nobody", key}).message(), HasSubstr("connect: "));
  for (const DescriptorServer::Offer& offer :
       {DescriptorServer::Offer{"", key}, {"nobody", key + '0'}, {"nobody", key}}) {
    EXPECT_EQ(error_of(offer).code(), ErrorCode::unavailable);
  }
}

TEST(Descriptors, GoToManyThreadsWhileOffersComeAndGo) {
  DescriptorServer server;
  const auto lasting = server.offer(files(3)).value();
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        const auto mine = server.offer(files(2));
        if (!mine || !take_descriptors(*mine, 2) || !take_descriptors(lasting, 3)) ++failures;
        if (mine) server.withdraw(mine->key);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
}

}  // namespace
}  // namespace weir::pytorch
