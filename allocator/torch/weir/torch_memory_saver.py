# SPDX-License-Identifier: Apache-2.0
"""The interface of torch_memory_saver, over weir.sleep() and weir.wake().

    import weir, weir.torch_memory_saver
    weir.enable()
    weir.torch_memory_saver.install()      # `import torch_memory_saver` is this module from now on

Of that project's interface: `torch_memory_saver.region()`, `cuda_graph()`, `pause()`, `resume()`,
`get_cpu_backup()`, `disable()`, and `configure_subprocess()`. `hook_mode` and `memory_margin_bytes`
are taken and mean nothing. Not there: backups on disk, and its TMS_* variables. What is allocated
outside a region never sleeps by pause(); weir.sleep() is for that.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Iterator

from weir import _enable, _memory, _native, _sleep

_DEFAULT = "default"
_PREFIX = "memory_saver:"          # of the tags of Weir's that regions become
_BACKUP, _DISCARD = ":backup", ":discard"
_NEVER = "memory_saver, disabled"  # of what is allocated within disable()


class TorchMemorySaver:
    """As torch_memory_saver's; all of one process share one."""

    enabled = True
    hook_mode = "torch"
    memory_margin_bytes = 0

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, int], set[str]] = {}  # by tag and device: Weir's tags

    def _tag_of(self, tag: str, backup: bool) -> tuple[str, str]:
        name = _PREFIX + tag + (_BACKUP if backup else _DISCARD)
        with self._lock:
            self._known.setdefault((tag, _memory._device(None)), set()).add(name)
        return name, "backup" if backup else "discard"

    @contextlib.contextmanager
    def region(self, tag: str = _DEFAULT, enable_cpu_backup: bool = False) -> Iterator[None]:
        """What this thread allocates meanwhile is of `tag`. With enable_cpu_backup its bytes come
        back; else they are whatever the new memory holds."""
        name, contents = self._tag_of(tag, enable_cpu_backup)
        with _sleep.tag(name, contents, threads="own"):
            yield

    @contextlib.contextmanager
    def cuda_graph(self, cuda_graph: object, pool: object = None, stream: object = None,
                   capture_error_mode: str = "global", tag: str = _DEFAULT,
                   enable_cpu_backup: bool = False) -> Iterator[None]:
        """As torch.cuda.graph(); the memory of its pool, if the pool is first used here, is of
        `tag`."""
        import torch

        name, contents = self._tag_of(tag, enable_cpu_backup)
        with _sleep.tag(name, contents, threads="own", graphs=True), \
                torch.cuda.graph(cuda_graph, pool=pool, stream=stream,
                                 capture_error_mode=capture_error_mode):
            yield

    @contextlib.contextmanager
    def disable(self) -> Iterator[None]:
        """What this thread allocates meanwhile stays whatever is paused, in a region or not."""
        with _sleep.tag(_NEVER, threads="own"):
            yield

    def _names(self, tag: str | None) -> dict[int, list[str]]:
        with self._lock:
            found: dict[int, list[str]] = {}
            for (each, device), names in self._known.items():
                if tag in (None, each):
                    found.setdefault(device, []).extend(sorted(names))
        return found

    def pause(self, tag: str | None = None) -> None:
        """The memory of a tag's regions (of all regions) goes back to the driver."""
        for device, names in self._names(tag).items():
            _sleep.sleep(names, device=device)

    def resume(self, tag: str | None = None) -> None:
        """... and is had again."""
        for device, names in self._names(tag).items():
            _sleep.wake(names, device=device)

    def get_cpu_backup(self, tensor: object) -> object:
        """A tensor on the host with the bytes of a contiguous one whose memory is paused, and has a
        backup. Unlike torch_memory_saver's it is a copy of the backup."""
        import torch

        if not tensor.is_contiguous():
            raise ValueError("get_cpu_backup: the tensor is not contiguous")
        library = _enable.active()
        found = torch.empty(tensor.shape, dtype=tensor.dtype)
        _native.check(library, library.weir_read_asleep(
            library.weir_torch_allocator(), tensor.device.index, tensor.data_ptr(), found.nbytes,
            found.data_ptr()))
        return found


torch_memory_saver = TorchMemorySaver()


@contextlib.contextmanager
def configure_subprocess() -> Iterator[None]:
    """Processes that are started meanwhile have Weir enabled, where WEIR_ENABLE=1 is heeded
    (docs/pytorch.md)."""
    before = os.environ.get("WEIR_ENABLE")
    os.environ["WEIR_ENABLE"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["WEIR_ENABLE"]
        else:
            os.environ["WEIR_ENABLE"] = before


def install() -> None:
    """`import torch_memory_saver` is this module from now on."""
    sys.modules["torch_memory_saver"] = sys.modules[__name__]
