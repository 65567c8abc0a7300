// SPDX-License-Identifier: Apache-2.0
// The recordings of all allocators in the process: whom a signal concerns, and what is to be
// finished when the program ends while its allocators are still there.
#pragma once

namespace weir {
class Recordings;
}  // namespace weir

// Threads: self-synchronised.
namespace weir::live_recordings {

// Until remove(), on_signal() is called when the signal of its settings has come, by a thread of
// Weir's own, and finish() when the program exits. A handler that the program had for the signal is
// called after Weir's.
void add(Recordings& recordings);
// Once this returns, nothing of it is called any more. It need not have been added.
void remove(Recordings& recordings);

}  // namespace weir::live_recordings
