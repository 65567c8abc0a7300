# SPDX-License-Identifier: Apache-2.0
"""The interface of torch_memory_saver, over weir.sleep() and weir.wake().

    import weir, weir.torch_memory_saver
    weir.enable()
    weir.torch_memory_saver.install()      # `import torch_memory_saver` is this module from now on

Of that project's interface: `torch_memory_saver.region()`, `cuda_graph()`, `pause()`, `resume()`,
`get_cpu_backup()`, `disable()`, `retain_cpu_backup` and `configure_subprocess()`. `hook_mode` and
`memory_margin_bytes` are taken and mean nothing. What is allocated outside a region sleeps by
pause() where TMS_INIT_ENABLE=1; else weir.sleep() is for that.

Its variables, which are read when the first of them is needed, at the latest by the first region:

    TMS_INIT_ENABLE=1              what is allocated outside regions is of the tag "default", too
    TMS_INIT_ENABLE_CPU_BACKUP=1   ... and its bytes come back, by way of host memory
    TMS_RETAIN_CPU_BACKUP=1        pinned memory is kept from one cycle to the next
    TMS_HOOK_MODE, TMS_DISK_BACKUP_DIR, TMS_DISK_BACKUP_CHUNK_MB  mean nothing here

Another TMS_* variable is refused by its name, and so is a value that is none. A backup on disk
(TMS_INIT_ENABLE_DISK_BACKUP=1, enable_disk_backup) is refused: Weir's are in host memory.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Iterator

from weir import _in_use, _memory, _native, _sleep

_DEFAULT = "default"
_PREFIX = "memory_saver:"          # of the tags of Weir's that regions become
_BACKUP, _DISCARD = ":backup", ":discard"
_KEEP_ALL = (1 << 64) - 1
_MEANT = {"TMS_INIT_ENABLE", "TMS_INIT_ENABLE_CPU_BACKUP", "TMS_INIT_ENABLE_DISK_BACKUP",
          "TMS_RETAIN_CPU_BACKUP"}
_MEANINGLESS = {"TMS_HOOK_MODE", "TMS_DISK_BACKUP_DIR", "TMS_DISK_BACKUP_CHUNK_MB"}
_NEVER = "memory_saver, disabled"  # of what is allocated within disable()


def _is_on(name: str) -> bool:
    value = os.environ.get(name, "").strip().lower()
    if value in ("1", "true", "yes", "on"):
        return True
    if value in ("", "0", "false", "no", "off"):
        return False
    raise _native.Problem(f"{name}={os.environ[name]}: it is 1 or 0")


class _Variables:
    """What the environment's TMS_* variables ask for."""

    def __init__(self) -> None:
        unknown = sorted(name for name in os.environ
                         if name.startswith("TMS_") and name not in _MEANT | _MEANINGLESS)
        if unknown:
            raise _native.Problem(f"{', '.join(unknown)}: weir.torch_memory_saver knows no such "
                                  "variable; unset what is not for it")
        self.takes_all = _is_on("TMS_INIT_ENABLE")
        self.retains = _is_on("TMS_RETAIN_CPU_BACKUP")
        if _is_on("TMS_INIT_ENABLE_DISK_BACKUP"):
            raise _native.Problem("TMS_INIT_ENABLE_DISK_BACKUP=1: Weir's backups are in host "
                                  "memory; set TMS_INIT_ENABLE_CPU_BACKUP=1 instead")
        # Of what is allocated outside regions.
        self.contents = "backup" if _is_on("TMS_INIT_ENABLE_CPU_BACKUP") else "discard"


class TorchMemorySaver:
    """As torch_memory_saver's; all of one process share one."""

    enabled = True
    hook_mode = "torch"
    memory_margin_bytes = 0

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By tag and device: Weir's tags.
        self._known: dict[tuple[str, int], set[str]] = {}
        self._read: _Variables | None = None
        self._retains: bool | None = None

    @property
    def _variables(self) -> _Variables:
        if self._read is None:
            self._read = _Variables()
        return self._read

    @property
    def retain_cpu_backup(self) -> bool:
        """Is pinned memory kept by resume() for the next pause()?"""
        return self._variables.retains if self._retains is None else self._retains

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, value: bool) -> None:
        self._retains = bool(value)

    def _tag_of(self, tag: str, backup: bool) -> tuple[str, str]:
        _ = self._variables  # what is wrong there is said now
        name = _PREFIX + tag + (_BACKUP if backup else _DISCARD)
        with self._lock:
            self._known.setdefault((tag, _memory._device(None)), set()).add(name)
        return name, "backup" if backup else "discard"

    @contextlib.contextmanager
    def region(self, tag: str = _DEFAULT, enable_cpu_backup: bool = False,
               enable_disk_backup: bool = False,
               disk_backup_dir: str | os.PathLike[str] | None = None) -> Iterator[None]:
        """What this thread allocates meanwhile is of `tag`. With enable_cpu_backup its bytes come
        back; else they are whatever the new memory holds."""
        if enable_disk_backup:
            raise ValueError("region: enable_disk_backup: Weir's backups are in host memory; pass "
                             "enable_cpu_backup=True instead")
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

    def _sleepers(self, tag: str | None) -> dict[int, list[str]]:
        """By device: Weir's tags."""
        found: dict[int, list[str]] = {}
        with self._lock:
            for (each, device), names in self._known.items():
                if tag in (None, each):
                    found.setdefault(device, []).extend(sorted(names))
        return found

    def _outside(self, tag: str | None) -> bool:
        """Is what is allocated outside regions concerned?"""
        return self._variables.takes_all and tag in (None, _DEFAULT)

    def pause(self, tag: str | None = None) -> None:
        """The memory of a tag's regions (of all regions) goes back to the driver."""
        for device, names in self._sleepers(tag).items():
            _sleep.sleep(names, device=device)
        if self._outside(tag):
            _sleep.sleep(_DEFAULT, contents=self._variables.contents)

    def resume(self, tag: str | None = None) -> None:
        """... and is had again."""
        keep = _KEEP_ALL if self.retain_cpu_backup else 0
        if self._outside(tag):
            _sleep.wake(_DEFAULT, keep_host=keep)
        for device, names in self._sleepers(tag).items():
            _sleep.wake(names, keep_host=keep, device=device)

    def get_cpu_backup(self, tensor: object) -> object:
        """A tensor on the host with the bytes of a contiguous one whose memory is paused, and has a
        backup. Unlike torch_memory_saver's it is a copy of the backup."""
        import torch

        if not tensor.is_contiguous():
            raise ValueError("get_cpu_backup: the tensor is not contiguous")
        library = _in_use.active()
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
    """`import torch_memory_saver` is this module from now on. Raises Problem: a TMS_* variable that
    is not known, or whose value is none."""
    _ = torch_memory_saver._variables
    sys.modules["torch_memory_saver"] = sys.modules[__name__]
