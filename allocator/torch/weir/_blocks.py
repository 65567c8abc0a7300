# SPDX-License-Identifier: Apache-2.0
"""Blocks of Weir's memory, for array libraries that let others allocate."""

from __future__ import annotations

import ctypes
import functools

from weir import _in_use, _native

_OUT_OF_MEMORY = 1  # WEIR_OUT_OF_MEMORY of weir.h


@functools.cache
def _standing_alone() -> tuple[ctypes.CDLL, int]:
    library = _native.pluggable()
    handle = library.weir_torch_allocator()
    if not handle:
        raise _native.Problem(library.weir_last_error().decode(errors="replace"))
    return library, handle


def _library() -> tuple[ctypes.CDLL, int]:
    """Of the heap that PyTorch has, if it has Weir's; else of one beside."""
    if _in_use.enabled() is None:
        return _standing_alone()
    library = _in_use.active()
    return library, library.weir_torch_allocator()


class Block:
    """Memory of one device, for work on one stream; goes back with this object.

    A block may also be used on other streams: its memory serves others once all work of the device
    that was queued when the block went back is done (WEIR_TRUST=context, the default here).
    """

    def __init__(self, size: int, stream: int, device: int) -> None:
        self._free = None
        library, handle = _library()
        pointer = ctypes.c_void_p()
        status = library.weir_allocate(handle, size, stream, device, ctypes.byref(pointer))
        if status == _OUT_OF_MEMORY:
            raise MemoryError(library.weir_last_error().decode(errors="replace"))
        _native.check(library, status)
        self.pointer: int = pointer.value or 0
        self._free = functools.partial(library.weir_deallocate, handle, pointer)

    def free(self) -> None:
        """Gives it back now; a second call does nothing."""
        free, self._free = self._free, None
        if free is not None:
            free()  # an error is in Weir's log

    __del__ = free
