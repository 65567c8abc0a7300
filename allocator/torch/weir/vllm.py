# SPDX-License-Identifier: Apache-2.0
"""vLLM's sleep mode by weir.sleep() and weir.wake().

vLLM loads register() by itself (an entry point of "vllm.general_plugins") and then knows the
sleep-mode backend "weir". Where Weir is on (WEIR_ENABLE=1), the pools of vLLM's weights and cache
are tags of Weir's. With `sleep_mode_backend="weir"` the rest sleeps as well: graphs, workspaces,
static buffers.

Written against the interface of vLLM 0.33 (vllm.device_allocator: MemAllocator, SleepModeBackend,
SleepModeBackendFactory). tests/torch/engines_test.py runs vLLM's own files of it; not run in a server.
"""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType
from typing import Iterable, Iterator

from weir import _in_use, _sleep

_PREFIX = "vllm:"  # of the tags of Weir's that vLLM's become
_DEFAULT = "default"
_WEIGHTS, _CACHE = "weights", "kv_cache"  # the tags that a wake may leave asleep
_GRAPHS = "cudagraph"
NAME = "weir"  # of the sleep-mode backend


def _ours(device: object = None) -> dict[str, dict[str, str | int]]:
    """vLLM's tags, by their names there."""
    return {name[len(_PREFIX):]: info for name, info in _sleep.tags(device).items()
            if name.startswith(_PREFIX)}


def _several(tags: Iterable[str] | str | None) -> tuple[str, ...]:
    if tags is None:
        return ()
    return (tags,) if isinstance(tags, str) else tuple(tags)


class MemAllocator:
    """As vLLM's protocol of that name: memory of tags that sleeps. Of the current device."""

    def __init__(self) -> None:
        self._graph_pool: tuple[int, int] | None = None

    @contextlib.contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        """What this thread allocates meanwhile is of the tag."""
        with _sleep.tag(_PREFIX + (tag or _DEFAULT), threads="own"):
            yield

    @contextlib.contextmanager
    def cudagraph_pool(self) -> Iterator[tuple[int, int]]:
        """The pool for the graphs that this thread captures meanwhile, always the same one: its
        memory is of the tag "cudagraph"."""
        import torch

        if self._graph_pool is None:
            self._graph_pool = torch.cuda.graph_pool_handle()
        with _sleep.tag(_PREFIX + _GRAPHS, threads="own", graphs=True):
            yield self._graph_pool

    def sleep(self, offload_tags: Iterable[str] | str | None = None) -> None:
        """All tags sleep: these with their bytes, the others without."""
        offloaded = (_DEFAULT,) if offload_tags is None else _several(offload_tags)
        known = _ours()
        for contents, names in (("discard", [tag for tag in known if tag not in offloaded]),
                                ("backup", [tag for tag in known if tag in offloaded])):
            awake = [tag for tag in names if known[tag]["state"] != "asleep"]
            if awake:
                _sleep.sleep([_PREFIX + tag for tag in awake], contents=contents)

    def discard(self, tags: Iterable[str] | str) -> None:
        """These tags sleep, without their bytes."""
        known = _ours()
        names = [_PREFIX + tag for tag in _several(tags) if tag in known]
        if names:
            _sleep.sleep(names, contents="discard")

    def wake_up(self, tags: Iterable[str] | None = None) -> None:
        """These tags (all) wake, and with them all but the weights and the cache: vLLM names only
        those two, and needs the others whenever it runs."""
        names = [_PREFIX + tag for tag in _ours()
                 if tags is None or tag in tags or tag not in (_WEIGHTS, _CACHE)]
        if names:
            _sleep.wake(names)

    def get_current_usage(self) -> int:
        """Bytes of all tags, asleep or not."""
        return sum(info["device_bytes"] + info["asleep_bytes"] for info in _ours().values())


_allocator = MemAllocator()


def _make_backend() -> type:
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackend

    class WeirSleepModeBackend(SleepModeBackend):
        """All memory of Weir's on the device: weights with their bytes at level 1, the cache
        without, everything else with."""

        def suspend(self, level: int = 1) -> None:
            self._state = "SUSPENDED"
            dropped = (_CACHE,) if level == 1 else (_WEIGHTS, _CACHE)
            _allocator.sleep([tag for tag in _ours() if tag not in dropped])
            _sleep.sleep("default")

        def resume(self, tags: list[str] | None = None) -> None:
            """What is in no pool of vLLM's wakes first, whichever tags are named: whatever runs
            then needs it."""
            self._state = "RESUMING"
            _sleep.wake("default")
            _allocator.wake_up(tags)
            self._state = "RUNNING"

        def discard(self, tags: tuple[str, ...]) -> None:
            _allocator.discard(tags)
            self._state = "SUSPENDED"

        @classmethod
        def is_supported(cls) -> bool:
            return _in_use.enabled() is not None

        @classmethod
        def preserves_communicators(cls) -> bool:
            return True  # NCCL's own memory stays

        @classmethod
        def preserves_compiled_artifacts(cls) -> bool:
            return True

        @classmethod
        def preserves_graphs_with_communicators(cls) -> bool:
            return True  # neither moves

    return WeirSleepModeBackend


def __getattr__(name: str) -> object:
    """The backend's class, made when vLLM asks for it: only then is vLLM needed."""
    if name != "WeirSleepModeBackend":
        raise AttributeError(name)
    globals()[name] = made = _make_backend()
    return made


def _modules_with(name: str) -> list[ModuleType]:
    """The modules of vLLM's that have imported this function. (Not by hasattr(): a module may
    import others when it is asked for a name.)"""
    return [module for path, module in list(sys.modules.items())
            if path.startswith("vllm.") and name in getattr(module, "__dict__", {})]


def register() -> None:
    """vLLM knows the backend "weir"; and where Weir is on, its pools are tags of Weir's."""
    import vllm.device_allocator  # noqa: F401
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory

    with contextlib.suppress(ValueError):  # it is called in every process, at times twice
        SleepModeBackendFactory.register_backend(NAME, __name__, "WeirSleepModeBackend")
    if _in_use.enabled() is None:
        return
    for module in _modules_with("get_mem_allocator_instance"):
        module.get_mem_allocator_instance = lambda: _allocator
