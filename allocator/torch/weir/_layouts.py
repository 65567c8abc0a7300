# SPDX-License-Identifier: Apache-2.0
"""Whether the ranks of a program have their memory at the same places; and if not, since which call."""

from __future__ import annotations

import collections
import ctypes
import hashlib
import itertools
import os
import pathlib
import pickle
import subprocess
import tempfile

from weir import _command, _in_use, _memory, _native

# Of each pool, by kind and then in the order in which they were made: its number may differ between ranks.
# (name, placements, hash)
_Layout = list

_SOURCE = "the MemPool with an allocator of its own that was opened as number "

_steps = itertools.count(1)
_SECONDS = 60  # for the command, which takes one a million calls


def step() -> None:
    """A step of the program ends: for recordings a mark, "step 1" and so on; and with WEIR_CHECK_LAYOUTS=N,
    once torch.distributed is initialised, each N-th step is a check_layouts()."""
    library = _in_use.active()
    every = os.environ.get("WEIR_CHECK_LAYOUTS", "0").strip() or "0"
    if not every.isdecimal():
        raise _native.Problem(f"WEIR_CHECK_LAYOUTS is {every!r}: a number of steps; 0: never")
    number = next(_steps)
    _native.check(library, library.weir_record_mark(library.weir_torch_allocator(), f"step {number}".encode()))
    if int(every) and number % int(every) == 0:
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            check_layouts()


def check_layouts(group: object = None, device: object = None) -> None:
    """Raises Problem in all ranks of the group (the default one) unless each has placed as many blocks in the
    same places of its device (the current one): weir.layout().

    The error names two ranks that differ and, where they keep a ring (WEIR_RECORD_RING), the first call that
    differs. A collective operation: all ranks call it, at the same place of the program.
    """
    import torch.distributed as dist

    layout = _layout(device)
    if _all_have(_hash_of(layout), group):
        return
    layouts = [_from(rank, layout, group) for rank in range(dist.get_world_size(group))]
    one, other = _two_that_differ(layouts)
    source = _source_that_differs(layouts[one], layouts[other])
    mine = words = None
    if dist.get_rank(group) in (one, other):
        mine = _placements(source, device) if source else _ring(_memory._device(device))
    theirs = _from(one, mine, group)
    if dist.get_rank(group) == other:
        words = (_first_placement if source else _first_difference)({one: theirs, other: mine})
    raise _native.Problem(f"{_summary(one, layouts[one], other, layouts[other])} {_from(other, words, group)}")


def _layout(device: object) -> _Layout:
    pools = _memory.layout(device)
    own = [number for number in sorted(pools) if number >= 0]
    names = {number: f"the graph pool that was opened as number {at} of {len(own) - 1}" if at else "the device's own memory"
             for at, number in enumerate(own)}
    for number in sorted((number for number in pools if number < 0), reverse=True):
        names[number] = f"{_SOURCE}{-number}"
    return [(name, *pools[number]) for number, name in names.items()]


def _source_that_differs(usual: _Layout, odd: _Layout) -> int:
    """The number of the MemPool with an allocator of its own that is the first to differ; 0: something else is."""
    if len(usual) != len(odd):
        return 0
    ours, theirs = next((pair for pair in zip(usual, odd) if pair[0] != pair[1]), (("",), ("",)))
    return int(ours[0].removeprefix(_SOURCE)) if ours[0] == theirs[0] and ours[0].startswith(_SOURCE) else 0


def _placements(source: int, device: object) -> tuple[int, list[tuple[int, ...]]]:
    """How many blocks that MemPool placed; and of the latest bytes, segment and offset."""
    library, number = _in_use.active(), _memory._device(device)
    flat = _memory.numbers_of(library, ctypes.c_uint64,
                              lambda *rest: library.weir_torch_source_placements(number, source, *rest))
    placed, _ = _memory.layout(device).get(-source, (0, 0))  # another thread may close it
    return placed, list(zip(flat[0::3], flat[1::3], flat[2::3]))


def _first_placement(of_ranks: dict[int, tuple[int, list[tuple[int, ...]]]]) -> str:
    """In words, of two ranks' placements in one MemPool with an allocator of its own."""
    placed = {rank: dict(enumerate(latest, total - len(latest))) for rank, (total, latest) in of_ranks.items()}
    known = range(max(min(each, default=0) for each in placed.values()), max(total for total, _ in of_ranks.values()))
    at = next((at for at in known if len({each.get(at) for each in placed.values()}) > 1), None)
    if at is None:
        return "What differs is older than the latest blocks that are known."
    said = []
    for rank, each in placed.items():
        asked, segment, offset = each.get(at, (0, 0, 0))
        said.append(f"rank {rank} has {asked:,} bytes at {offset:,} in segment {segment}" if at in each
                    else f"rank {rank} has none")
    return f"The first block of it that differs is number {at + 1}: {', '.join(said)}."


