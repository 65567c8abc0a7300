// SPDX-License-Identifier: Apache-2.0
// Many events in little memory: each is held as what changed since an earlier one, in 10 to 20
// bytes, where an Event has 96.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "weir/event.h"
#include "weir/types.h"

namespace weir {

class EventIterator;

// Events are appended, and read in order; any of them can be found again, at the cost of decoding
// about 600 others. What was appended is what is read, whatever the fields hold. const functions
// may run at the same time.
class EventLog {
 public:
  using const_iterator = EventIterator;
  using iterator = const_iterator;
  using value_type = Event;
  using size_type = std::size_t;
  using difference_type = std::ptrdiff_t;
  using const_reference = const Event&;

  EventLog() = default;
  EventLog(std::initializer_list<Event> events);
  explicit EventLog(std::span<const Event> events);

  void push_back(const Event& event);

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  // The log must not be empty.
  const Event& front() const { return front_; }
  const Event& back() const { return back_; }
  // `index` < size().
  Event operator[](std::size_t index) const;

  const_iterator begin() const;
  const_iterator end() const;
  // At the event `index`, which may be size().
  const_iterator from(std::size_t index) const;
  // How many events there are before `time`, where times never fall.
  std::size_t count_before(Nanoseconds time) const;

  // Bytes of memory that the events take.
  std::size_t memory() const {
    std::size_t bytes = 0;
    for (const Block& block : blocks_) bytes += block.bytes.capacity();
    return bytes;
  }

 private:
  friend class EventIterator;
  static constexpr std::size_t kBlock = 16 << 10;
  static constexpr std::size_t kGroups = 5;  // of kinds that look alike

  // What the next event of a block is encoded against.
  class Coder {
   public:
    void encode(const Event& event, std::string& out);
    // Returns where the next event begins.
    const char* decode(const char* at, Event& event);

   private:
    std::uint64_t time_ = 0;
    std::array<std::array<std::uint64_t, 11>, kGroups> last_{};
  };
  struct Block {
    std::string bytes;
    std::size_t first = 0;  // event
    Nanoseconds time;       // of that event
  };

  std::vector<Block> blocks_;
  Coder coder_;  // of the last block
  std::size_t size_ = 0;
  Event front_, back_;
};

// Valid until the log changes or is destroyed. The iterator owns the event that it refers to, which
// changes as the iterator moves on.
class EventIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = Event;
  using difference_type = std::ptrdiff_t;
  using pointer = const Event*;
  using reference = const Event&;

  EventIterator() = default;
  reference operator*() const { return event_; }
  pointer operator->() const { return &event_; }
  EventIterator& operator++();
  EventIterator operator++(int);
  // Which event of the log this is.
  std::size_t index() const { return index_; }
  friend bool operator==(const EventIterator& a, const EventIterator& b) {
    return a.index_ == b.index_;
  }
  // How many events `b` is before `a`, in the same log.
  friend difference_type operator-(const EventIterator& a, const EventIterator& b) {
    return static_cast<difference_type>(a.index_) - static_cast<difference_type>(b.index_);
  }

 private:
  friend class EventLog;
  EventIterator(const EventLog& log, std::size_t block, std::size_t index);
  void read();

  const EventLog* log_ = nullptr;
  std::size_t block_ = 0, index_ = 0;
  const char* at_ = nullptr;
  EventLog::Coder coder_;
  Event event_;
};

}  // namespace weir
