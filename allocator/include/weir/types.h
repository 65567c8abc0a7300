// SPDX-License-Identifier: Apache-2.0
// Units and identifiers. Each is a type of its own, so that swapped arguments do not compile.
// docs/glossary.md explains the terms that Weir's headers use.
#pragma once

#if __cplusplus < 202002L
#error "Weir needs C++20: compile with -std=c++20, or include weir/weir.h alone, which is C"
#endif

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace weir {

// A count of bytes, never negative. Arithmetic is not checked: a difference below zero wraps
// around.
struct Bytes {
  std::uint64_t count = 0;

  constexpr auto operator<=>(const Bytes&) const = default;
  constexpr Bytes& operator+=(Bytes other) { return count += other.count, *this; }
  constexpr Bytes& operator-=(Bytes other) { return count -= other.count, *this; }
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return {a.count + b.count}; }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return {a.count - b.count}; }
  friend constexpr Bytes operator*(Bytes a, std::uint64_t n) { return {a.count * n}; }
  friend constexpr Bytes operator/(Bytes a, std::uint64_t n) { return {a.count / n}; }
  friend constexpr std::uint64_t operator/(Bytes a, Bytes b) { return a.count / b.count; }
  friend constexpr Bytes operator%(Bytes a, Bytes b) { return {a.count % b.count}; }
};

constexpr Bytes operator""_B(unsigned long long n) { return {n}; }
constexpr Bytes operator""_KiB(unsigned long long n) { return {n << 10}; }
constexpr Bytes operator""_MiB(unsigned long long n) { return {n << 20}; }
constexpr Bytes operator""_GiB(unsigned long long n) { return {n << 30}; }
constexpr Bytes operator""_TiB(unsigned long long n) { return {n << 40}; }

// `bytes` rounded up (down) to a multiple of `unit`, which is not zero.
constexpr Bytes round_up(Bytes bytes, Bytes unit) {
  return {(bytes.count + unit.count - 1) / unit.count * unit.count};
}
constexpr Bytes round_down(Bytes bytes, Bytes unit) { return bytes - bytes % unit; }

// A device address. Zero is no address.
struct Address {
  std::uint64_t value = 0;

  constexpr auto operator<=>(const Address&) const = default;
  friend constexpr Address operator+(Address a, Bytes b) { return {a.value + b.count}; }
  friend constexpr Address operator-(Address a, Bytes b) { return {a.value - b.count}; }
  friend constexpr Bytes operator-(Address a, Address b) { return {a.value - b.value}; }
  void* pointer() const { return reinterpret_cast<void*>(value); }
  static Address of(const void* pointer) {
    return {static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(pointer))};
  }
};

// A time in nanoseconds since the device was opened; also a length of time.
struct Nanoseconds {
  std::int64_t count = 0;

  constexpr auto operator<=>(const Nanoseconds&) const = default;
  constexpr Nanoseconds& operator+=(Nanoseconds other) { return count += other.count, *this; }
  friend constexpr Nanoseconds operator+(Nanoseconds a, Nanoseconds b) {
    return {a.count + b.count};
  }
  friend constexpr Nanoseconds operator-(Nanoseconds a, Nanoseconds b) {
    return {a.count - b.count};
  }
};

constexpr Nanoseconds operator""_ns(unsigned long long n) { return {static_cast<std::int64_t>(n)}; }
constexpr Nanoseconds operator""_us(unsigned long long n) {
  return {static_cast<std::int64_t>(n * 1000)};
}
constexpr Nanoseconds operator""_ms(unsigned long long n) {
  return {static_cast<std::int64_t>(n * 1000000)};
}

// A device's stream. `handle` is what the driver's calls take (a CUstream); `id` is the driver's
// unique id of the stream, never used again after the stream is destroyed, and is what identifies
// it. Make one with Device::stream(), or, where it may be captured, with DeviceHeap::stream().
struct Stream {
  void* handle = nullptr;
  std::uint64_t id = 0;
  // The stream may be destroyed without retire(). So Weir passes it to the driver only within calls
  // that name the stream, but for one case: freeing a block for which record_stream() named it,
  // Weir records an event on it, in DeviceHeap::deallocate() or, if deferred, a later call. Until
  // these frees are done the stream must live: the driver may crash on a destroyed one, or record
  // on a new one that has the same handle.
  bool may_end = false;

  // A stream that is being captured, whose id the driver does not give: `number` stands for it.
  // Equality compares numbers, not handles, so streams that are to differ need different numbers;
  // leave it at 0 to ask the device about `handle`.
  static constexpr Stream of_captured(void* handle, std::uint64_t number = 0) {
    return {handle, number | kOfCaptured};
  }
  constexpr bool is_of_captured() const { return (id & kOfCaptured) != 0; }

  // The same stream in a capture that a graph pool serves: what is captured on it is ordered by the
  // graph alone.
  constexpr Stream in_capture() const { return {handle, id | kInCapture, may_end}; }
  constexpr bool is_in_capture() const { return (id & kInCapture) != 0; }
  constexpr Stream outside_capture() const { return {handle, id & ~kInCapture, may_end}; }

  // All streams of the device's context. Occurs in events and snapshots alone, as what a stream or
  // the host waits for: a heap's calls refuse it.
  static constexpr Stream all() { return {.id = kAll}; }
  constexpr bool is_all() const { return id == kAll; }

  friend constexpr bool operator==(const Stream& a, const Stream& b) { return a.id == b.id; }

 private:
  static constexpr std::uint64_t kOfCaptured = std::uint64_t{1} << 62;
  static constexpr std::uint64_t kAll = std::uint64_t{1} << 61;
  static constexpr std::uint64_t kInCapture = std::uint64_t{1} << 63;
};

// The number of a stream heap (the blocks of one stream in one pool, and of the next stream after
// retire()) within its device heap: 0, 1, 2 and so on, in order of first use.
struct HeapId {
  std::uint32_t value = 0;
  constexpr auto operator<=>(const HeapId&) const = default;
};
// Event::heap of an event that no heap's request caused.
inline constexpr HeapId kNoHeap{~std::uint32_t{0}};

// The number of a page (a PhysicalHandle, or a segment of plain memory) within its device heap,
// from 0; never reused.
struct PageId {
  std::uint32_t value = 0;
  constexpr auto operator<=>(const PageId&) const = default;
};

// A point on a stream's timeline. The number rises only when an event (EventHandle) is recorded:
// points taken between two records are equal.
struct Sequence {
  std::uint64_t value = 0;
  constexpr auto operator<=>(const Sequence&) const = default;
};

// A timeline's number, from 0, dense; never reused.
struct TimelineId {
  std::uint32_t value = 0;
  constexpr auto operator<=>(const TimelineId&) const = default;
};

// A point on a stream's timeline that covers all work queued until it was taken, and perhaps some
// queued later. A fence is satisfied for another timeline, for good, once that timeline is known to
// be ordered behind it, or the host has seen its work complete. Only the device heap that returned
// the fence understands it.
struct Fence {
  TimelineId timeline;
  Sequence sequence;
  friend bool operator==(const Fence&, const Fence&) = default;
};

// Addresses and rounded sizes of blocks are multiples of this.
inline constexpr Bytes kGrain = 512_B;

}  // namespace weir
