// SPDX-License-Identifier: Apache-2.0
#include "torch/ipc.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "torch/process_end.h"

namespace weir::pytorch {
namespace {

constexpr int kVersion = 1;
constexpr char kMagic[] = "weir-ipc ";

#ifndef SYS_pidfd_open
constexpr long kPidfdOpen = 434;
#else
constexpr long kPidfdOpen = SYS_pidfd_open;
#endif
#ifndef SYS_pidfd_getfd
constexpr long kPidfdGetfd = 438;
#else
constexpr long kPidfdGetfd = SYS_pidfd_getfd;
#endif

// A descriptor that is closed again.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int number() const { return number_; }

 private:
  int number_;
};

Error cant_reach(int process, const char* call) {
  const int why = errno;
  return {
      ErrorCode::unavailable,
      fmt::format("memory shared by process {} can't be had: {}: {}. Both processes must run as "
                  "one user, and be allowed to trace each other (kernel.yama.ptrace_scope)",
                  process, call, std::strerror(why))};
}

Result<Descriptor> take_over(int process_descriptor, int process, int descriptor) {
  const long mine = ::syscall(kPidfdGetfd, process_descriptor, descriptor, 0);
  if (mine < 0) return cant_reach(process, "pidfd_getfd");
  return Descriptor(static_cast<int>(mine));
}

}  // namespace

// The pages of a handle, one behind the other, until destroyed.
class MappedPages {
 public:
  explicit MappedPages(Device& device) : device_(device) {}
  MappedPages(const MappedPages&) = delete;
  MappedPages& operator=(const MappedPages&) = delete;
  // Whoever dropped the memory may have work queued that uses it, on streams that nobody named.
  // (Where the host can't wait, the memory stays mapped: an access would be illegal.)
  ~MappedPages() {
    if (memory_is_gone() || !device_.synchronize_context()) return;
    Bytes at;
    for (const Mapped& page : pages_) {
      if (page.is_mapped) (void)device_.unmap(base_ + at, page.bytes);
      (void)device_.release(page.handle);
      at += page.bytes;
    }
    if (base_ != Address{}) (void)device_.unreserve(base_, size_);
  }

  Status map(const SharedBlock& block, int process_descriptor, const PageImporter& import) {
    for (const SharedBlock::Page& page : block.pages) size_ += page.bytes;
    skipped_ = block.skipped;
    Result<Address> base = device_.reserve(size_, device_.granularity());
    if (!base) return std::move(base).error();
    base_ = *base;
    Bytes at;
    for (const SharedBlock::Page& page : block.pages) {
      Result<Descriptor> mine = take_over(process_descriptor, block.process, page.descriptor);
      if (!mine) return std::move(mine).error();
      Result<PhysicalHandle> handle = import(mine->number());
      if (!handle) return std::move(handle).error();
      pages_.push_back({*handle, page.bytes, false});
      if (Status mapped = device_.map(base_ + at, page.bytes, *handle); !mapped) return mapped;
      pages_.back().is_mapped = true;
      at += page.bytes;
    }
    return renew_access();
  }
  Status renew_access() { return device_.set_access(base_, size_); }
  const Device& device() const { return device_; }
  void* begin() const { return (base_ + skipped_).pointer(); }

 private:
  struct Mapped {
    PhysicalHandle handle;
    Bytes bytes;
    bool is_mapped;
  };
  Device& device_;
  Address base_;
  Bytes size_, skipped_;
  std::vector<Mapped> pages_;
};

std::string SharedBlock::encode() const {
  nlohmann::json pages_json = nlohmann::json::array();
  for (const Page& page : pages) pages_json.push_back({page.descriptor, page.bytes.count});
  return kMagic + nlohmann::json{{"version", kVersion},
                                 {"process", process},
                                 {"skipped", skipped.count},
                                 {"bytes", bytes.count},
                                 {"pages", pages_json}}
                      .dump();
}

