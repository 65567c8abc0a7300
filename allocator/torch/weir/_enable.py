# SPDX-License-Identifier: Apache-2.0
"""Turns Weir on for a process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import threading
import warnings
from typing import Iterator

from weir import _at_start, _c10d, _graphs, _memory, _native, _sharing
from weir._in_use import active, enabled, state as _state  # noqa: F401
from weir._native import Problem, Unsuitable

_turning_on = threading.Lock()

_CONFS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # as PyTorch does, the first that is set

# Entries of PYTORCH_CUDA_ALLOC_CONF that mean something to Weir, and what.
_HONOURED = {"per_process_memory_fraction": "WEIR_LIMIT"}
# Those that change nothing where memory is Weir's, and need no word.
_HARMLESS = {"backend", "expandable_segments", "expandable_segments_reserve",
             "expandable_segments_reserve_by_class"}
# Those that PyTorch honours itself (in its allocator of pinned memory), or the backend.
_HONOURED_AS_THEY_ARE = ("pinned_", "throw_on_cudamalloc_oom")


def settings_of(conf: str) -> tuple[dict[str, str], list[str]]:
    """WEIR_* settings for a PYTORCH_CUDA_ALLOC_CONF, and the entries that mean nothing to Weir.

    Raises Problem: a value that is honoured is none.
    """
    settings: dict[str, str] = {}
    others: list[str] = []
    depth, entry, entries = 0, "", []
    for letter in conf + ",":
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            entries.append(entry.strip())
            entry = ""
        else:
            entry += letter
    entries.append(entry.rstrip(",").strip())  # a bracket that is never closed
    for entry in filter(None, entries):
        name, _, value = entry.partition(":")
        name, value = name.strip(), value.strip()
        if name in _HONOURED:
            settings[_HONOURED[name]] = _percent(name, value)
        elif name not in _HARMLESS and not name.startswith(_HONOURED_AS_THEY_ARE):
            others.append(name if name.isprintable() and name else repr(entry))
    return settings, others


def _percent(name: str, value: str) -> str:
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    text = f"{share * 100:.9f}".rstrip("0").rstrip(".") + "%"
    if not 0 < share <= 1 or text == "0%":
        raise Problem(f"PyTorch's setting {name}:{value} is not a number above 1e-11, up to 1")
    return text


def _as_text(value: object) -> str:
    """As the environment has it."""
    if isinstance(value, bool):
        return str(int(value))
    return os.fsdecode(value) if isinstance(value, (bytes, os.PathLike)) else str(value)


def _apply_settings(settings: dict[str, object]) -> None:
    conf = next(filter(os.environ.get, _CONFS), None)
    from_torch, others = settings_of(os.environ[conf] if conf else "")
    for name, value in from_torch.items():
        os.environ.setdefault(name, value)
    if others:
        warnings.warn(f"Weir: of {conf} these mean nothing to it and are passed over: "
                      f"{', '.join(others)}", stacklevel=4)
    for name, value in settings.items():
        if value is not None:
            os.environ["WEIR_" + name.upper()] = _as_text(value)


@contextlib.contextmanager
def _environment_kept() -> Iterator[None]:
    """What fails leaves no setting behind, which the next call and child processes would find."""
    before = dict(os.environ)
    try:
        yield
    except BaseException:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)
        raise


def enable(kind: str = "auto", **settings: object) -> str:
    """Makes Weir PyTorch's CUDA allocator; returns "full" or "pluggable".

    kind: "full" is the whole backend, of which Weir must have one for the PyTorch that is
    installed; "pluggable" is what PyTorch's interface for plugged-in allocators offers (no
    statistics or snapshots through torch.cuda); "auto" is the first that can be had.
    settings: as WEIR_* variables, in lower case: enable(limit="60GiB", reuse="wait"). None: as the
    environment has it.
    Raises Problem: CUDA was used already, there is no PyTorch, the backend is for another one, a
    setting is not allowed. Then nothing has changed.
    """
    if kind not in ("auto", "full", "pluggable"):
        raise ValueError(f"kind is {kind!r}: 'auto', 'full' or 'pluggable'")
    with _turning_on, _environment_kept():
        return _enable(kind, settings)


def _enable(kind: str, settings: dict[str, object]) -> str:
    if _state:
        return _on_already(kind, settings)
    _at_start.disarm()
    try:
        import torch
    except Exception as error:  # OSError, ValueError: of a library that it lacks
        raise Problem(f"PyTorch can't be imported: {type(error).__name__}: {error}") from error
    if getattr(getattr(torch, "version", None), "cuda", None) is None:
        raise Problem(f"this PyTorch ({getattr(torch, '__version__', 'of no version')}) has no "
                      "CUDA: install one that has")
    if torch.cuda.is_initialized():
        raise Problem("PyTorch has used CUDA already, with its own allocator: call weir.enable() "
                      "before anything uses CUDA, or start the program with `python -m weir run`")
    _apply_settings(settings)
    for name in ("WEIR_RECORD", "WEIR_SNAPSHOT_ON_OOM"):
        if file := os.environ.get(name):
            _native.require_place(file, name)
    if kind != "pluggable":
        try:
            _enable_full(torch)
            return "full"
        except Unsuitable as problem:  # of others the pluggable library has no less
            if kind == "full":
                raise
            warnings.warn(f"Weir: {problem} Falling back to the pluggable library.", stacklevel=3)
    _enable_pluggable(torch)
    return "pluggable"


def _on_already(kind: str, settings: dict[str, object]) -> str:
    """A program that turns Weir on itself may run where WEIR_ENABLE did so before."""
    by_environment = _state.pop("by_environment", False)
    if by_environment and kind in ("auto", enabled()) and not any(
            value is not None for value in settings.values()):
        return enabled()
    how = ", by WEIR_ENABLE: give settings as WEIR_* variables, or leave it unset" if by_environment else ""
    raise Problem(f"Weir is on already ({enabled()}){how}")


def by_environment() -> None:
    """For WEIR_ENABLE=1."""
    enable()
    _state["by_environment"] = True


def _is_since_2_14(torch) -> bool:  # noqa: ANN001
    return tuple(map(int, str(torch.__version__).split(".")[:2])) >= (2, 14)


def _tell_of_leaks(torch, library: ctypes.CDLL) -> None:  # noqa: ANN001
    """Once a graph is in debug mode, PyTorch before 2.14 destroys no graph that it captures from then on."""
    if _is_since_2_14(torch):
        return

    @_native.instead_of(torch.cuda.CUDAGraph, "enable_debug_mode")
    def enable_debug_mode(inner, graph) -> None:  # noqa: ANN001
        inner(graph)
        library.weir_torch_assume_graphs_leak()


def _keep_random_state_apart(torch, library: ctypes.CDLL) -> None:  # noqa: ANN001
    """PyTorch makes the seed and offset of its graphs' random numbers as the first capture begins, and writes
    them on the streams of later ones and of launches, which wait for nothing: so in memory of nobody's."""

    @_native.instead_of(torch.cuda.CUDAGraph, "capture_begin", "register_generator_state")
    def with_idle_memory(inner, *args, **options):  # noqa: ANN001, ANN202
        scope = ctypes.c_void_p()
        _native.check(library, library.weir_torch_idle_memory_begin(torch.cuda.current_device(),
                                                                    ctypes.byref(scope)))
        try:
            return inner(*args, **options)
        finally:
            library.weir_torch_idle_memory_end(scope)


