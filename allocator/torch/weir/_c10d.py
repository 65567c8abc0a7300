# SPDX-License-Identifier: Apache-2.0
"""Operations of torch.distributed, whose tensors may be dropped at once: docs/pytorch.md.

The backend sees them in PyTorch's dispatcher. Here is what does not pass it: the begin
and the end of coalesced operations, and groups of NCCL's own.
"""

from __future__ import annotations

import ctypes
import warnings
from typing import Callable

from weir import _native

_FUNCTIONS = {
    "weir_c10d_enable": (ctypes.c_int32, [ctypes.c_void_p]),
    "weir_c10d_coalescing_begins": (None, [ctypes.c_int64]),
    "weir_c10d_relax": (ctypes.c_int, [ctypes.c_int64]),
    "weir_c10d_restore": (None, [ctypes.c_int]),
    "weir_c10d_enter_nccl_group": (None, []),
    "weir_c10d_leave_nccl_group": (None, []),
}


def install(torch, backend: ctypes.CDLL) -> ctypes.CDLL | None:  # noqa: ANN001
    """Operations of NCCL's groups get fences from now on. Returns the library; None: they don't,
    since WEIR_C10D is 0, PyTorch has no c10d, or, with a warning, the backend was built without."""
    memory = backend.weir_torch_collective_memory()
    if not memory or not torch.distributed.is_available():
        return None
    try:
        _native.declare(backend, _FUNCTIONS)
        _native.check(backend, backend.weir_c10d_enable(memory))
    except (AttributeError, _native.Problem) as problem:  # AttributeError: it lacks a function
        warnings.warn(f"Weir: tensors of torch.distributed's operations are kept as PyTorch keeps them: "
                      f"{problem}. Install Weir again, with {_native.REINSTALL}; or set WEIR_C10D=0 to "
                      "leave them so without this warning.", stacklevel=4)
        return None
    c10d = torch._C._distributed_c10d
    _tell_of_coalescing(c10d.ProcessGroup, backend, torch.ops.weir._coalescing_ends.default)
    if hasattr(c10d, "ProcessGroupNCCL"):
        for begin, end in (("_group_start", "_group_end"),
                           ("_start_time_estimate", "_end_time_estimate")):
            _tell_of_nccl_groups(c10d.ProcessGroupNCCL, begin, end, backend)
    return backend


def _tell_of_coalescing(group_type: type, library: ctypes.CDLL, ended: Callable) -> None:
    @_native.instead_of(group_type, "_start_coalescing")
    def start_coalescing(inner, group, *arguments, **named) -> None:  # noqa: ANN001
        inner(group, *arguments, **named)
        library.weir_c10d_coalescing_begins(group._id())

    @_native.instead_of(group_type, "_end_coalescing")
    def end_coalescing(inner, group, *arguments, **named):  # noqa: ANN001, ANN202
        work, mode = None, library.weir_c10d_relax(group._id())
        try:
            work = inner(group, *arguments, **named)
        finally:
            library.weir_c10d_restore(mode)
            ended(group._id(), None if work is None else work.boxed())
        return work


def _tell_of_nccl_groups(backend_type: type, begin: str, end: str, library: ctypes.CDLL) -> None:
    """Within them operations are not launched, and their ends are no ends."""
    if not (hasattr(backend_type, begin) and hasattr(backend_type, end)):
        return

    @_native.instead_of(backend_type, begin)
    def enter(inner, *arguments, **named):  # noqa: ANN001, ANN202
        result = inner(*arguments, **named)
        library.weir_c10d_enter_nccl_group()
        return result

    @_native.instead_of(backend_type, end)
    def leave(inner, *arguments, **named):  # noqa: ANN001, ANN202
        try:
            return inner(*arguments, **named)
        finally:
            library.weir_c10d_leave_nccl_group()
