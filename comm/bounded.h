// Calls that may never return, for as long as one is willing to wait.
#pragma once

#include <functional>
#include <optional>

#include "weir/result.h"
#include "weir/types.h"

namespace weir {

// What `call` returns, made in a thread of its own; nothing: it has not returned after `patience`
// (by the real clock). Then it goes on, and what it uses must stay.
std::optional<Status> bounded(Nanoseconds patience, std::function<Status()> call);

}  // namespace weir
