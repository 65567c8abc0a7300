# SPDX-License-Identifier: Apache-2.0
"""The shared libraries beside this file, and what they say."""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
import pathlib
import subprocess
import sys
from typing import Callable

from weir import _backends, _command

_HERE = pathlib.Path(__file__).parent
REINSTALL = "`pip install --no-build-isolation --force-reinstall --no-deps .` in Weir's folder"


_NO_BACKEND = ("Its build saw no PyTorch with CUDA (which pip hides from it without "
               "--no-build-isolation), or no CUDA toolkit. Install again with both there: "
               f"{REINSTALL}.")
_NO_CUDA = ("Its build saw no CUDA toolkit (12.4 or later). Install one and then Weir again: "
            f"{REINSTALL}; or build a wheel by `tools/wheels` there, which needs no toolkit.")


class Problem(RuntimeError):
    """What Weir can't do, and the remedy."""


class Unsuitable(Problem):
    """A library that is missing, damaged, or for another PyTorch."""


def instead_of(owner: object, *names: str) -> Callable:
    """A decorator: the function is called instead of these of PyTorch's, and gets the one that it
    replaces as its first argument. One that this PyTorch lacks is passed over."""

    def replace(function: Callable) -> Callable:
        for name in names:
            inner = getattr(owner, name, None)
            if inner is not None:
                setattr(owner, name, functools.wraps(inner)(_with_first(function, inner)))
        return function

    return replace


def _with_first(function: Callable, first: object) -> Callable:
    """As functools.partial(), but a method where a function is one."""
    return lambda *args, **options: function(first, *args, **options)


class Statistics(ctypes.Structure):
    """weir_statistics_t of weir.h."""

    _fields_ = [("size", ctypes.c_size_t)] + [
        (name, ctypes.c_uint64)
        for name in (
            "live_blocks", "live_blocks_peak", "live_bytes", "live_bytes_peak",
            "requested_bytes", "requested_bytes_peak", "leased_bytes", "leased_bytes_peak",
            "reserved_bytes", "reserved_bytes_peak", "mapped_bytes", "mapped_bytes_peak",
            "pages", "mappings", "fences", "stream_waits", "host_waits", "out_of_memory",
            "trimmed_bytes", "plain_bytes", "plain_bytes_peak", "plain_leased_bytes",
            "plain_live_bytes", "context_events_lost_external_stream",
            "context_events_lost_unannounced_capture", "context_events_lost_refused",
            "context_events_lost_unavailable", "context_events_lost_pluggable",
            "regions_elsewhere", "lent_bytes", "lent_bytes_peak",
        )
    ]


class DriverCall(ctypes.Structure):
    """weir_driver_call_t of weir.h."""

    _fields_ = [("name", ctypes.c_char_p), ("calls", ctypes.c_uint64),
                ("nanoseconds", ctypes.c_uint64)]


class PoolLayout(ctypes.Structure):
    """weir_pool_layout_t of weir.h."""

    _fields_ = [("pool", ctypes.c_uint64), ("placements", ctypes.c_uint64), ("hash", ctypes.c_uint64)]


class SleepOptions(ctypes.Structure):
    """weir_sleep_options_t of weir.h."""

    _fields_ = [("size", ctypes.c_size_t), ("tags", ctypes.POINTER(ctypes.c_char_p)),
                ("tags_count", ctypes.c_size_t), ("contents", ctypes.c_int32),
                ("keep", ctypes.c_int32), ("forget_graph_scratch", ctypes.c_int32)]


class WakeOptions(ctypes.Structure):
    """weir_wake_options_t of weir.h."""

    _fields_ = [("size", ctypes.c_size_t), ("tags", ctypes.POINTER(ctypes.c_char_p)),
                ("tags_count", ctypes.c_size_t), ("keep_host_bytes", ctypes.c_uint64)]


class SleepReport(ctypes.Structure):
    """weir_sleep_report_t of weir.h."""

    _fields_ = [("size", ctypes.c_size_t)] + [
        (name, ctypes.c_uint64)
        for name in ("bytes", "copied_bytes", "copies", "host_bytes", "kept_bytes", "nanoseconds")
    ]


