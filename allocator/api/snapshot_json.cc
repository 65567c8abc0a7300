// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <zlib.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

#include "observe/replaced_file.h"
#include "weir/snapshot.h"

namespace weir {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;

Json json_of(const Gauge& gauge) {
  return {{"current", gauge.current}, {"peak", gauge.peak}, {"total", gauge.total}};
}

Json json_of(const HeapStatistics& heap) {
  return {{"heap", heap.heap.value},
          {"stream", heap.stream},
          {"plain", heap.plain},
          {"live_blocks", json_of(heap.live_blocks)},
          {"live_bytes", json_of(heap.live_bytes)},
          {"requested_bytes", json_of(heap.requested_bytes)},
          {"fences", heap.fences},
          {"stream_waits", heap.stream_waits}};
}

Json json_of(const Statistics& all) {
  Json heaps = Json::array();
  for (const HeapStatistics& heap : all.heaps) heaps.push_back(json_of(heap));
  return {{"live_blocks", json_of(all.live_blocks)},
          {"live_bytes", json_of(all.live_bytes)},
          {"requested_bytes", json_of(all.requested_bytes)},
          {"leased_bytes", json_of(all.leased_bytes)},
          {"reserved_bytes", json_of(all.reserved_bytes)},
          {"mapped_bytes", json_of(all.mapped_bytes)},
          {"pages", json_of(all.pages)},
          {"mappings", json_of(all.mappings)},
          {"plain_bytes", json_of(all.plain_bytes)},
          {"plain_leased_bytes", json_of(all.plain_leased_bytes)},
          {"plain_live_bytes", all.plain_live_bytes},
          {"lent_bytes", json_of(all.lent_bytes)},
          {"fences", all.fences},
          {"stream_waits", all.stream_waits},
          {"host_waits", all.host_waits},
          {"out_of_memory", all.out_of_memory},
          {"trimmed_bytes", all.trimmed_bytes},
          {"regions_elsewhere", all.regions_elsewhere},
          {"heaps", std::move(heaps)}};
}

Json json_of(const PoolLayout& layout) {
  return {{"pool", layout.pool},
          {"placements", layout.placements},
          {"hash", fmt::format("{:016x}", layout.hash)}};  // many readers of JSON round numbers
}

Json json_of(const HeapInfo& heap) {
  return {
      {"heap", heap.heap.value}, {"stream", heap.stream}, {"pool", heap.pool}, {"open", heap.open}};
}

Json json_of(const PageInfo& page) {
  Json mappings = Json::array();
  for (const MappingInfo& mapping : page.mapped_at) {
    mappings.push_back({{"address", mapping.address.value}, {"heap", mapping.heap.value}});
  }
  return {{"page", page.page.value},
          {"bytes", page.bytes.count},
          {"used", page.used.count},
          {"lease", page.lease ? Json(page.lease->value) : Json()},
          {"plain", page.memory == MemoryKind::plain},
          {"lent_by", page.lent_by},
          {"mappings", std::move(mappings)}};
}

Json json_of(const BlockInfo& block) {
  return {{"address", block.address.value},
          {"bytes", block.bytes.count},
          {"requested", block.requested.count},
          {"heap", block.heap.value},
          {"stream", block.stream},
          {"pool", block.pool},
          {"waits_for", block.waits_for},
          {"allocated_at_ns", block.allocated_at ? Json(block.allocated_at->count) : Json()}};
}

template <class Range>
Json json_of_all(const Range& range) {
  Json all = Json::array();
  for (const auto& each : range) all.push_back(json_of(each));
  return all;
}

Error failed(const std::string& path) {
  return {ErrorCode::invalid_input,
          fmt::format("{}: the snapshot could not be written: {}", path, std::strerror(errno))};
}

// Into `file`, which is to be `path`.
Status write_whole(const std::string& text, const std::string& file, const std::string& path) {
  const gzFile gzip = gzopen(file.c_str(), path.ends_with(".gz") ? "wbe" : "wbeT");
  if (gzip == nullptr) return failed(path);
  const bool whole = gzfwrite(text.data(), text.size(), 1, gzip) == 1;
  if (gzclose(gzip) != Z_OK || !whole) return failed(path);
  return {};
}

}  // namespace

std::string to_json(const HeapSnapshot& snapshot) {
  const Json json = {
      {"weir_snapshot", kFormat},
      {"version", WEIR_VERSION},
      {"device", {{"name", snapshot.device}, {"bytes", snapshot.device_bytes.count}}},
      {"time_ns", snapshot.time.count},
      {"statistics", json_of(snapshot.statistics)},
      {"heaps", json_of_all(snapshot.heaps)},
      {"layouts", json_of_all(snapshot.layouts)},
      {"pages", json_of_all(snapshot.pages)},
      {"blocks", json_of_all(snapshot.blocks)}};
  // A device's name is the driver's: what is no UTF-8 in it must not throw.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Status write_snapshot(const HeapSnapshot& snapshot, const std::string& path) {
  if (Status there = check_folder("snapshot", path); !there) return there;
  return write_in_place_of(
      path, [&](const std::string& file) { return write_whole(to_json(snapshot), file, path); });
}

}  // namespace weir
