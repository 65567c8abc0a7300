# SPDX-License-Identifier: Apache-2.0
"""WEIR_ENABLE=1: Weir is on in every Python process of the environment, worker processes too.

weir-enable.pth imports this as Python starts, where WEIR_ENABLE is set. Nothing more happens until
the process imports PyTorch.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import threading
import types
import warnings


class _Loader(importlib.abc.Loader):
    """The loader of `torch`, and Weir turned on behind it."""

    def __init__(self, inner: importlib.abc.Loader) -> None:
        self._inner = inner

    def __getattr__(self, name: str):  # noqa: ANN204
        return getattr(self._inner, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__.loader = module.__loader__ = self._inner
        self._inner.exec_module(module)
        turn_on()


class _BehindTorch(importlib.abc.MetaPathFinder):
    """Programs also look for PyTorch without importing it; it is found in the others' way."""

    def __init__(self) -> None:
        self._asking = threading.local()

    def find_spec(self, name, path=None, target=None):  # noqa: ANN001, ANN201
        if name != "torch" or getattr(self._asking, "others", False):
            return None  # another tool's finder may ask all finders in its turn, this one too
        self._asking.others = True
        try:
            found = (finder.find_spec(name, path, target) for finder in list(sys.meta_path)
                     if finder is not self and hasattr(finder, "find_spec"))
            spec = next((spec for spec in found if spec is not None), None)
        finally:
            self._asking.others = False
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader)
        return spec


def turn_on() -> None:
    """A program must run as it would without Weir: what is wrong is a warning."""
    from weir import _enable, _records

    disarm()
    if record := os.environ.get("WEIR_RECORD"):
        os.environ["WEIR_RECORD"] = _records.of_worker(record)
    try:
        _enable.by_environment()
    except _enable.Problem as problem:
        warnings.warn(f"Weir: WEIR_ENABLE=1, and Weir stays off in this process: {problem}",
                      stacklevel=2)


def arm() -> None:
    """Called by each environment on Python's path that has Weir."""
    value = os.environ.get("WEIR_ENABLE", "")
    if value == "1":
        disarm()
        sys.meta_path.insert(0, _BehindTorch())
    elif value not in ("", "0"):
        warnings.warn(f"Weir stays off: WEIR_ENABLE is {value!r}; it takes 0 or 1", stacklevel=2)


def disarm() -> None:
    """For whoever turns Weir on in another way."""
    sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, _BehindTorch)]
