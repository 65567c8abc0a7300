# SPDX-License-Identifier: Apache-2.0
"""NCCL's own memory in torch.distributed's groups: sleep(communicators=True) gives it back, wake() gets it again.

PyTorch has suspend(), resume() and memory_stats() of a group's backend since 2.12, NCCL since 2.29.7. NCCL waits in
suspend() and resume() for every rank of the group. Each rank takes its groups in the order of their names, which all
ranks of a group give it alike: so ranks that have several groups in common meet in one after the other.
"""

from __future__ import annotations

from typing import Callable, Iterator

from weir._native import Problem

_suspended: dict[int, set[str]] = {}  # by device: the groups that sleep() suspended, by name


def _groups(device: int) -> Iterator[tuple[str, object, dict[str, int]]]:
    """The groups that have a communicator of NCCL's on this device: name, backend, memory_stats()."""
    import torch

    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return
    world = torch.distributed.distributed_c10d._world
    for group, name in sorted(world.pg_names.items(), key=lambda item: item[1]):
        try:
            backend = group._get_backend(torch.device("cuda", device))
        except RuntimeError:  # the group has none for GPUs
            continue
        if "nccl" not in backend.name():
            continue
        if not hasattr(backend, "suspend"):
            raise Problem(f"communicators=True: PyTorch {torch.__version__} can't suspend NCCL's groups; 2.12 and "
                          "later can, with NCCL 2.29.7 or later. Leave it out; or destroy the groups before "
                          "sleep() and make them again after wake()")
        # Without an operation so far it has no communicator; asked for its memory, ProcessGroupNCCL warns of more.
        if not getattr(backend, "_is_initialized", lambda: True)():
            continue
        try:
            with torch.cuda.device(device):
                stats = backend.memory_stats()
        except RuntimeError as error:
            if "not initialized" in str(error):  # ProcessGroupNCCL2, which can't be asked
                continue
            raise Problem(f"communicators=True: NCCL can't suspend group {name!r}: {error}. It needs NCCL 2.29.7 or "
                          "later. Leave it out; or destroy the groups before sleep()") from None
        yield name, backend, stats


def suspendable(device: int) -> list[tuple[str, object, dict[str, int]]]:
    """The groups that suspend() would suspend. Changes nothing. Raises Problem where it could not suspend them."""
    import torch

    found = list(_groups(device))
    if found and torch.distributed.distributed_c10d._world.pg_coalesce_state:
        raise Problem("communicators=True: operations of torch.distributed are in flight: sleep() was called among "
                      "operations that are coalesced, before PyTorch has launched them. Call it after their block")
    return [each for each in found if not each[2]["suspended"]]


def suspend(device: int, groups: list[tuple[str, object, dict[str, int]]]) -> int:
    """Returns how many bytes these groups gave back. No work of the device may be under way."""
    given = 0
    for name, backend, stats in groups:
        _tell(device, name, backend.suspend, " (Weir's memory and the groups before it sleep already: wake() wakes them)")
        _suspended.setdefault(device, set()).add(name)
        given += stats["suspend"]
    return given


def resume(device: int) -> int:
    """The groups that suspend() suspended may be used again. Returns how many bytes they took."""
    taken = 0
    if names := _suspended.get(device):
        for name, backend, stats in list(_groups(device)):
            if name in names and stats["suspended"]:
                _tell(device, name, backend.resume, " (call wake() again, in every rank)")
                taken += stats["suspend"]
        del _suspended[device]  # with groups that were destroyed meanwhile
    return taken


def _tell(device: int, name: str, what: Callable[[], None], then: str) -> None:
    import torch

    try:
        with torch.cuda.device(device):
            what()
    except RuntimeError as error:
        raise Problem(f"NCCL can't {what.__name__} group {name!r}: {error}{then}") from None
