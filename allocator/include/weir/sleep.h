// SPDX-License-Identifier: Apache-2.0
// Options and reports of sleep and wake (HeapTags::sleep(), Allocator::sleep()).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "weir/types.h"

namespace weir {

// The tag of all memory that was allocated for no other tag.
inline constexpr const char* kDefaultTag = "default";

// What becomes of the bytes of a tag's blocks while they sleep.
enum class SleepContents : std::uint8_t {
  backup,     // they are copied to the host, and back
  discard,    // they are whatever the new memory holds
  zero,       // they are zero
  immutable,  // as backup; but the copy is kept after waking, and later sleeps copy nothing until
              // declare_changed() or an allocation in the tag: other writes are lost
};

enum class TagState : std::uint8_t {
  awake,
  asleep,
  partly_asleep,  // sleep() or wake() failed on the way: call either again
};

struct SleepOptions {
  std::vector<std::string> tags;          // none: every tag
  std::optional<SleepContents> contents;  // of these tags, now and from now on; nothing: as before
  // Leave awake what can't sleep (plain memory, memory that is held); else it is an error.
  bool keep = false;
  // Also copy bytes of graphs' pages outside live blocks: a launch may have left results there that
  // nobody has read. If false, each output of a graph must be in a live block, or read already.
  bool graph_scratch = true;
};

struct WakeOptions {
  std::vector<std::string> tags;  // in that order; none: every tag that sleeps
  // Most pinned host memory to keep for the next sleep.
  Bytes keep_host;
};

// Memory that can't sleep, and who has it.
struct HeldMemory {
  std::string tag;
  Bytes bytes;  // of the pages under it
  std::string holder;
};

struct SleepReport {
  Bytes given_back;  // to the driver, or (wake) had from it
  Bytes copied;
  std::uint64_t copies = 0;
  Bytes host;                    // pinned host memory, after the call
  std::vector<HeldMemory> kept;  // left awake (SleepOptions::keep)
  Nanoseconds time;
};

// Bytes of a block that sleeps, in host memory of Device::allocate_host().
struct HostPart {
  const void* memory = nullptr;
  Bytes offset;  // from the address that was asked about
  Bytes bytes;
};

// What is on the device, as far as it can be told apart.
struct Residue {
  Bytes device;  // memory of the device in all; zero: unknown
  Bytes free;    // of it
  Bytes weir;    // held by this device heap, awake, or named by on_sleep() callbacks
  Bytes others;  // the rest: the driver's contexts and modules, libraries, other processes
  Bytes host;    // pinned host memory of this device heap's
  std::vector<HeldMemory> held;  // part of `weir`: plain, or named by holds or callbacks
};

struct TagInfo {
  std::string tag;
  TagState state = TagState::awake;
  SleepContents contents = SleepContents::backup;
  Bytes device;  // physical memory that it has now
  Bytes asleep;  // that it had, and needs to wake
  Bytes host;    // bytes of its copies
};

}  // namespace weir