Result<SharedBlock> SharedBlock::decode(const std::string& handle) {
  const auto refuse = [](const std::string& why) {
    return Error(ErrorCode::invalid_input,
                 "this handle of shared memory can't be opened: " + why +
                     ". The process that shares must use Weir, of the same version");
  };
  if (!handle.starts_with(kMagic)) return refuse("it is not one of Weir's");
  const nlohmann::json json =
      nlohmann::json::parse(handle.substr(sizeof kMagic - 1), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) return refuse("it is damaged");
  if (json.value("version", 0) != kVersion) return refuse("it is of another version");
  try {
    SharedBlock block;
    block.process = json.at("process").get<int>();
    block.skipped = {json.at("skipped").get<std::uint64_t>()};
    block.bytes = {json.at("bytes").get<std::uint64_t>()};
    Bytes in_all;
    for (const nlohmann::json& page : json.at("pages")) {
      block.pages.push_back({page.at(0).get<int>(), {page.at(1).get<std::uint64_t>()}});
      in_all += block.pages.back().bytes;
    }
    if (block.pages.empty() || block.skipped + block.bytes > in_all) return refuse("it is damaged");
    return block;
  } catch (const nlohmann::json::exception&) {
    return refuse("it is damaged");
  }
}

Result<c10::cuda::CUDACachingAllocator::ShareableHandle> SharedBlocks::share(DeviceHeap& heap,
                                                                             Device& device,
                                                                             void* pointer) {
  auto* const cuda = dynamic_cast<CudaDevice*>(&device);
  if (cuda == nullptr) {
    return Error(ErrorCode::unavailable, "a simulated device's memory can't be shared");
  }
  const std::optional<BlockInfo> info = heap.find(pointer);
  if (!info) {
    return Error(ErrorCode::unknown_pointer,
                 "the memory to share is none of Weir's: it was freed, or another allocator's");
  }
  const auto offset = static_cast<std::ptrdiff_t>((Address::of(pointer) - info->address).count);
  const std::lock_guard lock(mutex_);
  Descriptors& known = blocks_[info->address.pointer()];
  if (!known.handle.empty()) {
    return c10::cuda::CUDACachingAllocator::ShareableHandle{offset, known.handle};
  }
  SharedBlock block{.process = ::getpid(), .bytes = info->bytes};
  for (const PagePart& part : heap.parts(info->address.pointer())) {
    Result<int> descriptor = cuda->export_page(part.handle);
    if (!descriptor) {
      for (const int open : known.open) ::close(open);
      blocks_.erase(info->address.pointer());
      return std::move(descriptor).error();
    }
    if (block.pages.empty()) block.skipped = part.offset;
    known.open.push_back(*descriptor);
    block.pages.push_back({*descriptor, part.page_bytes});
  }
  any_.store(true, std::memory_order_relaxed);
  known.handle = block.encode();
  return c10::cuda::CUDACachingAllocator::ShareableHandle{offset, known.handle};
}

void SharedBlocks::forget(const void* block) {
  const std::lock_guard lock(mutex_);
  const auto known = blocks_.find(block);
  if (known == blocks_.end()) return;
  for (const int open : known->second.open) ::close(open);
  blocks_.erase(known);
  any_.store(!blocks_.empty(), std::memory_order_relaxed);
}

Result<std::shared_ptr<void>> OpenedBlocks::open(Device& device, const PageImporter& import,
                                                 const std::string& handle) {
  const std::lock_guard lock(mutex_);
  const auto known = by_handle_.find(handle);
  std::shared_ptr<MappedPages> pages = known == by_handle_.end() ? nullptr : known->second.lock();
  if (pages == nullptr) {
    Result<SharedBlock> block = SharedBlock::decode(handle);
    if (!block) return std::move(block).error();
    const Descriptor process(static_cast<int>(::syscall(kPidfdOpen, block->process, 0)));
    if (process.number() < 0) return cant_reach(block->process, "pidfd_open");
    pages = std::make_shared<MappedPages>(device);
    if (Status mapped = pages->map(*block, process.number(), import); !mapped) {
      return std::move(mapped).error();
    }
    std::erase_if(by_handle_, [](const auto& each) { return each.second.expired(); });
    by_handle_[handle] = pages;
  }
  void* const begin = pages->begin();
  return std::shared_ptr<void>(std::move(pages), begin);
}

Status OpenedBlocks::renew_access(const Device& device) {
  const std::lock_guard lock(mutex_);
  for (const auto& [handle, opened] : by_handle_) {
    const std::shared_ptr<MappedPages> pages = opened.lock();
    if (pages == nullptr || &pages->device() != &device) continue;
    if (Status renewed = pages->renew_access(); !renewed) return renewed;
  }
  return {};
}

}  // namespace weir::pytorch
