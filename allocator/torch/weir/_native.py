"""The shared libraries beside this file, and what they say."""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import pathlib

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


def torch_version() -> str | None:
    """Of the PyTorch that would be imported, without importing it."""
    import importlib.metadata

    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def info() -> dict[str, str | bool | None]:
    """What is installed, and what of it can work here. Needs no GPU and no PyTorch."""
    return {
        "pluggable": path_of("weir_pluggable").exists(),
        "backend": path_of("weir_torch").exists(),
        "torch": torch_version(),
        "driver": _has_driver(),
    }


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
