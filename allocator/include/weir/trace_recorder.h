// Records what a device heap does, in the trace format that `weir replay` reads (docs/trace.md).
//
// Never makes an allocating thread wait for I/O: events go into a bounded ring, and a thread of the
// recorder's own formats, compresses and writes them. What comes while the ring is full is dropped
// and counted; the file stays a valid trace all the same, and its last line says how much is
// missing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "weir/event.h"
#include "weir/result.h"

namespace weir {

struct TraceRecorderOptions {
  // Goes into the header line as its "workload".
  std::string workload = "weir";
  // Events that the ring holds, rounded up to a power of two; 88 bytes each.
  std::size_t ring_events = std::size_t{1} << 16;
};

// Threads: on_event() from any thread. close() and the destructor once no event can come any more.
class TraceRecorder final : public EventSink {
 public:
  // Writes to the file `path`, replacing it; gzip when the name ends with ".gz".
  // Errors: invalid_input (the file can't be written; names it and says why).
  static Result<std::unique_ptr<TraceRecorder>> open(const std::string& path,
                                                     const TraceRecorderOptions& options = {});
  // Closes; a caller who wants to know whether all was written calls close() first.
  ~TraceRecorder() override;

  void on_event(const Event& event) override;

  // Writes what is still in the ring, then the last line. Further events are ignored; a second
  // close() does nothing. Errors: invalid_input (the file could not be written whole).
  Status close();

  // Events lost because the ring was full, so far.
  std::uint64_t dropped() const;

 private:
  class Impl;
  explicit TraceRecorder(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace weir
