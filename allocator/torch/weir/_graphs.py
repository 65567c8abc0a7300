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
_kept: set[_Pool] = set()     # it has a handle of theirs, and has not done so


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.launching: dict[_Pool, int] = {}  # by _Pool, the stream of the thread's launching()
        self.gate = None                       # once it launches


_of_thread = _OfThread()


class _Gate:
    """Of a thread (core/pool/launch_gate.h). Those of threads that are gone serve others."""

    _spare: list[tuple[memoryview, memoryview]] = []

    def __init__(self, torch, library: ctypes.CDLL) -> None:  # noqa: ANN001
        try:
            own, closed = self._spare.pop()
        except IndexError:
            byte = ctypes.c_void_p()
            address = library.weir_torch_launch_gate(torch.cuda.current_device(), ctypes.byref(byte))
            own = _byte_at(byte.value if address else None, 0)
            closed = _byte_at(address, 1)
        self.bytes = own, closed
        device = torch._C._cuda_getDevice if torch.cuda.device_count() > 1 else None
        # The thread's byte, the gate's, who says whether the current stream is captured, and of which device that
        # is (None: there is one).
        self.parts = own, closed, torch._C._cuda_isCurrentStreamCapturing, device

    def __del__(self, give_back: Callable = _spare.append) -> None:
        give_back(self.bytes)


def _byte_at(address: int | None, otherwise: int) -> memoryview:
    return memoryview(ctypes.c_uint8.from_address(address) if address else ctypes.c_uint8(otherwise)).cast("B")


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
    _told.add(pool)
    if pool in _kept:
        _kept.discard(pool)
        _native.check(library, library.weir_torch_keep_scratch(*pool, 0))
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
            gate = _of_thread.gate = _Gate(torch, library)
        own, closed, captures, device = gate.parts
        before, own[0] = own[0], 1  # a handler of a signal may launch, too
        try:
            captured = captures()
            if not closed[0] and not captured and (device is None or device() == getattr(graph, "_weir_device", None)):
                return inner(graph)
        finally:
            own[0] = before
        return told(graph, captured)

    torch.cuda.CUDAGraph.replay = replay

    def told(graph, captured: bool) -> None:  # noqa: ANN001
        pool = _pool_of(torch, graph)
        stream = torch._C._cuda_getCurrentRawStream(pool[0])
        if not captured and _is_launching(pool, stream):
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
        if pool not in _told | _kept:
            _native.check(library, library.weir_torch_keep_scratch(*pool, 1))
            _kept.add(pool)
        return found
