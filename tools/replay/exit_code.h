// SPDX-License-Identifier: Apache-2.0
// What the `weir` command returns to its caller: the same four codes in every command.
#pragma once

#include "weir/result.h"

namespace weir {

enum class ExitCode {
  ok = 0,
  // The command did its work, and the answer is no: a check or an aim failed, memory ran out under
  // a limit, a mistake was found.
  answer_is_no = 1,
  bad_usage = 2,   // the command line
  cannot_run = 3,  // an input or output can't be read or written, or this machine lacks something
};

inline ExitCode exit_code_of(ErrorCode code) {
  return code == ErrorCode::invalid_argument ? ExitCode::bad_usage : ExitCode::cannot_run;
}

}  // namespace weir
