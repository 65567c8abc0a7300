"""The shared libraries beside this file, and what they say."""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib.metadata
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

_HERE = pathlib.Path(__file__).parent


class Problem(RuntimeError):
    """What Weir can't do, and the remedy."""


class Statistics(ctypes.Structure):
    """weir_statistics_t of weir.h."""

    _fields_ = [("size", ctypes.c_size_t)] + [
        (name, ctypes.c_uint64)
        for name in (
            "live_blocks", "live_blocks_peak", "live_bytes", "live_bytes_peak",
            "requested_bytes", "requested_bytes_peak", "leased_bytes", "leased_bytes_peak",
            "reserved_bytes", "reserved_bytes_peak", "mapped_bytes", "mapped_bytes_peak",
            "pages", "mappings", "fences", "stream_waits", "host_waits", "out_of_memory",
            "trimmed_bytes",
        )
    ]


def path_of(library: str) -> pathlib.Path:
    """Of "weir_pluggable" or "weir_torch"; it need not exist."""
    prefix = "lib"
    for name in (f"{prefix}{library}.so", f"{library}.so"):
        if (_HERE / name).exists():
            return _HERE / name
    return _HERE / f"{prefix}{library}.so"


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Says what the functions of weir.h that this package calls take and give."""
    handle, status = ctypes.c_void_p, ctypes.c_int32
    functions = {
        "weir_last_error": (ctypes.c_char_p, []),
        "weir_torch_allocator": (handle, []),
        "weir_statistics": (status, [handle, ctypes.c_int32, ctypes.POINTER(Statistics)]),
        "weir_trim": (status, [handle, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64)]),
        "weir_record_start_with": (status, [handle, ctypes.c_char_p, ctypes.c_char_p]),
        "weir_python_ends": (None, []),
        "weir_record_stop": (status, [handle]),
        "weir_write_snapshot": (status, [handle, ctypes.c_int32, ctypes.c_char_p]),
        "weir_fence": (status, [handle, ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t,
                                ctypes.c_void_p]),
    }
    for name, (result, arguments) in functions.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    # Threads that record Python's stacks wait for its lock; at the end nobody may.
    atexit.register(library.weir_python_ends)
    return library


@functools.cache
def pluggable() -> ctypes.CDLL:
    path = path_of("weir_pluggable")
    if not path.exists():
        raise Problem(f"{path} is missing: Weir was not installed by pip, or not whole. "
                      "Run `pip install .` in Weir's folder.")
    return declare(ctypes.CDLL(os.fspath(path)))


@functools.cache
def backend() -> ctypes.CDLL:
    """The full backend. PyTorch must be imported."""
    path = path_of("weir_torch")
    if not path.exists():
        raise Problem("this Weir has no backend for PyTorch: there was no PyTorch with CUDA, or no "
                      "CUDA toolkit, when it was installed. Install again with both there: "
                      "`pip install --no-build-isolation .`")
    library = declare(ctypes.CDLL(os.fspath(path)))
    library.weir_torch_built_for.restype = ctypes.c_char_p
    library.weir_torch_enable.restype = ctypes.c_int32
    library.weir_torch_fence.restype = ctypes.c_int32
    library.weir_torch_fence.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t,
                                         ctypes.c_int32, ctypes.c_void_p]
    return library


def check(library: ctypes.CDLL, status: int) -> None:
    """Raises Problem with what the library says, unless `status` is WEIR_OK."""
    if status != 0:
        raise Problem(library.weir_last_error().decode(errors="replace"))


def built_for() -> str | None:
    """The PyTorch that the backend was built for, without loading it."""
    path = _HERE / "built_for.txt"
    return path.read_text().strip() if path.exists() and path_of("weir_torch").exists() else None


def torch_version() -> str | None:
    """Of the PyTorch that would be imported, without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None:
        return None
    for folder in spec.submodule_search_locations or []:
        path = pathlib.Path(folder, "version.py")
        found = path.exists() and re.search(r"^__version__ *= *['\"]([^'\"]+)", path.read_text(),
                                            re.MULTILINE)
        if found:
            return found[1]
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def torch_problem() -> str | None:
    """Why PyTorch can't be imported, if it is there and can't: tried in a process of its own."""
    code = ("import sys\n"
            "try:\n"
            "    import torch\n"
            "except BaseException as error:\n"
            "    sys.exit(f'{type(error).__name__}: {error}')\n")
    try:
        tried = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                               errors="replace", timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if tried.returncode == 0:
        return None
    said = tried.stderr.strip().splitlines()
    return said[-1] if said else f"Python ended with {tried.returncode}"


def info() -> dict[str, object]:
    """What is installed, and what stands in the way of its working here. Needs no GPU, no PyTorch."""
    found = {
        "pluggable": path_of("weir_pluggable").exists(),
        "backend": path_of("weir_torch").exists(),
        "built_for": built_for(),
        "torch": torch_version(),
        "driver": _has_driver(),
    }
    return {**found, "problems": _problems(found)}


def _problems(found: dict[str, object]) -> list[str]:
    problems = []
    if not found["pluggable"]:
        problems.append("Weir's libraries are missing: it was not installed by pip. Run "
                        "`pip install .` in Weir's folder.")
    if found["torch"] is None:
        problems.append("PyTorch is not installed.")
    elif why := torch_problem():
        problems.append(f"PyTorch {found['torch']} is installed and can't be imported: {why}")
    if found["torch"] is not None and not found["backend"]:
        problems.append("There is no full backend, only the pluggable library: Weir was installed "
                        "where there was no PyTorch with CUDA, or no CUDA toolkit.")
    elif found["built_for"] and found["torch"] and found["built_for"] != found["torch"]:
        problems.append(f"The full backend was built for PyTorch {found['built_for']}, and this is "
                        f"{found['torch']}: install Weir again, with `pip install "
                        "--no-build-isolation --force-reinstall .`")
    if not found["driver"]:
        problems.append("There is no NVIDIA driver here (libcuda.so.1).")
    return problems


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