def _hash_of(layout: _Layout) -> int:
    digest = hashlib.blake2b(repr(layout).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _all_have(value: int, group: object) -> bool:
    """Whether `value` is the same in all ranks; the answer is."""
    import torch
    import torch.distributed as dist

    both = torch.tensor([value, ~value], dtype=torch.int64, device=_place(group))
    dist.all_reduce(both, op=dist.ReduceOp.MIN, group=group)
    least, inverse_of_most = both.tolist()
    return least == ~inverse_of_most


def _place(group: object) -> str:
    """Where the group takes tensors."""
    import torch.distributed as dist

    return "cpu" if "cpu:" in dist.get_backend_config(group) else "cuda"


# (PyTorch's own collectives of objects need NumPy.)
def _from(rank: int, value: object, group: object) -> object:
    """What `value` is in that rank of the group."""
    import torch
    import torch.distributed as dist

    source = rank if group is None else dist.get_global_rank(group, rank)
    data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8).to(_place(group))
    size = torch.tensor([data.numel()], dtype=torch.int64, device=data.device)
    dist.broadcast(size, source, group)
    if dist.get_rank(group) != rank:
        data = torch.empty(int(size), dtype=torch.uint8, device=data.device)
    dist.broadcast(data, source, group)
    data = data.cpu()
    return pickle.loads(ctypes.string_at(data.data_ptr(), data.numel()))


def _two_that_differ(layouts: list[_Layout]) -> tuple[int, int]:
    """The first rank with what most have, and the first with something else."""
    all_of = [tuple(map(tuple, layout)) for layout in layouts]
    usual = collections.Counter(all_of).most_common(1)[0][0]
    return all_of.index(usual), next(rank for rank, each in enumerate(all_of) if each != usual)


def _summary(one: int, usual: _Layout, other: int, odd: _Layout) -> str:
    differs = f"Rank {other} has memory at other places than rank {one}"
    if not usual or not odd:
        return f"{differs}: rank {one if usual == [] else other} has not used the device."
    if len(usual) != len(odd):
        return f"{differs}: {len(odd)} pools, not {len(usual)}."
    (pool, ours, _), (other_pool, theirs, _) = next(pair for pair in zip(usual, odd) if pair[0] != pair[1])
    if pool != other_pool:
        return f"{differs}: it has {other_pool} where rank {one} has {pool}."
    if ours == theirs:
        return f"{differs}: in {pool} both placed as many blocks ({ours:,}), but some elsewhere or of other sizes."
    return f"{differs}: in {pool} rank {other} placed {theirs:,} blocks, rank {one} {ours:,}."


def _ring(device: int) -> bytes | str:
    """A recording of this rank's latest calls; or why there is none."""
    library = _in_use.active()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "ring.weir")
        if library.weir_record_write(library.weir_torch_allocator(), os.fsencode(path)) != 0:
            return library.weir_last_error().decode(errors="replace")
        path = path if device == 0 else path.with_name(f"ring.{device}.weir")
        return path.read_bytes() if path.exists() else f"nothing was recorded of device {device}"


def _first_difference(rings: dict[int, bytes | str]) -> str:
    """In words, of two ranks' rings."""
    for rank, ring in rings.items():
        if isinstance(ring, str):
            return ("To have the first call that differs named, set WEIR_RECORD_RING=16MiB in all ranks "
                    f"(rank {rank}: {ring}).")
    with tempfile.TemporaryDirectory() as folder:
        names = [f"rank {rank}" for rank in rings]
        for name, ring in zip(names, rings.values()):
            pathlib.Path(folder, name).write_bytes(ring)
        try:
            done = subprocess.run([_command.PROGRAM, "diff", "--calls", *names], capture_output=True, text=True,
                                  errors="replace", cwd=folder, timeout=_SECONDS, check=False)
        except FileNotFoundError:
            return ("To have the first call that differs named, install Weir with its command "
                    "(--config-settings=cmake.define.WEIR_TOOLS=ON).")
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"The first call that differs is not known: {error}."
    words = done.stdout.split("\n\n", 1)[-1].strip()
    if not words:
        return f"The first call that differs is not known: {done.stderr.strip()}"
    if "differs (" not in words and words.startswith("The same"):
        return "Their rings have the same calls: the first difference is older (a larger WEIR_RECORD_RING has it)."
    return words
