// SPDX-License-Identifier: Apache-2.0
// How long a graph pool keeps what its graphs use: until they are gone, and their launches done. Of
// graphs that Weir launches it knows the streams; under Trust::told it watches others
// (docs/decisions.md, 017).
//
// Threads: none of its own; the graph pool's lock guards it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/pool/pool.h"
#include "core/time/fence_set.h"
#include "weir/device.h"

namespace weir {

class GraphLives {
 public:
  // `eager`: the device heap's own pool. All must outlive this.
  GraphLives(CaptureCalls& device, Pool& pool, Pool& eager)
      : device_(device), pool_(pool), eager_(eager) {}

  std::uint64_t count() const { return count_; }
  // There are so many graphs more: 1, 0 or -1.
  void add(int graphs) { count_ += static_cast<std::uint64_t>(graphs); }
  // A graph was launched on the stream.
  void note_launch(Stream stream);
  // Launches of graphs, the last on each stream.
  const FenceSet& launches() const { return launches_; }

  // Watches the graph of the capture that the stream is in. Errors: device.
  Status watch(Stream stream);
  // There is a graph that is to be watched and can't be, as its capture asked for no memory.
  void note_unwatched() { has_unwatched_ = true; }

  // The last graph went, and its launches may be running: what only graphs kept is kept still.
  void begin_to_linger();
  void end_lingering() { lingers_ = false; }
  // Does it? `hopes`: and has the host not waited in vain for the driver to say that they are done?
  bool lingers(bool hopes = false) const { return lingers_ && !(hopes && waited_in_vain_); }
  // The host did wait in vain; `leaked`: the graphs are never destroyed, so they count as done.
  void note_lingers_on(bool leaked);
  // Frees what only graphs kept, if they are done. If another thread holds the page heap's lock,
  // the call waits for that (`waits_for_lock`), or does nothing.
  void let_go(bool waits_for_lock);

 private:
  CaptureCalls& device_;
  Pool& pool_;
  Pool& eager_;
  std::uint64_t count_ = 0;
  bool lingers_ = false;
  bool waited_in_vain_ = false;  // since it lingers
  bool has_unwatched_ = false;
  FenceSet launches_;
  // What each watched graph holds until it and its launches are gone.
  std::vector<std::weak_ptr<void>> watched_;
};

}  // namespace weir
