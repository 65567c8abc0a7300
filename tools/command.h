// SPDX-License-Identifier: Apache-2.0
// The sub-commands of `weir`, each in a file of its own.
#pragma once

#include "replay/exit_code.h"

namespace CLI {
class App;
}

namespace weir {

// Adds `weir replay`. When it is chosen it runs as `app` is parsed, and sets `exit_code`.
void add_replay_command(CLI::App& app, ExitCode& exit_code);
// `weir look`, `weir report`, `weir diff`: likewise.
void add_look_command(CLI::App& app, ExitCode& exit_code);
void add_report_command(CLI::App& app, ExitCode& exit_code);
void add_diff_command(CLI::App& app, ExitCode& exit_code);

// Add `weir timeline` and `weir convert`, likewise.
void add_timeline_command(CLI::App& app, ExitCode& exit_code);
void add_convert_command(CLI::App& app, ExitCode& exit_code);

// Adds `weir bench` and `weir fit`, likewise.
void add_fit_command(CLI::App& app, ExitCode& exit_code);
void add_bench_command(CLI::App& app, ExitCode& exit_code);

// Adds `weir comm`, which has sub-commands of its own: `check`, and those below.
void add_comm_command(CLI::App& app, ExitCode& exit_code);
void add_comm_bench_command(CLI::App& comm, ExitCode& exit_code);
void add_comm_scenario_command(CLI::App& comm, ExitCode& exit_code);

}  // namespace weir
