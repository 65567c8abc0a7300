// SPDX-License-Identifier: Apache-2.0
#include "torch/ipc.h"

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "torch/process_end.h"

namespace weir::pytorch {
namespace {

using Handle = c10::cuda::CUDACachingAllocator::ShareableHandle;

constexpr int kVersion = 3;
constexpr char kMagic[] = "weir-ipc ";

// PyTorch's own handles. Later versions changed the form of expandable segments alone, and every
// version reads those before it.
constexpr char kSegmentVersion = 1, kSegment = 'c', kExpandable = 'e';
constexpr std::size_t kDriverHandle = 64;

// No block has more: sums of sizes that a handle names can't overflow.
constexpr std::uint64_t kMostPages = 1 << 20, kMostPageBytes = std::uint64_t{1} << 42;

Error cant_share() {
  return {ErrorCode::unavailable, "a simulated device's memory can't be shared"};
}

// The pages of the block, by the descriptors that its process gives.
Result<std::vector<PhysicalHandle>> import_pages(MemoryCalls& device, MemoryExchange& exchange,
                                                 const SharedBlock& block) {
  const auto descriptors = take_descriptors(block.offer, block.pages.size());
  if (!descriptors && descriptors.error().code() == ErrorCode::unavailable) {
    return Error(
        ErrorCode::unavailable,
        fmt::format("memory shared by process {} can't be had from its socket: {}. The process "
                    "must live, and keep the memory until it is opened here; and both must share a "
                    "network namespace (containers: one pod, or --network=host), or the memory be "
                    "of weir.plain_pool()",
                    block.process, descriptors.error().message()));
  }
  if (!descriptors) return descriptors.error();
  std::vector<PhysicalHandle> pages;
  for (const Descriptor& descriptor : *descriptors) {
    Result<PhysicalHandle> page = exchange.import_page(descriptor.number());
    if (!page) {
      for (const PhysicalHandle imported : pages) (void)device.release(imported);
      return std::move(page).error();
    }
    pages.push_back(*page);
  }
  return pages;
}

}  // namespace

// Memory of another process, until destroyed.
class OpenedMemory {
 public:
  OpenedMemory(Device& device, MemoryExchange& exchange) : device_(device), exchange_(exchange) {}
  OpenedMemory(const OpenedMemory&) = delete;
  OpenedMemory& operator=(const OpenedMemory&) = delete;
  // Whoever dropped the memory may have work queued that uses it, on streams that nobody named.
  // (Where the host can't wait, the memory stays mapped: an access would be illegal.)
  ~OpenedMemory() {
    if (memory_is_gone() || !device_.synchronize_context()) return;
    if (is_segment_) (void)exchange_.close_segment(begin_);
    Bytes at;
    for (const auto& [handle, bytes] : pages_) {
      if (at < mapped_) (void)device_.unmap(base_ + at, bytes);
      (void)device_.release(handle);
      at += bytes;
    }
    if (base_ != Address{}) (void)device_.unreserve(base_, size_);
  }

  // The pages of a block, one behind the other.
  Status map(const SharedBlock& block) {
    Result<std::vector<PhysicalHandle>> handles = import_pages(device_, exchange_, block);
    if (!handles) return std::move(handles).error();
    for (std::size_t i = 0; i < handles->size(); ++i) {
      pages_.emplace_back((*handles)[i], block.pages[i]);
      size_ += block.pages[i];
    }
    Result<Address> base = device_.reserve(size_, device_.granularity());
    if (!base) return std::move(base).error();
    base_ = *base;
    begin_ = base_ + block.skipped;
    for (const auto& [handle, bytes] : pages_) {
      if (Status done = device_.map(base_ + mapped_, bytes, handle); !done) return done;
      mapped_ += bytes;
    }
    return renew_access();
  }
  Status open_segment(const std::string& driver_handle) {
    Result<Address> at = exchange_.import_segment(driver_handle);
    if (!at) return std::move(at).error();
    begin_ = *at;
    is_segment_ = true;
    return {};
  }
  // (The driver gives peers access to a segment by itself.)
  Status renew_access() { return is_segment_ ? Status{} : device_.set_access(base_, size_); }
  const Device& device() const { return device_; }
  void* begin() const { return begin_.pointer(); }

