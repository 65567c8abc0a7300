// SPDX-License-Identifier: Apache-2.0
// A recording in the formats of others. docs/look.md says what each holds.
//
// All append to an open file, which the caller commits, and need memory for little more than the
// recording. Strings that are no UTF-8 are mended.
#pragma once

#include <cstddef>
#include <string>

#include "look/block_lifetimes.h"
#include "look/origin.h"
#include "look/output_file.h"
#include "look/plain_writer.h"
#include "look/symbols.h"
#include "weir/recording.h"
#include "weir/result.h"

namespace weir {

// What PyTorch's torch.cuda.memory._snapshot() would give, for its viewer and scripts. `origin`:
// the device's number, and what was free on it.
void write_memory_viz(const Recording& recording, const Origin& origin,
                      const BlockLifetimes& lifetimes, PlainWriter& writer, OutputFile& file);

// JSON that https://ui.perfetto.dev and chrome://tracing open.
void write_perfetto(const Recording& recording, const BlockLifetimes& lifetimes, OutputFile& file);

// A row for each block, after a row of column names.
void write_csv(const Recording& recording, const BlockLifetimes& lifetimes, Paths paths,
               OutputFile& file);

// The trace that `weir replay` would run: docs/recording.md.
void write_trace(const Recording& recording, OutputFile& file);
std::string trace_text(const Recording& recording);

}  // namespace weir
