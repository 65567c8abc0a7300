#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The wheel of the tools alone is installed into an empty environment, without a network, and reads a file.

usage: tools_wheel_test.py WEIR PROJECT
"""

import pathlib
import subprocess
import sys
import tempfile


def run(*command, **how):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **how)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def main():
    program, project = sys.argv[1], pathlib.Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        wheel = run(project / "tools/tools_wheel", program, folder / "wheel").strip()
        made = subprocess.run([sys.executable, "-m", "venv", folder / "clean"], capture_output=True, text=True)
        if made.returncode != 0:
            print(f"skipped: python3 -m venv: {made.stdout}")
            sys.exit(77)
        binaries = folder / "clean/bin"
        run(binaries / "python", "-m", "pip", "install", "--no-index", "--no-deps", wheel)
        report = run(binaries / "weir", "report", project / "bench/traces/gnn.trace.gz", cwd=folder)
        assert report.startswith("At its peak, "), report
        listed = run(binaries / "python", "-m", "pip", "list", "--disable-pip-version-check")
        assert "weir-tools" in listed, listed


if __name__ == "__main__":
    main()
