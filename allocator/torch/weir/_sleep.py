# SPDX-License-Identifier: Apache-2.0
"""Sleep and wake: the GPU's memory given away, and had back at the same addresses."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from typing import Iterable, Iterator

from weir import _communicators, _in_use, _native
from weir._memory import _device

_CONTENTS = ("backup", "discard", "zero", "immutable")  # weir_contents_t, from 0
_STATES = ("awake", "asleep", "partly asleep")          # weir_tag_state_t
_AS_BEFORE = -1
_new_pools = threading.local()  # .tag: of pools that are first used in this thread


def _contents(name: str | None) -> int:
    if name is None:
        return _AS_BEFORE
    if name not in _CONTENTS:
        raise ValueError(f"contents={name!r}: it is one of {', '.join(_CONTENTS)}")
    return _CONTENTS.index(name)


def _names(tags: str | Iterable[str] | None) -> ctypes.Array:
    names = [tags] if isinstance(tags, str) else list(tags or ())
    return (ctypes.c_char_p * len(names))(*(name.encode() for name in names))


def _asked() -> tuple[ctypes.CDLL, int]:
    library = _in_use.active()
    return library, library.weir_torch_allocator()


def _report(report: _native.SleepReport) -> dict[str, int | float]:
    return {"bytes": report.bytes, "copied_bytes": report.copied_bytes, "copies": report.copies,
            "host_bytes": report.host_bytes, "kept_bytes": report.kept_bytes,
            "seconds": report.nanoseconds / 1e9}


def sleep(tags: str | Iterable[str] | None = None, *, contents: str | None = None,
          keep: bool = False, graph_scratch: bool = True, communicators: bool = False,
          device: object = None) -> dict[str, int | float]:
    """Gives the memory of tags (all) of one device (the current one) back to the driver.

    Addresses stay. Waits for all work of the device. Until wake() has returned nothing may be
    queued that uses the memory, and an allocation of it fails. contents: what becomes of the bytes,
    from now on: "backup", "discard", "zero", "immutable"; None: as before ("backup").
    keep: leave awake what can't sleep; else that is an error which names it. graph_scratch: copy
    the bytes that graphs alone have, too. communicators: NCCL's groups of torch.distributed give
    their own memory back as well ("communicator_bytes"), and can't be used before wake(). Every rank
    of them must make this call, and the call of wake(). Returns what was given back, and what was
    copied.
    """
    library, allocator = _asked()
    number = _device(device)
    groups = _communicators.suspendable(number) if communicators else []
    names = _names(tags)
    options = _native.SleepOptions(size=ctypes.sizeof(_native.SleepOptions), tags=names,
                                   tags_count=len(names), contents=_contents(contents), keep=keep,
                                   forget_graph_scratch=not graph_scratch)
    report = _native.SleepReport(size=ctypes.sizeof(_native.SleepReport))
    _native.check(library, library.weir_sleep(allocator, number, ctypes.byref(options),
                                              ctypes.byref(report)))
    return {**_report(report), "communicator_bytes": _communicators.suspend(number, groups)}


def wake(tags: str | Iterable[str] | None = None, *, keep_host: int = 0,
         device: object = None) -> dict[str, int | float]:
    """Has the memory of tags (all that sleep) back, with its bytes.

    keep_host: how many bytes of pinned host memory to keep for the next sleep(). Raises Problem
    where the device has too little memory: it says who has it, and the call may be made again.
    The first wake() of the device, of whichever tags, lets NCCL's groups have their memory again.
    """
    library, allocator = _asked()
    if keep_host < 0:
        raise ValueError(f"keep_host is {keep_host}: a number of bytes, 0 or more")
    number = _device(device)
    communicator_bytes = _communicators.resume(number)  # first: other ranks wait in it
    names = _names(tags)
    options = _native.WakeOptions(size=ctypes.sizeof(_native.WakeOptions), tags=names,
                                  tags_count=len(names), keep_host_bytes=keep_host)
    report = _native.SleepReport(size=ctypes.sizeof(_native.SleepReport))
    _native.check(library, library.weir_wake(allocator, number, ctypes.byref(options),
                                             ctypes.byref(report)))
    return {**_report(report), "communicator_bytes": communicator_bytes}


@contextlib.contextmanager
def tag(name: str, contents: str | None = None, *, threads: str = "all", graphs: bool = False,
        device: object = None) -> Iterator[None]:
    """What is allocated on one device (the current one) while the block runs is of that tag.

    By any thread, a backward pass with it; threads="own": by this thread alone. Memory of graphs
    that are captured meanwhile stays their pools'; graphs=True: pools (of graphs, or MemPools) that
    this thread uses for the first time meanwhile are of the tag. contents: as sleep()'s, of this
    tag.
    """
    if threads not in ("all", "own"):
        raise ValueError(f'threads={threads!r}: it is "all" or "own"')
    library, allocator = _asked()
    number, scope = _device(device), ctypes.c_void_p()
    if contents is not None:
        _native.check(library, library.weir_set_contents(allocator, number, name.encode(),
                                                         _contents(contents)))
    _native.check(library, library.weir_tag_begin(allocator, number, name.encode(),
                                                  threads == "all", ctypes.byref(scope)))
    before = _new_pools.tag if hasattr(_new_pools, "tag") else b""
    if graphs:
        _new_pools.tag = name.encode()
        library.weir_torch_tag_new_pools(_new_pools.tag)
    try:
        yield
    finally:
        if graphs:
            _new_pools.tag = before
            library.weir_torch_tag_new_pools(before)
        library.weir_tag_end(scope)


def changed(name: str, device: object = None) -> None:
    """The bytes of a tag whose contents are "immutable" are others than those that were copied."""
    library, allocator = _asked()
    _native.check(library, library.weir_declare_changed(allocator, _device(device), name.encode()))


def tags(device: object = None) -> dict[str, dict[str, str | int]]:
    """Each tag of one device (the current one): its state, contents, and bytes."""
    library, allocator = _asked()
    number, needed = _device(device), ctypes.c_size_t()
    _native.check(library, library.weir_tag_list(allocator, number, None, 0, ctypes.byref(needed)))
    names = ctypes.create_string_buffer(needed.value + 1024)  # another thread may add some
    _native.check(library, library.weir_tag_list(allocator, number, names, len(names), None))
    found = {}
    for name in names.value.decode().splitlines():
        info = _native.TagInfo(size=ctypes.sizeof(_native.TagInfo))
        _native.check(library, library.weir_tag_info(allocator, number, name.encode(),
                                                     ctypes.byref(info)))
        found[name] = {"state": _STATES[info.state], "contents": _CONTENTS[info.contents],
                       "device_bytes": info.device_bytes, "asleep_bytes": info.asleep_bytes,
                       "host_bytes": info.host_bytes}
    return found


def residue(device: object = None) -> dict[str, int]:
    """What is on one device (the current one): Weir's memory that is awake, and of others.

    "other_bytes" are those of contexts, modules, libraries such as NCCL, and other processes.
    """
    library, allocator = _asked()
    found = _native.Residue(size=ctypes.sizeof(_native.Residue))
    _native.check(library, library.weir_residue(allocator, _device(device), ctypes.byref(found)))
    return {name: getattr(found, name) for name, _ in found._fields_ if name != "size"}
