// SPDX-License-Identifier: Apache-2.0
// Recordings as one HTML file to look at: docs/look.md describes the page.
#pragma once

#include <span>
#include <string>

#include "look/load.h"
#include "look/report.h"
#include "look/symbols.h"
#include "weir/result.h"

namespace weir {

// The page of one recording, or of two side by side, in this order; of none, a page that reads the
// file that is dropped on it. The page needs nothing else: no network, no other file. `paths`: of
// the sources that stacks name. `report`: of a single recording, if it was made already. Texts of a
// recording stay texts, whatever they hold. Replaces the file `path`. Errors: unavailable (the tool
// was built without D3; names the package to install), invalid_argument (three recordings; the file
// can't be written; says why), and what keeps the page from being made.
Status write_html(const std::string& path, std::span<const Loaded* const> recordings,
                  Paths paths = Paths::cut, const Report* report = nullptr);

}  // namespace weir
