# SPDX-License-Identifier: Apache-2.0
"""What Weir can be asked and told while it is on."""

from __future__ import annotations

import contextlib
import ctypes
import operator
import os
import threading
import warnings
from typing import Callable, Iterable, Iterator

from weir import _in_use, _native


def _device(device: object) -> int:
    """Of a number, a torch.device or its name, as torch.cuda takes them; None: the current one."""
    import torch

    number = torch.device(device) if isinstance(device, str) else device
    if isinstance(number, torch.device):
        number = number.index if number.type == "cuda" else number
    if number is None:
        return torch.cuda.current_device()
    allowed = "a number from 0 on, a torch.device of type cuda, its name, or None (the current one)"
    try:
        number = operator.index(number)
    except TypeError:
        raise TypeError(f"device is {device!r}: it must be {allowed}") from None
    # (The libraries take 32 bits, and -1 for the current one.)
    if not 0 <= number < 1 << 31:
        raise ValueError(f"device is {device!r}: it must be {allowed}")
    return number


def _path(path: str | bytes | os.PathLike) -> bytes:
    if b"\0" in (name := os.fsencode(path)):  # C would read half of it
        raise ValueError(f"{path!r} is no name of a file: it has a null byte")
    return name


def fence(tensors: object, stream: object) -> None:
    """Work queued so far on `stream` uses these tensors: they may be dropped at once afterwards.

    tensors: one, or several, of one device. stream: a torch.cuda.Stream of that device. Their
    memory is used again only after that work, which the GPU waits for; the host never does.
    Raises Problem if some memory is not Weir's.
    """
    import torch

    library = _in_use.active()
    several: Iterable = [tensors] if isinstance(tensors, torch.Tensor) else tensors
    pointers = [tensor.untyped_storage().data_ptr() for tensor in several]
    array = (ctypes.c_void_p * len(pointers))(*pointers)
    handle = ctypes.c_void_p(stream.cuda_stream)
    if _in_use.enabled() == "full":
        status = library.weir_torch_fence(array, len(pointers), stream.device.index, handle)
    else:
        status = library.weir_fence(library.weir_torch_allocator(), array, len(pointers), handle)
    _native.check(library, status)


def plain_pool(device: object = None) -> object:
    """A new torch.cuda.MemPool of one device (the current one) whose memory is plain.

    Plain memory is cudaMalloc's: other processes, peers and libraries may open it. Give the pool to
    torch.cuda.use_mem_pool().
    """
    import torch

    library = _in_use.active()
    number = _device(device)
    with torch.cuda.device(number):
        pool = torch.cuda.MemPool()
        _native.check(library, library.weir_torch_make_plain(number, *pool.id))
    return pool


_plain_pools: dict[int, object] = {}  # by device; for plain_memory(), as long as the process lives
_plain_pools_lock = threading.Lock()


@contextlib.contextmanager
def plain_memory(device: object = None) -> Iterator[None]:
    """What this thread allocates on one device (the current one) while the block runs is plain
    memory, as plain_pool()'s; for whichever stream, but not in a capture."""
    import torch

    number = _device(device)
    with _plain_pools_lock:
        if (pool := _plain_pools.get(number)) is None:
            pool = _plain_pools[number] = plain_pool(number)
    with torch.cuda.use_mem_pool(pool, number):
        yield


_plain_by_setting = threading.local()  # .open: what leaves plain memory again, or None


def honour_expandable_segments(torch) -> None:  # noqa: ANN001
    """Libraries that need cudaMalloc's memory say so by torch._C._accelerator_setAllocatorSettings(
    "expandable_segments:False"), or torch.cuda.memory._set_allocator_settings(), which calls it,
    and ":True" when they are done: the thread's memory is plain in between. Before CUDA is used it
    changes nothing."""

    @_native.instead_of(torch._C, "_accelerator_setAllocatorSettings")
    def set_allocator_settings(inner, settings: str) -> None:  # noqa: ANN001
        inner(settings)
        entries = dict(entry.strip().split(":", 1) for entry in settings.split(",") if ":" in entry)
        wanted = entries.get("expandable_segments", "").strip().lower()
        opened = getattr(_plain_by_setting, "open", None)
        if wanted == "false" and opened is None and torch.cuda.is_initialized():
            opened = contextlib.ExitStack()
            try:
                opened.enter_context(plain_memory())
            except Exception as error:  # the setting itself never fails for this
                warnings.warn(f"Weir: expandable_segments:False, and memory stays as it is: {error}",
                              stacklevel=2)
            else:
                _plain_by_setting.open = opened
        elif wanted == "true" and opened is not None:
            _plain_by_setting.open = None
            opened.close()


