// SPDX-License-Identifier: Apache-2.0
// A device heap as one thread calls it: every call goes into the thread's own part of the history.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "tests/property/history.h"
#include "weir/device_heap.h"

namespace weir::test {

// Not thread-safe: one for each thread. What a call returns is good until the next.
class RecordedHeap {
 public:
  RecordedHeap(DeviceHeap& heap, StampClock& clock, std::uint32_t thread)
      : heap_(heap), clock_(clock), thread_(thread) {}

  // `device` says what lies under the block.
  const Call& allocate(Bytes bytes, Stream stream, const SimDevice& device) {
    record(Call::Kind::allocate, [&](Call& made) {
      made.stream = stream.id;
      made.bytes = bytes;
      const Result<void*> block = heap_.allocate(bytes, stream);
      take_error(made, block);
      if (block.ok() && *block != nullptr) made.addresses = {Address::of(*block)};
    });
    Call& made = calls_.back();
    for (const Address at : made.addresses) {
      made.segments = device.translate(at, round_up(bytes, kGrain));
    }
    return made;
  }

  const Call& deallocate(void* block) {
    return record(Call::Kind::deallocate, [&](Call& made) {
      made.addresses = {Address::of(block)};
      take_error(made, heap_.deallocate(block));
    });
  }

  const Call& fence(std::span<void* const> blocks, Stream user) {
    return record(Call::Kind::fence, [&](Call& made) {
      made.stream = user.id;
      for (void* const block : blocks) {
        if (block != nullptr) made.addresses.push_back(Address::of(block));
      }
      take_error(made, heap_.fence(blocks, user));
    });
  }

  const Call& record_stream(void* block, Stream user) {
    return record(Call::Kind::record_stream, [&](Call& made) {
      made.stream = user.id;
      made.addresses = {Address::of(block)};
      take_error(made, heap_.record_stream(block, user));
    });
  }

  void find(const void* pointer) {
    record(Call::Kind::find, [&](Call& made) {
      made.addresses = {Address::of(pointer)};
      if (std::optional<BlockInfo> info = heap_.find(pointer)) made.blocks = {*info};
    });
  }

  void snapshot() {
    record(Call::Kind::snapshot, [&](Call& made) {
      HeapSnapshot taken = heap_.snapshot();
      made.blocks = std::move(taken.blocks);
      made.pages = std::move(taken.pages);
    });
  }

  void statistics() {
    record(Call::Kind::statistics,
           [&](Call& made) { made.statistics = std::make_shared<Statistics>(heap_.statistics()); });
  }

  void validate() {
    record(Call::Kind::validate, [&](Call& made) { made.broken = heap_.validate(); });
  }

  void reset_peaks() {
    record(Call::Kind::reset_peaks, [&](Call&) { heap_.reset_peaks(); });
  }

  void trim(Bytes keep) {
    record(Call::Kind::trim, [&](Call& made) {
      made.bytes = keep;
      take_error(made, heap_.trim(keep));
    });
  }

  void set_limit(Bytes limit) {
    record(Call::Kind::set_limit, [&](Call& made) {
      made.bytes = limit;
      heap_.set_limit(limit);
    });
  }

  void retire(Stream stream) {
    record(Call::Kind::retire, [&](Call& made) {
      made.stream = stream.id;
      take_error(made, heap_.retire(stream));
    });
  }

  const Call& last() const { return calls_.back(); }
  History take_calls() { return std::move(calls_); }

 private:
  // The call that `make` makes, with the stamps before and after it. Calls that it leads to, by a
  // callback of the heap's, come before it.
  template <class Make>
  const Call& record(Call::Kind kind, Make make) {
    Call call;
    call.kind = kind;
    call.thread = thread_;
    call.begin = clock_.now();
    make(call);
    call.end = clock_.now();
    calls_.push_back(std::move(call));
    return calls_.back();
  }

  template <class T>
  static void take_error(Call& call, const Result<T>& result) {
    if (result.ok()) return;
    call.error = result.error().code();
    call.message = result.error().message();
  }

  DeviceHeap& heap_;
  StampClock& clock_;
  const std::uint32_t thread_;
  History calls_;
};

}  // namespace weir::test
