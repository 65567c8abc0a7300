// SPDX-License-Identifier: Apache-2.0
// What a page knows of a recording, as bytes that the page's data.js reads.
//
// The bytes are: the length of a header (four bytes, the lowest first), the header (JSON: texts,
// the tables of streams, pools and heaps, and the length of each column), and the columns one after
// the other. A column is numbers as varints (seven bits a byte, the lowest first, the highest bit
// set in all but a number's last byte). No number is 2^53 or more, so that the page's numbers are
// exact.
#pragma once

#include <string>

#include "look/load.h"
#include "look/report.h"
#include "look/symbols.h"

namespace weir {

std::string html_data(const Loaded& recording, Paths paths, const Report* report = nullptr);

}  // namespace weir
