// SPDX-License-Identifier: Apache-2.0
// Where the core's events go: into the statistics always, and to those who record, if any.
#pragma once

#include <atomic>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "observe/statistics_fold.h"
#include "weir/device.h"
#include "weir/event.h"
#include "weir/recorder.h"

namespace weir {

// Threads: self-synchronised, but for `heap` folds, which their heap's lock guards. Sinks are added
// and removed while every lock under which an event of a heap may be emitted is held; other events
// are passed on under a lock of the observer's, the last of the core's.
class Observer {
 public:
  // `sink` may be null.
  Observer(const EventCalls& clock, EventSink* sink) : clock_(clock) {
    if (sink != nullptr) add(*sink, {});
  }

  DeviceFold& fold() { return fold_; }
  const DeviceFold& fold() const { return fold_; }

  // An event of no heap.
  void emit(Event event) {
    fold_.on_event(event);
    if (!recording()) return;
    const std::lock_guard lock(mutex_);
    pass_on(event);
  }
  // An event of the heap that `heap` counts; the caller holds that heap's lock.
  void emit(HeapFold& heap, Event event) {
    event.heap = heap.heap();
    heap.on_event(event);
    if (recording()) pass_on(event);
  }

  // For events that are counted already, where an Event is only made when somebody takes it: the
  // caller, who holds the heap's lock, knows whether. Returns the event's time.
  bool recording() const { return recording_.load(std::memory_order_relaxed); }
  Nanoseconds record(const HeapFold& heap, Event event) {
    event.heap = heap.heap();
    if (event.kind == EventKind::allocate) event.stack = std::exchange(stack_of_thread(), 0);
    return pass_on(event);
  }

  // Before an allocation takes its first lock: notes who asks, if somebody wants to know.
  void note_stack() {
    StackSource* const stacks = stacks_.load(std::memory_order_acquire);
    if (stacks != nullptr) [[unlikely]]
      stack_of_thread() = stacks->here();
  }

  // With every heap's and every page heap's lock held, and no heap being made.
  void add(EventSink& sink, std::span<const Event> initial) {
    const std::lock_guard lock(mutex_);
    if (!initial.empty()) sink.on_start(initial);
    sinks_.push_back(&sink);
    note_sinks();
  }
  // Returns whether it was there.
  bool remove(EventSink& sink) {
    const std::lock_guard lock(mutex_);
    const bool there = std::erase(sinks_, &sink) > 0;
    note_sinks();
    return there;
  }

 private:
  static std::uint32_t& stack_of_thread() {
    thread_local constinit std::uint32_t stack = 0;
    return stack;
  }

  Nanoseconds pass_on(Event& event) {
    event.time = clock_.now();
    for (EventSink* const sink : sinks_) sink->on_event(event);
    return event.time;
  }

  // The first that wants stacks says whose.
  void note_sinks() {
    StackSource* stacks = nullptr;
    for (EventSink* const sink : sinks_) {
      if (stacks == nullptr) stacks = sink->stacks();
    }
    stacks_.store(stacks, std::memory_order_release);
    recording_.store(!sinks_.empty(), std::memory_order_release);
  }

  const EventCalls& clock_;
  DeviceFold fold_;
  std::atomic<bool> recording_{false};
  std::atomic<StackSource*> stacks_{nullptr};
  std::mutex mutex_;
  std::vector<EventSink*> sinks_;  // changed with mutex_ and the locks above; read with either
};

}  // namespace weir
