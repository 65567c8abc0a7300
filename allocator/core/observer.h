// Where the core's events go: into the statistics always, to a recording when there is one.
#pragma once

#include "observe/statistics_fold.h"
#include "weir/device.h"
#include "weir/event.h"

namespace weir {

// Threads: self-synchronised, but for `heap` folds, which their heap's lock guards.
class Observer {
 public:
  // `sink` may be null.
  Observer(Device& device, EventSink* sink) : device_(device), sink_(sink) {}

  DeviceFold& fold() { return fold_; }
  const DeviceFold& fold() const { return fold_; }

  // An event of no heap.
  void emit(Event event) {
    fold_.on_event(event);
    pass_on(event);
  }
  // An event of the heap that `heap` counts; the caller holds that heap's lock.
  void emit(HeapFold& heap, Event event) {
    event.heap = heap.heap();
    heap.on_event(event);
    pass_on(event);
  }

  // For events that are counted already, where an Event is only made when somebody takes it.
  bool recording() const { return sink_ != nullptr; }
  void record(const HeapFold& heap, Event event) {
    event.heap = heap.heap();
    pass_on(event);
  }

 private:
  void pass_on(Event& event) {
    if (sink_ == nullptr) [[likely]]
      return;
    event.time = device_.now();
    sink_->on_event(event);
  }

  Device& device_;
  EventSink* const sink_;
  DeviceFold fold_;
};

}  // namespace weir