class TagInfo(ctypes.Structure):
    """weir_tag_info_t of weir.h."""

    _fields_ = [("size", ctypes.c_size_t), ("state", ctypes.c_int32), ("contents", ctypes.c_int32),
                ("device_bytes", ctypes.c_uint64), ("asleep_bytes", ctypes.c_uint64),
                ("host_bytes", ctypes.c_uint64)]


class Residue(ctypes.Structure):
    """weir_residue_t of weir.h."""

    _fields_ = [("size", ctypes.c_size_t)] + [
        (name, ctypes.c_uint64)
        for name in ("device_bytes", "free_bytes", "weir_bytes", "held_bytes", "other_bytes",
                     "host_bytes")
    ]


PLUGGABLE = _HERE / "libweir_pluggable.so"

_HANDLE, _STATUS = ctypes.c_void_p, ctypes.c_int32
# What the functions of weir.h that this package calls give and take, and those of the backend alone.
_FUNCTIONS = {
    "weir_last_error": (ctypes.c_char_p, []),
    "weir_torch_allocator": (_HANDLE, []),
    "weir_torch_assume_graphs_leak": (None, []),
    "weir_torch_tag_new_pools": (None, [ctypes.c_char_p]),
    "weir_torch_idle_memory_begin": (_STATUS, [ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)]),
    "weir_torch_idle_memory_end": (None, [ctypes.c_void_p]),
    "weir_torch_tell_of_launches": (None, [ctypes.c_int32]),
    "weir_torch_graph_launch_begin": (_STATUS, [ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64,
                                                ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)]),
    "weir_torch_graph_launch_end": (None, [ctypes.c_void_p, ctypes.c_int32]),
    "weir_torch_launch_gate": (ctypes.c_void_p, [ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)]),
    "weir_torch_keep_scratch": (_STATUS, [ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int32]),
    "weir_torch_make_plain": (_STATUS, [ctypes.c_int32, ctypes.c_uint64, ctypes.c_uint64]),
    "weir_allocate": (_STATUS, [_HANDLE, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int32,
                                ctypes.POINTER(ctypes.c_void_p)]),
    "weir_deallocate": (_STATUS, [_HANDLE, ctypes.c_void_p]),
    "weir_statistics": (_STATUS, [_HANDLE, ctypes.c_int32, ctypes.POINTER(Statistics)]),
    "weir_driver_calls": (_STATUS, [_HANDLE, ctypes.c_int32, ctypes.POINTER(DriverCall),
                                    ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]),
    "weir_layout": (_STATUS, [_HANDLE, ctypes.c_int32, ctypes.POINTER(PoolLayout), ctypes.c_size_t,
                              ctypes.POINTER(ctypes.c_size_t)]),
    "weir_sleep": (_STATUS, [_HANDLE, ctypes.c_int32, ctypes.POINTER(SleepOptions),
                             ctypes.POINTER(SleepReport)]),
    "weir_wake": (_STATUS, [_HANDLE, ctypes.c_int32, ctypes.POINTER(WakeOptions),
                            ctypes.POINTER(SleepReport)]),
    "weir_tag_begin": (_STATUS, [_HANDLE, ctypes.c_int32, ctypes.c_char_p, ctypes.c_int32,
                                 ctypes.POINTER(ctypes.c_void_p)]),
    "weir_tag_end": (None, [ctypes.c_void_p]),
    "weir_tag_info": (_STATUS, [_HANDLE, ctypes.c_int32, ctypes.c_char_p,
                                ctypes.POINTER(TagInfo)]),
    "weir_tag_list": (_STATUS, [_HANDLE, ctypes.c_int32, ctypes.c_char_p, ctypes.c_size_t,
                                ctypes.POINTER(ctypes.c_size_t)]),
    "weir_set_contents": (_STATUS, [_HANDLE, ctypes.c_int32, ctypes.c_char_p, ctypes.c_int32]),
    "weir_declare_changed": (_STATUS, [_HANDLE, ctypes.c_int32, ctypes.c_char_p]),
    "weir_read_asleep": (_STATUS, [_HANDLE, ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint64,
                                   ctypes.c_void_p]),
    "weir_residue": (_STATUS, [_HANDLE, ctypes.c_int32, ctypes.POINTER(Residue)]),
    "weir_trim": (_STATUS, [_HANDLE, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64)]),
    "weir_record_start_with": (_STATUS, [_HANDLE, ctypes.c_char_p, ctypes.c_char_p]),
    "weir_python_ends": (None, []),
    "weir_record_stop": (_STATUS, [_HANDLE]),
    "weir_record_write": (_STATUS, [_HANDLE, ctypes.c_char_p]),
    "weir_record_mark": (_STATUS, [_HANDLE, ctypes.c_char_p]),
    "weir_write_snapshot": (_STATUS, [_HANDLE, ctypes.c_int32, ctypes.c_char_p]),
    "weir_fence": (_STATUS, [_HANDLE, ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t,
                             ctypes.c_void_p]),
}
_BACKEND_FUNCTIONS = {
    "weir_torch_built_for": (ctypes.c_char_p, []),
    "weir_torch_enable": (_STATUS, []),
    "weir_torch_close_failed_captures": (_STATUS, []),
    "weir_torch_collective_memory": (_HANDLE, []),
    "weir_torch_fenced_operations": (ctypes.c_uint64, []),
    "weir_torch_fence": (_STATUS, [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_int32,
                                   ctypes.c_void_p]),
    "weir_torch_source_layouts": (_STATUS, [ctypes.c_int32, ctypes.POINTER(PoolLayout), ctypes.c_size_t,
                                            ctypes.POINTER(ctypes.c_size_t)]),
    "weir_torch_source_placements": (_STATUS, [ctypes.c_int32, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64),
                                               ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)]),
}


