// SPDX-License-Identifier: Apache-2.0
#include "tests/property/oracle.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <tuple>

namespace weir::test {
namespace {

// Blocks of up to this size may be packed into runs that count as used in whole.
constexpr Bytes kPackedAtMost = 256_KiB;

template <class... Parts>
std::string words(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

std::string hex(std::uint64_t address) {
  std::ostringstream text;
  text << "0x" << std::hex << address;
  return text.str();
}

template <class T, class U>
void expect_equal(std::string_view what, const T& is, const U& should,
                  std::vector<std::string>& complaints) {
  if (is != should) complaints.push_back(words(what, " is ", is, ", should be ", should));
}

}  // namespace

void Oracle::Gauge::move(std::int64_t by) {
  current += static_cast<std::uint64_t>(by);
  peak = std::max(peak, current);
  if (by > 0) total += static_cast<std::uint64_t>(by);
}

void Oracle::Gauges::move(const Block& block, int direction) {
  blocks.move(direction);
  bytes.move(direction * static_cast<std::int64_t>(block.bytes.count));
  requested.move(direction * static_cast<std::int64_t>(block.requested.count));
}

void Oracle::allocated(void* block, Bytes requested, Stream stream, HeapId heap) {
  const Block entry{requested, {(requested.count + 511) / 512 * 512}, stream.id, heap, {}};
  blocks_[Address::of(block).value] = entry;
  all_.move(entry, 1);
  by_heap_[heap].move(entry, 1);
}

void Oracle::deallocated(void* block) {
  const auto entry = blocks_.find(Address::of(block).value);
  all_.move(entry->second, -1);
  by_heap_[entry->second.heap].move(entry->second, -1);
  blocks_.erase(entry);
}

void Oracle::used(void* block, Stream user) {
  Block& entry = blocks_.at(Address::of(block).value);
  if (user.id != entry.stream) entry.users.insert(user.id);
}

std::vector<std::string> Oracle::check(const DeviceHeap& heap, const SimDevice& device) const {
  Complaints complaints;
  for (const std::string& broken : heap.validate()) complaints.push_back("validate(): " + broken);
  for (const Race& race : device.races()) complaints.push_back("race: " + race.describe());
  check_addresses(complaints);
  const Pages pages = place_blocks(device, complaints);
  const Bytes leased = check_snapshot(heap, pages, complaints);
  check_statistics(heap, device, pages, leased, complaints);
  return complaints;
}

void Oracle::check_addresses(Complaints& complaints) const {
  std::uint64_t end = 0;
  for (const auto& [address, block] : blocks_) {
    if (address % 512 != 0) complaints.push_back(words("block ", hex(address), " is not aligned"));
    if (address < end) {
      complaints.push_back(words("block ", hex(address), " overlaps the block before it"));
    }
    end = std::max(end, address + block.bytes.count);
  }
}

// Through the device's page table: every block is mapped in whole, and no byte of a page belongs to
// two blocks.
Oracle::Pages Oracle::place_blocks(const SimDevice& device, Complaints& complaints) const {
  Pages pages;
  for (const SimPage& page : device.pages()) {
    pages[page.handle].bytes = page.bytes;
    pages[page.handle].mappings = page.mappings;
  }
  for (const auto& [address, block] : blocks_) {
    Bytes mapped;
    for (const Segment& segment : device.translate({address}, block.bytes)) {
      mapped += segment.bytes;
      Page& page = pages[segment.handle];
      page.used += segment.bytes;
      const std::uint64_t first = segment.offset.count, end = first + segment.bytes.count;
      const auto after = page.ranges.upper_bound(first);
      const bool meets_next = after != page.ranges.end() && after->first < end;
      const bool meets_previous = after != page.ranges.begin() && std::prev(after)->second > first;
      if (meets_next || meets_previous) {
        complaints.push_back(words("block ", hex(address), " shares bytes of page ",
                                   segment.handle.value, " with another live block"));
      }
      page.ranges[first] = end;
    }
    const Bytes should = memory_ == Memory::asleep ? 0_B : block.bytes;
    if (mapped != should && memory_ != Memory::partly_asleep) {
      complaints.push_back(words("block ", hex(address), ": ", mapped.count, " bytes of ",
                                 should.count, " are mapped"));
    }
  }
  return pages;
}

Bytes Oracle::check_snapshot(const DeviceHeap& heap, const Pages& pages,
                             Complaints& complaints) const {
  const HeapSnapshot snapshot = heap.snapshot();
  expect_equal("blocks in the snapshot", snapshot.blocks.size(), blocks_.size(), complaints);
  for (const BlockInfo& info : snapshot.blocks) {
    const auto block = blocks_.find(info.address.value);
    if (block == blocks_.end()) {
      complaints.push_back(words("snapshot has ", hex(info.address.value), ", which is not live"));
      continue;
    }
    expect_equal("bytes of a block", info.bytes.count, block->second.bytes.count, complaints);
    expect_equal("requested", info.requested.count, block->second.requested.count, complaints);
    expect_equal("stream of a block", info.stream, block->second.stream, complaints);
    expect_equal("heap of a block", info.heap.value, block->second.heap.value, complaints);
    if (std::set(info.waits_for.begin(), info.waits_for.end()) != block->second.users) {
      complaints.push_back(words("block ", hex(info.address.value), " waits for other streams"));
    }
  }

  check_pages(snapshot.pages, pages, complaints);
  Bytes leased;
  for (const PageInfo& page : snapshot.pages) leased += page.lease ? page.bytes : 0_B;
  return leased;
}

// The heap's numbers of pages mean nothing to the device, so compare what can be seen of them.
void Oracle::check_pages(const std::vector<PageInfo>& infos, const Pages& pages,
                         Complaints& complaints) const {
  using Seen = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;  // size, mappings, used
  // Small blocks are packed into larger runs, and those count as used.
  const bool packed = memory_ == Memory::partly_asleep ||
                      std::any_of(blocks_.begin(), blocks_.end(), [](const auto& entry) {
                        return entry.second.bytes <= kPackedAtMost;
                      });
  std::vector<Seen> is, should;
  Bytes used, least_used;
  for (const PageInfo& page : infos) {
    is.emplace_back(page.bytes.count, page.mappings, packed ? 0 : page.used.count);
    used += page.used;
    if ((page.used > 0_B) != page.lease.has_value()) {
      complaints.push_back(words("page ", page.page.value, " has ", page.used.count,
                                 " bytes in use, and is ", page.lease ? "" : "not ", "leased"));
    }
  }
  for (const auto& [handle, page] : pages) {
    should.emplace_back(page.bytes.count, page.mappings, packed ? 0 : page.used.count);
    least_used += page.used;
  }
  if (used < least_used) {
    complaints.push_back(
        words("pages have ", used.count, " bytes in use, and live blocks ", least_used.count));
  }
  std::sort(is.begin(), is.end());
  std::sort(should.begin(), should.end());
  if (is == should) return;
  const auto list = [](const std::vector<Seen>& seen) {
    std::string text;
    for (const auto& [bytes, mappings, in_use] : seen) {
      text += words(" ", bytes, "/", mappings, "/", in_use);
    }
    return text;
  };
  complaints.push_back("pages (size/mappings/used) are" + list(is) + ", should be" + list(should));
}

void Oracle::check_statistics(const DeviceHeap& heap, const SimDevice& device, const Pages& pages,
                              Bytes leased, Complaints& complaints) const {
  const Statistics statistics = heap.statistics();
  const auto same = [&](std::string_view what, const weir::Gauge& is, const Gauge& should) {
    expect_equal(what, is.current, should.current, complaints);
    expect_equal(words(what, " (peak)"), is.peak, should.peak, complaints);
    expect_equal(words(what, " (total)"), is.total, should.total, complaints);
  };
  same("live_blocks", statistics.live_blocks, all_.blocks);
  same("live_bytes", statistics.live_bytes, all_.bytes);
  same("requested_bytes", statistics.requested_bytes, all_.requested);
  for (const HeapStatistics& of : statistics.heaps) {
    const auto found = by_heap_.find(of.heap);
    const Gauges should = found == by_heap_.end() ? Gauges{} : found->second;
    same("a heap's live_blocks", of.live_blocks, should.blocks);
    same("a heap's live_bytes", of.live_bytes, should.bytes);
    same("a heap's requested_bytes", of.requested_bytes, should.requested);
  }
  expect_equal("leased_bytes", statistics.leased_bytes.current, leased.count, complaints);

  for (const auto& entry : by_heap_) {
    const auto is_its = [&](const HeapStatistics& of) { return of.heap == entry.first; };
    expect_equal("entries of a heap",
                 std::count_if(statistics.heaps.begin(), statistics.heaps.end(), is_its), 1,
                 complaints);
  }

  Bytes reserved, mapped;
  for (const auto& [handle, page] : pages) {
    reserved += page.bytes;
    mapped += page.bytes * page.mappings;
  }
  expect_equal("the device's physical bytes", device.physical_bytes().count, reserved.count,
               complaints);
  expect_equal("reserved_bytes", statistics.reserved_bytes.current, reserved.count, complaints);
  expect_equal("reserved_bytes (peak)", statistics.reserved_bytes.peak,
               device.physical_peak().count, complaints);
  expect_equal("mapped_bytes", statistics.mapped_bytes.current, mapped.count, complaints);
  expect_equal("pages", statistics.pages.current, device.live().handles, complaints);
  expect_equal("mappings", statistics.mappings.current, device.live().mappings, complaints);
  expect_equal("out_of_memory", statistics.out_of_memory, out_of_memory_, complaints);
}

Bytes surely_available(const DeviceHeap& heap, Bytes limit, Bytes memory) {
  Bytes available, held;
  for (const PageInfo& page : heap.snapshot().pages) {
    held += page.bytes;
    if (!page.lease) available += page.bytes;
  }
  const Bytes most = limit > 0_B ? std::min(limit, memory) : memory;
  if (most > held) available += Bytes{(most - held).count / (2_MiB).count * (2_MiB).count};
  return available;
}

std::vector<std::string> leaks(const SimDevice& device) {
  std::vector<std::string> left;
  const std::array held = {std::pair{"bytes", device.physical_bytes().count},
                           std::pair{"handles", device.live().handles},
                           std::pair{"mappings", device.live().mappings},
                           std::pair{"events", device.live().events},
                           std::pair{"reservations", device.live().reservations}};
  for (const auto& [what, count] : held) {
    if (count > 0) left.push_back(words(count, " ", what, " were not given back"));
  }
  return left;
}

}  // namespace weir::test
