# SPDX-License-Identifier: Apache-2.0
"""The allocators that programs are run with, and how a Python program is started with each."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

WAYS = ("native", "expandable", "weir", "weir-pluggable")

_WEIR = {"weir": "full", "weir-pluggable": "pluggable"}
# Settings of an allocator, which must not leak from the caller's environment into another way.
_ALLOCATOR_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
                       "PYTORCH_NO_CUDA_MEMORY_CACHING")


def gpu_count():
    """As the driver says, without the time that PyTorch takes to load."""
    count = ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    except (OSError, AttributeError):
        return 0
    return count.value if status == 0 else 0


def is_weir(way):
    return way in _WEIR


def command(way, program, sanitizer=False):
    """How to start `program` (a file and its arguments) with the allocator `way`."""
    run = [sys.executable, "-u"]
    if is_weir(way):
        run += ["-m", "weir", "run", "--allocator", _WEIR[way]]
    elif way not in WAYS:
        raise ValueError(f"there is no way '{way}': {', '.join(WAYS)}")
    if sanitizer:
        run = ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "99", *run]
    return [*run, *program]


def environment(way, extra=None):
    """The environment for it; `extra` has settings that only Weir is given."""
    found = {name: value for name, value in os.environ.items() if name not in _ALLOCATOR_SETTINGS}
    if way == "expandable":
        found["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if is_weir(way):
        found.update(extra or {})
    return found


def kill(process):
    """Ends a process that was started with start_new_session, and its children."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        pass


def name_of_signal(status):
    """"SIGSEGV" for the status -11 of a process."""
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
