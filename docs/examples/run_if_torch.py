# SPDX-License-Identifier: Apache-2.0
"""Runs an example that needs PyTorch; exits with 77 (skipped) where that can't be imported, or where there is a GPU
and no Weir.

usage: run_if_torch.py EXAMPLE     The example is compiled in any case.
"""

import importlib.util
import pathlib
import runpy
import sys

EXAMPLE = pathlib.Path(sys.argv[1])
compile(EXAMPLE.read_text(), str(EXAMPLE), "exec")
try:
    import torch
except Exception as error:  # ImportError, or OSError of a library that it lacks
    print(f"skipped: PyTorch can't be imported: {error}")
    sys.exit(77)
if torch.version.cuda and torch.cuda.device_count() > 0 and importlib.util.find_spec("weir") is None:
    print("skipped: this Python has no Weir")
    sys.exit(77)
runpy.run_path(str(EXAMPLE), run_name="__main__")