def declare(library: ctypes.CDLL, functions: dict[str, tuple]) -> None:
    """Says what these functions of the library give and take. Raises AttributeError for one that it lacks."""
    for name, (result, arguments) in functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments


def _load(path: pathlib.Path, functions: dict[str, tuple]) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(os.fspath(path))
        declare(library, functions)
    except (OSError, AttributeError) as error:  # AttributeError: it lacks a function
        raise Unsuitable(f"{path} can't be used: {error}. Install Weir again: {REINSTALL}.") \
            from error
    # Threads that record Python's stacks wait for its lock; at the end nobody may.
    atexit.register(library.weir_python_ends)
    return library


def _why_missing() -> str:
    if (_HERE.parent / "CMakeLists.txt").exists():  # the sources hide what is installed
        return "this is Weir's source folder, not what pip installed. Start Python in another folder."
    return f"Weir was not installed by pip, or not whole. Install it: {REINSTALL}."


@functools.cache
def pluggable() -> ctypes.CDLL:
    if not PLUGGABLE.exists():
        raise Unsuitable(f"{PLUGGABLE} is missing: {_why_missing()}")
    return _load(PLUGGABLE, _FUNCTIONS)


@functools.cache
def backend() -> ctypes.CDLL:
    """The full backend for the PyTorch that is imported. Raises Unsuitable."""
    name, why = _backends.fitting(_backends.installed())
    if name is None:
        raise Unsuitable(_no_backend(why))
    return _load(_backends.FOLDER / name / _backends.LIBRARY, {**_FUNCTIONS, **_BACKEND_FUNCTIONS})


def _no_backend(why: str) -> str:
    if not why:
        return f"this Weir has no backend for PyTorch. {_NO_BACKEND}"
    return f"{why} Install such a PyTorch, or Weir for this one: {REINSTALL}."


def require_place(file: str, what: str) -> None:
    """Raises Problem if `file` can't be written for lack of a folder, or of leave."""
    folder = os.path.dirname(file) or "."
    if os.path.isdir(file):
        raise Problem(f"{what}={file}: it is a folder; name a file in it")
    if not os.path.isdir(folder):
        raise Problem(f"{what}={file}: there is no folder {folder}; make it, or name another file")
    if not os.access(file if os.path.exists(file) else folder, os.W_OK):
        raise Problem(f"{what}={file}: you may not write there; name another file")