def _close_failed_captures(torch, library: ctypes.CDLL) -> None:  # noqa: ANN001
    """Where a capture can't begin, or fails at its end, PyTorch before 2.14 leaves its pool's binding open: it is
    closed, and the pool has one user fewer, once the driver says that the stream is not captured."""
    if _is_since_2_14(torch):
        return

    @_native.instead_of(torch.cuda.CUDAGraph, "capture_begin", "capture_end")
    def closing_what_failed(inner, *args, **options):  # noqa: ANN001, ANN202
        try:
            return inner(*args, **options)
        except BaseException:
            library.weir_torch_close_failed_captures()  # the error at hand says more than its own
            raise


def with_expandable_segments(conf: str) -> str:
    """A PYTORCH_CUDA_ALLOC_CONF that is as `conf`, with expandable segments."""
    rest = re.sub(r"(^|(?<=,))\s*expandable_segments\s*:[^,]*(,|$)", "", conf).strip(" ,")
    return ",".join(filter(None, [rest, "expandable_segments:True"]))


def _tell_of_pages(torch) -> None:  # noqa: ANN001
    """PyTorch takes segments for expandable ones. Else a new NCCL group registers those that there
    are (TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK), and pages are unmapped without a word to it."""
    if os.environ.get("WEIR_MEMORY", "").strip() == "plain":
        return
    conf = next(filter(None, map(os.environ.get, _CONFS)), "")
    torch._C._accelerator_setAllocatorSettings(with_expandable_segments(conf))


def _enable_full(torch) -> None:  # noqa: ANN001
    backend = _native.backend()
    # Captured buffers that NCCL registers by itself must be of one physical handle each; blocks of
    # Weir's may be of several. Registered pools are another matter, and go on.
    if "NCCL_GRAPH_REGISTER" not in os.environ:
        os.environ["NCCL_GRAPH_REGISTER"] = "0"
    _native.check(backend, backend.weir_torch_enable())
    _tell_of_pages(torch)
    _sharing.bring_along(torch)
    _tell_of_leaks(torch, backend)
    _keep_random_state_apart(torch, backend)
    _close_failed_captures(torch, backend)
    _graphs.tell_of_launches(torch, backend)
    _memory.honour_expandable_segments(torch)
    _state.update(kind="full", library=backend, c10d=_c10d.install(torch, backend))


def _enable_pluggable(torch) -> None:  # noqa: ANN001
    library = _native.pluggable()
    path = os.fspath(_native.PLUGGABLE)
    if not library.weir_torch_allocator():
        _native.check(library, -1)
    allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "weir_torch_malloc",
                                                         "weir_torch_free")
    inner = allocator.allocator()

    def address(name: str) -> int:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value

    setters = {
        "set_init_fn": "weir_torch_init",
        "set_reset_fn": "weir_torch_reset",
        "set_memory_fraction_fn": "weir_torch_memory_fraction",
        "set_base_alloc_fn": "weir_torch_base_allocation",
        "set_record_stream_fn": "weir_torch_record_stream",
        "set_begin_allocate_to_pool": "weir_torch_begin_allocate_to_pool",
        "set_end_allocate_to_pool_fn": "weir_torch_end_allocate_to_pool",
        "set_release_pool": "weir_torch_release_pool",
    }
    for setter, function in setters.items():
        getattr(inner, setter)(address(function))
    torch.cuda.memory.change_current_allocator(allocator)
    _tell_of_leaks(torch, library)
    _keep_random_state_apart(torch, library)
    _graphs.tell_of_launches(torch, library)
    _state.update(kind="pluggable", library=library, allocator=allocator)