def stats(device: object = None) -> dict[str, object]:
    """The counters of one device (the current one): docs/statistics.md explains every number.

    "driver_calls" has a dict for each kind of call that Weir made to the driver: "calls", and
    "nanoseconds" of the host, which is 0 unless WEIR_TIME_DRIVER is 1.
    """
    library = _in_use.active()
    numbers = _native.Statistics(size=ctypes.sizeof(_native.Statistics))
    _native.check(library, library.weir_statistics(library.weir_torch_allocator(),
                                                   _device(device), ctypes.byref(numbers)))
    found = {name: getattr(numbers, name) for name, _ in numbers._fields_ if name != "size"}
    calls, needed = (_native.DriverCall * 64)(), ctypes.c_size_t()
    _native.check(library, library.weir_driver_calls(library.weir_torch_allocator(), _device(device),
                                                     calls, len(calls), ctypes.byref(needed)))
    found["driver_calls"] = {
        one.name.decode(): {"calls": one.calls, "nanoseconds": one.nanoseconds}
        for one in calls[:needed.value]}
    return found


def layout(device: object = None) -> dict[int, tuple[int, int]]:
    """Where each pool of one device (the current one) placed blocks, as a number, to compare runs or ranks.

    {pool: (placements, hash)}; pool 0 is the device's own memory, the others are those of graphs and of
    torch.cuda.MemPool that are open, in order of opening; MemPools with an allocator of their own (symmetric memory)
    are -1, -2 and so on. Two programs whose numbers are equal have their blocks at the same places of the pools;
    WEIR_ADDRESSES=fixed makes these the same addresses, but in such MemPools.
    """
    library = _in_use.active()
    handle, number = library.weir_torch_allocator(), _device(device)
    found = numbers_of(library, _native.PoolLayout, lambda *rest: library.weir_layout(handle, number, *rest))
    layouts = {one.pool: (one.placements, one.hash) for one in found}
    if _in_use.enabled() == "full" and layouts:
        found = numbers_of(library, _native.PoolLayout, lambda *rest: library.weir_torch_source_layouts(number, *rest))
        layouts.update({-one.pool: (one.placements, one.hash) for one in found})
    return layouts


def numbers_of(library: ctypes.CDLL, kind: type, ask: Callable) -> list:
    """What `ask` fills an array of that kind with: as many as it says that it has, which other threads may change."""
    array, needed = (kind * 0)(), ctypes.c_size_t(64)
    while needed.value > len(array):
        array = (kind * needed.value)()
        _native.check(library, ask(array, len(array), ctypes.byref(needed)))
    return array[:needed.value]


def trim(keep: int = 0) -> int:
    """Gives idle memory back to the driver until each device holds at most `keep` bytes.

    Returns the bytes given back. Waits for nothing: torch.cuda.empty_cache() does.
    """
    library = _in_use.active()
    if keep < 0:
        raise ValueError(f"keep is {keep}: a number of bytes, 0 or more")
    gone = ctypes.c_uint64()
    _native.check(library, library.weir_trim(library.weir_torch_allocator(), keep,
                                             ctypes.byref(gone)))
    return gone.value


@contextlib.contextmanager
def record(path: str | os.PathLike, stacks: str | None = None) -> Iterator[None]:
    """Records into a file while the block runs: `weir timeline`, `weir report` read it.

    stacks: who asked for each block. "python" has Python's functions (C++'s in threads that run
    none), "cpp" those of C++, "none" nothing; None is what WEIR_RECORD_STACKS says.
    """
    library = _in_use.active()
    handle = library.weir_torch_allocator()
    _native.check(library, library.weir_record_start_with(
        handle, _path(path), None if stacks is None else stacks.encode()))
    try:
        yield
    finally:
        _native.check(library, library.weir_record_stop(handle))


def snapshot(path: str | os.PathLike, device: object = None) -> None:
    """Writes everything that one device (the current one) holds to a file (docs/recording.md)."""
    library = _in_use.active()
    _native.check(library, library.weir_write_snapshot(library.weir_torch_allocator(),
                                                       _device(device), _path(path)))