def check(library: ctypes.CDLL, status: int) -> None:
    """Raises Problem with what the library says, unless `status` is WEIR_OK."""
    if status != 0:
        raise Problem(library.weir_last_error().decode(errors="replace"))


_IMPORTED = "imported"
_TRY = f"""
import ctypes, sys
try:
    import torch
except BaseException as error:
    sys.exit(f"{{type(error).__name__}}: {{error}}")
print("{_IMPORTED}", flush=True)
for path in sys.argv[1:]:
    try:
        ctypes.CDLL(path).weir_torch_built_for
    except (OSError, AttributeError) as error:
        print(error)
"""
_LOAD = """
import ctypes, sys
try:
    ctypes.CDLL(sys.argv[1]).weir_torch_malloc
except (OSError, AttributeError) as error:
    sys.exit(str(error))
"""
_TRY_SECONDS = 120


def tried(*libraries: pathlib.Path) -> tuple[str | None, str | None]:
    """Why PyTorch can't be imported, and why these can't be loaded beside it; None: they can.

    In a process of its own.
    """
    status, out, said = _in_a_process(_TRY, *libraries)
    lines = out.strip().splitlines()
    if _IMPORTED not in lines:
        return said or "it says no word", None
    of_library = "; ".join(lines[lines.index(_IMPORTED) + 1:])
    return None, of_library or (said or f"Python ended with {status}" if status else None)


def _in_a_process(code: str, *arguments: pathlib.Path) -> tuple[int | None, str, str]:
    """Its status, what it printed, and its last words; of one that crashed, how it ended."""
    try:
        done = subprocess.run([sys.executable, "-c", code, *map(os.fspath, arguments)],
                              capture_output=True, text=True, errors="replace",
                              timeout=_TRY_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return None, "", f"it takes more than {_TRY_SECONDS} s"
    except OSError as error:
        return None, "", str(error)
    said = done.stderr.strip().splitlines()
    if done.returncode < 0:
        return done.returncode, done.stdout, f"Python ended with signal {-done.returncode}"
    return done.returncode, done.stdout, said[-1] if said else ""


def info() -> dict[str, object]:
    """What is installed, and what stands in the way of its working here. Needs no GPU, no PyTorch."""
    torch = _backends.installed()
    name, words = _backends.fitting(torch) if torch else (None, "")
    library = _backends.FOLDER / (name or "") / _backends.LIBRARY
    found = {
        "command": _command.PROGRAM.exists(),
        "pluggable": PLUGGABLE.exists(),
        "backend": name,
        "c10d": library.exists() and b"weir_c10d_" in library.read_bytes(),
        "built_for": [each["version"] for each in _backends.present().values()],
        "torch": torch and torch.version,
        "driver": _has_driver(),
        "notes": [words] if name and words else [],
    }
    return {**found, "problems": _problems(torch, library if name else None, words)}


def _problems(torch: _backends.Torch | None, library: pathlib.Path | None, why: str) -> list[str]:
    problems = []
    if not PLUGGABLE.exists():
        problems.append(f"The pluggable library is missing: {_why_missing()}")
    else:
        status, _, said = _in_a_process(_LOAD, PLUGGABLE)
        if status != 0:
            problems.append(f"The pluggable library can't be loaded: {said}. Install Weir again: "
                            f"{REINSTALL}.")
    if (_HERE / "no_cuda.txt").exists():
        problems.append(f"Weir was built without CUDA, for the simulated device only. {_NO_CUDA}")
    if torch is None:
        problems.append("PyTorch is not installed: of Weir, the tools work (python -m weir look, ...).")
    else:
        torch_why, backend_why = tried(*[library] if library else [])
        if torch_why:
            problems.append(f"PyTorch {torch.version} is installed and can't be imported: {torch_why}")
        if backend_why:
            problems.append(f"The full backend can't be loaded: {backend_why}. Install Weir again: "
                            f"{REINSTALL}.")
        if library is None and PLUGGABLE.exists():
            problems.append(f"{_no_backend(why)} Until then Weir uses the pluggable library, without the "
                            "statistics, snapshots and pools of torch.cuda; the tools work.")
    if not _has_driver():
        problems.append("There is no NVIDIA driver here (libcuda.so.1).")
    return problems


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
