# SPDX-License-Identifier: Apache-2.0
"""Names of recordings: processes that share a WEIR_RECORD each need a file of their own."""

from __future__ import annotations

import os

# How launchers tell a process its rank and how many there are: Weir's own, torchrun, Open MPI, Hydra,
# Slurm.
_RANKS = (("WEIR_RANK", "WEIR_WORLD_SIZE"), ("RANK", "WORLD_SIZE"),
          ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
          ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))


def _rank() -> str | None:
    """None: the only one of its job, or of none."""
    ranks = (os.environ.get(rank, "0") for rank, ranks in _RANKS
             if os.environ.get(ranks, "").isdecimal() and int(os.environ[ranks]) > 1)
    return next(ranks, None)


def _with(record: str, suffix: str) -> str:
    root, extension = os.path.splitext(record)
    return f"{root}-{suffix}{extension}"


def of_rank(record: str | None) -> str | None:
    """The processes of a job have one command line."""
    record = record or os.environ.get("WEIR_RECORD")
    rank = _rank()
    return _with(record, f"rank{rank}") if record and rank is not None else record


def of_process(record: str) -> str:
    """For a process that inherited the name."""
    return _with(record, str(os.getpid()))


def of_worker(record: str) -> str:
    """For any process of an environment, its own workers among them."""
    rank = _rank()
    named = rank is not None and os.path.splitext(record)[0].endswith(f"-rank{rank}")
    return of_process(record) if rank is None or named else of_rank(record)