 private:
  Device& device_;
  MemoryExchange& exchange_;
  Address base_, begin_;
  Bytes size_, mapped_;
  bool is_segment_ = false;
  std::vector<std::pair<PhysicalHandle, Bytes>> pages_;
};

std::string SharedBlock::encode() const {
  nlohmann::json pages_json = nlohmann::json::array();
  for (const Bytes page : pages) pages_json.push_back(page.count);
  return kMagic + nlohmann::json{{"version", kVersion},      {"process", process},
                                 {"socket", offer.name},     {"key", offer.key},
                                 {"skipped", skipped.count}, {"bytes", bytes.count},
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
  const Error damaged = refuse("it is damaged");
  try {
    const nlohmann::json json = nlohmann::json::parse(handle.substr(sizeof kMagic - 1));
    if (json.at("version").get<int>() != kVersion) return refuse("it is of another version");
    SharedBlock block{
        .process = json.at("process").get<int>(),
        .offer = {json.at("socket").get<std::string>(), json.at("key").get<std::string>()},
        .skipped = {json.at("skipped").get<std::uint64_t>()},
        .bytes = {json.at("bytes").get<std::uint64_t>()}};
    Bytes in_all;
    for (const nlohmann::json& page : json.at("pages")) {
      const Bytes bytes = block.pages.emplace_back(Bytes{page.get<std::uint64_t>()});
      if (block.pages.size() > kMostPages || bytes == 0_B || bytes.count > kMostPageBytes) {
        return damaged;
      }
      in_all += bytes;
    }
    const bool is_whole = block.skipped <= in_all && block.bytes <= in_all - block.skipped;
    return block.pages.empty() || !is_whole ? Result<SharedBlock>(damaged) : block;
  } catch (const nlohmann::json::exception&) {
    return damaged;
  }
}

std::string encode_segment(const std::string& driver_handle) {
  return std::string{kSegmentVersion, kSegment} + driver_handle;
}

Result<std::string> decode_segment(const std::string& handle) {
  if (handle.size() == kDriverHandle) return handle;
  const bool is_pytorchs = handle.size() >= 2;
  if (is_pytorchs && handle[1] == kExpandable) {
    return Error(ErrorCode::invalid_input,
                 "this handle of shared memory is of PyTorch's expandable segments, which only "
                 "PyTorch's own allocator opens: have the process that shares use Weir, or "
                 "expandable_segments:False");
  }
  if (!is_pytorchs || handle[1] != kSegment || handle.size() != 2 + kDriverHandle) {
    return Error(ErrorCode::invalid_input,
                 fmt::format("this handle of shared memory, of {} bytes, can't be opened: it is "
                             "neither Weir's nor PyTorch's, or damaged",
                             handle.size()));
  }
  return handle.substr(2);
}

Result<SharedBlocks::Known> SharedBlocks::share_pages(MemoryExchange& exchange,
                                                      const BlockInfo& block,
                                                      const std::vector<PagePart>& parts) {
  SharedBlock shared{.process = ::getpid(), .skipped = parts.front().offset, .bytes = block.bytes};
  std::vector<Descriptor> descriptors;
  for (const PagePart& part : parts) {
    Result<int> descriptor = exchange.export_page(part.handle);
    if (!descriptor) return std::move(descriptor).error();
    descriptors.emplace_back(*descriptor);
    shared.pages.push_back(part.page_bytes);
  }
  Result<DescriptorServer::Offer> offer = server_.offer(std::move(descriptors));
  if (!offer) return std::move(offer).error();
  shared.offer = *offer;
  return Known{shared.encode(), offer->key, nullptr, 0};
}

Result<Handle> share_segment(Device& device, Address segment, Bytes offset) {
  auto* const exchange = dynamic_cast<MemoryExchange*>(&device);
  if (exchange == nullptr) return cant_share();
  Result<MemoryExchange::SharedSegment> shared = exchange->export_segment(segment);
  if (!shared) return std::move(shared).error();
  return Handle{static_cast<std::ptrdiff_t>((shared->offset + offset).count),
                encode_segment(shared->handle)};
}

Result<Handle> SharedBlocks::share(DeviceHeap& heap, Device& device, void* pointer) {
  auto* const exchange = dynamic_cast<MemoryExchange*>(&device);
  if (exchange == nullptr) return cant_share();
  const std::optional<BlockInfo> info = heap.find(pointer);
  const std::vector<PagePart> parts =
      info ? heap.parts(info->address.pointer()) : std::vector<PagePart>{};
  if (parts.empty()) {
    return Error(ErrorCode::unknown_pointer,
                 "the memory to share is none of Weir's: it was freed, or another allocator's");
  }
  const Bytes offset = Address::of(pointer) - info->address;
  if (parts.front().memory == MemoryKind::plain) {
    const PagePart& part = parts.front();  // a block lies within one segment
    return share_segment(device, Address{part.handle.value}, part.offset + offset);
  }
  const std::lock_guard lock(mutex_);
  const void* const block = info->address.pointer();
  auto known = blocks_.find(block);
  if (known == blocks_.end()) {
    Result<Known> shared = share_pages(*exchange, *info, parts);
    if (!shared) return std::move(shared).error();
    known = blocks_.emplace(block, *std::move(shared)).first;
    if (Result<std::uint64_t> hold =
            heap.tags().hold(block, "shared with other processes by CUDA IPC")) {
      known->second.heap = &heap;
      known->second.hold = *hold;
    }
    any_.store(true, std::memory_order_relaxed);
  }
  return Handle{static_cast<std::ptrdiff_t>(offset.count), known->second.handle};
}

void SharedBlocks::forget(const void* block) {
  const std::lock_guard lock(mutex_);
  const auto known = blocks_.find(block);
  if (known == blocks_.end()) return;
  server_.withdraw(known->second.key);
  if (known->second.heap != nullptr) known->second.heap->tags().release_hold(known->second.hold);
  blocks_.erase(known);
  any_.store(!blocks_.empty(), std::memory_order_relaxed);
}

Result<std::shared_ptr<void>> OpenedBlocks::open(Device& device, const std::string& handle) {
  auto* const exchange = dynamic_cast<MemoryExchange*>(&device);
  if (exchange == nullptr) {
    return Error(ErrorCode::unavailable, "a simulated device can't open shared memory");
  }
  const std::lock_guard lock(mutex_);
  const auto known = by_handle_.find(handle);
  std::shared_ptr<OpenedMemory> memory = known == by_handle_.end() ? nullptr : known->second.lock();
  if (memory == nullptr) {
    memory = std::make_shared<OpenedMemory>(device, *exchange);
    Status opened;
    if (handle.starts_with(kMagic)) {
      const Result<SharedBlock> block = SharedBlock::decode(handle);
      opened = block ? memory->map(*block) : Status(block.error());
    } else {
      const Result<std::string> segment = decode_segment(handle);
      opened = segment ? memory->open_segment(*segment) : Status(segment.error());
    }
    if (!opened) return std::move(opened).error();
    std::erase_if(by_handle_, [](const auto& each) { return each.second.expired(); });
    by_handle_[handle] = memory;
  }
  void* const begin = memory->begin();
  return std::shared_ptr<void>(std::move(memory), begin);
}

Status OpenedBlocks::renew_access(const Device& device) {
  const std::lock_guard lock(mutex_);
  for (const auto& [handle, opened] : by_handle_) {
    const std::shared_ptr<OpenedMemory> memory = opened.lock();
    if (memory == nullptr || &memory->device() != &device) continue;
    if (Status renewed = memory->renew_access(); !renewed) return renewed;
  }
  return {};
}

}  // namespace weir::pytorch
