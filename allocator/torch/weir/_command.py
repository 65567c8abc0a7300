# SPDX-License-Identifier: Apache-2.0
"""The `weir` command: runs the program that the package carries."""

from __future__ import annotations

import os
import pathlib
import sys

PROGRAM = pathlib.Path(__file__).parent / "bin" / "weir"


def main() -> None:
    try:
        os.execv(PROGRAM, ["weir", *sys.argv[1:]])
    except FileNotFoundError:
        sys.exit("weir: this package was built from source, without the command. To have it, install CLI11 "
                 "and D3 (Debian: libcli11-dev, node-d3), then run `pip install --no-build-isolation "
                 "--force-reinstall --no-deps --config-settings=cmake.define.WEIR_TOOLS=ON .` in Weir's folder.")
    except OSError as error:
        sys.exit(f"weir: {PROGRAM} can't be run: {error}. Was the package built for this machine?")
