# SPDX-License-Identifier: Apache-2.0
"""The interface of torch_memory_saver 0.0.10, over weir.sleep() and weir.wake().

    import weir, weir.torch_memory_saver
    weir.enable()
    weir.torch_memory_saver.install()      # `import torch_memory_saver` is this module from now on

SGLang calls register() in each of its processes (an entry point of "sglang.srt.plugins"), which
installs it where Weir is on (WEIR_ENABLE=1).

Of that project's interface: `torch_memory_saver.region()`, `cuda_graph()`, `pause()`, `resume()`,
`get_cpu_backup()`, `disable()`, `retain_cpu_backup` and `configure_subprocess()`. `hook_mode`,
`memory_margin_bytes`, `set_disk_backup_dir()` and `cpu_backup_backend` are taken and mean nothing.
What is allocated outside a region sleeps by pause() where TMS_INIT_ENABLE=1; else weir.sleep() is
for that.

Its variables, which are read when the first of them is needed, at the latest by the first region:

    TMS_INIT_ENABLE=1              what is allocated outside regions is of the tag "default", too
    TMS_INIT_ENABLE_CPU_BACKUP=1   ... and its bytes come back, by way of host memory
    TMS_RETAIN_CPU_BACKUP=1        pinned memory is kept from one cycle to the next
    TMS_HOOK_MODE, TMS_INIT_CPU_BACKUP_BACKEND, TMS_DISK_BACKUP_DIR, TMS_DISK_BACKUP_CHUNK_MB  mean
                                   nothing here

Another TMS_* variable is refused by its name, and so is a value that is none. A backup on disk
(TMS_INIT_ENABLE_DISK_BACKUP=1, enable_disk_backup) is refused: Weir's are in host memory.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
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
_MEANINGLESS = {"TMS_HOOK_MODE", "TMS_INIT_CPU_BACKUP_BACKEND", "TMS_DISK_BACKUP_DIR",
                "TMS_DISK_BACKUP_CHUNK_MB"}
_NEVER = "memory_saver, disabled"  # of what is allocated within disable()
_NO_BACKUP = 2                     # WEIR_INVALID_ARGUMENT, of weir_read_asleep()


def _check_backend(enable_cpu_backup: bool, name: str | None) -> None:
    """Weir's backups are pinned while the tag sleeps, and gone afterwards, whichever is asked for."""
    if name not in (None, "pinned", "mmap"):
        raise ValueError(f'cpu_backup_backend={name!r}: it is "pinned" or "mmap"')
    if name is not None and not enable_cpu_backup:
        raise ValueError("cpu_backup_backend requires enable_cpu_backup=True")


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
               cpu_backup_backend: str | None = None) -> Iterator[None]:
        """What this thread allocates meanwhile is of `tag`. With enable_cpu_backup its bytes come
        back; else they are whatever the new memory holds."""
        if enable_disk_backup:
            raise ValueError("region: enable_disk_backup: Weir's backups are in host memory; pass "
                             "enable_cpu_backup=True instead")
        _check_backend(enable_cpu_backup, cpu_backup_backend)
        name, contents = self._tag_of(tag, enable_cpu_backup)
        with _sleep.tag(name, contents, threads="own"):
            yield

    @contextlib.contextmanager
    def cuda_graph(self, cuda_graph: object, pool: object = None, stream: object = None,
                   capture_error_mode: str = "global", tag: str = _DEFAULT,
                   enable_cpu_backup: bool = False,
                   cpu_backup_backend: str | None = None) -> Iterator[None]:
        """As torch.cuda.graph(); the memory of its pool, if the pool is first used here, is of
        `tag`."""
        import torch

        _check_backend(enable_cpu_backup, cpu_backup_backend)
        name, contents = self._tag_of(tag, enable_cpu_backup)
        with _sleep.tag(name, contents, threads="own", graphs=True), \
                torch.cuda.graph(cuda_graph, pool=pool, stream=stream,
                                 capture_error_mode=capture_error_mode):
            yield

    @contextlib.contextmanager
    def disable(self) -> Iterator[None]:
        """What this thread allocates meanwhile stays whatever is paused, in a region or not. What it
        has freed by the end goes back to the driver, with all that is idle."""
        try:
            with _sleep.tag(_NEVER, threads="own"):
                yield
        finally:
            _memory.trim()

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

    def get_cpu_backup(self, x: object, zero_copy: bool = False) -> object:
        """A tensor on the host with the bytes of a contiguous one whose memory is paused; None where
        there is no backup of it. Always a copy of the backup, also with zero_copy."""
        import torch

        if not x.is_contiguous():
            raise ValueError("get_cpu_backup: the tensor is not contiguous")
        library = _in_use.active()
        found = torch.empty(x.shape, dtype=x.dtype)
        status = library.weir_read_asleep(library.weir_torch_allocator(), x.device.index,
                                          x.data_ptr(), found.nbytes, found.data_ptr())
        if status == _NO_BACKUP:
            return None
        _native.check(library, status)
        return found

    def set_disk_backup_dir(self, path: str) -> None:
        """As TMS_DISK_BACKUP_DIR."""


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
    """`import torch_memory_saver` is this module from now on, in modules too that have imported the
    other already. Raises Problem: a TMS_* variable that is not known, or whose value is none; or the
    other has regions already."""
    _ = torch_memory_saver._variables
    ours, theirs = sys.modules[__name__], sys.modules.get("torch_memory_saver")
    if theirs is ours:
        return
    saver = getattr(theirs, "torch_memory_saver", None)
    if getattr(saver, "_impl", None) is not None:
        raise _native.Problem("torch_memory_saver is in use in this process: call "
                              "weir.torch_memory_saver.install() before its first region")
    # Its other modules (testing_utils) are had as before, where it is installed.
    spec = getattr(theirs, "__spec__", None) or importlib.machinery.PathFinder.find_spec("torch_memory_saver")
    ours.__path__ = list(spec.submodule_search_locations or ()) if spec else []
    sys.modules["torch_memory_saver"] = ours
    for module in list(sys.modules.values()) if saver is not None else ():
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if value is theirs or value is saver:
                setattr(module, name, ours if value is theirs else torch_memory_saver)


def register() -> None:
    """For SGLang's plugins."""
    if _in_use.enabled() is not None:
        install()
