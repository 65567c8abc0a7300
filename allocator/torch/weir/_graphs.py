# SPDX-License-Identifier: Apache-2.0
"""Launches of graphs, where what they allocate and free within their captures is lent between them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from typing import Callable, Iterator

from weir import _in_use, _native

_OUT_OF_MEMORY = 1  # WEIR_OUT_OF_MEMORY

_Pool = tuple[int, int, int]  # its device and its id
_told: set[_Pool] = set()     # the program launches their graphs within launching()


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.launching: dict[_Pool, int] = {}  # by _Pool, the stream of the thread's launching()
        self.gate = None                       # as _gate() has it, once it launches


_of_thread = _OfThread()


class _Byte:
    """Of a thread that launches: one that is there for good, and was of a thread that is gone."""

    _spare: list[ctypes.c_uint8] = []

    def __init__(self) -> None:
        self.byte = self._spare.pop() if self._spare else ctypes.c_uint8()

    def __del__(self, give_back: Callable = _spare.append) -> None:
        give_back(self.byte)


def _gate(torch, library: ctypes.CDLL) -> tuple:  # noqa: ANN001
    """Of the thread (core/pool/launch_gate.h): its byte, the gate's, who says whether the current stream is
    captured, who which device that is of (None: there is one), and who gives the byte back."""
    own = _Byte()
    closed = library.weir_torch_launch_gate(torch.cuda.current_device(), ctypes.addressof(own.byte))
    other = ctypes.c_uint8.from_address(closed) if closed else ctypes.c_uint8(1)
    device = torch._C._cuda_getDevice if torch.cuda.device_count() > 1 else None
    captures = torch._C._cuda_isCurrentStreamCapturing
    return memoryview(own.byte).cast("B"), memoryview(other).cast("B"), captures, device, own


@contextlib.contextmanager
def launching(graph: object, stream: object = None) -> Iterator[None]:
    """For a program that launches the handle of a torch.cuda.CUDAGraph itself: within the block the
    graph has all its memory (docs/graphs.md, Scratch), and its pool may lend between such blocks. The
    program launches all graphs of the pool so, or by replay(), which needs no block.

    stream: the torch.cuda.Stream that it is launched on; the current one. Raises
    torch.OutOfMemoryError: the graph may not be launched, since what was lent of its memory is in use.
    """
    import torch

    library = _in_use.active()
    pool = _pool_of(torch, graph)
    handle = stream.cuda_stream if stream is not None else torch._C._cuda_getCurrentRawStream(pool[0])
    if _is_launching(pool, handle):
        yield
        return
    if pool not in _told:
        _native.check(library, library.weir_torch_keep_scratch(*pool, 0))
        _told.add(pool)
    launch = ctypes.c_void_p()
    try:
        _begin(torch, library, pool, handle, launch)
        _of_thread.launching[pool] = handle
        yield
    finally:  # whatever was raised, the graph may have been launched
        _of_thread.launching.pop(pool, None)
        library.weir_torch_graph_launch_end(launch, 1)


def _is_launching(pool: _Pool, stream: int) -> bool:
    """Raises Problem: it does so on another stream, and would wait for itself."""
    within = _of_thread.launching.get(pool, stream)
    if within != stream:
        raise _native.Problem("weir.launching(): a graph of the pool is launched on another stream within the "
                              "block: launch it after the block")
    return pool in _of_thread.launching


def _pool_of(torch, graph: object) -> _Pool:  # noqa: ANN001
    device = getattr(graph, "_weir_device", None)
    return (torch.cuda.current_device() if device is None else device, *graph.pool())


def _begin(torch, library: ctypes.CDLL, pool: _Pool, stream: int, launch: ctypes.c_void_p) -> None:  # noqa: ANN001
    status = library.weir_torch_graph_launch_begin(*pool, stream, ctypes.byref(launch))
    if status == _OUT_OF_MEMORY:
        raise torch.OutOfMemoryError(library.weir_last_error().decode(errors="replace"))
    _native.check(library, status)


def tell_of_launches(torch, library: ctypes.CDLL) -> None:  # noqa: ANN001
    """Each replay says so, if scratch is lent. A graph whose handle the program has may be launched without a
    word: its pool lends nothing from then on. So do pools of captures that begin in another way."""
    if os.environ.get("WEIR_GRAPH_SCRATCH", "").strip() != "lend":
        return

    @_native.instead_of(torch.cuda.CUDAGraph, "capture_begin")
    def capture_begin(inner, graph, *args, **options):  # noqa: ANN001, ANN202
        graph._weir_device = torch.cuda.current_device()
        library.weir_torch_tell_of_launches(1)
        try:
            return inner(graph, *args, **options)
        finally:
            library.weir_torch_tell_of_launches(0)

    inner = torch.cuda.CUDAGraph.replay

    # Where nothing was lent yet, it costs the host what a function of Python does.
    @functools.wraps(inner)
    def replay(graph) -> None:  # noqa: ANN001
        gate = _of_thread.gate
        if gate is None:
            gate = _of_thread.gate = _gate(torch, library)
        own, closed, captures, device, _ = gate
        before, own[0] = own[0], 1  # a handler of a signal may launch, too
        try:
            if not closed[0] and not captures() and (device is None or device() == graph._weir_device):
                return inner(graph)
        finally:
            own[0] = before
        return told(graph)

    torch.cuda.CUDAGraph.replay = replay

    def told(graph) -> None:  # noqa: ANN001
        pool = _pool_of(torch, graph)
        stream = torch._C._cuda_getCurrentRawStream(pool[0])
        if _is_launching(pool, stream):
            return inner(graph)
        launch, launched = ctypes.c_void_p(), 1
        try:
            _begin(torch, library, pool, stream, launch)
            inner(graph)
        except Exception:  # after others, as of a signal, it may run
            launched = 0
            raise
        finally:
            library.weir_torch_graph_launch_end(launch, launched)

    @_native.instead_of(torch.cuda.CUDAGraph, "raw_cuda_graph", "raw_cuda_graph_exec")
    def handle(inner, graph, *args):  # noqa: ANN001, ANN202
        found, pool = inner(graph, *args), _pool_of(torch, graph)
        if pool not in _told:
            _native.check(library, library.weir_torch_keep_scratch(*pool, 1))
        return found
