# SPDX-License-Identifier: Apache-2.0
"""As much of torch.distributed 2.12 as weir.sleep(communicators=True) sees, for package_test.py: groups, and backends
that refuse what NCCL 2.29.7 refuses. Each call of a backend's is in `calls`."""
import contextlib
import types

calls = []


class Backend:
    """Of NCCL's, with a communicator of so many bytes; None: no operation has made it yet."""

    def __init__(self, name, size, kept=0):
        self._name, self._size, self._kept, self._suspended = name, size, kept, 0
        self.fails = None  # what the next suspend() or resume() says

    def name(self):
        return "nccl"

    def memory_stats(self):
        if self._size is None:
            raise RuntimeError("NCCL communicator not initialized.")
        return {"suspend": self._size, "suspended": self._suspended, "persist": self._kept,
                "total": self._size + self._kept}

    def suspend(self):
        self._change("suspend", 1)

    def resume(self):
        self._change("resume", 0)

    def _change(self, what, state):
        calls.append(f"{what} {self._name}")
        fails, self.fails = self.fails, None
        if fails or self._suspended == state:
            raise RuntimeError(fails or "ncclInvalidUsage")
        self._suspended = state


class OldBackend:
    """Of PyTorch 2.11."""

    def name(self):
        return "nccl"


class OldNccl(Backend):
    """PyTorch 2.12 that has loaded an NCCL before 2.29.7."""

    def memory_stats(self):
        raise RuntimeError("NCCL MemStats failed (requires NCCL 2.29.7+)")


class Gloo(OldBackend):
    def name(self):
        return "gloo"


class Group:
    def __init__(self, backend):
        self._backend = backend

    def _get_backend(self, device):
        if self._backend is None:
            raise RuntimeError(f"No backend type associated with device type {device}")
        return self._backend


def distributed(**backends):
    """A torch.distributed with a group of that name for each."""
    world = types.SimpleNamespace(pg_names={Group(backend): name for name, backend in backends.items()},
                                  pg_coalesce_state={})
    return types.SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True,
                                 distributed_c10d=types.SimpleNamespace(_world=world))


def install(torch, **backends):
    """Puts them into a module `torch`. Returns the world."""
    torch.distributed = distributed(**backends)
    torch.device = type("device", (), {"__init__": lambda self, kind, index: None})
    torch.cuda.device = lambda number: contextlib.nullcontext()
    return torch.distributed.distributed_c10d._world
