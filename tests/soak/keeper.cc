// SPDX-License-Identifier: Apache-2.0
#include "tests/soak/keeper.h"

#include <array>
#include <utility>

#include "weir/recording.h"
#include "weir/snapshot.h"

namespace weir::soak {

Keeper::Keeper(World& world, std::string name, std::uint64_t seed, std::string folder)
    : Worker(world, std::move(name), seed), folder_(std::move(folder)) {}

void Keeper::step() {
  switch (below(11)) {
    case 0:
      return change_limit();
    case 1:
      return look_at_snapshot();
    case 2:
      return change_recording();
    case 3:
      return trim();
    case 4:
      for (const std::string& broken : world_.allocator.validate()) complain(broken);
      return;
    case 5:
      expect("write_snapshot",
             caught([&] { world_.allocator.write_snapshot(folder_ + "/snapshot.json.gz", 0); }));
      return;
    case 6:
      return world_.heap().reset_peaks();
    case 7:
      return void(world_.allocator.heap(0).tags().residue());
    case 8:
      return world_.allocator.mark("soak");
    case 9:
      if (!world_.streams.empty()) {
        const Stream stream = any(world_.streams);
        Result<void*> block = world_.heap().allocate(64_KiB, stream);
        if (!block.ok()) return;
        if (!world_.heap().find(*block)) complain("a live block was not found");
        expect("deallocate", attempt([&] { return world_.heap().deallocate(*block); }));
      }
      return;
    default:
      return void(world_.allocator.statistics(0));
  }
}

void Keeper::sleep_all() {
  world_.allocator.set_limit(0_B, 0);
  // Blocks were written since an immutable tag was copied.
  for (const TagInfo& tag : world_.allocator.tags(0)) {
    (void)world_.allocator.heap(0).tags().declare_changed(tag.tag);
  }
  SleepOptions options;
  options.keep = true;  // plain memory stays
  const bool slept = sleep_and_wake(options, [&] {
    for (const TagInfo& tag : world_.allocator.tags(0)) {
      // Plain memory is of the default tag, and stays awake.
      const bool stays = tag.tag == kDefaultTag && tag.state == TagState::partly_asleep;
      if (tag.state != TagState::asleep && !stays && tag.device > 0_B) {
        complain("tag '" + tag.tag + "' is not asleep");
      }
    }
  });
  if (!slept) complain("memory did not sleep, with nobody at work");
}

void Keeper::drop_all() {
  if (records_) change_recording();
}

void Keeper::change_limit() {
  static constexpr std::array kLimits = {0_B, 0_B, 128_MiB, 256_MiB, 512_MiB, 1_GiB};
  world_.allocator.set_limit(kLimits[below(kLimits.size())], 0);
}

void Keeper::look_at_snapshot() {
  const HeapSnapshot snapshot = world_.allocator.snapshot(0);
  Bytes live, reserved;
  Address end;
  for (const BlockInfo& block : snapshot.blocks) {
    if (block.address < end) complain("blocks of a snapshot overlap");
    end = block.address + block.bytes;
    live += block.bytes;
  }
  for (const PageInfo& page : snapshot.pages) reserved += page.bytes;
  if (live.count != snapshot.statistics.live_bytes.current) {
    complain("a snapshot's blocks are not its live_bytes");
  }
  if (snapshot.blocks.size() != snapshot.statistics.live_blocks.current) {
    complain("a snapshot's blocks are not its live_blocks");
  }
  if (reserved.count != snapshot.statistics.reserved_bytes.current) {
    complain("a snapshot's pages are not its reserved_bytes");
  }
  if (to_json(snapshot).empty()) complain("a snapshot has no JSON");
}

void Keeper::change_recording() {
  const std::string path = folder_ + "/run.weir";
  if (!std::exchange(records_, !records_)) {
    expect("record_start", caught([&] { world_.allocator.record_start(path); }));
    return;
  }
  expect("record_stop", caught([&] { world_.allocator.record_stop(); }));
  if (!chance(10)) return;
  const Result<Recording> recording = read_recording(path);
  if (expect("read_recording", recording) && !recording->damage.empty()) {
    complain("a recording is damaged: " + recording->damage);
  }
}

void Keeper::trim() {
  const Bytes keep = chance(50) ? 0_B : 64_MiB;
  expect("trim", attempt([&] { return world_.heap().trim(keep); }));
}

}  // namespace weir::soak
